"""Who gets in with a key, and what strangers see."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import scannery
from scannery.client.request.calls import search
from scannery.serving import ConfigError, EncoderConfig, SecurityConfig, Server, ServerConfig
from scannery.serving.config import VertexConfig
from scannery.serving.security import KeyFile
from scannery.serving.security.authentication import Authenticator
from scannery.v1 import index_pb2, index_pb2_grpc, search_pb2, search_pb2_grpc
from tests.served import DIMENSIONS, serving
from tests.serving.security.test_tls import Authority, secure

VECTOR = np.random.default_rng(0).normal(size=DIMENSIONS).astype(np.float32)
UNKNOWN = grpc.StatusCode.UNAUTHENTICATED


# Keys


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture(scope="module")
def guarded(
    library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server that asks for keys, and keys by what they are for."""
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys.json")
    texts = {
        "reader": file.create("reader")[1],
        "writer": file.create("writer", scopes=["write"])[1],
        "flat": file.create("flat", scopes=["read", "write"], indexes=["flat", "ghost"], days=1)[1],
    }
    with serving(library, security=SecurityConfig(keys_file=str(file.path))) as server:
        yield server, texts


def test_a_file_of_keys_holds_no_secret_and_is_for_its_owner(keys: KeyFile) -> None:
    key, text = keys.create("web", scopes=["read", "write"], indexes=["library"], days=3)
    secret = text.split("_", 2)[2]
    assert len(text) == 4 + 12 + 1 + 43
    assert secret not in keys.path.read_text()
    assert keys.path.stat().st_mode & 0o777 == 0o600
    [read] = keys.read()
    assert read == key
    assert (read.scopes, read.indexes) == (("read", "write"), ("library",))


def test_keys_expire_and_are_revoked_while_the_server_runs(keys: KeyFile) -> None:
    now = [time.time()]
    _, text = keys.create("a", days=1)
    authenticator = Authenticator(
        SecurityConfig(keys_file=str(keys.path)), clock=lambda: now[0], ticks=lambda: now[0]
    )

    def known(text: str) -> bool:
        return authenticator.principal((("authorization", f"Bearer {text}"),)) is not None

    assert known(text)
    now[0] += 86401
    assert not known(text)
    _, other = keys.create("b")
    now[0] += 2
    assert known(other)
    keys.path.write_text("no keys")  # damaged: what was good stays in force
    now[0] += 2
    assert known(other)
    keys.path.write_text(json.dumps({"keys": []}))
    now[0] += 2
    assert not known(other)


@pytest.mark.parametrize(
    "header",
    [
        "Bearer scn_000000000000_" + "A" * 43,
        "Bearer scn_",
        "Bearer ",
        "Basic QTpC",
        "scn_000000000000_" + "A" * 43,
        "Bearer a.b.c",
        "Bearer \x00",
    ],
)
def test_what_is_no_key_is_nobody(keys: KeyFile, header: str) -> None:
    _, text = keys.create("a")
    authenticator = Authenticator(SecurityConfig(keys_file=str(keys.path)))
    assert authenticator.principal((("authorization", header),)) is None
    assert authenticator.principal(()) is None
    assert authenticator.principal(None) is None
    good = ("authorization", f"Bearer {text}")
    assert authenticator.principal((good,)) is not None
    assert authenticator.principal((good, good)) is None
    assert authenticator.principal((("authorization", f"Bearer {text[:-1]}"),)) is None


def every_method() -> list[str]:
    modules = (search_pb2, index_pb2)
    services = [s for module in modules for s in module.DESCRIPTOR.services_by_name.values()]
    return [f"/{service.full_name}/{method.name}" for service in services for method in service.methods] + [
        "/scannery.v1.SearchService/Nothing",
        "/no.Service/At",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.health.v1.Health/Watch",
        "/grpc.health.v1.Health/List",
    ]


@pytest.mark.system
def test_strangers_learn_nothing(guarded: tuple[Server, dict[str, str]]) -> None:
    server, _ = guarded
    answers = set()
    with grpc.insecure_channel(server.address) as channel:
        untyped: Any = channel
        for path in every_method():
            for call in (untyped.unary_unary(path), untyped.stream_stream(path)):
                argument = (
                    iter([b"\xff"]) if call is not None and "Stream" in type(call).__name__ else b"\xff"
                )
                with pytest.raises(grpc.RpcError) as caught:
                    response = call(argument, timeout=60)
                    list(response)
                metadata: Any = caught.value.trailing_metadata()
                answers.add((caught.value.code(), caught.value.details(), str(sorted(metadata))))
    assert len(answers) == 1
    assert next(iter(answers))[0] is UNKNOWN


@pytest.mark.system
def test_strangers_may_probe_the_server_but_no_index(
    guarded: tuple[Server, dict[str, str]], library: Path
) -> None:
    server, _ = guarded
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=60).status == 1
        # Their body is not read, so the answer is that of the whole, whatever they name.
        for name in ("index/library", "index/nothing", "x", "x" * 100_000):
            assert stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status == 1
    closed = SecurityConfig(keys_file=server.config.security.keys_file, public_health=False)
    with serving(library, security=closed) as other, grpc.insecure_channel(other.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert caught.value.code() is UNKNOWN


def test_a_strangers_body_is_not_read(guarded: tuple[Server, dict[str, str]]) -> None:
    server, _ = guarded
    sent = []

    def endless() -> Iterator[bytes]:
        for number in range(10_000):
            sent.append(number)
            yield b"x" * 65536

    with grpc.insecure_channel(server.address) as channel:
        untyped: Any = channel
        with pytest.raises(grpc.RpcError) as caught:
            untyped.stream_unary("/scannery.v1.SearchService/Search")(endless(), timeout=60)
    assert caught.value.code() is UNKNOWN
    assert len(sent) < 1000  # what fits into the windows of the connection, not what was offered


@pytest.mark.system
def test_keys_open_what_their_scopes_say(guarded: tuple[Server, dict[str, str]]) -> None:
    server, texts = guarded
    with scannery.connect(server.address, api_key=texts["reader"]) as client:
        assert len(client.index("library").search(VECTOR)) == 10
        assert [info.name for info in client.indexes()] == ["flat", "library"]
    with (
        scannery.connect(server.address, api_key=texts["writer"]) as client,
        pytest.raises(scannery.PermissionDeniedError, match="scope 'read'"),
    ):
        client.index("library").search(VECTOR)
    metadata = (("authorization", f"Bearer {texts['reader']}"),)
    with grpc.insecure_channel(server.address) as channel:
        stub = index_pb2_grpc.IndexServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="scope 'write'"):
            stub.Upsert(index_pb2.UpsertRequest(), timeout=60, metadata=metadata)
        with pytest.raises(grpc.RpcError, match="scope 'write'"):
            stub.Delete(index_pb2.DeleteRequest(), timeout=60, metadata=metadata)
    wrong = "scn_000000000000_" + "A" * 43
    with (
        scannery.connect(server.address, api_key=wrong) as client,
        pytest.raises(scannery.UnauthenticatedError),
    ):
        client.indexes()


def test_other_indexes_do_not_exist_for_a_key_of_one(guarded: tuple[Server, dict[str, str]]) -> None:
    server, texts = guarded
    with scannery.connect(server.address, api_key=texts["flat"]) as client:
        assert [info.name for info in client.indexes()] == ["flat"]
        assert len(client.index("flat").search([1, 1, 1, 1])) == 10
        messages = set()
        for name in ("library", "nothing"):
            for call in (
                lambda index: index.search(VECTOR),
                lambda index: index.search_many([VECTOR]),
                lambda index: index.get(["d1"]),
                lambda index: index.stats(),
            ):
                with pytest.raises(scannery.NotFoundError) as caught:
                    call(client.index(name))
                messages.add(str(caught.value).replace(name, "NAME"))
        assert len(messages) == 1
        with pytest.raises(scannery.NotFoundError) as caught:
            client.index("ghost").stats()
        assert "library" not in str(caught.value)
    metadata = (("authorization", f"Bearer {texts['flat']}"),)
    with grpc.insecure_channel(server.address) as channel:
        stub = search_pb2_grpc.SearchServiceStub(channel)
        requests = [
            search_pb2.SearchStreamRequest(tag=tag, search=search(name, [1.0] * 4, 1).request)
            for tag, name in enumerate(("library", "ghost", "flat"))
        ]
        answers = {a.tag: a for a in stub.SearchStream(iter(requests), timeout=60, metadata=metadata)}
        assert [answers[tag].error.code for tag in range(3)] == [5, 5, 0]
        assert "library" not in answers[1].error.detail.message
        writes = index_pb2_grpc.IndexServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught_rpc:
            writes.Delete(index_pb2.DeleteRequest(index="library", ids=["a"]), timeout=60, metadata=metadata)
        assert caught_rpc.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("wire", ["gRPC", "HTTP"])
def test_callers_learn_who_they_are(guarded: tuple[Server, dict[str, str]], wire: str) -> None:
    server, texts = guarded
    target = server.address if wire == "gRPC" else f"http://127.0.0.1:{server.http_port}"
    callers = {}
    for name, text in texts.items():
        with scannery.connect(target, api_key=text) as client:
            callers[name] = client.whoami()
        assert callers[name].name == f"{name}/{text.split('_')[1]}"
        assert text.split("_", 2)[2] not in repr(callers[name])
    reader, writer, flat = callers["reader"], callers["writer"], callers["flat"]
    assert (reader.scopes, reader.indexes, reader.expires_at) == (("read",), None, None)
    assert writer.scopes == ("write",)
    assert (flat.scopes, flat.indexes) == (("read", "write"), ("flat", "ghost"))
    end = flat.expires_at
    assert end is not None
    assert abs(end.timestamp() - time.time() - 86400) < 600
    assert reader.asks_for_credentials
    assert (reader.server_version, reader.server_role) == (scannery.__version__, "all")
    assert reader.server_id == writer.server_id != ""
    with scannery.connect(target) as client, pytest.raises(scannery.UnauthenticatedError):
        client.whoami()


def test_callers_without_credentials_are_anonymous(library: Path) -> None:
    with serving(library) as server, scannery.connect(server.address) as client:
        caller = client.whoami()
        assert (caller.name, caller.scopes) == ("anonymous", ("read", "write", "admin"))
        assert (caller.indexes, caller.asks_for_credentials) == (None, False)

    async def embedded() -> scannery.client.CallerInfo:
        async with scannery.aio.connect(library) as client:
            return await client.whoami()

    inside = asyncio.run(embedded())
    assert (inside.server_role, inside.server_id, inside.scopes) == ("embedded", "", caller.scopes)


@pytest.mark.parametrize(("asked", "shown"), [(None, False), (True, True), (False, False)])
def test_reflection_is_hidden_where_credentials_are_asked_for(
    guarded: tuple[Server, dict[str, str]], library: Path, asked: bool | None, shown: bool
) -> None:
    security = SecurityConfig(keys_file=guarded[0].config.security.keys_file, reflection=asked)
    metadata = (("authorization", f"Bearer {guarded[1]['reader']}"),)
    with serving(library, security=security) as server, grpc.insecure_channel(server.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        try:
            names = list(stub.ServerReflectionInfo(iter([request]), timeout=60, metadata=metadata))
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            names = []
        assert bool(names) == shown


def test_no_secret_is_written_anywhere(
    guarded: tuple[Server, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    server, texts = guarded
    caplog.set_level("DEBUG")
    client = scannery.connect(server.address, api_key=texts["reader"])
    with client, pytest.raises(scannery.NotFoundError) as caught:
        client.index("nothing").search(VECTOR)
    secret = texts["reader"].split("_", 2)[2]
    assert secret not in caplog.text + str(caught.value) + repr(client) + repr(vars(client))


# Configuration


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no")
    here = str(file)
    for options, field in (
        ({"keys_file": "/none"}, "keys_file"),
        ({"tls_cert": here}, "tls_key"),
        ({"client_ca": here}, "client_ca"),
        ({"jwks_file": here}, "jwt_issuer"),
        ({"jwks_file": here, "jwt_issuer": "a"}, "jwt_audience"),
    ):
        with pytest.raises(ConfigError) as caught:
            SecurityConfig(**options)  # type: ignore[arg-type]
        assert caught.value.field == field
    with pytest.raises(ConfigError, match="keys_file"):
        Authenticator(SecurityConfig(keys_file=here))


def test_a_private_endpoint_asks_for_credentials_where_the_server_does(tmp_path: Path, keys: KeyFile) -> None:
    keys.create("a")
    file = tmp_path / "file"
    file.touch()
    options = {"tls_cert": str(file), "tls_key": str(file), "client_ca": str(file)}
    private = VertexConfig(private="127.0.0.1:0")
    with pytest.raises(ConfigError, match="--client-ca") as caught:
        ServerConfig(store="x", vertex=private, security=SecurityConfig(**options))  # type: ignore[arg-type]
    assert caught.value.field == "vertex_private"
    both = SecurityConfig(**options, keys_file=str(keys.path))  # type: ignore[arg-type]
    assert ServerConfig(store="x", vertex=private, security=both).private


def test_contents_of_requests_are_apart_from_files_of_the_server(tmp_path: Path, keys: KeyFile) -> None:
    keys.create("a")
    (tmp_path / "link").symlink_to(tmp_path / "store")
    (tmp_path / "key").symlink_to(keys.path)

    def config(root: str, store: str = str(tmp_path / "store"), log: str = "") -> ServerConfig:
        security = SecurityConfig(keys_file=str(tmp_path / "key"))
        vertex = VertexConfig(contents=("/elsewhere", root), reader=lambda uri: iter(()))
        return ServerConfig(store=store, log=log, vertex=vertex, security=security)

    for root in (
        f"{tmp_path}/store", f"{tmp_path}/link/index", f"file://{tmp_path}/store/", str(tmp_path), "/",
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="overlap") as caught:
            config(root)
        assert caught.value.field == "vertex_contents"
    for root, store in (("gs://b/in", "gs://b"), ("gs://b/", "gs://b/store"), ("gs://b/s/x", "gs://b/s/")):
        with pytest.raises(ConfigError, match="overlap"):
            config(root, store)
    with pytest.raises(ConfigError, match="overlap"):
        config(str(tmp_path / "log" / "x"), log=str(tmp_path / "log"))
    assert config(str(tmp_path / "store-of-contents")).vertex
    assert config("gs://b/store2", "gs://b/store").vertex


def test_with_credentials_a_server_may_be_reached_from_anywhere(keys: KeyFile) -> None:
    keys.create("a")
    security = SecurityConfig(keys_file=str(keys.path))
    for http in ("off", "0.0.0.0:2"):
        with pytest.raises(ConfigError, match="in the clear"):
            ServerConfig(store="x", listen="0.0.0.0:1", http=http, security=security)
    with pytest.raises(ConfigError, match="in the clear") as caught:
        ServerConfig(store="x", http="0.0.0.0:2", security=security)
    assert caught.value.field == "http"
    # What allows strangers does not send anybody's key around.
    with pytest.raises(ConfigError, match="--behind-tls"):
        ServerConfig(store="x", listen="0.0.0.0:1", insecure=True, security=security)
    with pytest.raises(ConfigError, match="in the clear"):
        EncoderConfig(models=("x",), listen="0.0.0.0:1", security=security)
    assert ServerConfig(store="x", listen="127.0.0.1:1", security=security).listen == "127.0.0.1:1"
    certificate = Authority(keys.path.parent).issue("server")
    for good in (replace(security, behind_tls=True), secure(*certificate, keys_file=str(keys.path))):
        assert ServerConfig(store="x", listen="0.0.0.0:1", security=good).listen == "0.0.0.0:1"
    with pytest.raises(ConfigError, match="behind_tls"):
        secure(*certificate, behind_tls=True)
    with pytest.raises(ConfigError, match="does not authenticate callers"):
        ServerConfig(store="x", listen="0.0.0.0:1")


def test_secrets_do_not_travel_in_the_clear_by_accident() -> None:
    from scannery.client.transport.credentials import Credentials

    assert Credentials(api_key="a").channel_credentials("localhost:1") is None
    assert Credentials(api_key="a").channel_credentials("[::1]:1") is None
    assert Credentials(api_key="a").channel_credentials("example.com:1") is not None
    assert Credentials(token="a").channel_credentials("dns:///example.com:1") is not None
    assert Credentials(api_key="a", tls=False).channel_credentials("example.com:1") is None
    assert "a" not in repr(Credentials(api_key="a")).replace("Credentials", "").replace("ca", "")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"api_key": "a", "token": "b"}, "token"),
        ({"api_key": "a b"}, "api_key"),
        ({"cert": "x"}, "cert"),
        ({"tls": False, "ca": "x"}, "tls"),
        ({"ca": "/none"}, "ca"),
        ({"channels": 0}, "channels"),
    ],
)
def test_wrong_options_of_connect_are_named(options: dict[str, Any], field: str) -> None:
    for connect in (scannery.connect, scannery.aio.connect):
        with pytest.raises(scannery.InvalidArgumentError) as caught:
            connect("localhost:1", **options)
        assert caught.value.field == field


def test_a_store_takes_no_credentials(library: Path) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="a store takes no credentials"):
        scannery.connect(library, api_key="a")

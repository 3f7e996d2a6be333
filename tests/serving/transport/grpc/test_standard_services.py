"""Health and reflection: what they tell to whom, and that nobody can keep the server busy with them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import scannery
from scannery.serving import EncoderConfig, SecurityConfig, Server
from scannery.serving.contract import WHO_AM_I
from scannery.serving.process.encoder_server import EncoderServer
from scannery.serving.security import KeyFile
from scannery.serving.transport.grpc.standard_services import MAX_BODY_BYTES, MAX_WATCHED
from tests import http2
from tests.http1 import SEARCH, Http
from tests.served import DIMENSIONS, MINILM, serving

VECTOR = np.ones(DIMENSIONS, np.float32)
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
BODILESS = 500


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[KeyFile, dict[str, str]]:
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys.json")
    return file, {
        "reader": file.create("reader")[1],
        "writer": file.create("writer", scopes=["write"])[1],
        "flat": file.create("flat", indexes=["flat"])[1],
    }


@pytest.fixture(scope="module")
def server(library: Path, keys: tuple[KeyFile, dict[str, str]]) -> Iterator[Server]:
    security = SecurityConfig(keys_file=str(keys[0].path), reflection=True)
    with serving(library, security=security) as server:
        yield server


def bearer(text: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {text}"),)


@contextmanager
def without_bodies(address: str, path: str, metadata: Any = ()) -> Iterator[None]:
    """Have many calls under way whose bodies never come."""
    with ExitStack() as connections:
        for _ in range(2):
            connection = connections.enter_context(http2.dialled(address))
            connection.sendall(
                b"".join(http2.call(path, stream, metadata) for stream in range(1, BODILESS + 1, 2))
            )
        time.sleep(0.3)
        yield


def health_of(address: str, name: str, metadata: Any = ()) -> int:
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=name)
        return int(stub.Check(request, timeout=10, metadata=metadata).status)


@pytest.mark.system
@pytest.mark.parametrize("path", [CHECK, WATCH, REFLECT])
@pytest.mark.parametrize("caller", ["", "reader"])
def test_calls_without_bodies_keep_nobody_waiting(
    server: Server, keys: tuple[KeyFile, dict[str, str]], path: str, caller: str
) -> None:
    metadata = bearer(keys[1][caller]) if caller else ()
    known = bearer(keys[1]["reader"])
    with without_bodies(server.address, path, metadata):
        started_s = time.monotonic()
        with scannery.connect(server.address, api_key=keys[1]["reader"], retries=False) as client:
            assert len(client.index("library").search(VECTOR, 3, timeout_s=5)) == 3
            assert len(client.index("library").search_many([VECTOR], 3, timeout_s=5)[0]) == 3
        with Http(server.http_port) as http:
            assert http.post(SEARCH, b"", known).code == "invalid_argument"
        # Probes of strangers and of callers, among all the others.
        assert health_of(server.address, "") == 1
        assert health_of(server.address, "index/library", known) == 1
        assert time.monotonic() - started_s < 5


@pytest.mark.system
@pytest.mark.parametrize("method", ["Search", "SearchMany", "SearchStream"])
def test_requests_without_bodies_leave_other_callers_their_share(
    server: Server, keys: tuple[KeyFile, dict[str, str]], method: str
) -> None:
    path = f"/scannery.v1.SearchService/{method}"
    with without_bodies(server.address, path, bearer(keys[1]["flat"])):
        started_s = time.monotonic()
        with scannery.connect(server.address, api_key=keys[1]["reader"], retries=False, http=False) as client:
            for _ in range(5):
                assert len(client.index("library").search(VECTOR, 3, timeout_s=5)) == 3
        assert health_of(server.address, "") == 1
        assert time.monotonic() - started_s < 5


@pytest.mark.system
def test_calls_without_bodies_keep_no_encoder_process_waiting() -> None:
    with EncoderServer(EncoderConfig(models=(MINILM,), listen="127.0.0.1:0", device="cpu")) as server:
        started_s = time.monotonic()
        with without_bodies(server.address, CHECK), without_bodies(server.address, REFLECT):
            assert health_of(server.address, "") == 1
        assert time.monotonic() - started_s < 5


def test_a_long_body_is_refused(server: Server, keys: tuple[KeyFile, dict[str, str]]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        health_of(server.address, "x" * MAX_BODY_BYTES, bearer(keys[1]["reader"]))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_health_tells_of_no_index_that_is_hidden(
    server: Server, keys: tuple[KeyFile, dict[str, str]]
) -> None:
    flat = bearer(keys[1]["flat"])
    assert health_of(server.address, "index/flat", flat) == 1
    for name in ("index/library", "index/nothing", "nothing"):
        with pytest.raises(grpc.RpcError) as caught:
            health_of(server.address, name, flat)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    # Credentials that do not read may at least what strangers may.
    assert health_of(server.address, "", bearer(keys[1]["writer"])) == 1
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for name, status in (("index/flat", 1), ("index/library", 3), ("index/nothing", 3)):
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=10, metadata=flat)
            assert next(watch).status == status
            watch.cancel()


@pytest.mark.system
def test_watches_tell_changes_and_do_not_hold_up_the_end(library: Path) -> None:
    with grpc.insecure_channel("127.0.0.1:1"):
        with serving(library) as server:
            channel = grpc.insecure_channel(server.address)
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="index/flat"), timeout=30)
            assert next(watch).status == 1
            server._health.report({"index/flat": False})
            assert next(watch).status == 2
            server._health.report({"index/flat": True})
            assert next(watch).status == 1
            started_s = time.monotonic()
        assert time.monotonic() - started_s < 3
        assert [answer.status for answer in watch] == [2]
        channel.close()


@pytest.mark.system
def test_those_who_watch_are_bounded(server: Server, keys: tuple[KeyFile, dict[str, str]]) -> None:
    """One more ends the oldest of the caller that has the most; others keep theirs."""
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)

        def watch(caller: str) -> Any:
            started = stub.Watch(
                health_pb2.HealthCheckRequest(), timeout=60, metadata=bearer(keys[1][caller])
            )
            assert next(started).status == 1
            return started

        others = watch("flat")
        many = [watch("reader") for _ in range(MAX_WATCHED + 5)]
        with pytest.raises(grpc.RpcError):
            next(many[0])
        assert others.is_active()
        assert many[-1].is_active()
        for each in (others, *many):
            each.cancel()


# Scopes


def served_methods(address: str, metadata: Any) -> list[str]:
    """Return every method of every service that a server tells of itself."""
    from google.protobuf import descriptor_pb2

    with grpc.insecure_channel(address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)

        def asked(**request: Any) -> Any:
            message = reflection_pb2.ServerReflectionRequest(**request)
            [answer] = stub.ServerReflectionInfo(iter([message]), timeout=60, metadata=metadata)
            return answer

        names = [each.name for each in asked(list_services="").list_services_response.service]
        found = []
        for name in names:
            files = asked(file_containing_symbol=name).file_descriptor_response.file_descriptor_proto
            for data in files:
                file = descriptor_pb2.FileDescriptorProto.FromString(data)
                found += [
                    f"/{name}/{method.name}"
                    for service in file.service
                    if f"{file.package}.{service.name}" == name
                    for method in service.method
                ]
        return found


def test_every_method_that_is_served_names_its_scope(
    server: Server, keys: tuple[KeyFile, dict[str, str]]
) -> None:
    told = served_methods(server.address, bearer(keys[1]["reader"]))
    assert {"/scannery.v1.SearchService/Search", CHECK, WATCH, REFLECT} <= set(told)
    handled = {*server._lifecycle.methods.methods, *server._lifecycle.methods.streams, *server._grpc.scopes}
    newer = REFLECT.replace("v1alpha", "v1")  # of the same handler; the tool asks the other
    assert {*told, newer} == handled
    for path in told:
        needed = server._scope_of(path)
        assert (needed in ("read", "write", "admin")) != (needed == "credentials" and path == WHO_AM_I), path
    # What writes is for those who may write, whatever it is called.
    writes = {path.rsplit("/", 1)[-1] for path in told if server._scope_of(path) == "write"}
    assert writes == {"Upsert", "UpsertStream", "Delete", "DeleteWhere", "UpdateWhere"}


def test_a_method_without_a_scope_answers_nobody(
    server: Server, keys: tuple[KeyFile, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever adds a handler and forgets its scope serves nothing by it."""
    path = "/scannery.v1.SearchService/Get"
    known = type(server)._scope_of
    monkeypatch.setattr(
        server._authorizer, "_scope_of", lambda asked: None if asked == path else known(server, asked)
    )
    with grpc.insecure_channel(server.address) as channel:
        untyped: Any = channel
        with pytest.raises(grpc.RpcError) as caught:
            untyped.unary_unary(path)(b"", timeout=60, metadata=bearer(keys[1]["reader"]))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

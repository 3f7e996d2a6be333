"""HTTP clients that are not ours: the same answers and codes as gRPC gives."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import Message

from scannery.client.request import calls
from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from scannery.serving.transport.http.connect import response_type
from scannery.v1 import index_pb2, search_pb2, types_pb2
from tests.http1 import GET, SEARCH, UPSERT, over_grpc
from tests.served import SENTENCES, copied, serving, without_permits

pytestmark = pytest.mark.system

VECTOR = np.random.default_rng(0).normal(size=384).astype(np.float32)
NODE_PACKAGES = ("@connectrpc/connect@2.1.0", "@connectrpc/connect-node@2.1.0", "@bufbuild/protobuf@2.9.0")


@dataclass(frozen=True)
class Call:
    """A request, as each client is told to make it."""

    path: str
    request: Message
    headers: dict[str, str]
    timeout_ms: int = 60_000


Client = Callable[[Call], tuple[str, bytes]]
"""Makes a call; returns Connect's code, and the answer or the detail of the error in Protobuf."""


@pytest.fixture(scope="module")
def server(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server that asks for keys, and the header with one."""
    folder = tmp_path_factory.mktemp("clients")
    file = KeyFile(folder / "keys.json")
    _, text = file.create("all", scopes=["read", "write"])
    security = SecurityConfig(keys_file=str(file.path))
    with serving(copied(texts, folder), security=security, threads=2) as server:
        yield server, {"authorization": f"Bearer {text}"}


# Clients


def curl(server: Server, *, json_body: bool) -> Client:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")

    def call(call: Call) -> tuple[str, bytes]:
        kind, body = "application/proto", call.request.SerializeToString()
        if json_body:
            kind, body = "application/json", json_format.MessageToJson(call.request).encode()
        headers = {"content-type": kind, "connect-timeout-ms": str(call.timeout_ms), **call.headers}
        options = [option for name, value in headers.items() for option in ("-H", f"{name}: {value}")]
        url = f"http://127.0.0.1:{server.http_port}{call.path}"
        done = subprocess.run(
            ["curl", "-sS", "--max-time", "60", "--compressed", "-w", "%{stderr}%{http_code}", *options,
             "--data-binary", "@-", url],
            input=body, capture_output=True, check=True,
        )  # fmt: skip
        if done.stderr != b"200":
            error = json.loads(done.stdout)
            return error["code"], _unpadded(error["details"][0]["value"])
        if not json_body:
            return "ok", done.stdout
        return "ok", json_format.Parse(done.stdout, response_type(call.path)()).SerializeToString()

    return call


def connect_python(server: Server, *, json_body: bool) -> Client:
    if importlib.util.find_spec("connectrpc") is None:
        pytest.skip("connectrpc is not installed")
    from connectrpc.client import ConnectClientSync
    from connectrpc.compat import google_protobuf_binary_codec, google_protobuf_json_codec
    from connectrpc.errors import ConnectError
    from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType

    codec: Any = google_protobuf_json_codec() if json_body else google_protobuf_binary_codec()
    client = ConnectClientSync(f"http://127.0.0.1:{server.http_port}", codec=codec)

    def call(call: Call) -> tuple[str, bytes]:
        service, _, name = call.path.strip("/").rpartition("/")
        method = MethodInfo(
            name=name, service_name=service, input=type(call.request), output=response_type(call.path),
            idempotency_level=IdempotencyLevel.UNKNOWN, stream_type=StreamType.UNARY,
        )  # fmt: skip
        try:
            answer = client.execute_unary(
                request=call.request, method=method, headers=call.headers, timeout_ms=call.timeout_ms
            )
        except ConnectError as error:
            return error.code.value, error.details[0].message_bytes if error.details else b""
        return "ok", answer.SerializeToString()

    return call


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of connect-node, and the script that uses them."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no node")
    folder = tmp_path_factory.mktemp("node")
    installed = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline", *NODE_PACKAGES],
        cwd=folder, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    if installed.returncode:
        pytest.skip("npm cannot install @connectrpc/connect-node")
    shutil.copy(Path(__file__).with_name("connect_client.mjs"), folder)
    return folder


@pytest.fixture(scope="module")
def node(server: tuple[Server, dict[str, str]], node_folder: Path) -> Iterator[Callable[..., Any]]:
    """Makes a call with connect-node."""
    url, descriptors = f"http://127.0.0.1:{server[0].http_port}", base64.b64encode(_descriptors()).decode()
    with subprocess.Popen(
        ["node", "connect_client.mjs", url, descriptors],
        cwd=node_folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip

        def call(call: Call, *, json_body: bool) -> tuple[str, bytes]:
            request = base64.b64encode(call.request.SerializeToString()).decode()
            line = {"path": call.path, "request": request, "headers": call.headers,
                    "timeoutMs": call.timeout_ms, "json": json_body}  # fmt: skip
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps(line) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            return answer["code"], base64.b64decode(answer["data"])

        yield call
        process.kill()


def _descriptors() -> bytes:
    files: dict[str, FileDescriptorProto] = {}

    def name_in_json(message: DescriptorProto) -> None:
        # What Python has leaves these out; a compiler writes them.
        for field in message.field:
            first, *others = field.name.split("_")
            field.json_name = first + "".join(map(str.capitalize, others))
        for nested in message.nested_type:
            name_in_json(nested)

    def add(file: Any) -> None:
        for dependency in file.dependencies:
            add(dependency)
        proto = FileDescriptorProto()
        file.CopyToProto(proto)
        for message in proto.message_type:
            name_in_json(message)
        files[file.name] = proto

    add(search_pb2.DESCRIPTOR)
    add(index_pb2.DESCRIPTOR)
    return FileDescriptorSet(file=files.values()).SerializeToString()


@pytest.fixture(params=["curl", "connect-python", "connect-node"])
def make_client(
    request: pytest.FixtureRequest, server: tuple[Server, dict[str, str]]
) -> Callable[[bool], Client]:
    if request.param == "connect-node":
        node = request.getfixturevalue("node")
        return lambda json_body: lambda call: node(call, json_body=json_body)
    kind = curl if request.param == "curl" else connect_python
    return lambda json_body: kind(server[0], json_body=json_body)


@pytest.fixture(params=[False, True], ids=["protobuf", "json"])
def client(request: pytest.FixtureRequest, make_client: Callable[[bool], Client]) -> Client:
    return make_client(request.param)


def _unpadded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4))


# What they do


def test_searches(server: tuple[Server, dict[str, str]], client: Client) -> None:
    for query in ("How does lava reach the surface?", VECTOR):
        request = calls.search("texts", query, 3).request
        wanted = over_grpc(server[0], SEARCH, request.SerializeToString(), tuple(server[1].items()))
        code, answer = client(Call(SEARCH, request, server[1]))
        assert code == wanted[0] == "ok"
        found, expected = (search_pb2.SearchResponse.FromString(each) for each in (answer, wanted[1]))
        assert [hit.datapoint.id for hit in found.hits] == [hit.datapoint.id for hit in expected.hits]
        assert [hit.score for hit in found.hits] == pytest.approx(
            [hit.score for hit in expected.hits], abs=1e-5
        )
        if isinstance(query, str):
            assert found.hits[0].datapoint.id == "volcano"
            assert found.hits[0].datapoint.text == SENTENCES["volcano"]


def test_writes_and_gets(server: tuple[Server, dict[str, str]], client: Client) -> None:
    datapoint = types_pb2.Datapoint(id="jam", text="Boil the fruit with sugar until it sets — naïvely.")
    datapoint.attributes["letters"].int_value = 1 << 60
    request = index_pb2.UpsertRequest(index="texts", upserts=[index_pb2.Upsert(datapoint=datapoint)])
    code, answer = client(Call(UPSERT, request, server[1]))
    assert code == "ok"
    written = index_pb2.UpsertResponse.FromString(answer)
    get = search_pb2.GetRequest(index="texts", ids=["jam", "none"], min_sequence=written.sequence)
    wanted = over_grpc(server[0], GET, get.SerializeToString(), tuple(server[1].items()))
    code, answer = client(Call(GET, get, server[1]))
    assert code == wanted[0] == "ok"
    found = search_pb2.GetResponse.FromString(answer)
    assert found == search_pb2.GetResponse.FromString(wanted[1])
    assert found.datapoints[0].attributes["letters"].int_value == 1 << 60
    assert list(found.missing_ids) == ["none"]


def test_errors(server: tuple[Server, dict[str, str]], client: Client) -> None:
    wrong: list[tuple[str, Message, dict[str, str]]] = [
        (SEARCH, calls.search("texts", "x", 0).request, server[1]),
        (SEARCH, calls.search("texts", "x", 3, where={"nothing": 1}).request, server[1]),
        (SEARCH, calls.search("nothing", "x", 3).request, server[1]),
        (SEARCH, calls.search("texts", "x", 3).request, {}),
        (SEARCH, calls.search("texts", "x", 3).request, {"authorization": "Bearer nobody"}),
        (UPSERT, index_pb2.UpsertRequest(index="texts"), server[1]),
    ]
    codes = set()
    for path, request, headers in wrong:
        wanted = over_grpc(server[0], path, request.SerializeToString(), tuple(headers.items()))
        assert client(Call(path, request, headers)) == wanted
        codes.add(wanted[0])
    assert codes == {"invalid_argument", "not_found", "unauthenticated"}


def test_deadlines(server: tuple[Server, dict[str, str]], client: Client) -> None:
    request = calls.search_many("texts", [VECTOR], 3).request
    with without_permits(server[0]):
        code, _ = client(Call("/scannery.v1.SearchService/SearchMany", request, server[1], timeout_ms=300))
    assert code == "deadline_exceeded"

"""The door by which bridges come into a server: what is loaded, what they may do, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from scannery.runtime.errors import ConfigError
from scannery.serving import SecurityConfig
from scannery.serving.bridging import (
    Bridge,
    Deadline,
    Engine,
    Host,
    HttpApi,
    Plugin,
    UnaryMethod,
    current_principal,
)
from scannery.serving.bridging import discovery as module
from scannery.serving.bridging.bridges import Bridges
from scannery.serving.config import ListenConfig, VertexConfig
from scannery.serving.security import KeyFile
from scannery.v1 import index_pb2, search_pb2
from tests.data import ROOT
from tests.http1 import Http
from tests.pages import blocks
from tests.served import make_library_store, serving
from tests.startup import imported_modules
from tests.tools.ports import free_port

HELLO = "/hello.v1.Hello/Hello"
SERVED = """
import sys
from tests.served import serving
from pathlib import Path
from scannery.serving.config import VertexConfig
with serving(Path(sys.argv[1]), http="127.0.0.1:0", {options}) as server:
    import http.client
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
    connection.request("GET", "/v1/models")
    assert connection.getresponse().status == {status}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_library_store(tmp_path_factory.mktemp("library"))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install packages: each a module of this file's classes with an entry point."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(**entries: str) -> None:
        folder = tmp_path / f"{'_'.join(entries)}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {'_'.join(entries)}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (folder / "entry_points.txt").write_text("\n".join(["[scannery.bridges]", *lines, ""]))
        module.installed.cache_clear()

    yield installed
    module.installed.cache_clear()


def bridge_modules(store: Path, options: str = "", status: int = 404) -> set[str]:
    """Return the modules of bridges that a server has imported when it has answered."""
    code = SERVED.format(options=options, status=status)
    return {name for name in imported_modules(code, str(store)) if name.startswith("scannery.bridges")}


@pytest.mark.system
def test_a_server_without_bridges_imports_no_module_of_theirs(store: Path) -> None:
    assert bridge_modules(store, "bridges='none'") == set()


@pytest.mark.system
def test_a_server_imports_what_its_options_ask_for(store: Path) -> None:
    plain = bridge_modules(store, status=200)
    assert "scannery.bridges.openai.embeddings" in plain
    looked_at = {"scannery.bridges.vertex", "scannery.bridges.vertex.plugin"}
    looked_at |= {
        "scannery.bridges.companions",
        "scannery.bridges.console",
        "scannery.bridges.mcp",
        "scannery.bridges.mcp.plugin",
    }
    assert plain - looked_at == {
        "scannery.bridges",
        "scannery.bridges.openai",
        "scannery.bridges.openai.plugin",
        "scannery.bridges.openai.embeddings",
    }
    managed = bridge_modules(store, "bridges='vertex', vertex=VertexConfig()")
    assert "scannery.bridges.vertex.v2.searching" in managed
    assert not {name for name in managed if "openai" in name}


@pytest.mark.system
def test_looking_for_bridges_takes_little() -> None:
    took_s = []
    for _ in range(5):
        module.installed.cache_clear()
        began_s = time.process_time()
        assert {"openai", "vertex"} <= module.installed().keys()
        took_s.append(time.process_time() - began_s)
    assert min(took_s) < 0.020, took_s


class Unwanted(Plugin):
    def wanted(self, config: ListenConfig) -> bool:
        return False

    def open(self, host: Host) -> Bridge:
        raise AssertionError


class Hello(Plugin):
    """Counts with the permissions of the caller, as the page's example."""

    closed = 0

    def open(self, host: Host) -> Bridge:
        def hello(request: StringValue, deadline: Deadline) -> StringValue:
            if request.value.startswith("drop "):
                host.engine.drop_index(request.value[5:], deadline)
            if request.value == "list":
                message: Any = host.engine.call(
                    "/scannery.v1.IndexService/ListIndexes", index_pb2.ListIndexesRequest(), deadline
                )
                return StringValue(value=" ".join(sorted(each.name for each in message.indexes)))
            found = host.engine.count(search_pb2.CountRequest(index=request.value), deadline)
            name = current_principal().name.partition("/")[0]
            return StringValue(value=f"{name} {found.count}")

        def close() -> None:
            Hello.closed += 1

        return Bridge(methods={HELLO: UnaryMethod(StringValue, hello, "read")}, close=close)


def say(address: str, text: str, key: str = "") -> str:
    """Return the answer of the bridge over gRPC, or the status of its error."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            HELLO,
            request_serializer=StringValue.SerializeToString,
            response_deserializer=StringValue.FromString,
        )
        try:
            answer: str = call(
                StringValue(value=text),
                timeout=20,
                metadata=(("authorization", f"Bearer {key}"),) if key else None,
            ).value
        except grpc.RpcError as error:
            return str(error.code().name)
        return answer


def test_a_bridge_works_with_the_permissions_of_its_caller(
    store: Path, install: Callable[..., None], tmp_path: Path
) -> None:
    install(hello=f"{__name__}:Hello", unwanted=f"{__name__}:Unwanted")
    file = KeyFile(tmp_path / "keys.json")
    reader, other = file.create("reader")[1], file.create("other", indexes=["flat"])[1]
    writer = file.create("writer", scopes=["write"])[1]
    closed = Hello.closed
    with serving(store, security=SecurityConfig(keys_file=str(file.path)), http="off") as server:
        assert server._bridges.names == ("hello",), "without HTTP there is no API of OpenAI"
        assert say(server.address, "library", reader) == "reader 600"
        assert say(server.address, "flat", other) == "other 50"
        assert say(server.address, "library", other) == "NOT_FOUND"
        assert say(server.address, "list", other) == "flat"
        assert say(server.address, "library", writer) == "PERMISSION_DENIED"
        # The handler may be called with the scope `read`; what it does needs another one.
        assert say(server.address, "drop library", reader) == "PERMISSION_DENIED"
        assert say(server.address, "library", reader) == "reader 600"
        assert say(server.address, "library") == "UNAUTHENTICATED"
    assert Hello.closed == closed + 1


def test_bridges_are_named(store: Path, install: Callable[..., None]) -> None:
    install(hello=f"{__name__}:Hello", broken="tests.nowhere:Plugin")
    with serving(store, bridges="hello") as server, Http(server.http_port) as http:
        assert say(server.address, "flat") == "anonymous 50"
        assert http.ask("GET", "/v1/models").status == 404
    with pytest.raises(
        ConfigError,
        match=r"'nothing' is not installed; installed: broken, console, hello, mcp, openai, vertex",
    ):
        serve_with(store, "nothing")
    with pytest.raises(ConfigError, match=r"broken cannot be imported: ModuleNotFoundError: No module named"):
        serve_with(store, "all")


def serve_with(store: Path, name: str) -> None:
    with serving(store, bridges=name):
        pass


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("all", None),
        ("none", set()),
        ("", set()),
        ("openai", {"openai"}),
        ("openai, hello", {"openai", "hello"}),
    ],
)
def test_the_option_names_bridges(option: str, names: set[str] | None) -> None:
    assert ListenConfig(bridges=option).bridge_names == names


def test_the_managed_service_needs_its_bridge(store: Path) -> None:
    with (
        pytest.raises(ConfigError, match="vertex: needs the bridge vertex"),
        serving(store, vertex=VertexConfig(), bridges="none"),
    ):
        pass


class Api:
    """Paths below a prefix, none of which is there."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def methods(self, path: str) -> tuple[str, ...]:
        return ()

    def call(self, head: Any) -> Any:
        raise AssertionError

    def error(self, status: int, code: grpc.StatusCode, message: str, field: str) -> tuple[int, bytes]:
        return status, b"{}"


class TextCall:
    """Answers with a text, which is no body."""

    path, content_type = "/scannery.v1.IndexService/ListIndexes", "text/plain"

    def request(self, data: bytes) -> index_pb2.ListIndexesRequest:
        return index_pb2.ListIndexesRequest()

    def answer(self, response: bytes) -> Any:
        return "none"


class Faulty(Plugin):
    """Paths at which nothing works."""

    def open(self, host: Host) -> Bridge:
        class Raising(Api):
            def methods(self, path: str) -> tuple[str, ...]:
                return ("GET",) if path != "/faulty/methods" else tuple(None)  # type: ignore[arg-type]

            def call(self, head: Any) -> Any:
                return TextCall() if head.path == "/faulty/answer" else super().call(head)

            def error(
                self, status: int, code: grpc.StatusCode, message: str, field: str
            ) -> tuple[int, bytes]:
                raise ValueError(message)

        return Bridge(http=[Raising("/faulty/")])


@pytest.mark.parametrize("path", ["/faulty/methods", "/faulty/call", "/faulty/answer"])
def test_a_bridge_with_faults_gets_an_answer_to_its_callers(
    store: Path, install: Callable[..., None], path: str
) -> None:
    install(faulty=f"{__name__}:Faulty")
    with serving(store) as server, Http(server.http_port) as http:
        assert http.ask("GET", path).status == 500
        assert http.ask("GET", "/healthz").status == 200


class Loads(Plugin):
    """Cannot be imported."""

    def load(self) -> None:
        raise ValueError("5")


class Opens(Plugin):
    """Cannot be opened."""

    def open(self, host: Host) -> Bridge:
        raise KeyError("key")


class OpensNothing(Plugin):
    """Has no bridge."""

    def open(self, host: Host) -> Bridge:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("TextCall", "imported: TypeError: .*:TextCall is not a subclass of Plugin"),
        ("Loads", "imported: ValueError: 5"),
        ("Opens", "opened: KeyError: 'key'"),
        ("OpensNothing", "opened: TypeError: `open` must return a Bridge, got NoneType"),
    ],
)
def test_a_bridge_that_cannot_start_is_named(
    store: Path, install: Callable[..., None], kind: str, message: str
) -> None:
    install(started=f"{__name__}:{kind}")
    with pytest.raises(ConfigError, match=rf"bridges: started cannot be {message}; `--bridges` names"):
        serve_with(store, "started")


@pytest.mark.parametrize(("options", "bridge"), [(["--vertex"], "vertex"), (["--mcp", "127.0.0.1:0"], "mcp")])
def test_a_wrong_option_that_a_worker_finds_has_the_exit_code_of_wrong_options(
    store: Path, options: list[str], bridge: str
) -> None:
    command = [sys.executable, "-m", "scannery", "serve", "--store", str(store), "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, *options, "--bridges", "none"], check=False, capture_output=True, text=True
    )
    assert (done.returncode, f"needs the bridge {bridge}" in done.stderr) == (2, True), done.stderr


def handled(request: Any, deadline: Deadline) -> StringValue:
    return StringValue()


def bridge(*prefixes: str, **methods: type) -> Bridge:
    apis: list[HttpApi] = [Api(prefix) for prefix in prefixes]
    unary = {f"/a.B/{name}": UnaryMethod(kind, handled, "read") for name, kind in methods.items()}
    return Bridge(http=apis, methods=unary)


@pytest.mark.parametrize(("opened", "message"), [
    ({"a": bridge("/a/"), "b": bridge("/b/", "/a/")}, "b: /a/ is the front of another API, too"),
    ({"a": bridge("/")}, "'/' is no front of paths"),
    ({"a": bridge("a/")}, "'a/' is no front of paths"),
    ({"a": bridge(C=StringValue), "b": bridge(C=StringValue)}, "another bridge has the method /a.B/C"),
], ids=["the same front", "all", "relative", "the same method"])  # fmt: skip
def test_bridges_that_exclude_each_other_are_refused(opened: Mapping[str, Bridge], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Bridges(opened)


def test_the_longest_front_of_a_path_counts() -> None:
    bridges = Bridges({"a": bridge("/v1/", "/w/"), "b": bridge("/v1/rerank")})
    fronts = [api and api.prefix for api in map(bridges.api_of, ("/v1/models", "/v1/rerank", "/w/x", "/x"))]
    assert fronts == ["/v1/", "/v1/rerank", "/w/", None]


@pytest.mark.parametrize(
    ("path", "request_type", "message"),
    [
        ("/scannery.v1.SearchService/Count", StringValue, "the server has the method"),
        # Else counts would be answered without a look at the permissions of the caller.
        ("/a.B/C", search_pb2.CountRequest, "a message of the server's own methods"),
    ],
)
def test_methods_and_messages_of_the_server_are_refused(
    store: Path, path: str, request_type: type, message: str
) -> None:
    opened = Bridges({"a": Bridge(methods={path: UnaryMethod(request_type, handled, "read")})})
    with serving(store) as server, pytest.raises(ConfigError, match=message):
        opened.added_to(server._lifecycle.methods)


def test_a_call_outside_of_a_request_has_no_caller(store: Path) -> None:
    with serving(store) as server:
        engine = Engine(server._lifecycle.methods)
        with pytest.raises(RuntimeError, match="no principal"):
            engine.count(search_pb2.CountRequest(index="flat"), Deadline.after(5))


@pytest.mark.system
def test_the_page_is_a_bridge_as_it_stands(store: Path, tmp_path: Path) -> None:
    """docs/bridges.md: its package is installed, and its server asked."""
    made = next(block.text for block in blocks("docs/bridges.md") if block.language == "sh")
    shown = next(block.text for block in blocks("docs/bridges.md") if block.language == "text")
    target = tmp_path / "site"
    install = f"{sys.executable} -m pip install --quiet --no-build-isolation --target {target} --no-deps"
    made = made.replace("pip install --no-deps", install)
    subprocess.run(["bash", "-euc", made], check=True, cwd=tmp_path)
    port = free_port()
    paths = [str(ROOT / "src"), str(target)]
    serve = [sys.executable, "-m", "scannery", "serve", "--store", str(store), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*serve, "--http", f"127.0.0.1:{port}"], env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            _until_served(server)
            with Http(port) as http:
                hello = http.ask("GET", "/hello/library")
                assert (hello.status, hello.json) == (200, {"hello": "anonymous", "rows": 600})
                assert hello.headers["content-type"] == "application/json"
                nothing = http.ask("GET", "/hello/nothing")
                assert (nothing.status, nothing.json) == (
                    404,
                    {"sorry": "index: there is no index 'nothing'; there are: flat, library"},
                )
                assert nothing.body.decode().replace("flat, library", "podcasts") in shown
                assert http.ask("DELETE", "/hello/library").status == 405
                assert http.ask("GET", "/v1/models").status == 200, "other bridges are loaded as well"
        finally:
            server.terminate()
            server.communicate()


def _until_served(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    for line in server.stdout:
        if "Serving on" in line:
            return
    raise AssertionError("the server has ended")

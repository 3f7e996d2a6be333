"""HTTP/1.1 by hand: what tests send is what goes over the wire."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from typing_extensions import Self

from scannery.serving import Server
from scannery.serving.status import DETAIL_KEY
from scannery.v1.types_pb2 import ErrorDetail

__all__ = [
    "GET", "SEARCH", "SEARCH_MANY", "UPSERT", "Http", "Response", "eventually", "head", "idle", "over_grpc",
]  # fmt: skip

SEARCH, SEARCH_MANY = "/scannery.v1.SearchService/Search", "/scannery.v1.SearchService/SearchMany"
GET, UPSERT = "/scannery.v1.SearchService/Get", "/scannery.v1.IndexService/Upsert"
Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Response:
    """An answer."""

    status: int
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of Connect; `ok` for an answer."""
        return "ok" if self.status == 200 else self.json["code"]

    @property
    def detail(self) -> ErrorDetail:
        """Of an error."""
        [detail] = self.json["details"]
        assert detail["type"] == "scannery.v1.ErrorDetail"
        return ErrorDetail.FromString(base64.b64decode(detail["value"] + "=="))


def head(method: str, path: str, headers: Headers = (), *, host: str | None = "localhost") -> bytes:
    """Return a request line and headers, with the end of them."""
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"host: {host}"] if host is not None else []
    lines += [f"{name}: {value}" for name, value in headers]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")


class Http:
    """One connection."""

    def __init__(
        self, port: int, *, context: ssl.SSLContext | None = None, window: int = 0, timeout_s: float = 60
    ) -> None:
        """Connect; `window`: bytes that the kernel takes before they are read."""
        self.socket = socket.socket()
        self.socket.settimeout(timeout_s)
        if window:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        try:
            self.socket.connect(("127.0.0.1", port))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        except BaseException:
            self.socket.close()
            raise
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Headers = (), **options: Any
    ) -> Response:
        """Send a request, and return the next answer."""
        length = [("content-length", str(len(body)))] if method == "POST" else []
        self.send(head(method, path, [*length, *headers], **options) + body)
        return self.response(empty=method == "HEAD")

    def post(
        self,
        path: str,
        body: bytes,
        headers: Headers = (),
        *,
        kind: str = "application/proto",
        **options: Any,
    ) -> Response:
        """Call a method."""
        return self.ask("POST", path, body, [("content-type", kind), *headers], **options)

    def call(self, path: str, message: Any, headers: Headers = (), **options: Any) -> Response:
        """Call a method in JSON."""
        return self.post(path, json.dumps(message).encode(), headers, kind="application/json", **options)

    def response(self, *, empty: bool = False) -> Response:
        """Return the next answer; ConnectionError if the server hangs up instead."""
        start = self._until(b"\r\n\r\n").decode("latin-1")
        first, *lines = start.split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        pairs = [line.split(": ", 1) for line in lines]
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(pairs), pairs
        size = 0 if empty else int(headers.get("content-length", "0"))
        while len(self._buffer) < size:
            self._read()
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return Response(int(status), headers, body)

    def is_closed(self, within_s: float = 60) -> bool:
        """Return whether the server hangs up before it says anything more."""
        self.socket.settimeout(within_s)
        try:
            return not self._buffer and not self.socket.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True
        finally:
            self.socket.settimeout(60)

    def close(self) -> None:
        self.socket.close()

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            self._read()
        found, self._buffer = self._buffer.split(end, 1)
        return found

    def _read(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server hung up")
        self._buffer += data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def over_grpc(server: Server, path: str, body: bytes, metadata: Any = None) -> tuple[str, bytes]:
    """Return Connect's name of the code, and the answer or the detail of the error, as gRPC has them."""
    with grpc.insecure_channel(server.address, [("grpc.max_receive_message_length", -1)]) as channel:
        untyped: Any = channel
        try:
            return "ok", untyped.unary_unary(path)(body, timeout=60, metadata=metadata)
        except grpc.RpcError as error:
            call: Any = error
            return call.code().name.lower(), dict(call.trailing_metadata())[DETAIL_KEY]


def eventually(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until something is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)


def idle(server: Server) -> bool:
    """Return whether nothing is in flight."""
    return server.admission.in_flight == 0

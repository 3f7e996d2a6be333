"""A client of the native protocol, as plain as can be: what tests send is what goes over the wire."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from typing_extensions import Self

from scannery.serving import Server
from scannery.serving.native import frames
from scannery.serving.status import DETAIL_KEY
from scannery.v1.native_pb2 import (
    GetEndpointRequest,
    GetEndpointResponse,
    NativeHello,
    NativeMetadata,
    NativeWelcome,
)
from scannery.v1.types_pb2 import ErrorDetail

GET_ENDPOINT = "/scannery.v1.NativeService/GetEndpoint"
SEARCH, SEARCH_MANY = frames.SEARCH, frames.SEARCH_MANY
PATHS = {SEARCH: "/scannery.v1.SearchService/Search", SEARCH_MANY: "/scannery.v1.SearchService/SearchMany"}


@dataclass(frozen=True)
class Answer:
    """A frame of the server."""

    call: int
    status: int
    body: bytes

    @property
    def code(self) -> grpc.StatusCode:
        return next(code for code in grpc.StatusCode if code.value[0] == self.status)

    @property
    def detail(self) -> ErrorDetail:
        return ErrorDetail.FromString(self.body)


def framed(kind: int, body: bytes, *, call: int = 1, timeout_ms: int = 60_000) -> bytes:
    return struct.pack("<IBxxxII", len(body), kind, call, timeout_ms) + body


def hello(metadata: Iterable[tuple[str, str]] = (), *, protocol: int = 1, call: int = 0) -> bytes:
    items = [NativeMetadata(key=key, value=value) for key, value in metadata]
    body = NativeHello(protocol=protocol, metadata=items).SerializeToString()
    return framed(frames.HELLO, body, call=call)


def port_of(server: Server) -> int:
    return server.native_port


def endpoint_of(address: str, metadata: Any = None) -> GetEndpointResponse:
    with grpc.insecure_channel(address) as channel:
        untyped: Any = channel
        call = untyped.unary_unary(GET_ENDPOINT, response_deserializer=GetEndpointResponse.FromString)
        response: GetEndpointResponse = call(
            GetEndpointRequest().SerializeToString(), timeout=60, metadata=metadata
        )
        return response


def over_grpc(server: Server, kind: int, body: bytes) -> tuple[grpc.StatusCode, bytes]:
    """Return the status, and the answer or the detail of the error, as they go over the wire."""
    with grpc.insecure_channel(server.address, [("grpc.max_receive_message_length", -1)]) as channel:
        untyped: Any = channel
        try:
            return grpc.StatusCode.OK, untyped.unary_unary(PATHS[kind])(body, timeout=60)
        except grpc.RpcError as error:
            call: Any = error
            return call.code(), dict(call.trailing_metadata())[DETAIL_KEY]


class Native:
    """One connection."""

    def __init__(self, port: int, *, context: ssl.SSLContext | None = None, window: int = 0) -> None:
        """Connect, and say nothing; `window`: bytes that the kernel takes before they are read."""
        self.socket = socket.socket()
        self.socket.settimeout(60)
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

    @classmethod
    def greeted(cls, port: int, metadata: Iterable[tuple[str, str]] = (), **options: Any) -> Native:
        """Connect, and say hello."""
        native = cls(port, **options)
        try:
            native.welcome(metadata)
        except BaseException:
            native.close()
            raise
        return native

    def welcome(self, metadata: Iterable[tuple[str, str]] = ()) -> NativeWelcome:
        self.send(hello(metadata, call=7))
        answer = self.answer()
        assert (answer.call, answer.status) == (7, 0), answer
        return NativeWelcome.FromString(answer.body)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, kind: int, body: bytes, *, call: int = 1, timeout_ms: int = 60_000) -> Answer:
        """Send a request, and return the next answer, which must be its own."""
        self.send(framed(kind, body, call=call, timeout_ms=timeout_ms))
        answer = self.answer()
        assert answer.call == call
        return answer

    def answer(self) -> Answer:
        """Return the next frame; ConnectionError if the server hangs up instead."""
        length, status, call, rest = struct.unpack("<IBxxxII", self._take(16))
        assert rest == 0
        return Answer(call, status, self._take(length))

    def is_closed(self, within_s: float = 60) -> bool:
        """Return whether the server hangs up before it says anything."""
        self.socket.settimeout(within_s)
        try:
            return not self.socket.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True
        finally:
            self.socket.settimeout(60)

    def close(self) -> None:
        self.socket.close()

    def _take(self, count: int) -> bytes:
        parts, wanted = [self._buffer], count - len(self._buffer)
        while wanted > 0:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the server hung up")
            parts.append(data)
            wanted -= len(data)
        whole = b"".join(parts)
        self._buffer = whole[count:]
        return whole[:count]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def eventually(condition: Any, seconds: float = 60) -> None:
    """Wait until something is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)


def idle(server: Server) -> bool:
    """Return whether nothing is in flight."""
    return server.admission.in_flight == 0

"""A small server that speaks gRPC and the native protocol, counts what goes which way, and misbehaves when told to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import grpc

import scannery
from scannery.client.native.frames import HEAD, HELLO
from scannery.v1.native_pb2 import GetEndpointRequest, GetEndpointResponse, NativeHello, NativeWelcome
from scannery.v1.search_pb2 import SearchManyRequest, SearchManyResponse, SearchRequest, SearchResponse
from scannery.v1.types_pb2 import ErrorDetail

NATIVE, GRPC = 1, 2
"""The version that an answer says, by the way it came."""


class Speaker:
    """Both of its ends; see `speaking`."""

    def __init__(self, *, native: bool = True, workers: int = 1) -> None:
        self.grpc_calls = 0
        self.native_calls = 0
        self.looked = 0
        """Times that the endpoint was asked for."""
        self.hellos: list[NativeHello] = []
        self.connections: list[socket.socket] = []
        """Those that are open."""
        self.timeouts_ms: list[int] = []
        self.welcomed_as = "this"
        """What the welcome says; what the endpoint says is `this`."""
        self.hello_status = 0
        self.workers = workers
        self.worker: Callable[[], int] = lambda: 0
        """Draws the worker for a connection."""
        self.answer: Callable[[socket.socket, int, bytes], bytes | None] = lambda sock, kind, body: found(
            NATIVE
        )
        """Makes the frames of an answer, without their numbers; None: there is none, and the connection ends."""
        self.trickle_s = 0.0
        """Between the bytes of an answer."""
        self.shuffled = 1
        """Answers are held back until there are so many, and sent in another order."""
        self._native = native
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._server = grpc.server(ThreadPoolExecutor(64), handlers=self._handlers())
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._accepting = threading.Thread(target=self._accept)

    def start(self) -> None:
        self._server.start()
        self._accepting.start()

    def stop(self) -> None:
        self.stop_listening()
        self._accepting.join(10)
        self.hang_up()
        self._server.stop(None).wait(10)

    def stop_listening(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def listen_again(self) -> None:
        """Listen on another port, as a server does that has started again."""
        self._accepting.join(10)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def hang_up(self) -> None:
        """End all connections."""
        for sock in list(self.connections):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _handlers(self) -> list[Any]:
        def endpoint(request: GetEndpointRequest, context: grpc.ServicerContext) -> GetEndpointResponse:
            self.looked += 1
            if not self._native:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "nowhere")
            return GetEndpointResponse(port=self._listener.getsockname()[1], server="this")

        def search(request: SearchRequest, context: grpc.ServicerContext) -> SearchResponse:
            self.grpc_calls += 1
            return SearchResponse(version=GRPC)

        def search_many(request: SearchManyRequest, context: grpc.ServicerContext) -> SearchManyResponse:
            self.grpc_calls += 1
            return SearchManyResponse(version=GRPC)

        def handler(method: Any, request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                method,
                request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )

        searches = {
            "Search": handler(search, SearchRequest),
            "SearchMany": handler(search_many, SearchManyRequest),
        }
        endpoints = {"GetEndpoint": handler(endpoint, GetEndpointRequest)}
        return [
            grpc.method_handlers_generic_handler("scannery.v1.SearchService", searches),
            grpc.method_handlers_generic_handler("scannery.v1.NativeService", endpoints),
        ]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(sock)
            threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock: socket.socket) -> None:
        try:
            with suppress(OSError), sock:
                self._answer_all(sock)
        finally:
            self.connections.remove(sock)

    def _answer_all(self, sock: socket.socket) -> None:
        held: list[bytes] = []
        for frames in count():
            head = _read(sock, HEAD.size)
            if head is None:
                return
            length, kind, number, left_ms = HEAD.unpack(head)
            body = _read(sock, length) or b""
            if frames == 0:
                assert kind == HELLO
                self.hellos.append(NativeHello.FromString(body))
                answer: bytes | None = self._welcome()
            else:
                self.native_calls += 1
                self.timeouts_ms.append(left_ms)
                answer = self.answer(sock, kind, body)
            if answer is None:
                return
            held.append(answer[:8] + number.to_bytes(4, "little") + answer[12:])
            if frames == 0 or len(held) >= self.shuffled:
                self._send(sock, b"".join(reversed(held)))
                held.clear()

    def _send(self, sock: socket.socket, data: bytes) -> None:
        if not self.trickle_s:
            sock.sendall(data)
            return
        for at in range(len(data)):
            sock.sendall(data[at : at + 1])
            time.sleep(self.trickle_s)

    def _welcome(self) -> bytes:
        if self.hello_status:
            return frame(ErrorDetail(message="no"), self.hello_status)
        return frame(
            NativeWelcome(protocol=1, server=self.welcomed_as, worker=self.worker(), workers=self.workers)
        )


def _read(sock: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            return None
        data += part
    return data


def frame(message: Any, status: int = 0) -> bytes:
    """Return an answer, whose number is set later."""
    body = message.SerializeToString()
    return HEAD.pack(len(body), status, 0, 0) + body


def found(version: int) -> bytes:
    """Return an answer without hits."""
    return frame(SearchResponse(version=version))


@contextmanager
def speaking(**options: Any) -> Iterator[Speaker]:
    """Serve on free ports."""
    speaker = Speaker(**options)
    speaker.start()
    try:
        yield speaker
    finally:
        speaker.stop()


def until_native(client: scannery.Client, *, seconds: float = 20) -> None:
    """Search until a search goes without gRPC."""
    until_s = time.monotonic() + seconds
    while client.index("any").search([1.0]).version != NATIVE:
        assert time.monotonic() < until_s, "no search went natively"
        time.sleep(0.005)

"""A small server of gRPC and HTTP that counts what arrives by which wire, and misbehaves when told to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import grpc

from scannery.v1.index_pb2 import UpsertRequest, UpsertResponse
from scannery.v1.search_pb2 import SearchManyRequest, SearchManyResponse, SearchRequest, SearchResponse

HTTP, GRPC = 1, 2
"""The version that an answer says, by its wire."""


class Exchange:
    """One request that arrived over HTTP."""

    def __init__(self, sock: socket.socket, path: str, headers: dict[str, str], body: bytes) -> None:
        self.sock = sock
        self.path = path
        self.headers = headers
        self.body = body


class Speaker:
    """Both ends; see `speaking`."""

    def __init__(self, *, http: bool = True, workers: int = 1, grpc_address: str = "127.0.0.1:0") -> None:
        self.grpc_calls = 0
        self.asked = 0
        """gRPC calls that asked for HTTP."""
        self.requests: list[Exchange] = []
        """Over HTTP, without those for health."""
        self.probes: list[Exchange] = []
        self.connections: list[socket.socket] = []
        """Those that are open."""
        self.server_id = self.told_id = "this"
        """What health says, and what gRPC says."""
        self.health_status = 200
        self.workers = workers
        self.worker: Callable[[], int] = lambda: 0
        """Draws the worker for a connection."""
        self.answer: Callable[[Exchange], bytes | None] = all_well
        """Makes a response; None: there is none, and the connection ends."""
        self.piece_bytes = 0
        """Responses are sent in pieces of this size; 0: at once."""
        self._http = http
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.told_port = self.port
        """What gRPC says."""
        self._server = grpc.server(ThreadPoolExecutor(64), handlers=self._handlers())
        self.address = f"127.0.0.1:{self._server.add_insecure_port(grpc_address)}"
        self._accepting = threading.Thread(target=self._accept)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

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
        self.told_port = self.port
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def hang_up(self) -> None:
        """End all connections."""
        for sock in list(self.connections):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _handlers(self) -> list[Any]:
        def answered(response: Callable[[], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
            def answer(request: Any, context: grpc.ServicerContext) -> Any:
                self.grpc_calls += 1
                if ("scannery-http", "ask") in [tuple(pair) for pair in context.invocation_metadata()]:
                    self.asked += 1
                    if self._http:
                        where = (("scannery-http", str(self.told_port)), ("scannery-server", self.told_id))
                        context.set_trailing_metadata(where)
                return response()

            return answer

        def handler(response: Callable[[], Any], request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                answered(response),
                request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )

        searches = {
            "Search": handler(lambda: SearchResponse(version=GRPC), SearchRequest),
            "SearchMany": handler(lambda: SearchManyResponse(version=GRPC), SearchManyRequest),
        }
        writes = {"Upsert": handler(lambda: UpsertResponse(sequence=GRPC), UpsertRequest)}
        return [
            grpc.method_handlers_generic_handler("scannery.v1.SearchService", searches),
            grpc.method_handlers_generic_handler("scannery.v1.IndexService", writes),
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
        worker = self.worker()
        while (exchange := _read(sock)) is not None:
            if exchange.path == "/healthz":
                self.probes.append(exchange)
                headers = {"scannery-server": self.server_id, "scannery-worker": f"{worker}/{self.workers}"}
                response: bytes | None = answered(b"{}", "application/json", self.health_status, headers)
            else:
                self.requests.append(exchange)
                response = self.answer(exchange)
            if response is None:
                return
            size = self.piece_bytes or len(response)
            for at in range(0, len(response), size):
                sock.sendall(response[at : at + size])
                if self.piece_bytes:
                    time.sleep(0.001)


def _read(sock: socket.socket) -> Exchange | None:
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(1 << 16)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert len(headers) == len(lines), "a header came twice"
    while len(body) < int(headers.get("content-length", "0")):
        part = sock.recv(1 << 16)
        if not part:
            return None
        body += part
    return Exchange(sock, first.split(" ")[1], headers, body)


def answered(
    body: bytes, kind: str = "application/proto", status: int = 200, headers: dict[str, str] | None = None
) -> bytes:
    """Return the bytes of a response."""
    lines = {"content-type": kind, "content-length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Reason\r\n{head}\r\n".encode() + body


def found(version: int) -> bytes:
    """Return a response without hits."""
    return answered(SearchResponse(version=version).SerializeToString())


def all_well(exchange: Exchange) -> bytes:
    """Return the response to a search or to an upsert."""
    if exchange.path.endswith("/Upsert"):
        return answered(UpsertResponse(sequence=HTTP).SerializeToString())
    return found(HTTP)


@contextmanager
def speaking(**options: Any) -> Iterator[Speaker]:
    """Serve on free ports."""
    speaker = Speaker(**options)
    speaker.start()
    try:
        yield speaker
    finally:
        speaker.stop()


def eventually(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until_s, "it never came true"
        time.sleep(0.005)

"""The metrics over HTTP: `GET /metrics`, and nothing else.

One thread answers all connections, of which there are few, each for one request and a few seconds. A caller that sends
nothing, or one byte at a time, or does not read, takes no thread, and makes room for the next one.

There are no credentials here, and the metrics name the indexes: the address is for those who may know them.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from scannery.runtime.errors import BindError
from scannery.serving.config import joined_address, split_address

__all__ = ["MetricsServer"]

_LOG = logging.getLogger(__name__)

MAX_CONNECTIONS = 32
"""Further ones end the oldest."""
WITHIN_S = 5.0
"""A connection may be there for so long, from its first byte to its last."""
MAX_REQUEST_BYTES = 8192
_LOOK_EVERY_S = 0.5
_AT_ONCE = 1 << 16


class _Connection:
    """One request, and its answer."""

    __slots__ = ("answer", "began_s", "request", "socket")

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.began_s = time.monotonic()
        self.request = b""
        self.answer: memoryview | None = None
        """What is still to be sent; None: the request is not whole yet."""


class MetricsServer:
    """Answers with what a function returns. Runs in a thread of its own."""

    def __init__(self, listen: str, text: Callable[[], str]) -> None:
        """Listen.

        Raises:
            BindError: the address is taken, or is not one of this machine.

        """
        host, port = split_address(listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listening = socket.create_server(
                (host, port),
                family=family,
                backlog=MAX_CONNECTIONS,
                dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            raise BindError(f"cannot listen on {listen}: {error.strerror}", field="metrics_listen") from error
        self._listening.setblocking(False)
        self.address = joined_address(host, self._listening.getsockname()[1])
        self._text = text
        self._connections: dict[int, _Connection] = {}
        """By descriptor, the oldest first."""
        self._selector = selectors.DefaultSelector()
        self._wake, self._waken = socket.socketpair()
        self._stopped = threading.Event()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="scannery-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering."""
        self._stopped.set()
        self._waken.send(b"x")
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for key, _ in self._selector.select(_LOOK_EVERY_S):
                if key.fileobj is self._listening:
                    self._accept()
                elif (connection := self._connections.get(key.fd)) is not None:
                    self._heard(connection)
            self._close_overdue()
        for connection in list(self._connections.values()):
            self._close(connection)
        self._selector.close()
        for each in (self._listening, self._wake, self._waken):
            each.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except OSError:
            # Where no descriptor is free, the port would tell of it all the time.
            self._stopped.wait(0.05)
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            self._make_room()
        accepted.setblocking(False)
        self._connections[accepted.fileno()] = _Connection(accepted)
        self._selector.register(accepted, selectors.EVENT_READ)

    def _make_room(self) -> None:
        """Close the oldest connection, and rather one that has sent no request."""
        there = list(self._connections.values())
        self._close(next((each for each in there if each.answer is None), there[0]))

    def _heard(self, connection: _Connection) -> None:
        try:
            if connection.answer is None:
                self._read(connection)
            else:
                self._write(connection)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(_AT_ONCE)
        connection.request += data
        if b"\r\n\r\n" in connection.request:
            connection.answer = memoryview(self._answer(connection.request))
            self._selector.modify(connection.socket, selectors.EVENT_WRITE)
            self._write(connection)
        elif not data or len(connection.request) > MAX_REQUEST_BYTES:
            self._close(connection)

    def _write(self, connection: _Connection) -> None:
        assert connection.answer is not None
        connection.answer = connection.answer[connection.socket.send(connection.answer) :]
        if not connection.answer:
            self._close(connection)

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            status, body = "405 Method Not Allowed", b"only GET\n"
        elif path != b"/metrics":
            status, body = "404 Not Found", b"see /metrics\n"
        else:
            status, body = self._metrics()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    def _metrics(self) -> tuple[str, bytes]:
        try:
            return "200 OK", self._text().encode()
        except Exception:  # noqa: BLE001  whatever it is, the next scrape needs the thread
            _LOG.exception("the metrics cannot be told")
            return "500 Internal Server Error", b"see the log\n"

    def _close_overdue(self) -> None:
        before_s = time.monotonic() - WITHIN_S
        for connection in [each for each in self._connections.values() if each.began_s < before_s]:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        self._selector.unregister(connection.socket)
        with suppress(OSError):
            # What was sent must not be lost because of something that was not read.
            connection.socket.shutdown(socket.SHUT_WR)
        connection.socket.close()

"""Serves an ASGI application to clients that may be slow or hostile: every connection has a deadline at every moment.

A whole request must arrive in a bounded time, and its answer be read in one; where there are too many connections, the
one that has waited longest for its request makes room. Heads are bounded by h11, bodies by `read_body`. Needs uvicorn,
which the extras of those who serve pages and tools bring.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive

__all__ = ["ConnectionLimits", "listener_on", "read_body", "serve_asgi"]


SHUTDOWN_S = 60.0
"""Seconds in which requests that run are answered at a shutdown."""


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """What clients may take."""

    request_s: float = 30.0
    """Seconds in which a request must arrive, from the connection or the answer before it."""
    answer_s: float = 60.0
    """Seconds in which it must be answered, and the answer be read."""
    connections: int = 256
    """Number of connections at once."""


def listener_on(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0: a free one. Raises OSError: it is in use, or is none of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    # Connections inherit it: head and body of an answer are two writes, and the second waited for 40 ms otherwise.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def serve_asgi(
    app: ASGIApp,
    listener: socket.socket,
    limits: ConnectionLimits,
    ready: Callable[[], None],
    *,
    tls_cert: str = "",
    tls_key: str = "",
) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that run are answered.

    Args:
        app: the application.
        listener: of `listener_on`.
        limits: of each connection.
        ready: called when requests are answered.
        tls_cert: file with the certificate, PEM; empty: no TLS.
        tls_key: file with its private key, PEM.

    """
    config = uvicorn.Config(
        app,
        http=partial(_Connection, limits=limits),  # type: ignore[arg-type]  # called like a class
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(limits.request_s) + 1,
        timeout_graceful_shutdown=int(min(limits.answer_s, SHUTDOWN_S)),
        ssl_certfile=tls_cert or None,
        ssl_keyfile=tls_key or None,
    )
    server = _Server(config, ready)
    try:
        await server.serve([listener])
    finally:  # cancelled, too
        for connection in server.server_state.connections:
            connection.transport.abort()
        await asyncio.sleep(0)


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """Return the body; raises ValueError if it is too large, and ConnectionError if the client is gone."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ConnectionError
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise ValueError(f"a body has at most {max_bytes} bytes")
        if not message.get("more_body", False):
            return bytes(body)


class _Server(uvicorn.Server):
    """Ends without an error on SIGTERM and Ctrl-C."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal, and not raise it again at the end."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


class _Connection(H11Protocol):
    """A connection with a deadline at every moment."""

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._waits_since: float | None = None
        """Moment since which it waits for a request; None: a request is answered."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self._limits.connections:
            waiting = [
                (each._waits_since, each)
                for each in self.connections
                if isinstance(each, _Connection) and each._waits_since is not None
            ]
            min(waiting, key=lambda pair: pair[0])[1].transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._waits_since is not None and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._waits_since = None
            self._end_after(self._limits.answer_s)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waits_since = time.monotonic()
        self._end_after(self._limits.request_s)

    def _end_after(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

"""Streamable HTTP for the tools: one request, one answer, no sessions, and bounds on what a client can hold.

A client may be slow, or hostile. So a connection has a time in which a whole request must arrive, and one in which its
answer must be read; where there are too many connections, the one that has waited longest for its request makes room.
Heads are bounded by h11, bodies here, before anything is parsed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from scannery.bridges.mcp.server import make_server
from scannery.client.aio import AsyncClient

__all__ = ["HttpConfig", "serve_http"]

PATH = "/mcp"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, kw_only=True)
class HttpConfig:
    """Where the tools are served, and what clients may take."""

    host: str = "127.0.0.1"
    """Address to listen on, which `Host` and `Origin` may have, too."""
    port: int = 0
    """Port to listen on; 0: a free one."""
    names: Sequence[str] = ()
    """Names, besides those of loopback, that `Host` and `Origin` may have."""
    needs_secret: bool = False
    """Whether a request without `Authorization` is refused before anything else."""
    request_s: float = 30.0
    """Seconds in which a request must arrive, from the connection or the answer before it."""
    answer_s: float = 60.0
    """Seconds in which it must be answered, and the answer be read."""
    max_connections: int = 256
    """Number of connections at once."""
    max_running: int = 32
    """Number of requests that are answered at once; further ones wait."""
    max_body_bytes: int = 1 << 18
    """Size of a body."""


async def serve_http(client: AsyncClient, config: HttpConfig, ready: Callable[[str], None]) -> None:
    """Serve the tools until SIGTERM or Ctrl-C; requests that run are answered.

    Args:
        client: of the server or store with the indexes, as of `make_server`.
        config: of the server.
        ready: called with the URL when requests are answered.

    Raises:
        OSError: the address is in use, or is none of this machine.

    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.create_server((config.host, config.port), family=family) as listener:
        # Connections inherit it: head and body of an answer are two writes, and the second waited for 40 ms otherwise.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        manager = StreamableHTTPSessionManager(
            app=make_server(client),
            json_response=True,
            stateless=True,
            security_settings=_security(config),
            max_request_body_size=config.max_body_bytes,
        )
        port = listener.getsockname()[1]
        async with manager.run():
            app = _Gate(manager.asgi_app, config)
            await _Server(
                app, config, partial(ready, f"http://{_name_in_url(config.host)}:{port}{PATH}")
            ).serve([listener])


class _Gate:
    """Refuses what is no call before its body is read, and bounds the calls that run."""

    def __init__(self, app: ASGIApp, config: HttpConfig) -> None:
        self._app = app
        self._config = config
        self._running = asyncio.Semaphore(config.max_running)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, send)
            return
        try:
            body = await self._body(receive)
        except ValueError as error:
            await PlainTextResponse(f"{error}\n", 413)(scope, receive, send)
            return
        except ConnectionError:
            return
        messages: Iterator[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Any:
            return next(messages, None) or await receive()

        async with self._running:
            await self._app(scope, replay, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        if scope["path"] != PATH:
            return PlainTextResponse(f"there is only {PATH}\n", 404)
        if scope["method"] != "POST":
            # There are no sessions to listen to or to end: the protocol allows to say so.
            return PlainTextResponse("only POST\n", 405, {"allow": "POST"})
        secrets = Headers(scope=scope).getlist("authorization")
        schemes = [secret.partition(" ")[0].lower() for secret in secrets]
        if schemes != ["bearer"] and (secrets or self._config.needs_secret):
            message = "give one header `Authorization: Bearer KEY`\n"
            return PlainTextResponse(message, 401, {"www-authenticate": "Bearer"})
        return None

    async def _body(self, receive: Receive) -> bytes:
        """Return the body; raises ValueError if it is too large, and ConnectionError if the client is gone."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ConnectionError
            body += message.get("body", b"")
            if len(body) > self._config.max_body_bytes:
                raise ValueError(f"a body has at most {self._config.max_body_bytes} bytes")
            if not message.get("more_body", False):
                return bytes(body)


class _Server(uvicorn.Server):
    """Ends without an error on SIGTERM and Ctrl-C."""

    def __init__(self, app: ASGIApp, config: HttpConfig, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(_Connection, limits=config),  # type: ignore[arg-type]  # called like a class
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(config.request_s) + 1,
                timeout_graceful_shutdown=int(config.answer_s),
            )
        )
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

    def __init__(self, *arguments: Any, limits: HttpConfig, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._waits_since: float | None = None
        """Moment since which it waits for a request; None: a request is answered."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self._limits.max_connections:
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


def _security(config: HttpConfig) -> TransportSecuritySettings:
    """Return which `Host` and `Origin` a request may have: other names are those of pages that found this address."""
    names = (*LOOPBACK, _name_in_url(config.host), *config.names)
    return TransportSecuritySettings(
        allowed_hosts=[pattern for name in names for pattern in (name, f"{name}:*")],
        allowed_origins=[
            pattern
            for name in names
            for scheme in ("http", "https")
            for pattern in (f"{scheme}://{name}", f"{scheme}://{name}:*")
        ],
    )


def _name_in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host

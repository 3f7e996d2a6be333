"""Streamable HTTP for the tools: one request, one answer, no sessions, and bounds on what a client can hold.

A client may be slow, or hostile: `runtime/asgi_server.py` bounds what a connection may take, and bodies are bounded
here, before anything is parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scannery.bridges.mcp.server import make_server
from scannery.client.aio import AsyncClient
from scannery.runtime.asgi_server import ConnectionLimits, listener_on, read_body, serve_asgi

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
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """What a connection may take."""
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
    with listener_on(config.host, config.port) as listener:
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
            url = f"http://{_name_in_url(config.host)}:{port}{PATH}"
            await serve_asgi(app, listener, config.limits, partial(ready, url))


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
            body = await read_body(receive, self._config.max_body_bytes)
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

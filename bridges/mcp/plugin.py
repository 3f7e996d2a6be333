"""Starts the tools for agents beside a server whose options ask for them, as one more client of it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from scannery.client.packages import needed_for, with_extra
from scannery.serving.bridging import Bridge, Companion, Host, Plugin
from scannery.serving.config import ListenConfig, ServerConfig, split_address

__all__ = ["McpPlugin"]

_LOG = logging.getLogger(__name__)


class McpPlugin(Plugin):
    """`scannery serve --mcp`."""

    def wanted(self, config: ListenConfig) -> bool:
        """Return whether the tools are to be served."""
        return isinstance(config, ServerConfig) and bool(config.mcp)

    def load(self) -> None:
        """Import what the process of the tools needs; a package that is missing ends the start."""
        with needed_for("scannery serve --mcp", with_extra("mcp")):
            import scannery.bridges.mcp.http  # noqa: F401

    def open(self, host: Host) -> Bridge:
        """Return nothing: workers answer the tools as they answer any client."""
        return Bridge()

    def companion(self) -> Companion:
        """Return the process of the tools."""
        return _serve


def _serve(config: ListenConfig, ready: Callable[[], None]) -> None:
    from scannery.bridges.mcp.http import HttpConfig, serve_http
    from scannery.bridges.mcp.server import caller_secret
    from scannery.client import aio

    assert isinstance(config, ServerConfig)  # `wanted` says so
    host, port = split_address(config.mcp)
    http = HttpConfig(
        host=host,
        port=port,
        names=config.http_hosts,
        needs_secret=config.security.tokens,
    )

    def tell(url: str) -> None:
        _LOG.info("tools for agents at %s", url)
        ready()

    async def serve() -> None:
        # Keys stay on this machine, so they need no TLS; and they are the callers' own: nobody may do more than there.
        async with aio.connect(config.local_target, tls=False, token=caller_secret) as client:
            await serve_http(client, http, tell)

    # The web server handles these by itself.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    asyncio.run(serve())

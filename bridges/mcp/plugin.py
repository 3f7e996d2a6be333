"""Starts the tools for agents beside a server: `scannery serve --mcp`."""

from __future__ import annotations

from collections.abc import Callable

from scannery.bridges.companions import CompanionPlugin
from scannery.serving.config import ServerConfig

__all__ = ["McpPlugin"]


async def _serve(config: ServerConfig, host: str, port: int, ready: Callable[[str], None]) -> None:
    from scannery.bridges.mcp.http import HttpConfig, serve_http
    from scannery.bridges.mcp.server import caller_secret
    from scannery.client import aio

    http = HttpConfig(host=host, port=port, names=config.http_hosts, needs_secret=config.security.tokens)
    # Keys stay on this machine, so they need no TLS; and they are the callers' own: nobody may do more than there.
    async with aio.connect(config.local_target, tls=False, token=caller_secret) as client:
        await serve_http(client, http, ready)


class McpPlugin(CompanionPlugin):
    """The tools."""

    name, module, serve = "mcp", "scannery.bridges.mcp.http", _serve

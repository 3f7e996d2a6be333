"""Starts the console beside a server: `scannery serve --console`."""

from __future__ import annotations

from collections.abc import Callable

from scannery.bridges.companions import CompanionPlugin
from scannery.serving.config import ServerConfig

__all__ = ["ConsolePlugin"]


async def _serve(config: ServerConfig, host: str, port: int, ready: Callable[[str], None]) -> None:
    from scannery.cli.commands.servers.console import judgement_sets, run_console
    from scannery.console.config import ConsoleConfig

    console = ConsoleConfig(
        title=config.local_target,
        host=host,
        port=port,
        names=config.http_hosts,
        behind_tls=config.security.behind_tls,
        judgements=judgement_sets(),
    )
    # Keys stay on this machine, so they need no TLS.
    await run_console(config.local_target, {"tls": False}, console, ready)


class ConsolePlugin(CompanionPlugin):
    """The page."""

    name, module, serve = "console", "scannery.console.application", _serve

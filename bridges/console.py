"""Starts the console beside a server whose options ask for it, as one more client of it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from scannery.client.packages import needed_for, with_extra
from scannery.serving.bridging import Bridge, Companion, Host, Plugin
from scannery.serving.config import ListenConfig, ServerConfig, split_address

__all__ = ["ConsolePlugin"]

_LOG = logging.getLogger(__name__)


class ConsolePlugin(Plugin):
    """`scannery serve --console`."""

    def wanted(self, config: ListenConfig) -> bool:
        """Return whether the page is to be served."""
        return isinstance(config, ServerConfig) and bool(config.console)

    def load(self) -> None:
        """Import what the process of the page needs; a package that is missing ends the start."""
        with needed_for("scannery serve --console", with_extra("console")):
            import scannery.console.application  # noqa: F401

    def open(self, host: Host) -> Bridge:
        """Return nothing: workers answer the page as they answer any client."""
        return Bridge()

    def companion(self) -> Companion:
        """Return the process of the page."""
        return _serve


def _serve(config: ListenConfig, ready: Callable[[], None]) -> None:
    from scannery.cli.commands.servers.console import judgement_sets, run_console
    from scannery.console.config import ConsoleConfig

    assert isinstance(config, ServerConfig)  # `wanted` says so
    host, port = split_address(config.console)
    console = ConsoleConfig(
        title=config.local_target,
        host=host,
        port=port,
        names=config.http_hosts,
        behind_tls=config.security.behind_tls,
        judgements=judgement_sets(),
    )

    def tell(url: str) -> None:
        _LOG.info("console at %s", url)
        ready()

    # The web server handles these by itself.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    # Keys stay on this machine, so they need no TLS.
    asyncio.run(run_console(config.local_target, {"tls": False}, console, tell))

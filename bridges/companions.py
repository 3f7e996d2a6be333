"""A process beside a server that is one more client of it, started by the option of its name."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import ClassVar

from scannery.client.packages import needed_for, with_extra
from scannery.serving.bridging import Bridge, Companion, Host, Plugin
from scannery.serving.config import ListenConfig, ServerConfig, split_address

__all__ = ["CompanionPlugin"]

_LOG = logging.getLogger(__name__)


class CompanionPlugin(Plugin):
    """Starts the process where `scannery serve --NAME HOST:PORT` asks for it."""

    name: ClassVar[str]
    """Name of the option of `ServerConfig` that has the address, and of the extra."""
    module: ClassVar[str]
    """What the process needs."""
    serve: ClassVar[Callable[[ServerConfig, str, int, Callable[[str], None]], Coroutine[None, None, None]]]
    """Serves at a host and port until SIGTERM or Ctrl-C; the last argument is called with the URL."""

    def wanted(self, config: ListenConfig) -> bool:
        """Return whether the option has an address."""
        return isinstance(config, ServerConfig) and bool(getattr(config, self.name))

    def load(self) -> None:
        """Import what the process needs; a package that is missing ends the start."""
        with needed_for(f"scannery serve --{self.name}", with_extra(self.name)):
            import_module(self.module)

    def open(self, host: Host) -> Bridge:
        """Return nothing: workers answer the process as they answer any client."""
        return Bridge()

    def companion(self) -> Companion:
        """Return the process."""
        return self._run

    def _run(self, config: ListenConfig, ready: Callable[[], None]) -> None:
        assert isinstance(config, ServerConfig)  # `wanted` says so

        def tell(url: str) -> None:
            _LOG.info("%s at %s", self.name, url)
            ready()

        # The web server handles these by itself.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        asyncio.run(type(self).serve(config, *split_address(getattr(config, self.name)), tell))

"""Opens the managed service's APIs on a server whose options ask for them; nothing else is imported for that."""

from __future__ import annotations

from importlib import import_module

from scannery.serving.bridging import Bridge, Host, Plugin
from scannery.serving.config import ListenConfig, ServerConfig

__all__ = ["VertexPlugin"]


class VertexPlugin(Plugin):
    """`scannery serve --vertex`."""

    def wanted(self, config: ListenConfig) -> bool:
        """Return whether the APIs are to be served."""
        return isinstance(config, ServerConfig) and config.vertex is not None

    def load(self) -> None:
        """Import the handlers of all versions."""
        import_module("scannery.bridges.vertex.facade")

    def open(self, host: Host) -> Bridge:
        """Return the methods of all versions."""
        from scannery.bridges.vertex.facade import opened

        return opened(host)

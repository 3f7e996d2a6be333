"""Opens OpenAI's API of embeddings on a server with HTTP."""

from __future__ import annotations

from scannery.serving.bridging import Bridge, Host, Plugin
from scannery.serving.config import ListenConfig

__all__ = ["OpenAIPlugin"]


class OpenAIPlugin(Plugin):
    """`/v1/embeddings` and `/v1/models`."""

    def wanted(self, config: ListenConfig) -> bool:
        """Return whether the server has HTTP."""
        return bool(config.http_address)

    def load(self) -> None:
        """Import what the paths need, before workers are forked."""
        import scannery.bridges.openai.embeddings  # noqa: F401

    def open(self, host: Host) -> Bridge:
        """Return the paths."""
        from scannery.bridges.openai.embeddings import EmbeddingsApi

        return Bridge(http=(EmbeddingsApi(),))

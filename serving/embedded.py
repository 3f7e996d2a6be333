"""The engine without a server: the methods of the contract over a store, called in this process."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import Message

from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.services.search import Service
from scannery.serving.status import status_of

__all__ = ["EmbeddedEngine", "open_embedded", "status_of"]


class EmbeddedEngine:
    """What a server would answer. Safe to use from several threads."""

    def __init__(self, catalog: Catalog) -> None:
        """`catalog`: the indexes; closed with the engine."""
        self.store = catalog.store.uri
        """Absolute: opens the same store again, from any working folder."""
        self._service = Service(catalog, models=None)

    def call(self, path: str, request: Message, timeout_s: float) -> Message:
        """Return the answer of the method at `path` (`/scannery.v1.SearchService/Search`).

        Raises what its handler raises; `status_of` returns the gRPC status, the message and the detail of that.
        """
        return self._service.call(path, self._service.resolved(request), Deadline.after(timeout_s))

    def close(self) -> None:
        """Close the indexes; requests that run finish on what they hold."""
        self._service.close()


def open_embedded(store: str | Path, *, device: str = "auto", create: bool = False) -> EmbeddedEngine:
    """Return the engine over a store.

    Args:
        store: a folder or URI.
        device: where texts are encoded: `auto`, `cpu`, `cuda`, `cuda:1` or `xla`.
        create: whether to create a local folder that does not exist.

    Raises:
        NotFoundError, StoreError: there is no such store.
        ConfigError: the SQLite of the logs may lose commits.

    """
    return EmbeddedEngine(open_embedded_catalog(store, device=device, create=create))

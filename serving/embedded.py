"""The engine without a server: the methods of the contract over a store, called in this process."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import Message

from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.services.search import Service
from scannery.serving.status import status_of
from scannery.serving.traffic.embedded_traffic import EmbeddedTraffic
from scannery.v1.search_pb2 import SearchManyRequest, SearchManyResponse, SearchRequest, SearchResponse

__all__ = ["EmbeddedEngine", "open_embedded", "status_of"]


class EmbeddedEngine:
    """What a server would answer. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, *, query_ids: bool = False) -> None:
        """`catalog`: the indexes; closed with the engine. `query_ids`: whether answers have ids."""
        self.store = catalog.store.uri
        """Absolute: opens the same store again, from any working folder."""
        self._traffic, self._query_ids = EmbeddedTraffic(catalog), query_ids
        self._service = Service(catalog, models=None, feedback=self._traffic.feedback)

    def call(self, path: str, request: Message, timeout_s: float) -> Message:
        """Return the answer of the method at `path` (`/scannery.v1.SearchService/Search`).

        Raises what its handler raises; `status_of` returns the gRPC status, the message and the detail of that.
        """
        request = self._service.resolved(request)
        answer = self._service.call(path, request, Deadline.after(timeout_s))
        if self._query_ids and isinstance(request, SearchRequest | SearchManyRequest):
            assert isinstance(answer, SearchResponse | SearchManyResponse)
            self._traffic.identify(request, answer)
        return answer

    def close(self) -> None:
        """Close the indexes; requests that run finish on what they hold."""
        self._service.close()


def open_embedded(
    store: str | Path, *, device: str = "auto", create: bool = False, query_ids: bool = False
) -> EmbeddedEngine:
    """Return the engine over a store.

    Args:
        store: a folder or URI.
        device: where texts are encoded: `auto`, `cpu`, `cuda`, `cuda:1` or `xla`.
        create: whether to create a local folder that does not exist.
        query_ids: whether answers have ids, for feedback.

    Raises:
        NotFoundError, StoreError: there is no such store.
        ConfigError: the SQLite of the logs may lose commits.

    """
    return EmbeddedEngine(open_embedded_catalog(store, device=device, create=create), query_ids=query_ids)

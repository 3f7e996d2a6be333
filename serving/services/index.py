"""Handlers that describe indexes."""

from __future__ import annotations

import logging
from contextlib import suppress

from scannery.indexer import IndexerError, NotFoundError, read_manifest
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError, UnknownIndexError
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.catalog.description import IndexCounts, index_info
from scannery.serving.contract import INDEX_SERVICE
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import index_pb2 as pb

__all__ = ["Indexes"]

_LOG = logging.getLogger(__name__)

DEFAULT_PAGE = 100
MAX_PAGE = 1000


class Indexes:
    """ListIndexes and GetIndex over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: BaseCatalog) -> None:
        """Serve the indexes of `catalog`."""
        self._catalog = catalog
        self.methods = {
            f"/{INDEX_SERVICE}/ListIndexes": UnaryMethod(pb.ListIndexesRequest, self.list_indexes, "read"),
            f"/{INDEX_SERVICE}/GetIndex": UnaryMethod(pb.GetIndexRequest, self.get_index, "read"),
        }

    def list_indexes(self, request: pb.ListIndexesRequest, deadline: Deadline) -> pb.ListIndexesResponse:
        """Return a page of indexes, sorted by name; a page token is the last name of the page before."""
        size = request.page_size if request.HasField("page_size") else DEFAULT_PAGE
        if not 1 <= size <= MAX_PAGE:
            raise InvalidRequestError.at("page_size", f"must be 1 to {MAX_PAGE}, got {size}")
        with suppress(IndexerError):  # those that are known are listed
            self._catalog.refresh_aliases()
        names = [name for name in self._catalog.names() if name > request.page_token]
        page = names[:size]
        infos = [info for info in map(self._listed, page) if info]
        token = page[-1] if len(names) > size else ""
        return pb.ListIndexesResponse(indexes=infos, next_page_token=token)

    def get_index(self, request: pb.GetIndexRequest, deadline: Deadline) -> pb.GetIndexResponse:
        """Return the description of an index."""
        snapshot = self._catalog.snapshot(request.index)
        return pb.GetIndexResponse(index=self._info(snapshot, details=True))

    def _info(self, snapshot: Snapshot, *, details: bool) -> pb.IndexInfo:
        """Return the description of an open index."""
        name = snapshot.manifest.index
        return index_info(
            snapshot.manifest,
            details=details,
            counts=IndexCounts.of(snapshot),
            problem=self._catalog.problem(name),
            aliases=self._catalog.aliases_of(name),
        )

    def _listed(self, name: str) -> pb.IndexInfo | None:
        """Return the description of an index, also of one that cannot be opened; None: it cannot be described."""
        try:
            snapshot = self._catalog.open_snapshot(name)
            if snapshot is not None:
                return self._info(snapshot, details=False)
        except UnknownIndexError:  # it was just removed
            return None
        except IndexerError as error:
            _LOG.debug("index %s is listed without being open: %s", name, error)
        try:
            # Embedded, listing does not open indexes.
            manifest = read_manifest(self._catalog.store, name)
        except NotFoundError:  # it was just removed
            return None
        except IndexerError as error:
            # An index that is broken, or was just removed, must not hide the others.
            _LOG.warning("index %s is left out of the list: %s", name, error)
            return None
        problem, aliases = self._catalog.problem(name), self._catalog.aliases_of(name)
        return index_info(manifest, details=False, problem=problem, aliases=aliases)

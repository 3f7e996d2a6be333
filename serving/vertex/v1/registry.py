"""Finds indexes by the names of resources.

An index is a resource if it has vectors, and was not made as a collection of API v2.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scannery.indexer import Manifest, latest_version
from scannery.runtime.errors import InvalidRequestError, OverloadedError, UnknownIndexError
from scannery.serving.scheduling.permits import waiting
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.vertex.shared.context import Facade
from scannery.serving.vertex.shared.names import ResourceName, is_visible, parse_name, unknown_resource
from scannery.serving.vertex.shared.state import Resources
from scannery.serving.vertex.v1.distances import measure_of
from scannery.serving.vertex.v1.index_settings import IndexSettings, parse_settings
from scannery.vertex.v1 import index_pb2 as pb

__all__ = [
    "BATCH",
    "DELETIONS",
    "ENDPOINTS",
    "INDEXES",
    "INDEX_KIND",
    "STREAM",
    "KnownIndex",
    "Registry",
    "is_being_deleted",
    "opened",
]

INDEXES = "indexes"
"""Kind of resources: descriptions of indexes."""
ENDPOINTS = "endpoints"
DELETIONS = "deletions"
"""Kind of resources: when the deletion of an index began, in seconds since 1970. Meanwhile it cannot be deployed."""
DELETION_S = 600.0
"""Age of a deletion that counts no more: its server was killed. Long, since the clocks of two servers differ."""
COLLECTIONS = "collections"
"""Kind of resources of API v2 (v2/collections.py), by the names of their indexes."""
INDEX_KIND = "indexes"
"""In names of resources."""
BATCH, STREAM = pb.BATCH_UPDATE, pb.STREAM_UPDATE
WAIT_S = 5.0
"""As long as a request waits for other indexes to be opened (`BaseCatalog.open_created`)."""
LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class KnownIndex:
    """An index that exists and that the caller may see."""

    name: ResourceName
    manifest: Manifest
    record: Mapping[str, Any] | None
    """Its description; None: it was not made through this API, and has none."""

    @property
    def settings(self) -> IndexSettings:
        """What determines it."""
        if self.record is not None and self.record.get("config"):
            return parse_settings(self.record["config"])
        return IndexSettings(self.manifest.dimensions, measure_of(self.manifest.spec.distance), exact=False)

    @property
    def update_method(self) -> int:
        """How it is written."""
        return STREAM if self.record is None else int(self.record["update_method"])


class Registry:
    """Finds indexes by the names of resources. Safe to use from several threads."""

    def __init__(self, facade: Facade) -> None:
        """Look in the catalog and the state of a server."""
        self._facade = facade

    def find(self, text: str, field: str = "name", *, resources: Resources | None = None) -> KnownIndex:
        """Return an index by the name of its resource.

        Args:
            text: the name.
            field: of the request, for errors.
            resources: as read before; None: they are read now.

        Raises:
            InvalidRequestError: it is no name of an index.
            UnknownResourceError: there is none, or the caller may not see it.

        """
        name = parse_name(text, INDEX_KIND, field)
        found = self.known(name.id, self._facade.state.read() if resources is None else resources)
        if found is None or (found.record is not None and found.record["parent"] != name.parent):
            raise unknown_resource(text, field)
        return KnownIndex(name, found.manifest, found.record)

    def find_recent(self, text: str, field: str = "name") -> KnownIndex:
        """As `find`, mostly without access to the store: what is known of the index may be half a second old."""
        resources = self._facade.state.recent()
        id = parse_name(text, INDEX_KIND, field).id
        # One without a description may have got it just now, from another worker.
        return self.find(text, field, resources=resources if id in resources.get(INDEXES, {}) else None)

    def known(self, id: str, resources: Resources, *, wait: bool = True) -> KnownIndex | None:
        """Return an index by its id, None if there is none that the caller may see.

        The index of a collection (API v2) is none: only that API knows the schema and the revisions of its objects.

        Args:
            id: its id.
            resources: as read.
            wait: whether one that is described, and not open here yet, is waited for.

        """
        if not is_visible(id) or id in resources.get(COLLECTIONS, {}):
            return None
        record = resources.get(INDEXES, {}).get(id)
        try:
            # Only what is known to exist is waited for: names of requests must not load the store.
            catalog = self._facade.catalog
            waits = wait and record is not None
            manifest = opened(self._facade, id).manifest if waits else catalog.manifest(id)
        except (UnknownIndexError, InvalidRequestError):
            return None
        if not manifest.dimensions:
            return None
        if record is not None and record.get("index_id", manifest.index_id) != manifest.index_id:
            record = None  # of an index that had this name before
        parent = record["parent"] if record else ""
        return KnownIndex(ResourceName(parent, INDEX_KIND, id), manifest, record)


def is_being_deleted(resources: Resources, index: str) -> bool:
    """Return whether a deletion of an index has begun, and not been refused."""
    began_s: float = resources.get(DELETIONS, {}).get(index, 0.0)
    return time.time() - began_s < DELETION_S


def opened(facade: Facade, index: str) -> Snapshot:
    """Return the snapshot of an index that the state of the server names.

    Another worker may just have created it, and this one be busy with opening it, or others: then it is waited for.

    Raises:
        UnknownIndexError: it is not in the store, not served, or the caller may not see it.
        UnknownIndexError, OverloadedError: it is not opened in time.
        CorruptError, FormatError, StoreError: it cannot be opened.

    """
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            return facade.catalog.snapshot(index)
        except (UnknownIndexError, OverloadedError):
            if time.monotonic() > until_s or not _exists(facade, index):
                raise
        with waiting():
            time.sleep(LOOK_EVERY_S)


def _exists(facade: Facade, index: str) -> bool:
    catalog = facade.catalog
    return is_visible(index) and catalog.serves(index) and latest_version(catalog.store, index) is not None

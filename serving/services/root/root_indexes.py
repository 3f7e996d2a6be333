"""Descriptions of the indexes of a cluster."""

from __future__ import annotations

from scannery.serving.catalog.description import index_info
from scannery.serving.catalog.root_catalog import RootCatalog
from scannery.serving.services.index import Indexes
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.index_pb2 import IndexInfo

__all__ = ["RootIndexes"]


class RootIndexes(Indexes):
    """ListIndexes and GetIndex of a root: counts are those of the manifest. Safe to use from several threads."""

    def __init__(self, catalog: RootCatalog) -> None:
        super().__init__(catalog)
        self._root_catalog = catalog

    def _info(self, snapshot: Snapshot, *, details: bool) -> IndexInfo:
        name = snapshot.manifest.index
        return index_info(
            self._root_catalog.whole_manifest(snapshot),
            details=details,
            problem=self._root_catalog.problem(name),
            aliases=self._root_catalog.aliases_of(name),
        )

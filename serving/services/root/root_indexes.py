"""Descriptions of the indexes of a cluster."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import ServingError
from scannery.serving.catalog.description import IndexCounts, index_info
from scannery.serving.catalog.root_catalog import RootCatalog
from scannery.serving.contract import LEAF_COUNT
from scannery.serving.services.index import Indexes
from scannery.serving.services.root.states import States
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.index_pb2 import IndexInfo
from scannery.v1.leaf_pb2 import LeafCountRequest, LeafCounts

__all__ = ["RootIndexes"]

COUNT_S = 5.0
"""Longest wait for the counts of an index; without them, those of the manifest are told."""


class RootIndexes(Indexes):
    """ListIndexes and GetIndex of a root. Safe to use from several threads."""

    def __init__(self, catalog: RootCatalog, states: States) -> None:
        super().__init__(catalog)
        self._root_catalog, self._states = catalog, states

    def _info(self, snapshot: Snapshot, *, details: bool) -> IndexInfo:
        manifest = self._root_catalog.whole_manifest(snapshot)
        counts = None
        if snapshot.sequence > manifest.log_sequence:
            with suppress(ServingError):  # an index is described while leaves are away
                counts = self._counts(snapshot)
        return index_info(
            manifest,
            details=details,
            counts=counts,
            problem=self._root_catalog.problem(manifest.index),
            aliases=self._root_catalog.aliases_of(manifest.index),
        )

    def _counts(self, snapshot: Snapshot) -> IndexCounts:
        """Return the counts after the mutations of a snapshot, which the leaves have."""
        reader = self._states.of(snapshot, Deadline.after(COUNT_S)).reader
        answers = reader.all(LEAF_COUNT, LeafCountRequest(at=reader.at), LeafCounts).values()
        vectors: Counter[str] = Counter()
        for each in answers:
            vectors.update(each.vectors)
        rows, in_memory = sum(each.rows for each in answers), sum(each.memory_rows for each in answers)
        return IndexCounts(rows, in_memory, vectors, snapshot.sequence)

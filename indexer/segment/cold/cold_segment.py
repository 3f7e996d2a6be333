"""An open segment whose vectors stay in the store. Made by opening.py.

Ids, documents, attributes, texts and all other columns but the vectors are in files of the local cache, as those of
other segments. Words are not kept: the inverted index would be most of the file again.

Shapes: Q queries, N rows, R rows, D dimensions, K hits.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np

from scannery.indexer.datapoints.row_records import Records
from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.paging.page_index import Pages
from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.planning.leaves import Leaves
from scannery.indexer.planning.planner import SegmentHits, nothing_found
from scannery.indexer.segment import segment_files as files
from scannery.indexer.segment.cold.cold_files import PAGES
from scannery.indexer.segment.cold.cold_search import KEPT_SHARE, ColdSearch
from scannery.indexer.segment.cold.cold_vectors import ColdReads, ColdVectors
from scannery.indexer.segment.segment import Search, Segment
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import Depth, SearchSettings, pick_settings
from scannery.indexer.vectors.arrays import mapped
from scannery.indexer.vectors.exact_search import (
    FEW_HITS,
    FEW_QUERIES,
    exact_search,
    row_scores,
    search_ready,
)
from scannery.indexer.vectors.tie_order import Ties
from scannery.indexer.vectors.vector_files import no_vectors

__all__ = ["ColdSegment"]


class ColdSegment(Segment):
    """Datapoints of one shard, whose vectors are read from the store when a search needs them."""

    def __init__(self, entry: SegmentEntry, folder: Path, store: Store, key: str, reads: ColdReads) -> None:
        """Map the files, and compile the kernels.

        Args:
            entry: of the segment in a manifest.
            folder: of the local cache, with checked files that `unpack_cold` wrote.
            store: with the segment file.
            key: of the file.
            reads: of the process.

        Raises:
            CorruptError: a file cannot be read.

        """
        info = json.loads((folder / files.INFO).read_text())
        self.entry = entry.model_copy(update={"deleted": None})
        self.distance = info["distance"]
        self.searched_ND = self.given_ND = no_vectors(entry.rows)
        self.records = Records.map(folder / files.COLUMNS)
        self._table = self.records.table
        self.ties = Ties.map(folder / files.TIES)
        self._hashes_2N = mapped(folder / files.HASHES)
        documents = folder / files.DOCUMENTS
        self._documents_2N = mapped(documents) if documents.exists() else self._hashes_2N
        self._searcher = self._coarse = self._planner = None
        leaves = folder / files.LEAVES
        self.leaves = Leaves.load(leaves) if leaves.exists() else None
        self._all_leaves = info["leaves"]
        self.postings = self.sparse = self.hold = None
        self.named = {}
        self._dimensions: int = info["dimensions"]
        if entry.vectors:
            self._open_vectors(Pages.map(folder / PAGES), store, key, reads, unit=info["unit"])
        with COMPILING:
            self._warm_up()

    def _open_vectors(self, pages: Pages, store: Store, key: str, reads: ColdReads, *, unit: bool) -> None:
        self._given = ColdVectors(store, key, pages, self._dimensions, reads, scaled=False)
        self._scaled = (
            self._given if unit else ColdVectors(store, key, pages, self._dimensions, reads, scaled=True)
        )
        ranks_N, most_bytes = self.ties.ranks_N, reads.max_bytes // KEPT_SHARE
        self._search = ColdSearch(
            self._scaled, self.leaves, self.distance, ranks_N, most_kept_bytes=most_bytes
        )
        self._search_given = ColdSearch(self._given, None, "dot", ranks_N, most_kept_bytes=most_bytes)

    @property
    def is_cold(self) -> bool:
        """True."""
        return True

    @property
    def dimensions(self) -> int:
        """Components of a vector; 0 without vectors."""
        return self._dimensions

    @property
    def is_scaled(self) -> bool:
        """Whether vectors are scaled to length 1 for the search: some were given with another length."""
        return self.has_vectors and self._scaled is not self._given

    def vectors(self, rows: np.ndarray | list[int]) -> np.ndarray:  # type: ignore[override]  # any sequence
        """Return the vectors of some rows as they were given, float32 `(len(rows), D)`; errors as of `find`."""
        rows_R = np.asarray(rows, np.int64)
        return self._given.at(rows_R) if self.has_vectors else np.zeros((len(rows_R), 0), np.float32)

    def searched(self, rows_R: np.ndarray) -> np.ndarray:
        """Return the vectors of some rows as they are searched, float32 (R, D); errors as of `find`."""
        return self._scaled.at(np.asarray(rows_R, np.int64))

    def scores_of(self, rows_R: np.ndarray, query_D: np.ndarray) -> np.ndarray:
        """Return the exact scores of some rows, float32 (R,); errors as of `find`."""
        vectors_RD = self.searched(rows_R)
        vectors_RD.setflags(write=False)
        return row_scores(vectors_RD, np.arange(len(rows_R)), query_D, self.distance)

    def settings_for(self, target_recall: float) -> SearchSettings | None:
        """Return the leaves of the first round for a target recall, which is their recall; None without leaves.

        Further rounds reach the target, so that no target needs an exact search.
        """
        picked = pick_settings(self.entry, target_recall, anyway=True)
        if picked is None or self.leaves is None or target_recall >= 1:
            return None
        others = tuple(_with_recall(depth, target_recall) for depth in picked.others)
        return SearchSettings(
            leaves=picked.leaves,
            rescore=picked.rescore,
            recall=target_recall,
            others=others,
            growth=picked.growth,
        )

    def searching(self, k: int, settings: SearchSettings | None) -> Search:
        """As `Segment.searching`."""
        return partial(self._hits, k, settings)

    def _hits(
        self, k: int, settings: SearchSettings | None, queries_QD: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        found = self._found(queries_QD, k, settings, None, 0.0)
        return found.rows_QK, found.scores_QK

    def _found(
        self,
        queries_QD: np.ndarray,
        k: int,
        settings: SearchSettings | None,
        allowed: AllowedRows | None,
        target_recall: float,
    ) -> SegmentHits:
        if not self.has_vectors:
            return nothing_found(len(queries_QD), k)
        if settings is None or target_recall >= 1:
            return self._search.exact(queries_QD, k, allowed)
        return self._search.nearest(queries_QD, k, settings, allowed)

    def _exact(
        self, queries_QD: np.ndarray, k: int, allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        found = self._search.exact(queries_QD, k, None if allowed is None else self.allow(allowed))
        return found.rows_QK, found.scores_QK

    def search_given(
        self, queries_QD: np.ndarray, k: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Segment.search_given`; it reads all pages with allowed rows."""
        rows = None if allowed is None else AllowedRows(allowed, None, self.rows)
        found = self._search_given.exact(queries_QD, k, rows)
        return found.rows_QK, found.scores_QK

    def _warm_up(self) -> None:
        """Compile the kernels, with vectors of zeros."""
        if not self.rows or not self.has_vectors:
            return
        vectors_1D = np.zeros((1, self._dimensions), np.float32)
        query_1D = search_ready(vectors_1D, self.distance)
        vectors_1D.setflags(write=False)
        ranks_1, own_1 = np.zeros(1, np.int32), np.zeros(1, np.int64)
        ranks_1.setflags(write=False)
        own_1.setflags(write=False)
        for queries, hits in ((1, 1), (1, FEW_HITS + 1), (FEW_QUERIES, 1)):
            asked_QD = np.repeat(query_1D, queries, axis=0)
            for own in (None, own_1):
                exact_search(vectors_1D, asked_QD, hits, self.distance, own, ranks_1)
        if self.leaves is not None:
            order_QL, predicted_QL, spread_QL = self.leaves.predict(query_1D, self.distance)
            scores_K = np.zeros(1, np.float32)
            self.leaves.needed(
                order_QL[0], predicted_QL[0], spread_QL[0], self.leaves.sizes_L, scores_K, 0.1, 1
            )


def _with_recall(depth: Depth, recall: float) -> Depth:
    return Depth(k=depth.k, leaves=depth.leaves, rescore=depth.rescore, recall=recall)

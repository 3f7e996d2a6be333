"""An open segment whose vectors stay in the store. Made by opening.py.

Ids, documents, attributes, texts and all other columns but the vectors are in files of the local cache, as those of
other segments. Words are not kept: the inverted index would be most of the file again.

A search reads the pages of the leaves nearest to each query, in rounds of requests. The first round reads three
quarters of the leaves that ScaNN was tuned to search. All rows of a leaf are scored with their vectors, so that nothing
is lost to codes; but without the second leaf that SOAR gives to rows. So the same statistics that end a scan of allowed
rows (planning/leaves.py) tell how many hits are expected in the other leaves, and further rounds read these until the
target recall is met. If the rows that may be returned are in fewer pages than the first round would read, these pages
are read, and the search is exact.

A batch of queries reads the leaves that any of them needs, once, and scores them for all.

Shapes: Q queries, N rows of the segment, P pages, L leaves, D dimensions, K hits, R rows of a part, X candidates.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from scannery.indexer.datapoints.row_records import Records
from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.planning.leaves import Leaves
from scannery.indexer.planning.planner import LIKELY, SegmentHits, nothing_found
from scannery.indexer.segment import segment_files as files
from scannery.indexer.segment.cold.cold_files import PAGES
from scannery.indexer.segment.cold.cold_vectors import ColdReads, ColdVectors
from scannery.indexer.segment.pages import Pages
from scannery.indexer.segment.segment import Search, Segment
from scannery.indexer.spec.spec import Distance
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import Depth, SearchSettings, pick_settings
from scannery.indexer.vectors.arrays import mapped
from scannery.indexer.vectors.exact_search import (
    FEW_HITS,
    FEW_QUERIES,
    NO_ROW,
    Ties,
    exact_search,
    row_scores,
    search_ready,
)
from scannery.indexer.vectors.vector_files import no_vectors

__all__ = ["ColdSegment"]


FIRST_SHARE = 0.75
"""Share of the tuned leaves that the first round reads: for easy queries they suffice, since all rows are scored, and
with them those of other leaves in the same pages. With it, and without the CAUTION of filtered scans, 14 to 20 % fewer
pages are read for targets of 0.9 and 0.95 (60,000 images, 100,000 generated vectors); recall is 0.03 above them."""
GROWTH = 2
"""Factor by which a round may multiply the leaves of a query."""
KEPT_SHARE = 4
"""A search that reads more than the kept pages divided by this does not displace them."""


@dataclass(slots=True)
class _Best:
    """The best rows of each query so far."""

    rows_QK: np.ndarray
    scores_QK: np.ndarray
    scored: int = 0
    """Rows scored, for each query."""

    @classmethod
    def none(cls, queries: int, k: int) -> _Best:
        """Return the best of no rows."""
        return cls(np.full((queries, k), NO_ROW, np.int64), np.full((queries, k), -np.inf, np.float32))


class ColdSearch:
    """Search of the vectors of one cold segment."""

    def __init__(
        self,
        vectors: ColdVectors,
        leaves: Leaves | None,
        distance: Distance,
        ranks_N: np.ndarray,
        *,
        most_kept_bytes: int,
    ) -> None:
        """Keep the parts.

        Args:
            vectors: those that are scored.
            leaves: of the segment; None: it has none, and every search reads all allowed rows.
            distance: of the index; `dot` for vectors as they were given.
            ranks_N: of `Ties`.
            most_kept_bytes: a search that reads no more may displace pages that are kept.

        """
        self._vectors, self._leaves, self._distance, self._ranks_N = vectors, leaves, distance, ranks_N
        self._most_kept_bytes = most_kept_bytes

    def exact(self, queries_QD: np.ndarray, k: int, allowed: AllowedRows | None) -> SegmentHits:
        """Return the best k rows of each query among all rows, or all allowed ones, as a plan that reads them all."""
        best = _Best.none(len(queries_QD), k)
        pages_P = self._pages_of(allowed)
        self._score(best, pages_P, queries_QD, allowed)
        plan = "exact" if allowed is None else "exact_allowed"
        leaves_Q = np.zeros(len(queries_QD), np.int64)
        return _segment_hits(best, plan, leaves_Q, np.ones(len(queries_QD)))

    def nearest(
        self, queries_QD: np.ndarray, k: int, settings: SearchSettings, allowed: AllowedRows | None
    ) -> SegmentHits:
        """Return the best k rows of each query from the nearest leaves; exactly where that reads no more.

        Args:
            queries_QD: as `search_ready` returns them.
            k: hits per query.
            settings: for searches without a filter. Their recall is the target; 0: none, and exactly their leaves are
                read.
            allowed: rows to search; None: all.

        """
        leaves = self._leaves
        rows = int(self._vectors.pages.rows_P1[-1])
        if leaves is None or k > rows:
            return self.exact(queries_QD, k, allowed)
        share = 1.0 if allowed is None else max(allowed.share, 1 / rows)
        # The first k rows of a share are as deep as k divided by it of all, by chance somewhat deeper (planner.py).
        deep = k if share == 1 else min(rows, math.ceil((k + LIKELY * math.sqrt(k)) / share))
        depth = settings.at(deep)
        depth_leaves = math.ceil(FIRST_SHARE * depth.leaves) if depth.recall else depth.leaves
        first = min(max(depth_leaves, 1), len(leaves.sizes_L))
        if first == len(leaves.sizes_L) or self._are_few(allowed, first, len(queries_QD)):
            return self.exact(queries_QD, k, allowed)
        allowed_L = leaves.sizes_L if allowed is None else allowed.per_leaf
        return self._rounds(queries_QD, k, first, depth.recall, allowed, allowed_L, leaves)

    def _are_few(self, allowed: AllowedRows | None, leaves: int, queries: int) -> bool:
        """Return whether all allowed rows are in no more pages than some leaves of each query."""
        if allowed is None or self._leaves is None:
            return False
        pages = self._vectors.pages
        rows_per_leaf = float(pages.rows_P1[-1]) / len(self._leaves.sizes_L)
        per_leaf = 1 + rows_per_leaf * len(pages) / float(pages.rows_P1[-1])
        limit = leaves * per_leaf * queries
        return allowed.count <= limit or len(self._pages_of(allowed)) <= limit

    def _rounds(
        self,
        queries_QD: np.ndarray,
        k: int,
        first: int,
        target_recall: float,
        allowed: AllowedRows | None,
        allowed_L: np.ndarray,
        leaves: Leaves,
    ) -> SegmentHits:
        best = _Best.none(len(queries_QD), k)
        order_QL, predicted_QL, spread_QL = leaves.predict(queries_QD, self._distance)
        count, total = len(queries_QD), len(leaves.sizes_L)
        scanned_Q, missed_Q = np.zeros(count, np.int64), np.zeros(count)
        wanted_Q = np.full(count, first)
        done_P = np.zeros(len(self._vectors.pages), bool)
        while (active := np.flatnonzero(scanned_Q < wanted_Q)).size:
            asked_L = np.zeros(total, bool)
            for query in active.tolist():
                asked_L[order_QL[query, scanned_Q[query] : wanted_Q[query]]] = True
            pages_P = self._pages_in(asked_L & (allowed_L > 0), allowed)
            pages_P = pages_P[~done_P[pages_P]]
            done_P[pages_P] = True
            self._score(best, pages_P, queries_QD, allowed)
            scanned_Q[active] = wanted_Q[active]
            for query in active.tolist():
                scores_K, scanned = best.scores_QK[query], int(scanned_Q[query])
                if best.rows_QK[query, -1] == NO_ROW:
                    wanted_Q[query] = min(total, GROWTH * scanned)
                    continue
                needed, missed_Q[query] = leaves.needed(
                    order_QL[query],
                    predicted_QL[query],
                    spread_QL[query],
                    allowed_L,
                    scores_K,
                    k * (1 - target_recall),
                    scanned,
                )
                if target_recall:
                    wanted_Q[query] = min(total, GROWTH * scanned, max(needed, scanned))
        plan = "leaves"
        return _segment_hits(best, plan, scanned_Q, np.clip(1 - missed_Q / k, 0, 1))

    def _pages_of(self, allowed: AllowedRows | None) -> np.ndarray:
        """Return the pages with allowed rows, ascending."""
        pages = self._vectors.pages
        if allowed is None:
            return np.arange(len(pages))
        if allowed.count == int(pages.rows_P1[-1]):
            return np.arange(len(pages))
        return np.unique(pages.of_rows(allowed.rows))

    def _pages_in(self, asked_L: np.ndarray, allowed: AllowedRows | None) -> np.ndarray:
        """Return the pages with allowed rows of some leaves, ascending."""
        assert self._leaves is not None
        pages, starts_L, sizes_L = self._vectors.pages, self._leaves.starts_L, self._leaves.sizes_L
        chosen = np.flatnonzero(asked_L)
        firsts, lasts = starts_L[chosen], starts_L[chosen] + sizes_L[chosen] - 1
        wanted_P = np.zeros(len(pages), bool)
        for first, last in zip(pages.of_rows(firsts).tolist(), pages.of_rows(lasts).tolist(), strict=True):
            wanted_P[first : last + 1] = True
        if allowed is not None and allowed.share < 1:
            has_P = np.zeros(len(pages), bool)
            has_P[pages.of_rows(allowed.rows)] = True
            wanted_P &= has_P
        return np.flatnonzero(wanted_P)

    def _score(
        self, best: _Best, pages_P: np.ndarray, queries_QD: np.ndarray, allowed: AllowedRows | None
    ) -> None:
        """Read pages that were not read before, and insert their allowed rows into the best ones."""
        k = best.rows_QK.shape[1]
        keep = len(pages_P) * self._vectors.page_bytes <= self._most_kept_bytes
        rows_A = None if allowed is None or allowed.share == 1 else allowed.rows
        for rows_R, vectors_RD in self._vectors.blocks(pages_P, keep=keep):
            rows_of_part = None if rows_A is None else _local(rows_A, rows_R)
            ranks_R = self._ranks_N[rows_R]
            ranks_R.setflags(write=False)
            best.scored += len(rows_R) if rows_of_part is None else len(rows_of_part)
            found_QK, scores_QK = exact_search(
                vectors_RD, queries_QD, k, self._distance, rows_of_part, ranks_R
            )
            found_QK = np.where(found_QK == NO_ROW, NO_ROW, rows_R[found_QK])
            self._merge(best, found_QK, scores_QK)

    def _merge(self, best: _Best, rows_QK: np.ndarray, scores_QK: np.ndarray) -> None:
        """Insert rows, of which none is among the best yet: by score, then by id."""
        k = best.rows_QK.shape[1]
        rows_QX = np.concatenate([best.rows_QK, rows_QK], axis=1)
        scores_QX = np.concatenate([best.scores_QK, scores_QK], axis=1)
        order_QK = np.lexsort((self._ranks_N[rows_QX], -scores_QX), axis=1)[:, :k]
        best.rows_QK = np.take_along_axis(rows_QX, order_QK, axis=1)
        best.scores_QK = np.take_along_axis(scores_QX, order_QK, axis=1)


def _local(allowed_A: np.ndarray, rows_R: np.ndarray) -> np.ndarray:
    """Return the places in `rows_R` (ascending) of those that are allowed, int64, ascending, read-only."""
    few_A = allowed_A[np.searchsorted(allowed_A, rows_R[0]) : np.searchsorted(allowed_A, rows_R[-1], "right")]
    positions = np.searchsorted(rows_R, few_A)
    local_rows: np.ndarray = positions[rows_R[np.minimum(positions, len(rows_R) - 1)] == few_A]
    local_rows.setflags(write=False)
    return local_rows


def _segment_hits(best: _Best, plan: str, leaves_Q: np.ndarray, recall_Q: np.ndarray) -> SegmentHits:
    count = len(best.rows_QK)
    return SegmentHits(
        best.rows_QK, best.scores_QK, [plan] * count, leaves_Q, np.full(count, best.scored), recall_Q
    )


class SegmentInStore(Segment):
    """Datapoints of one shard, whose vectors as they were given are read from the store when they are needed."""

    def _open_given(self, unscaled: ColdVectors, reads: ColdReads) -> None:
        """Keep the vectors, of a segment whose `ties` are known."""
        self._unscaled = unscaled
        self._search_given = ColdSearch(
            unscaled, None, "dot", self.ties.ranks_N, most_kept_bytes=reads.max_bytes // KEPT_SHARE
        )

    @property
    def reads_given(self) -> bool:
        """True."""
        return True

    def vectors(self, rows: np.ndarray | list[int]) -> np.ndarray:  # type: ignore[override]  # any sequence
        """Return the vectors of some rows as they were given, float32 `(len(rows), D)`.

        Raises:
            NotFoundError, StoreError, CorruptError: they cannot be read from the store.

        """
        rows_R = np.asarray(rows, np.int64)
        return self._unscaled.at(rows_R) if self.has_vectors else np.zeros((len(rows_R), 0), np.float32)

    def search_given(
        self, queries_QD: np.ndarray, k: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Segment.search_given`; it reads all pages with allowed rows; errors as of `vectors`."""
        rows = None if allowed is None else AllowedRows(allowed, None, self.rows)
        hits = self._search_given.exact(queries_QD, k, rows)
        return hits.rows_QK, hits.scores_QK


class ColdSegment(SegmentInStore):
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
        self._open_attributes(folder, info)
        self.ties = Ties.map(folder / files.TIES)
        self._hashes_2N = mapped(folder / files.HASHES)
        documents = folder / files.DOCUMENTS
        self._documents_2N = mapped(documents) if documents.exists() else self._hashes_2N
        self._searcher = self._planner = None
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
        self._open_given(ColdVectors(store, key, pages, self._dimensions, reads, scaled=False), reads)
        self._scaled = (
            self._unscaled if unit else ColdVectors(store, key, pages, self._dimensions, reads, scaled=True)
        )
        self._search = ColdSearch(
            self._scaled,
            self.leaves,
            self.distance,
            self.ties.ranks_N,
            most_kept_bytes=reads.max_bytes // KEPT_SHARE,
        )

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
        return self.has_vectors and self._scaled is not self._unscaled

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
        deeper = tuple(_with_recall(depth, target_recall) for depth in picked.depths)
        return SearchSettings(
            leaves=picked.leaves,
            rescore=picked.rescore,
            recall=target_recall,
            depths=deeper,
            growth=picked.growth,
        )

    def searching(self, k: int, settings: SearchSettings | None) -> Search:
        """As `Segment.searching`."""
        return partial(self._hits, k, settings)

    def _hits(
        self, k: int, settings: SearchSettings | None, queries_QD: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        hits = self._find(queries_QD, k, settings, None, 0.0)
        return hits.rows_QK, hits.scores_QK

    def _find(
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
        hits = self._search.exact(queries_QD, k, None if allowed is None else self.allow(allowed))
        return hits.rows_QK, hits.scores_QK

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
            for row_choice in (None, own_1):
                exact_search(vectors_1D, asked_QD, hits, self.distance, row_choice, ranks_1)
        if self.leaves is not None:
            order_QL, predicted_QL, spread_QL = self.leaves.predict(query_1D, self.distance)
            scores_K = np.zeros(1, np.float32)
            self.leaves.needed(
                order_QL[0], predicted_QL[0], spread_QL[0], self.leaves.sizes_L, scores_K, 0.1, 1
            )


def _with_recall(depth: Depth, recall: float) -> Depth:
    return Depth(k=depth.k, leaves=depth.leaves, rescore=depth.rescore, recall=recall)

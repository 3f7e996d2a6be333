"""Search of vectors that are in the store: the pages of the leaves nearest to each query, in rounds of requests.

The first round reads three quarters of the leaves that ScaNN was tuned to search. All rows of a leaf are scored with
their vectors, so that nothing is lost to codes; but without the second leaf that SOAR gives to rows. So the same
statistics that end a scan of allowed rows (planning/leaves.py) tell how many hits are expected in the other leaves, and
further rounds read these until the target recall is met. If the rows that may be returned are in fewer pages than the
first round would read, these pages are read, and the search is exact.

A batch of queries reads the leaves that any of them needs, once, and scores them for all.

Shapes: Q queries, N rows of the segment, P pages, L leaves, D dimensions, K hits, R rows of a part, X candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.planning.leaves import Leaves
from scannery.indexer.planning.planner import LIKELY, SegmentHits
from scannery.indexer.segment.cold.cold_vectors import ColdVectors
from scannery.indexer.spec.spec import Distance
from scannery.indexer.tuning.settings_choice import SearchSettings
from scannery.indexer.vectors.exact_search import NO_ROW, exact_search

__all__ = ["ColdSearch"]

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
        return _found(best, plan, leaves_Q, np.ones(len(queries_QD)))

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
        wanted = math.ceil(FIRST_SHARE * depth.leaves) if depth.recall else depth.leaves
        first = min(max(wanted, 1), len(leaves.sizes_L))
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
        most = leaves * per_leaf * queries
        return allowed.count <= most or len(self._pages_of(allowed)) <= most

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
        return _found(best, plan, scanned_Q, np.clip(1 - missed_Q / k, 0, 1))

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
            own = None if rows_A is None else _local(rows_A, rows_R)
            ranks_R = self._ranks_N[rows_R]
            ranks_R.setflags(write=False)
            best.scored += len(rows_R) if own is None else len(own)
            found_QK, scores_QK = exact_search(vectors_RD, queries_QD, k, self._distance, own, ranks_R)
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
    places = np.searchsorted(rows_R, few_A)
    own: np.ndarray = places[rows_R[np.minimum(places, len(rows_R) - 1)] == few_A]
    own.setflags(write=False)
    return own


def _found(best: _Best, plan: str, leaves_Q: np.ndarray, recall_Q: np.ndarray) -> SegmentHits:
    count = len(best.rows_QK)
    return SegmentHits(
        best.rows_QK, best.scores_QK, [plan] * count, leaves_Q, np.full(count, best.scored), recall_Q
    )

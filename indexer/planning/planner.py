"""Planner of filtered searches: choose the cheapest plan, and fall back if it found too little.

Three plans give the same hits, within the target recall:

- `exact_allowed`: score every allowed row. Best if they are few.
- `leaves`: score the allowed rows of the leaves nearest to the query, until the recall is met (leaves.py).
- `scann_allowed`: let ScaNN propose more candidates than needed, and keep the allowed ones. Best if most rows are
  allowed.

If half of the rows are allowed, and with twice as many candidates, a row among the first k allowed ones is found as
reliably as one among the first 2k of all rows. So `scann_allowed` reaches the recall if the first k allowed candidates
lie about as deep as the share of allowed rows predicts. If they lie deeper for a query, since few rows near to it are
allowed, `leaves` answers it.

Costs are measured when the segment is first opened (plan_timing.py) and stored in the local cache for all processes of
a machine. The server compares them with what searches take (plan_book.py).

Shapes: Q queries, N rows, D dimensions, K hits.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.planning.leaves import Leaves
from scannery.indexer.planning.plan_book import EVERY, PlanBook, SampledSearch
from scannery.indexer.planning.plan_costs import BATCH, PLANS
from scannery.indexer.scann.search import ScannSearcher
from scannery.indexer.spec.spec import Distance
from scannery.indexer.tuning.settings_choice import SearchSettings
from scannery.indexer.vectors.exact_search import NO_ROW, exact_search
from scannery.indexer.vectors.quantized_vectors import ScoredVectors

__all__ = ["EXACT_ABOVE_SHARE", "Planner", "SegmentHits", "exact_found", "nothing_found", "replace"]

EXACT_ABOVE_SHARE = 0.125
"""A search for more hits than this share of the rows (all, or those allowed) is cheaper as a scan of these rows."""
LIKELY = 2
SURE = 3
"""Standard deviations by which the k-th allowed candidate may lie deeper than expected by chance: in planning a search,
and in accepting its result."""
BLOCK_QUERIES = 64
AUDIT_ROUNDS = 2
MOST_INSUFFICIENT, REMEMBERED, TRIED_EVERY = 0.5, 8, 16
"""Share of a filter's searches with too few proposals above which only one of TRIED_EVERY asks ScaNN; a mean that
weighs the latest searches, about REMEMBERED of them, most."""
MOST_AUDIT_US = 50_000
"""A plan that is predicted to take longer is left out of audits."""


@dataclass(frozen=True, slots=True)
class SegmentHits:
    """The best rows of a segment for each query, and the work that found them."""

    rows_QK: np.ndarray
    """int64, best first; NO_ROW after the last hit."""
    scores_QK: np.ndarray
    """float32; minus infinity after the last hit."""
    plans: list[str]
    """`exact`, `scann`, `exact_allowed`, `leaves` or `scann_allowed`, for each query."""
    leaves_Q: np.ndarray
    """Leaves searched."""
    candidates_Q: np.ndarray
    """Rows scored with their vectors."""
    recall_Q: np.ndarray
    """Expected recall, 0 to 1."""
    predicted_us: float = 0.0
    """Predicted processor time of all queries together; 0: unknown. Like the next one, only of timed searches."""
    measured_us: float = 0.0
    """Processor time of all queries together."""


class Planner:
    """Search among allowed rows of one segment. Safe to use from several threads."""

    def __init__(
        self,
        vectors: ScoredVectors,
        distance: Distance,
        searcher: ScannSearcher,
        leaves: Leaves,
        book: PlanBook,
        ranks_N: np.ndarray,
        *,
        all_leaves: int,
    ) -> None:
        """Keep the parts of a segment.

        Args:
            vectors: of length 1 for cosine.
            distance: of the index.
            searcher: of the segment.
            leaves: of the segment.
            book: with the costs of the plans; without costs only `exact_allowed` is used.
            ranks_N: of `Ties`.
            all_leaves: number of leaves of ScaNN's tree, empty ones included.

        """
        self._all_leaves = all_leaves
        self._vectors = vectors
        self.distance: Distance = distance
        self._searcher = searcher
        self._leaves = leaves
        self.book = book
        self._ranks_N = ranks_N

    def search(
        self,
        queries_QD: np.ndarray,
        k: int,
        allowed: AllowedRows,
        settings: SearchSettings,
        target_recall: float,
    ) -> SegmentHits:
        """Return the best k allowed rows of each query; fewer only if fewer are allowed.

        Args:
            queries_QD: as `search_ready` returns them.
            k: hits per query.
            allowed: rows to search.
            settings: ScaNN's settings for searches without a filter.
            target_recall: 0 to 1.

        """
        plan, book = self._plan(len(queries_QD), k, allowed, settings), self.book
        book.calls += 1
        if book.calls % EVERY or len(queries_QD) >= BATCH:
            return self._by(plan, queries_QD, k, allowed, settings, target_recall)
        started_ns = time.thread_time_ns()
        hits = self._by(plan, queries_QD, k, allowed, settings, target_recall)
        took_us = (time.thread_time_ns() - started_ns) / 1000
        sample = SampledSearch(queries_QD[:1].copy(), k, allowed, settings, target_recall)
        book.note(plan, self._predicted_us(plan, len(queries_QD), k, allowed), took_us, sample)
        return hits

    def predicted_us(self, queries: int, k: int, allowed: AllowedRows, settings: SearchSettings) -> float:
        """Return the predicted processor time of a search, in microseconds; 0: unknown."""
        return self._predicted_us(self._plan(queries, k, allowed, settings), queries, k, allowed)

    def audit(self, search: SampledSearch) -> float:
        """Ask a query by every plan, and record the times; return their sum in seconds."""
        timed = self.book.timed
        if timed is None or not search.allowed.count:
            return 0.0
        predicted = timed.by_plan(1, search.allowed.count, search.allowed.share, search.k)
        measured: dict[str, float] = {}
        started_s = time.thread_time()
        for _ in range(AUDIT_ROUNDS):
            for plan in PLANS:
                if predicted[plan] > MOST_AUDIT_US or not self._possible(plan, search):
                    continue
                before_ns = time.thread_time_ns()
                self._by(
                    plan, search.queries_QD, search.k, search.allowed, search.settings, search.target_recall
                )
                took_us = (time.thread_time_ns() - before_ns) / 1000
                measured[plan] = min(took_us, measured.get(plan, math.inf))
        self.book.audited(measured, predicted)
        return time.thread_time() - started_s

    def _possible(self, plan: str, search: SampledSearch) -> bool:
        if plan == "exact_allowed":
            return True
        if search.k > EXACT_ABOVE_SHARE * search.allowed.count:
            return False
        return plan == "leaves" or search.settings.reaches(self._depth(search.k, search.allowed))

    def _plan(self, queries: int, k: int, allowed: AllowedRows, settings: SearchSettings) -> str:
        if k > EXACT_ABOVE_SHARE * allowed.count:
            return "exact_allowed"
        plan = self.book.choose(queries, allowed.count, allowed.share, k)
        if plan == "scann_allowed":
            # Where `leaves` answers most queries in the end, ScaNN is asked now and then only.
            in_vain = allowed.insufficient > MOST_INSUFFICIENT and self.book.calls % TRIED_EVERY
            if in_vain or not settings.reaches(self._depth(k, allowed)):
                return "leaves"
        return plan

    def _predicted_us(self, plan: str, queries: int, k: int, allowed: AllowedRows) -> float:
        return self.book.predicted_us(plan, queries, allowed.count, allowed.share, k)

    def _by(
        self,
        plan: str,
        queries_QD: np.ndarray,
        k: int,
        allowed: AllowedRows,
        settings: SearchSettings,
        target_recall: float,
    ) -> SegmentHits:
        if plan == "leaves":
            return self.scan(queries_QD, k, allowed, target_recall)
        if plan == "scann_allowed":
            costs = self.book.timed
            more = costs.more_leaves(allowed.share) if costs else 0
            return self.propose(queries_QD, k, allowed, settings, target_recall, more_leaves=more)
        return exact_found(self._vectors, queries_QD, k, self.distance, allowed, self._ranks_N)

    def scan(self, queries_QD: np.ndarray, k: int, allowed: AllowedRows, target_recall: float) -> SegmentHits:
        """Answer by `leaves`."""
        blocks = [
            self._scan_block(queries_QD[start : start + BLOCK_QUERIES], k, allowed, target_recall)
            for start in range(0, len(queries_QD), BLOCK_QUERIES)
        ]
        return blocks[0] if len(blocks) == 1 else _joined(blocks)

    def propose(
        self,
        queries_QD: np.ndarray,
        k: int,
        allowed: AllowedRows,
        settings: SearchSettings,
        target_recall: float,
        *,
        more_leaves: int,
    ) -> SegmentHits:
        """Answer by `scann_allowed`, and queries for which it found too little by `leaves`.

        If settings were measured for ten hits only, ScaNN searches `more_leaves` leaves more than without a filter.
        """
        # The first k hits among a tenth of the rows lie as deep as the first 10 k of all, by chance somewhat deeper.
        depth = settings.at(self._depth(k, allowed))
        leaves = max(depth.leaves, settings.leaves_for(k))
        if not settings.depths:
            leaves = max(leaves, settings.leaves + more_leaves)
        leaves = min(leaves, self._all_leaves)
        deepest = (k + SURE * math.sqrt(k)) / allowed.share
        candidates = max(depth.rescore, deepest)
        rows_QK, scores_QK, scored_Q, depth_Q, _ = self._searcher.search_allowed(
            queries_QD, k, rescore=math.ceil(candidates), leaves=leaves, allowed=allowed.test
        )
        hits = SegmentHits(
            rows_QK,
            scores_QK,
            ["scann_allowed"] * len(queries_QD),
            np.full(len(queries_QD), leaves),
            scored_Q,
            np.full(len(queries_QD), depth.recall or target_recall),
        )
        bad_Q = (depth_Q > deepest) | (rows_QK[:, -1] == NO_ROW)
        allowed.insufficient += (float(bad_Q.mean()) - allowed.insufficient) / REMEMBERED
        if bad_Q.any():
            replace(hits, np.flatnonzero(bad_Q), self.scan(queries_QD[bad_Q], k, allowed, target_recall))
        return hits

    @staticmethod
    def _depth(k: int, allowed: AllowedRows) -> int:
        """Return how many of all rows, nearest first, most probably include the first k allowed ones."""
        return math.ceil((k + LIKELY * math.sqrt(k)) / allowed.share)

    def warm_up(self, query_1D: np.ndarray, allowed: AllowedRows) -> None:
        """Compile all kernels for the types of these arrays."""
        settings = SearchSettings(leaves=1, rescore=1)
        for queries_QD in (query_1D, np.repeat(query_1D, 2, axis=0)):
            self.propose(queries_QD, 1, allowed, settings, 0.9, more_leaves=0)
        self.scan(query_1D, 1, allowed, 0.9)

    def _scan_block(
        self, queries_QD: np.ndarray, k: int, allowed: AllowedRows, target_recall: float
    ) -> SegmentHits:
        scan = self._leaves.scan(
            self._vectors,
            queries_QD,
            k,
            self.distance,
            allowed.by_leaf,
            target_recall,
            self._ranks_N,
        )
        recall_Q = np.maximum(1 - scan.missed_Q / k, 0)
        plans = ["leaves"] * len(queries_QD)
        return SegmentHits(scan.rows_QK, scan.scores_QK, plans, scan.leaves_Q, scan.scanned_Q, recall_Q)


def exact_found(
    vectors: ScoredVectors,
    queries_QD: np.ndarray,
    k: int,
    distance: Distance,
    allowed: AllowedRows | None,
    ranks_N: np.ndarray,
) -> SegmentHits:
    """Return the best k rows by scoring all rows, or all allowed ones; arguments as `exact_search`."""
    rows = vectors.rows if allowed is None else allowed.count
    chosen = None if allowed is None else allowed.in_any_order()
    rows_QK, scores_QK = exact_search(vectors, queries_QD, k, distance, chosen, ranks_N)
    count = len(queries_QD)
    plan = "exact" if allowed is None else "exact_allowed"
    # Not by `full` and `ones`, which take as long as scoring twenty rows.
    return SegmentHits(
        rows_QK,
        scores_QK,
        [plan] * count,
        np.zeros(count, np.int64),
        np.array([rows] * count),
        np.array([1.0] * count),
    )


def nothing_found(queries: int, k: int) -> SegmentHits:
    """Return the answer of a segment whose rows have no vectors."""
    rows_QK, scores_QK = np.full((queries, k), NO_ROW, np.int64), np.full((queries, k), -np.inf, np.float32)
    nothing_Q = np.zeros(queries, np.int64)
    return SegmentHits(rows_QK, scores_QK, ["none"] * queries, nothing_Q, nothing_Q.copy(), np.ones(queries))


def _joined(blocks: list[SegmentHits]) -> SegmentHits:
    return SegmentHits(
        np.concatenate([block.rows_QK for block in blocks]),
        np.concatenate([block.scores_QK for block in blocks]),
        [plan for block in blocks for plan in block.plans],
        np.concatenate([block.leaves_Q for block in blocks]),
        np.concatenate([block.candidates_Q for block in blocks]),
        np.concatenate([block.recall_Q for block in blocks]),
    )


def replace(hits: SegmentHits, queries: np.ndarray, better: SegmentHits) -> None:
    """Overwrite the results of some queries, given by number, with better ones; rows scored are added up."""
    hits.rows_QK[queries] = better.rows_QK
    hits.scores_QK[queries] = better.scores_QK
    hits.leaves_Q[queries] = better.leaves_Q
    hits.candidates_Q[queries] += better.candidates_Q
    hits.recall_Q[queries] = better.recall_Q
    for number, plan in zip(queries.tolist(), better.plans, strict=True):
        hits.plans[number] = plan

"""Search among the rows that a filter allows: which way is cheapest, and whether it found enough.

Three plans, for the same answer:

- `exact_allowed`: score every allowed row. Best where they are few.
- `leaves`: score the allowed rows of the leaves nearest to the query, until the recall is met (leaves.py).
- `scann_allowed`: let ScaNN propose more candidates than needed, and keep the allowed ones. Best where most rows
  near to the query are allowed.

What counts is not how many rows are allowed, but which share of those near to the query. For a filter that has nothing
to do with the vectors both are the same, and nothing is looked at; else the leaves nearest to the query tell. At a
share of a half, with twice as many candidates, a row among the first k of those allowed is found as surely as one
among the first 2k of all rows. So `scann_allowed` is good as long as the first k are about where that share has them
among the candidates; a query of which they are not is answered by `leaves`.

What each plan costs was timed when the segment was unpacked (plan_timing.py), and lies in the local cache: all
processes of a machine choose alike, so that the same query gets the same answer from each.

Shapes: Q queries, N rows, L leaves, D dimensions, K hits, R allowed rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scannery.indexer.allowed import AllowedRows
from scannery.indexer.exact import NO_ROW, exact_search
from scannery.indexer.leaves import Leaves, Outlook
from scannery.indexer.plan_costs import Costs
from scannery.indexer.scann_config import SearchSettings
from scannery.indexer.scann_search import ScannSearcher
from scannery.indexer.spec import Distance

__all__ = ["Found", "Planner", "exact_found", "replace"]

EXACT_ABOVE_SHARE = 0.125
"""Where a search wants so large a share of the allowed rows, it is cheaper to score them all."""
SURE = 3
"""Standard deviations by which chance may put the k-th allowed candidate behind its place."""
BLOCK_QUERIES = 64


@dataclass(frozen=True, slots=True)
class Found:
    """The best rows of a segment for each query, and how they were found."""

    rows_QK: np.ndarray
    """int64, NO_ROW where there are fewer."""
    scores_QK: np.ndarray
    """float32, best first."""
    plans: list[str]
    """`exact`, `scann`, `exact_allowed`, `leaves` or `scann_allowed`, for each query."""
    leaves_Q: np.ndarray
    """Leaves that were searched."""
    candidates_Q: np.ndarray
    """Rows that were scored with their vectors."""
    recall_Q: np.ndarray
    """Expected recall."""


class Planner:
    """Search among allowed rows of one segment. Immutable; safe to use from several threads."""

    def __init__(
        self,
        vectors_ND: np.ndarray,
        distance: Distance,
        searcher: ScannSearcher,
        leaves: Leaves,
        costs: Costs | None,
    ) -> None:
        self._vectors_ND = vectors_ND
        self._distance: Distance = distance
        self._searcher = searcher
        self._leaves = leaves
        self._costs = costs

    def search(
        self,
        queries_QD: np.ndarray,
        k: int,
        allowed: AllowedRows,
        settings: SearchSettings,
        target_recall: float,
    ) -> Found:
        """Return the best k allowed rows of each query; fewer only if fewer are allowed."""
        costs, count = self._costs, len(queries_QD)
        if (
            costs is None
            or k > EXACT_ABOVE_SHARE * allowed.count
            or costs.exact(allowed.count, count) <= count * costs.cheapest
        ):
            return exact_found(self._vectors_ND, queries_QD, k, self._distance, allowed)
        if allowed.even:
            plan = costs.choose(count, allowed.count, allowed.share)
            return self._by(plan, queries_QD, k, allowed, settings, target_recall, share=allowed.share)
        starts = range(0, count, BLOCK_QUERIES)
        blocks = [queries_QD[start : start + BLOCK_QUERIES] for start in starts]
        return _joined([self._looked(block, k, allowed, settings, target_recall, costs) for block in blocks])

    def _looked(
        self,
        queries_QD: np.ndarray,
        k: int,
        allowed: AllowedRows,
        settings: SearchSettings,
        target_recall: float,
        costs: Costs,
    ) -> Found:
        """Look which share of the rows near to each query is allowed, and take the best plan for that."""
        outlook = self._leaves.predict(queries_QD, self._distance)
        shares_Q = self._leaves.shares_near(outlook, settings.leaves, allowed.per_leaf)
        if len(queries_QD) == 1:
            share = float(shares_Q[0])
            plan = costs.choose(1, allowed.count, share)
            return self._by(
                plan, queries_QD, k, allowed, settings, target_recall, share=share, outlook=outlook
            )
        groups: dict[tuple[str, float], list[int]] = {}
        for query, share in enumerate(map(_rounded, shares_Q.tolist())):
            plan = costs.choose(len(queries_QD), allowed.count, share)
            groups.setdefault((plan, share if plan == "scann_allowed" else 0.0), []).append(query)
        parts = [
            self._by(
                plan,
                queries_QD[queries],
                k,
                allowed,
                settings,
                target_recall,
                share=share,
                outlook=outlook.of(np.array(queries)),
            )
            for (plan, share), queries in groups.items()
        ]
        return parts[0] if len(parts) == 1 else _in_order(parts, list(groups.values()))

    def _by(
        self,
        plan: str,
        queries_QD: np.ndarray,
        k: int,
        allowed: AllowedRows,
        settings: SearchSettings,
        target_recall: float,
        *,
        share: float,
        outlook: Outlook | None = None,
    ) -> Found:
        if plan == "leaves":
            return self.scan(queries_QD, k, allowed, target_recall, outlook)
        if plan == "scann_allowed":
            more = self._costs.more_leaves(share) if self._costs else 1.0
            return self.propose(
                queries_QD,
                k,
                allowed,
                settings,
                target_recall,
                share=share,
                more_leaves=more,
                outlook=outlook,
            )
        return exact_found(self._vectors_ND, queries_QD, k, self._distance, allowed)

    def scan(
        self,
        queries_QD: np.ndarray,
        k: int,
        allowed: AllowedRows,
        target_recall: float,
        outlook: Outlook | None = None,
    ) -> Found:
        """Answer by `leaves`."""
        blocks = []
        for start in range(0, len(queries_QD), BLOCK_QUERIES):
            some = slice(start, start + BLOCK_QUERIES)
            block_QD = queries_QD[some]
            seen = outlook.of(some) if outlook else self._leaves.predict(block_QD, self._distance)
            blocks.append(self._scan_block(block_QD, seen, k, allowed, target_recall))
        return _joined(blocks)

    def propose(
        self,
        queries_QD: np.ndarray,
        k: int,
        allowed: AllowedRows,
        settings: SearchSettings,
        target_recall: float,
        *,
        share: float,
        more_leaves: float,
        outlook: Outlook | None = None,
    ) -> Found:
        """Answer by `scann_allowed`, where such a share of the rows near to each query is allowed.

        It takes so many times the leaves of a search without a filter: see `Costs.more_leaves`.
        """
        leaves = min(math.ceil(more_leaves * settings.leaves), len(self._leaves.sizes_L))
        deepest = (k + SURE * math.sqrt(k)) / share
        candidates = max(settings.rescored_for(k) / share, deepest)
        rows_QK, scores_QK, scored_Q, depth_Q = self._searcher.search_allowed(
            queries_QD, k, rescore=math.ceil(candidates), leaves=leaves, allowed_N=allowed.mask_N
        )
        found = Found(
            rows_QK,
            scores_QK,
            ["scann_allowed"] * len(queries_QD),
            np.full(len(queries_QD), leaves),
            scored_Q,
            np.full(len(queries_QD), target_recall),
        )
        bad_Q = (depth_Q > deepest) | (rows_QK[:, -1] == NO_ROW)
        if bad_Q.any():
            seen = outlook.of(bad_Q) if outlook else None
            replace(
                found, np.flatnonzero(bad_Q), self.scan(queries_QD[bad_Q], k, allowed, target_recall, seen)
            )
        return found

    def warm_up(self, query_1D: np.ndarray, allowed: AllowedRows) -> None:
        """Have all kernels compiled for arrays like these."""
        settings, outlook = (
            SearchSettings(leaves=1, rescore=1),
            self._leaves.predict(query_1D, self._distance),
        )
        self._leaves.shares_near(outlook, 1, allowed.per_leaf)
        for queries_QD in (query_1D, np.repeat(query_1D, 2, axis=0)):
            self.propose(queries_QD, 1, allowed, settings, 0.9, share=1.0, more_leaves=1.0)
        self.scan(query_1D, 1, allowed, 0.9, outlook)

    def _scan_block(
        self, queries_QD: np.ndarray, outlook: Outlook, k: int, allowed: AllowedRows, target_recall: float
    ) -> Found:
        scan = self._leaves.scan(
            self._vectors_ND,
            queries_QD,
            outlook,
            k,
            self._distance,
            allowed.mask_N,
            allowed.per_leaf,
            target_recall,
        )
        recall_Q = np.maximum(1 - scan.missed_Q / k, 0)
        plans = ["leaves"] * len(queries_QD)
        return Found(scan.rows_QK, scan.scores_QK, plans, scan.leaves_Q, scan.scanned_Q, recall_Q)


def exact_found(
    vectors_ND: np.ndarray, queries_QD: np.ndarray, k: int, distance: Distance, allowed: AllowedRows | None
) -> Found:
    """Answer by scoring all rows, or all that are allowed."""
    rows = len(vectors_ND) if allowed is None else allowed.count
    chosen = None if allowed is None else allowed.numbers_or_mask()
    rows_QK, scores_QK = exact_search(vectors_ND, queries_QD, k, distance, chosen)
    count = len(queries_QD)
    plan = "exact" if allowed is None else "exact_allowed"
    return Found(
        rows_QK, scores_QK, [plan] * count, np.zeros(count, np.int64), np.full(count, rows), np.ones(count)
    )


def _rounded(share: float) -> float:
    """Return the share, down to a power of the root of 2: queries of a batch that have the same go together."""
    return float(2 ** (math.floor(2 * math.log2(share)) / 2)) if share else 0.0


def _joined(blocks: Sequence[Found]) -> Found:
    if len(blocks) == 1:
        return blocks[0]
    return Found(
        np.concatenate([block.rows_QK for block in blocks]),
        np.concatenate([block.scores_QK for block in blocks]),
        [plan for block in blocks for plan in block.plans],
        np.concatenate([block.leaves_Q for block in blocks]),
        np.concatenate([block.candidates_Q for block in blocks]),
        np.concatenate([block.recall_Q for block in blocks]),
    )


def _in_order(parts: Sequence[Found], queries: Sequence[Sequence[int]]) -> Found:
    """Return the answers of several groups of queries, each where its queries stand."""
    joined = _joined(parts)
    order_Q = np.argsort(np.concatenate([np.array(group) for group in queries]))
    return Found(
        joined.rows_QK[order_Q],
        joined.scores_QK[order_Q],
        [joined.plans[position] for position in order_Q.tolist()],
        joined.leaves_Q[order_Q],
        joined.candidates_Q[order_Q],
        joined.recall_Q[order_Q],
    )


def replace(found: Found, queries: np.ndarray, better: Found) -> None:
    """Write the answers of some queries over those that were found before."""
    found.rows_QK[queries] = better.rows_QK
    found.scores_QK[queries] = better.scores_QK
    found.leaves_Q[queries] = better.leaves_Q
    found.candidates_Q[queries] += better.candidates_Q
    found.recall_Q[queries] = better.recall_Q
    for number, plan in zip(queries.tolist(), better.plans, strict=True):
        found.plans[number] = plan

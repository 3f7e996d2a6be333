"""Search among the rows that a filter allows: which way is cheapest, and whether it found enough.

Three plans, for the same answer:

- `exact_allowed`: score every allowed row. Best where they are few.
- `leaves`: score the allowed rows of the leaves nearest to the query, until the recall is met (leaves.py).
- `scann_allowed`: let ScaNN propose more candidates than needed, keep the allowed ones, and check by what the
  leaves predict that there were enough; a query that fails the check is answered by `leaves`. Best where most rows
  are allowed.

What each costs was timed when the segment was unpacked (`measure_costs`), and lies in the local cache: all
processes of a machine choose alike, so that the same query gets the same answer from each.

Shapes: Q queries, N rows, L leaves, D dimensions, K hits, R allowed rows, S shares of rows that were tried.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from scannery.indexer.exact import NO_ROW, exact_search
from scannery.indexer.leaves import Leaves
from scannery.indexer.scann_config import SearchSettings
from scannery.indexer.scann_search import ScannSearcher
from scannery.indexer.spec import Distance

__all__ = ["AllowedRows", "Costs", "Found", "Planner", "measure_costs", "replace"]

SHARES = (0.9, 0.5, 0.2, 0.05, 0.01)
"""Shares of rows allowed for which plans are timed."""
TIMED_QUERIES = 8
TIMED_ROUNDS = 3
TIMED_K = 10
TIMED_TARGET = 0.95
FEW_ROWS_SHARE = 0.125
"""Of so few allowed rows, the row numbers are kept too: they take no more memory than the mask."""
BUSY = 1.2
EXACT_ABOVE_SHARE = 0.125
"""Where a search wants so large a share of the allowed rows, it is cheaper to score them all."""
BLOCK_QUERIES = 64
BATCH = 8
"""From so many queries on, exact search is a matrix product."""


@dataclass(frozen=True, eq=False)
class AllowedRows:
    """The rows of one segment that may be returned."""

    mask_N: np.ndarray
    """bool, read-only."""
    leaves: Leaves | None
    """Those of the segment."""

    @cached_property
    def count(self) -> int:
        """How many rows are allowed."""
        return int(np.count_nonzero(self.mask_N))

    @cached_property
    def rows(self) -> np.ndarray:
        """Their numbers, int64, ascending."""
        return np.flatnonzero(self.mask_N)

    @cached_property
    def per_leaf(self) -> np.ndarray:
        """How many rows of each leaf are allowed, int64; empty without leaves."""
        return self.leaves.counts(self.mask_N) if self.leaves else np.zeros(0, np.int64)

    @property
    def size_bytes(self) -> int:
        """Memory that this takes, or may come to take."""
        rows = len(self.mask_N)
        return rows + min(self.count, int(FEW_ROWS_SHARE * rows)) * 8 + 8 * len(self.per_leaf)

    def numbers_or_mask(self) -> np.ndarray:
        """Return the row numbers if they are few, else the mask."""
        return self.rows if self.count <= FEW_ROWS_SHARE * len(self.mask_N) else self.mask_N


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


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a search among allowed rows costs on this machine, in microseconds; lists go along SHARES."""

    row_us: float
    """A row scored for one query."""
    gather_us: float
    """A row copied for a batch."""
    product_us: float
    """A row scored for one query of a batch."""
    scan_us: list[float]
    """A query by `leaves`."""
    proposed_us: list[float]
    """A query by `scann_allowed`, its failed checks included."""
    leaves: list[int]
    """Leaves that four of five queries needed."""
    pressure: float = 1.0
    """Time of the fastest rounds, as a multiple of what the processor worked; beyond BUSY, others disturbed them."""

    @property
    def disturbed(self) -> bool:
        """Whether they are worth being timed again, when the machine has less to do."""
        return self.pressure > BUSY

    def exact(self, rows: int, queries: int) -> float:
        """Return the cost of `exact_allowed`."""
        if queries < BATCH:
            return queries * rows * self.row_us
        return rows * (self.gather_us + queries * self.product_us)

    def to_json(self) -> str:
        """Return what `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Costs:
        """Return the costs that `to_json` wrote."""
        return cls(**json.loads(text))


def along_shares(values: list[float] | list[int], share: float) -> float:
    """Return the value for a share of allowed rows, between those that were measured."""
    if share >= SHARES[0]:
        return float(values[0])
    for i in range(1, len(SHARES)):
        if share >= SHARES[i]:
            above, below = SHARES[i - 1], SHARES[i]
            part = math.log(share / below) / math.log(above / below)
            return values[i] + part * (values[i - 1] - values[i])
    return float(values[-1])


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

    def choose(self, queries: int, k: int, count: int) -> str:
        """Return the cheapest plan for so many queries, hits and allowed rows."""
        if self._costs is None or k > EXACT_ABOVE_SHARE * count:
            return "exact_allowed"
        share = count / len(self._vectors_ND)
        plans = {
            "exact_allowed": self._costs.exact(count, queries),
            "leaves": queries * along_shares(self._costs.scan_us, share),
        }
        if share >= SHARES[-1]:
            plans["scann_allowed"] = queries * along_shares(self._costs.proposed_us, share)
        return min(plans, key=lambda plan: plans[plan])

    def search(
        self,
        queries_QD: np.ndarray,
        k: int,
        allowed: AllowedRows,
        settings: SearchSettings,
        target_recall: float,
    ) -> Found:
        """Return the best k allowed rows of each query; fewer only if fewer are allowed."""
        plan = self.choose(len(queries_QD), k, allowed.count)
        if plan == "leaves":
            return self.scan(queries_QD, k, allowed, target_recall)
        if plan == "scann_allowed":
            share = allowed.count / len(self._vectors_ND)
            leaves = math.ceil(along_shares(self._costs.leaves, share)) if self._costs else settings.leaves
            return self.propose(queries_QD, k, allowed, settings, target_recall, leaves=leaves)
        return exact_found(self._vectors_ND, queries_QD, k, self._distance, allowed)

    def scan(self, queries_QD: np.ndarray, k: int, allowed: AllowedRows, target_recall: float) -> Found:
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
        leaves: int,
    ) -> Found:
        """Answer by `scann_allowed`, from so many leaves at first."""
        share = max(allowed.count, 1) / len(self._vectors_ND)
        leaves = min(max(leaves, settings.leaves), len(self._leaves.sizes_L))
        wanted = min(settings.rescored_for(k), allowed.count)
        rows_QK, scores_QK, kept_Q = self._searcher.search_allowed(
            queries_QD, k, rescore=math.ceil(1.2 * wanted / share), leaves=leaves, allowed_N=allowed.mask_N
        )
        needed_Q = self._needed(queries_QD, k, allowed, scores_QK[:, -1], target_recall)
        # ScaNN has its own centroids, and so another order of leaves than ours. Its candidates are the best by their
        # codes: with as many allowed ones as a search without a filter rescores, the codes lose no more than there.
        bad_Q = (needed_Q > leaves) | (kept_Q < wanted) | (rows_QK[:, -1] == NO_ROW)
        found = Found(
            rows_QK,
            scores_QK,
            ["scann_allowed"] * len(queries_QD),
            np.full(len(queries_QD), leaves),
            kept_Q,
            np.full(len(queries_QD), target_recall),
        )
        if bad_Q.any():
            replace(found, np.flatnonzero(bad_Q), self.scan(queries_QD[bad_Q], k, allowed, target_recall))
        return found

    def _needed(
        self, queries_QD: np.ndarray, k: int, allowed: AllowedRows, scores_Q: np.ndarray, target_recall: float
    ) -> np.ndarray:
        blocks = [
            self._leaves.needed(
                queries_QD[start : start + BLOCK_QUERIES],
                k,
                self._distance,
                allowed.per_leaf,
                scores_Q[start : start + BLOCK_QUERIES],
                target_recall,
            )
            for start in range(0, len(queries_QD), BLOCK_QUERIES)
        ]
        return np.concatenate(blocks)

    def _scan_block(
        self, queries_QD: np.ndarray, k: int, allowed: AllowedRows, target_recall: float
    ) -> Found:
        scan = self._leaves.scan(
            self._vectors_ND,
            queries_QD,
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


def measure_costs(
    planner: Planner, vectors_ND: np.ndarray, leaves: Leaves, settings: SearchSettings
) -> Costs:
    """Return what the plans cost here. Takes a fraction of a second for 100,000 rows."""
    generator, clock = np.random.default_rng(0), _Clock()
    queries_QD = np.array(vectors_ND[np.sort(generator.integers(0, len(vectors_ND), TIMED_QUERIES))])
    scans, proposals, needed = [], [], []
    for share in SHARES:
        mask_N = generator.random(len(vectors_ND)) < share
        mask_N[0] = True  # never empty
        mask_N.setflags(write=False)
        allowed = AllowedRows(mask_N, leaves)
        found = planner.scan(queries_QD, TIMED_K, allowed, TIMED_TARGET)
        at_first = math.ceil(float(np.quantile(found.leaves_Q, 0.8)))
        needed.append(at_first)

        def scan(query_1D: np.ndarray, allowed: AllowedRows = allowed) -> None:
            planner.scan(query_1D, TIMED_K, allowed, TIMED_TARGET)

        def propose(query_1D: np.ndarray, allowed: AllowedRows = allowed, leaves: int = at_first) -> None:
            planner.propose(query_1D, TIMED_K, allowed, settings, TIMED_TARGET, leaves=leaves)

        scans.append(clock.mean_us(scan, queries_QD))
        proposals.append(clock.mean_us(propose, queries_QD))
    exact = _exact_costs(vectors_ND, generator, clock)
    return Costs(scan_us=scans, proposed_us=proposals, leaves=needed, pressure=clock.pressure, **exact)


def _exact_costs(vectors_ND: np.ndarray, generator: np.random.Generator, clock: _Clock) -> dict[str, float]:
    rows_R = np.sort(generator.choice(len(vectors_ND), min(len(vectors_ND), 1 << 13), replace=False))

    def exact(queries: int) -> float:
        batch_QD = np.array(vectors_ND[:queries])

        def ask(_: np.ndarray) -> None:
            exact_search(vectors_ND, batch_QD, TIMED_K, "dot", rows_R)

        return clock.mean_us(ask, batch_QD[:1]) / len(rows_R)

    few, many = exact(BATCH), exact(4 * BATCH)
    product = max((many - few) / (3 * BATCH), 1e-6)
    return {"row_us": exact(1), "gather_us": max(few - BATCH * product, 0.0), "product_us": product}


class _Clock:
    """Times searches on a machine that may have other things to do."""

    def __init__(self) -> None:
        self._wall_s = self._worked_s = 0.0

    @property
    def pressure(self) -> float:
        """Time that passed, as a multiple of what the processor worked."""
        return self._wall_s / max(self._worked_s, 1e-9)

    def mean_us(self, ask: Callable[[np.ndarray], None], queries_QD: np.ndarray) -> float:
        """Return the mean time of a query, each the fastest of some, without the time that others had the processor.

        Other work only ever adds to either time: to what passes while it has the processor, and to what this process
        works where it is done in this process. So the smaller of both counts.
        """
        best_Q = np.full((len(queries_QD), 2), np.inf)
        # Round after round, so that something short does not disturb all rounds of a query.
        for _ in range(TIMED_ROUNDS):
            for query, query_D in enumerate(queries_QD):
                started_s, worked_s = time.perf_counter(), time.process_time()
                ask(query_D[None])
                took_s = time.perf_counter() - started_s, time.process_time() - worked_s
                if min(took_s) < best_Q[query].min():
                    best_Q[query] = took_s
        self._wall_s += float(best_Q[:, 0].sum())
        self._worked_s += float(best_Q.min(axis=1).sum())
        return float(best_Q.min(axis=1).mean() * 1e6)


def _joined(blocks: list[Found]) -> Found:
    return Found(
        np.concatenate([block.rows_QK for block in blocks]),
        np.concatenate([block.scores_QK for block in blocks]),
        [plan for block in blocks for plan in block.plans],
        np.concatenate([block.leaves_Q for block in blocks]),
        np.concatenate([block.candidates_Q for block in blocks]),
        np.concatenate([block.recall_Q for block in blocks]),
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

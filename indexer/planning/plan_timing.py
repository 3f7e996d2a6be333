"""Timing of the plans of a filtered search (planner.py), corrected for other load on the machine.

Shapes: Q queries, N rows, D dimensions, K hits, L leaves.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.planning.leaves import Leaves
from scannery.indexer.planning.plan_costs import BATCH, CACHED_BYTES, SHARES, TIMED_K, Costs
from scannery.indexer.planning.planner import Planner
from scannery.indexer.tuning.settings_choice import SearchSettings
from scannery.indexer.vectors.exact_search import NO_ROW, exact_search
from scannery.indexer.vectors.quantized_vectors import ScoredVectors

__all__ = ["Clock", "Way", "measure_costs"]

TIMED_QUERIES = 8
TIMED_ROUNDS = 4
TIMED_FILTERS = 5
"""Filters of each share, which take turns: no divisor of the number of queries, so that each round has others."""
TIMED_TARGET = 0.95
TIMED_ROWS = 1 << 13
TIMED_BLOCKS = 12
CACHED_ROUNDS = 4
REACHING_QUERIES = 64
"""Queries that measure `leaves_reached`, which varies more between queries than time does."""
BEYOND = 0.01
"""Share of the best rows that may lie outside `leaves_reached`, and share that the search for them may miss."""


def measure_costs(
    planner: Planner,
    vectors: ScoredVectors,
    leaves: Leaves,
    settings: SearchSettings,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> Costs | None:
    """Return the costs of the plans on this machine. Takes a fraction of a second for 100,000 rows.

    Args:
        planner: of the segment.
        vectors: of the segment.
        leaves: of the segment.
        settings: of `scann_allowed`.
        stopped: asked again and again; if it returns True, timing ends, and None is returned.

    """
    generator = np.random.default_rng(0)
    queries_QD = vectors.take(np.sort(generator.integers(0, vectors.rows, REACHING_QUERIES)))
    timed_QD = queries_QD[generator.permutation(len(queries_QD))[:TIMED_QUERIES]]
    scans: list[Way] = []
    proposals: list[Way] = []
    reached: list[int] = []
    for share in SHARES:
        if stopped():
            return None
        several = [_random_rows(vectors.rows, share, leaves, generator) for _ in range(TIMED_FILTERS)]
        reached.append(_reached(planner, leaves, queries_QD, several[0]))
        more = max(0, reached[-1] - reached[0])
        # In each call another filter: a caller's is not that of the caller before, and its rows are not in the caches.
        scanned, proposed = itertools.cycle(several), itertools.cycle(several)

        def scan(query_1D: np.ndarray, filters: Iterator[AllowedRows] = scanned) -> None:
            planner.scan(query_1D, TIMED_K, next(filters), TIMED_TARGET)

        def propose(
            query_1D: np.ndarray, filters: Iterator[AllowedRows] = proposed, more: int = more
        ) -> None:
            planner.propose(query_1D, TIMED_K, next(filters), settings, TIMED_TARGET, more_leaves=more)

        scans.append(Way(scan, timed_QD))
        proposals.append(Way(propose, timed_QD))
    scored = _ScoringTimer(vectors, generator)
    clock = Clock()
    if not clock.run([*scans, *proposals, *scored.ways], stopped):
        return None
    return Costs(
        scan_us=[way.mean_us for way in scans],
        proposed_us=[way.mean_us for way in proposals],
        leaves_reached=reached,
        row_bytes=_row_bytes(vectors),
        **scored.costs(),
        pressure=clock.pressure,
    )


def _random_rows(rows: int, share: float, leaves: Leaves, generator: np.random.Generator) -> AllowedRows:
    mask_N = generator.random(rows) < share
    mask_N[0] = True  # never empty
    mask_N.setflags(write=False)
    return AllowedRows(mask_N, leaves, rows)


def _reached(planner: Planner, leaves: Leaves, queries_QD: np.ndarray, allowed: AllowedRows) -> int:
    """Return the number of leaves, best prediction first, that hold all but BEYOND of the best allowed rows."""
    rows_QK = planner.scan(queries_QD, TIMED_K, allowed, 1 - BEYOND).rows_QK
    order_QL, _, _ = leaves.predict(queries_QD, planner.distance)
    rank_QL = np.argsort(order_QL, axis=1)
    rank_QK = np.take_along_axis(rank_QL, np.maximum(leaves.leaf_of(rows_QK), 0), axis=1)
    return int(np.quantile(rank_QK[rows_QK != NO_ROW], 1 - BEYOND, method="higher")) + 1


def _row_bytes(vectors: ScoredVectors) -> int:
    """Return the bytes of a row that a scan reads."""
    return int(vectors.quantized_NB.shape[1]) or 4 * max(1, vectors.dimensions)


class _ScoringTimer:
    """Times the scoring of rows given by number, in the processor's caches and not, and for batches."""

    def __init__(self, vectors: ScoredVectors, generator: np.random.Generator) -> None:
        rows, row_bytes = vectors.rows, _row_bytes(vectors)
        self._rows = min(rows, TIMED_ROWS)
        cached = _read_only(
            np.sort(generator.choice(rows, max(1, min(self._rows, CACHED_BYTES // row_bytes)), replace=False))
        )
        self._cached_rows = len(cached)
        # Other rows in each round: those of the last round are in the processor's cache, unlike those of a large scan.
        blocks = itertools.cycle(_row_blocks(rows, generator))

        def way(queries: int, rows: Iterator[np.ndarray], rounds: int = 1) -> Way:
            batch_QD = vectors.take(np.arange(min(queries, vectors.rows)))

            def ask(_: np.ndarray) -> None:
                exact_search(vectors, batch_QD, TIMED_K, "dot", next(rows))

            return Way(ask, np.repeat(batch_QD[:1], rounds, axis=0), alone=queries < BATCH)

        self._single = way(1, blocks)
        self._repeated = way(1, itertools.repeat(cached), CACHED_ROUNDS)
        self._few, self._many = way(BATCH, blocks), way(4 * BATCH, blocks)
        self.ways = [self._single, self._repeated, self._few, self._many]

    def costs(self) -> dict[str, float]:
        few, many = self._few.mean_us / self._rows, self._many.mean_us / self._rows
        product = max((many - few) / (3 * BATCH), 1e-6)
        row, cached = self._single.mean_us / self._rows, self._repeated.best_us / self._cached_rows
        return {
            "row_us": row,
            "cached_row_us": min(row, cached),
            "gather_us": max(few - BATCH * product, 0.0),
            "product_us": product,
        }


def _row_blocks(rows: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Return disjoint blocks of TIMED_ROWS row numbers, each ascending; one block of all rows if there are fewer."""
    size = min(rows, TIMED_ROWS)
    count = min(rows // size, TIMED_BLOCKS)
    chosen = generator.choice(rows, count * size, replace=False)
    return [_read_only(np.sort(block)) for block in chosen.reshape(count, size)]


def _read_only(rows_R: np.ndarray) -> np.ndarray:
    """Return row numbers as filters give them."""
    rows_R.setflags(write=False)
    return rows_R


class Way:
    """One way to search, and the fastest time of each of its queries."""

    def __init__(
        self, ask: Callable[[np.ndarray], None], queries_QD: np.ndarray, *, alone: bool = True
    ) -> None:
        """Time nothing yet.

        Args:
            ask: answers a query, (1, D).
            queries_QD: the queries.
            alone: whether `ask` computes in the calling thread alone.

        """
        self._ask, self._queries_QD = ask, queries_QD
        self._worked_s = time.thread_time if alone else time.process_time
        self._best_Q2 = np.full((len(queries_QD), 2), np.inf)

    def run(self) -> None:
        """Ask each query once.

        Other work can only increase a time: other processes and threads the elapsed time, and other threads, where
        they compute for the query too, the CPU time. So the smaller of the two counts.
        """
        for query, query_D in enumerate(self._queries_QD):
            started_s, worked_s = time.perf_counter(), self._worked_s()
            self._ask(query_D[None])
            took_s = time.perf_counter() - started_s, self._worked_s() - worked_s
            if min(took_s) < self._best_Q2[query].min():
                self._best_Q2[query] = took_s

    @property
    def wall_s(self) -> float:
        """Elapsed time of the fastest rounds."""
        return float(self._best_Q2[:, 0].sum())

    @property
    def worked_s(self) -> float:
        """CPU time of the fastest rounds."""
        return float(self._best_Q2.min(axis=1).sum())

    @property
    def mean_us(self) -> float:
        """Mean over queries of the fastest round, in microseconds."""
        return self.worked_s / len(self._best_Q2) * 1e6

    @property
    def best_us(self) -> float:
        """The fastest query."""
        return float(self._best_Q2.min() * 1e6)


class Clock:
    """Times several ways to search together, without the time in which other processes had the processor."""

    def __init__(self) -> None:
        self._ways: Sequence[Way] = ()

    def run(self, ways: Sequence[Way], stopped: Callable[[], bool] = lambda: False) -> bool:
        """Ask all queries of all ways TIMED_ROUNDS times; return False if it was stopped.

        The rounds are outermost: a slow moment then affects one round of several ways, and not all rounds of one.
        """
        self._ways = ways
        for _ in range(TIMED_ROUNDS):
            for way in ways:
                if stopped():
                    return False
                way.run()
        return True

    @property
    def pressure(self) -> float:
        """Elapsed time divided by CPU time, of the fastest rounds."""
        return sum(way.wall_s for way in self._ways) / max(sum(way.worked_s for way in self._ways), 1e-9)

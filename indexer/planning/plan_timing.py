"""Timing of the plans of a filtered search (planner.py), corrected for other load on the machine.

Shapes: Q queries, N rows, D dimensions, K hits, L leaves.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np

from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.planning.leaves import Leaves
from scannery.indexer.planning.plan_costs import BATCH, SHARES, TIMED_K, Costs
from scannery.indexer.planning.planner import Planner
from scannery.indexer.tuning.search_settings import SearchSettings
from scannery.indexer.vectors.exact_search import NO_ROW, exact_search

__all__ = ["Clock", "measure_costs"]

TIMED_QUERIES = 8
TIMED_ROUNDS = 3
TIMED_TARGET = 0.95
TIMED_ROWS = 1 << 13
TIMED_BLOCKS = 12
REACHING_QUERIES = 64
"""Queries that measure `leaves_reached`, which varies more between queries than time does."""
BEYOND = 0.01
"""Share of the best rows that may lie outside `leaves_reached`, and share that the search for them may miss."""


def measure_costs(
    planner: Planner, vectors_ND: np.ndarray, leaves: Leaves, settings: SearchSettings
) -> Costs:
    """Return the costs of the plans on this machine. Takes a fraction of a second for 100,000 rows.

    Args:
        planner: of the segment.
        vectors_ND: of the segment.
        leaves: of the segment.
        settings: of `scann_allowed`.

    """
    generator, clock = np.random.default_rng(0), Clock()
    queries_QD = np.array(vectors_ND[np.sort(generator.integers(0, len(vectors_ND), REACHING_QUERIES))])
    timed_QD = queries_QD[generator.permutation(len(queries_QD))[:TIMED_QUERIES]]
    scans, proposals, reached = [], [], []
    for share in SHARES:
        mask_N = generator.random(len(vectors_ND)) < share
        mask_N[0] = True  # never empty
        mask_N.setflags(write=False)
        allowed = AllowedRows(mask_N, leaves, len(mask_N))
        reached.append(_reached(planner, leaves, queries_QD, allowed))
        more = max(0, reached[-1] - reached[0])

        def scan(query_1D: np.ndarray, allowed: AllowedRows = allowed) -> None:
            planner.scan(query_1D, TIMED_K, allowed, TIMED_TARGET)

        def propose(query_1D: np.ndarray, allowed: AllowedRows = allowed, more: int = more) -> None:
            planner.propose(query_1D, TIMED_K, allowed, settings, TIMED_TARGET, more_leaves=more)

        scans.append(clock.mean_us(scan, timed_QD))
        proposals.append(clock.mean_us(propose, timed_QD))
    return Costs(
        scan_us=scans,
        proposed_us=proposals,
        leaves_reached=reached,
        **_exact_costs(vectors_ND, generator, clock),
        pressure=clock.pressure,
    )


def _reached(planner: Planner, leaves: Leaves, queries_QD: np.ndarray, allowed: AllowedRows) -> int:
    """Return the number of leaves, best prediction first, that hold all but BEYOND of the best allowed rows."""
    rows_QK = planner.scan(queries_QD, TIMED_K, allowed, 1 - BEYOND).rows_QK
    order_QL, _, _ = leaves.predict(queries_QD, planner.distance)
    rank_QL = np.argsort(order_QL, axis=1)
    rank_QK = np.take_along_axis(rank_QL, np.maximum(leaves.leaf_of(rows_QK), 0), axis=1)
    return int(np.quantile(rank_QK[rows_QK != NO_ROW], 1 - BEYOND, method="higher")) + 1


def _exact_costs(vectors_ND: np.ndarray, generator: np.random.Generator, clock: Clock) -> dict[str, float]:
    # Other rows in each round: those of the last round are in the processor's cache, unlike the rows of a large scan.
    blocks = itertools.cycle(_row_blocks(len(vectors_ND), generator))

    def exact(queries: int) -> float:
        batch_QD = np.array(vectors_ND[:queries])

        def ask(_: np.ndarray) -> None:
            exact_search(vectors_ND, batch_QD, TIMED_K, "dot", next(blocks))

        return clock.mean_us(ask, batch_QD[:1]) / min(len(vectors_ND), TIMED_ROWS)

    few, many = exact(BATCH), exact(4 * BATCH)
    product = max((many - few) / (3 * BATCH), 1e-6)
    return {"row_us": exact(1), "gather_us": max(few - BATCH * product, 0.0), "product_us": product}


def _row_blocks(rows: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Return disjoint blocks of TIMED_ROWS row numbers, each ascending; one block of all rows if there are fewer."""
    size = min(rows, TIMED_ROWS)
    count = min(rows // size, TIMED_BLOCKS)
    chosen = generator.choice(rows, count * size, replace=False)
    return [np.sort(block) for block in chosen.reshape(count, size)]


class Clock:
    """Times searches, without the time in which other processes had the processor."""

    def __init__(self) -> None:
        self._wall_s = self._worked_s = 0.0

    @property
    def pressure(self) -> float:
        """Elapsed time divided by CPU time, of the fastest rounds."""
        return self._wall_s / max(self._worked_s, 1e-9)

    def mean_us(self, ask: Callable[[np.ndarray], None], queries_QD: np.ndarray) -> float:
        """Return the mean over queries of the fastest of TIMED_ROUNDS calls of `ask`, in microseconds.

        Other work can only increase a time: other processes increase the elapsed time, and other threads of this
        process its CPU time. So the smaller of the two counts.
        """
        best_Q = np.full((len(queries_QD), 2), np.inf)
        # Rounds in the outer loop, so that a short disturbance does not affect all rounds of a query.
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

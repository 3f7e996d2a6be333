"""Fused kernels that scan the allowed rows of the leaves nearest to a query (planning/leaves.py). They release the GIL.

Shapes: Q queries, N rows, L leaves, D dimensions, K hits, R sampled rows, B classes of rank, T steps of a tail.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from scannery.indexer.kernels.fused import compiled
from scannery.indexer.kernels.row_kernels import insert
from scannery.indexer.kernels.scoring import score

__all__ = ["TAIL_LOW", "TAIL_STEP", "count_tails", "predict_scores", "scan_leaves"]

TAIL_LOW = -1.0
TAIL_STEP = 1 / 128
"""Tails are tables over spreads above the prediction: from TAIL_LOW, in steps of TAIL_STEP."""
LOOK_WORK = 16
"""Cost of `_enough` per leaf, in components of scored rows."""


@compiled
def predict_scores(
    query_D: np.ndarray,
    squared: bool,
    means_LD: np.ndarray,
    squares_L: np.ndarray,
    radius_L: np.ndarray,
    predicted_L: np.ndarray,
    spread_L: np.ndarray,
) -> None:
    """Write each leaf's predicted score and the spread of its rows' scores to `predicted_L` and `spread_L`."""
    square = np.float32(0)
    for component in range(query_D.shape[0]):
        square += query_D[component] * query_D[component]
    for leaf in range(means_LD.shape[0]):
        product = np.float32(0)
        for component in range(query_D.shape[0]):
            product += means_LD[leaf, component] * query_D[component]
        radius = radius_L[leaf]
        if squared:
            distance = max(square - 2 * product + squares_L[leaf], np.float32(0))
            predicted_L[leaf] = -distance - radius * radius
            spread_L[leaf] = 2 * np.sqrt(distance) * radius
        else:
            predicted_L[leaf] = product
            spread_L[leaf] = np.sqrt(square) * radius


@compiled
def _rank_class(rank: int) -> int:
    """Return the class of a leaf's rank for a query: ranks 0, 1, 2–3, 4–7, … are a class each, with one tail."""
    found = 0
    while rank > 0:
        rank >>= 1
        found += 1
    return found


@compiled
def _step(spreads: np.float32, steps: int) -> int:
    """Return the step of a tail for a number of spreads above the prediction.

    Bounds are tested before the conversion: a float that is too large for an integer becomes an undefined value.
    """
    at = (spreads - TAIL_LOW) / TAIL_STEP
    if not at > 0:
        return 0
    if at >= steps:
        return steps - 1
    return int(at)


@compiled
def _tail(tail_T: np.ndarray, predicted: np.float32, spread: np.float32, score: np.float32) -> np.float32:
    """Return the expected share of a leaf's rows that score above `score`."""
    if spread <= 0:
        return np.float32(1.0) if predicted >= score else np.float32(0.0)
    step = (score - predicted) / spread
    if step <= TAIL_LOW:
        return np.float32(1.0)
    share: np.float32 = tail_T[_step(step, tail_T.shape[0])]
    return share


@compiled
def _enough(
    order_L: np.ndarray,
    predicted_L: np.ndarray,
    spread_L: np.ndarray,
    sizes_L: np.ndarray,
    allowed_L: np.ndarray,
    tails_BT: np.ndarray,
    score: np.float32,
    k: int,
    budget: float,
    above_L: np.ndarray,
) -> tuple[int, float]:
    """Return the number of leaves after which at most `budget` hits are expected in the others, and that expectation.

    The tail of a leaf gives its number of rows above `score`, the score of the k-th hit. The allowed share of these is
    taken as the larger of two: the allowed share of the leaf's rows; and, since a filter may prefer rows near to the
    query, k divided by the expected number of all rows above `score`. `above_L` is a work array.
    """
    total, tail_class, next_class = np.float32(0), 0, 1
    for rank in range(order_L.shape[0]):
        if rank == next_class:  # as _rank_class
            tail_class, next_class = tail_class + 1, 2 * next_class
        leaf = order_L[rank]
        above_L[rank] = sizes_L[leaf] * _tail(tails_BT[tail_class], predicted_L[leaf], spread_L[leaf], score)
        total += above_L[rank]
    near = min(np.float32(1.0), np.float32(k) / max(total, np.float32(1.0)))
    missed = np.float32(0)
    for rank in range(order_L.shape[0] - 1, -1, -1):
        allowed = np.float32(allowed_L[order_L[rank]])
        share = max(near, allowed / sizes_L[order_L[rank]])
        more = missed + min(allowed, above_L[rank] * share)
        if more > budget:
            return rank + 1, float(missed)
        missed = more
    return 0, float(missed)


@partial(compiled, fastmath=False)
def scan_leaves(
    vectors_ND: np.ndarray,
    query_D: np.ndarray,
    squared: bool,
    starts_L: np.ndarray,
    order_L: np.ndarray,
    predicted_L: np.ndarray,
    spread_L: np.ndarray,
    sizes_L: np.ndarray,
    mask_N: np.ndarray,
    allowed_L: np.ndarray,
    tails_BT: np.ndarray,
    budget: float,
    ranks_N: np.ndarray,
    rows_K: np.ndarray,
    scores_K: np.ndarray,
) -> tuple[int, int, float]:
    """Write the best allowed rows of the nearest leaves to `rows_K` and `scores_K`, which must be filled with "no row".

    Leaves are scanned in the order of `order_L` until k rows are found and at most `budget` better rows are expected in
    the others. Returns the numbers of leaves and rows scanned, and the expected number of hits in the other leaves.
    """
    k, leaves, dimensions = rows_K.shape[0], order_L.shape[0], vectors_ND.shape[1]
    above_L = np.empty(leaves, np.float32)
    found, scanned, looked, needed, missed = 0, 0, 0, leaves, 0.0
    looked_score = -np.float32(np.inf)
    for rank in range(leaves):
        leaf = order_L[rank]
        if allowed_L[leaf] > 0:
            for row in range(starts_L[leaf], starts_L[leaf] + sizes_L[leaf]):
                if not mask_N[row]:
                    continue
                scanned += 1
                value = score(vectors_ND, row, query_D, squared)
                if found < k or value >= scores_K[k - 1]:
                    found = insert(rows_K, scores_K, found, row, value, ranks_N)
        if found < k:
            continue
        # `_enough` visits all leaves. It is called if the k-th score rose, after as much work as it takes itself.
        better = scores_K[k - 1] > looked_score
        worked = (scanned - looked) * dimensions >= LOOK_WORK * leaves
        if better and (worked or rank + 1 >= needed or looked == 0):
            looked, looked_score = scanned, scores_K[k - 1]
            needed, missed = _enough(
                order_L, predicted_L, spread_L, sizes_L, allowed_L, tails_BT, looked_score, k, budget, above_L
            )
        if rank + 1 >= needed and scores_K[k - 1] == looked_score:
            return rank + 1, scanned, missed
    return leaves, scanned, 0.0


@compiled
def count_tails(
    scores_QR: np.ndarray,
    leaf_R: np.ndarray,
    rows_R: np.ndarray,
    own_Q: np.ndarray,
    rank_QL: np.ndarray,
    predicted_QL: np.ndarray,
    spread_QL: np.ndarray,
    counts_BT: np.ndarray,
) -> None:
    """Add to `counts_BT` how many rows score how many spreads above their leaf's prediction, by class of rank.

    The query's own row (`own_Q`, -1: none) is left out.
    """
    for query in range(scores_QR.shape[0]):
        for position in range(scores_QR.shape[1]):
            leaf = leaf_R[position]
            spread = spread_QL[query, leaf]
            if spread <= 0 or rows_R[position] == own_Q[query]:
                continue
            step = (scores_QR[query, position] - predicted_QL[query, leaf]) / spread
            at = _step(step, counts_BT.shape[1])
            counts_BT[_rank_class(rank_QL[query, leaf]), at] += 1

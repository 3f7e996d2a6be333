"""Fused kernels that scan the allowed rows of the leaves nearest to a query (planning/leaves.py). They release the GIL.

Shapes: Q queries, N rows, L leaves, D dimensions, K hits, R sampled rows, B classes of rank, T steps of a tail.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from scannery.indexer.kernels.fused import compiled
from scannery.indexer.kernels.quantized_kernels import is_beaten, quantize_query
from scannery.indexer.kernels.row_kernels import AHEAD, fetch_row, insert, row_buffer, row_score

__all__ = [
    "TAIL_LOW",
    "TAIL_STEP",
    "count_allowed",
    "count_tails",
    "enough",
    "estimate_allowed",
    "order_leaves",
    "predict_scores",
    "scan_leaves",
    "sort_leaves",
]

TAIL_LOW = -1.0
TAIL_STEP = 1 / 128
"""Tails are tables over spreads above the prediction: from TAIL_LOW, in steps of TAIL_STEP."""
LOOK_WORK = 16
"""Cost of `enough` per leaf, in components of scored rows."""
LOOK_SHARE = 8
"""Part of the work so far after which `enough` is called again, if that is more: a scan of many rows would call it
often."""
CHANCE = 2
"""Standard deviations by which the rows found may be fewer than expected by chance alone."""
SORTED = 8
"""Leaves that are sorted before the first is scanned, then as many again whenever all sorted ones are scanned."""
CROWDED = 64
"""Leaves in one step of `order_leaves` from which on all are sorted by comparisons: predictions are spread unevenly."""


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
    count = 0
    while rank > 0:
        rank >>= 1
        count += 1
    return count


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


@partial(compiled, fastmath=False)
def _extremes(values_L: np.ndarray) -> np.ndarray:
    """Return the least and the largest of float32 values, (2,), compared as integers, which is vectorised."""
    bits_L = values_L.view(np.int32)
    least, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for number in range(bits_L.shape[0]):
        # The integers of negative values ascend as these descend.
        bits = bits_L[number] ^ ((bits_L[number] >> np.int32(31)) & np.int32(0x7FFFFFFF))
        least, high = min(least, bits), max(high, bits)
    found_2 = np.empty(2, np.int32)
    found_2[0] = least ^ ((least >> np.int32(31)) & np.int32(0x7FFFFFFF))
    found_2[1] = high ^ ((high >> np.int32(31)) & np.int32(0x7FFFFFFF))
    return found_2.view(np.float32)


@partial(compiled, fastmath=False)
def order_leaves(predicted_L: np.ndarray, order_L: np.ndarray) -> None:
    """Write the leaves to `order_L`, best prediction first, in as many equal steps as there are leaves.

    Within a step they are ordered by number; `sort_leaves` sorts these. It is a counting sort: a sort by comparisons
    takes 25 µs for 1,414 leaves, most of it for leaves that are never searched.
    """
    leaves = predicted_L.shape[0]
    worst, best = _extremes(predicted_L)
    scale = np.float32(leaves - 1) / (best - worst) if best > worst else np.float32(0)
    steps_L, starts_S = np.empty(leaves, np.int32), np.zeros(leaves + 1, np.int32)
    for leaf in range(leaves):
        steps_L[leaf] = min(max(np.int32((best - predicted_L[leaf]) * scale), 0), leaves - 1)
    for leaf in range(leaves):
        starts_S[steps_L[leaf] + 1] += 1
    largest = np.int32(0)
    for step in range(leaves):
        largest = max(largest, starts_S[step + 1])
        starts_S[step + 1] += starts_S[step]
    if largest > CROWDED:
        order_L[:] = np.argsort(-predicted_L, kind="mergesort")
        return
    for leaf in range(leaves):
        step = steps_L[leaf]
        order_L[starts_S[step]] = leaf
        starts_S[step] += 1


@partial(compiled, fastmath=False)
def sort_leaves(predicted_L: np.ndarray, order_L: np.ndarray, low: int, high: int) -> None:
    """Sort the places from `low` to `high` of what `order_leaves` wrote, by insertion."""
    for position in range(low + 1, high):
        leaf, at = order_L[position], position
        while at > low and predicted_L[order_L[at - 1]] < predicted_L[leaf]:
            order_L[at] = order_L[at - 1]
            at -= 1
        order_L[at] = leaf


@partial(compiled, fastmath=False)
def enough(
    order_L: np.ndarray,
    predicted_L: np.ndarray,
    spread_L: np.ndarray,
    sizes_L: np.ndarray,
    allowed_L: np.ndarray,
    tails_BT: np.ndarray,
    score: np.float32,
    k: int,
    tied: int,
    budget: float,
    above_L: np.ndarray,
    scanned: int,
) -> tuple[int, float]:
    """Return the number of leaves after which at most `budget` hits are expected in the others, and that expectation.

    The tail of a leaf gives its number of rows above `score`, the score of the k-th hit. The allowed share of these is
    taken as the larger of two: the allowed share of the leaf's rows; and, since a filter may prefer rows near to the
    query, k divided by the expected number of all rows above `score`. `above_L` is a work array.

    Tails are averages over queries, and those of far leaves are too heavy for most. The first `scanned` leaves have k
    allowed rows with at least `score`, and `tied` more that are not among the best k: of copies of one row there can be
    any number. If more were expected in them, as much fewer are expected in the others, but for chance.
    """
    total, tail_class, next_class = np.float32(0), 0, 1
    for rank in range(order_L.shape[0]):
        if rank == next_class:  # as _rank_class
            tail_class, next_class = tail_class + 1, 2 * next_class
        leaf = order_L[rank]
        above = np.float32(sizes_L[leaf]) * _tail(
            tails_BT[tail_class], predicted_L[leaf], spread_L[leaf], score
        )
        above_L[rank] = above
        total += above
    near = min(np.float32(1.0), np.float32(k) / max(total, np.float32(1.0)))
    expected, missed = np.float32(0), np.float32(0)
    for rank in range(order_L.shape[0]):
        leaf = order_L[rank]
        allowed = np.float32(allowed_L[leaf])
        above_L[rank] = min(allowed, above_L[rank] * max(near, allowed / np.float32(sizes_L[leaf])))
        if rank < scanned:
            expected += above_L[rank]
    likely = np.float32(k + CHANCE * np.sqrt(k) + tied)
    fewer = min(np.float32(1.0), likely / max(expected, np.float32(1.0)))
    for rank in range(order_L.shape[0] - 1, -1, -1):
        more = missed + fewer * above_L[rank]
        if more > budget:
            return rank + 1, float(missed)
        missed = more
    return 0, float(missed)


@compiled
def count_allowed(
    mask_N: np.ndarray, starts_L: np.ndarray, sizes_L: np.ndarray, counts_L: np.ndarray
) -> None:
    """Write the number of rows of each leaf that a mask allows to `counts_L`."""
    for leaf in range(starts_L.shape[0]):
        count = np.int32(0)  # which is vectorised twice as widely as 64 bits
        for row in range(starts_L[leaf], starts_L[leaf] + sizes_L[leaf]):
            count += mask_N[row]
        counts_L[leaf] = count


@partial(compiled, brief=True)
def estimate_allowed(
    counts_BL: np.ndarray,
    first: int,
    before: float,
    last: int,
    behind: float,
    allowed_L: np.ndarray,
) -> None:
    """Write the estimated number of rows of each leaf in a range of buckets to `allowed_L`; 0 only without any.

    `counts_BL` has the rows of each leaf before each bucket, and behind the last, int32 (B + 1, L). The range begins
    in the bucket `first`, behind the share `before` of its rows, and ends in `last`, behind the share `behind`.
    """
    touched = last + (1 if behind > 0 else 0)
    for leaf in range(allowed_L.shape[0]):
        start, stop = np.float64(counts_BL[first, leaf]), np.float64(counts_BL[last, leaf])
        if before > 0:
            start += before * (counts_BL[first + 1, leaf] - counts_BL[first, leaf])
        if behind > 0:
            stop += behind * (counts_BL[last + 1, leaf] - counts_BL[last, leaf])
        least = 1 if counts_BL[touched, leaf] > counts_BL[first, leaf] else 0
        allowed_L[leaf] = max(least, int(stop - start + 0.5))


@partial(compiled, fastmath=False)
def _allowed_of_leaf(
    first: int,
    size: int,
    mask_N: np.ndarray,
    positions_N: np.ndarray,
    start: int,
    stop: int,
    rows_R: np.ndarray,
) -> int:
    """Write the rows of a leaf that a `RowTest` allows to `rows_R`, and return how many they are.

    Without a branch, since which rows are allowed cannot be predicted: what is not allowed is overwritten, or lies
    after the last row. `rows_R` has room for one row more than the leaf.
    """
    low, high = np.int32(start), np.int32(stop)
    count = 0
    if positions_N.shape[0] == 0:
        for row in range(first, first + size):
            rows_R[count] = row
            count += mask_N[row]
    elif mask_N.shape[0] == 0:
        for row in range(first, first + size):
            rows_R[count] = row
            count += (positions_N[row] >= low) & (positions_N[row] < high)
    else:
        for row in range(first, first + size):
            rows_R[count] = row
            count += mask_N[row] & (positions_N[row] >= low) & (positions_N[row] < high)
    return count


@partial(compiled, fastmath=False)
def scan_leaves(
    vectors_ND: np.ndarray,
    quantized_NB: np.ndarray,
    query_D: np.ndarray,
    squared: bool,
    starts_L: np.ndarray,
    predicted_L: np.ndarray,
    spread_L: np.ndarray,
    sizes_L: np.ndarray,
    mask_N: np.ndarray,
    positions_N: np.ndarray,
    start: int,
    stop: int,
    numbers_R: np.ndarray,
    before_L: np.ndarray,
    allowed_L: np.ndarray,
    tails_BT: np.ndarray,
    budget: float,
    ranks_N: np.ndarray,
    rows_K: np.ndarray,
    scores_K: np.ndarray,
) -> tuple[int, int, float]:
    """Write the best allowed rows of the nearest leaves to `rows_K` and `scores_K`; -1 and minus infinity after them.

    Leaves are scanned in the order of `predicted_L` until k rows are found and at most `budget` better rows are
    expected in the others. Allowed rows are `numbers_R` (ascending, of which `before_L` are in the leaves before, and
    `allowed_L` in the leaf), or if that is empty those that a `RowTest` allows; `allowed_L` is then an estimate, 0 only
    if there are none. Returns the numbers of leaves and rows scanned, and the expected number of hits in the other
    leaves.
    """
    k, leaves, dimensions = rows_K.shape[0], starts_L.shape[0], vectors_ND.shape[1]
    rows_K[:] = -1
    scores_K[:] = -np.float32(np.inf)
    above_L, order_L = np.empty(leaves, np.float32), np.empty(leaves, np.int64)
    order_leaves(predicted_L, order_L)
    ordered = min(SORTED, leaves)
    sort_leaves(predicted_L, order_L, 0, ordered)
    by_number = numbers_R.shape[0] > 0
    steps_D, facts_4 = quantize_query(query_D, quantized_NB.shape[0] > 0)
    buffer_1D = row_buffer(vectors_ND, query_D)
    room = 0
    for leaf in range(0 if by_number else leaves):
        room = max(room, sizes_L[leaf] + 1)
    some_R = np.empty(room, np.int64)
    hits, tied, scanned, looked, needed, missed = 0, 0, 0, 0, leaves, 0.0
    looked_score = -np.float32(np.inf)
    for rank in range(leaves):
        if rank == ordered:
            ordered = min(2 * ordered, leaves)
            sort_leaves(predicted_L, order_L, rank, ordered)
        leaf = order_L[rank]
        if allowed_L[leaf] > 0:
            if by_number:
                rows_R = numbers_R[before_L[leaf] : before_L[leaf] + allowed_L[leaf]]
            else:
                count = _allowed_of_leaf(
                    starts_L[leaf], sizes_L[leaf], mask_N, positions_N, start, stop, some_R
                )
                rows_R = some_R[:count]
            scanned += rows_R.shape[0]
            hits, tied = _score_into(
                vectors_ND, quantized_NB, query_D, steps_D, facts_4, buffer_1D, squared, rows_R, ranks_N,
                rows_K, scores_K, hits, tied,
            )  # fmt: skip
        if hits < k:
            continue
        # `enough` visits all leaves. It is called if the k-th score rose, after as much work as it takes itself, and
        # after a share of all work so far.
        better = scores_K[k - 1] > looked_score
        worked = (scanned - looked) * dimensions >= max(
            LOOK_WORK * leaves, scanned * dimensions // LOOK_SHARE
        )
        if better and (worked or rank + 1 >= needed or looked == 0):
            looked, looked_score = scanned, scores_K[k - 1]
            needed, missed = enough(
                order_L,
                predicted_L,
                spread_L,
                sizes_L,
                allowed_L,
                tails_BT,
                looked_score,
                k,
                tied,
                budget,
                above_L,
                rank + 1,
            )
        if rank + 1 >= needed and scores_K[k - 1] == looked_score:
            return rank + 1, scanned, missed
    return leaves, scanned, 0.0


@partial(compiled, fastmath=False)
def _score_into(
    vectors_ND: np.ndarray,
    quantized_NB: np.ndarray,
    query_D: np.ndarray,
    steps_D: np.ndarray,
    facts_4: np.ndarray,
    buffer_1D: np.ndarray,
    squared: bool,
    rows_R: np.ndarray,
    ranks_N: np.ndarray,
    rows_K: np.ndarray,
    scores_K: np.ndarray,
    count: int,
    tied: int,
) -> tuple[int, int]:
    """Insert rows into the `count` best rows so far, by their score; return the new number of rows.

    And return how many rows, of these and the `tied` ones so far, have the score of the last of k without being among
    them.
    """
    k, last = rows_K.shape[0], rows_R.shape[0] - 1
    bounded = steps_D.shape[0] > 0
    for position in range(rows_R.shape[0]):
        row = rows_R[position]
        ahead = rows_R[min(position + AHEAD, last)]
        fetch_row(vectors_ND, quantized_NB, ahead, not bounded or count < k)
        if is_beaten(quantized_NB, row, steps_D, facts_4, squared, count, scores_K):
            continue
        value = row_score(vectors_ND, quantized_NB, row, query_D, squared, buffer_1D)
        if count < k:
            count = insert(rows_K, scores_K, count, row, value, ranks_N)
        elif value >= scores_K[k - 1]:
            before = scores_K[k - 1]
            count = insert(rows_K, scores_K, count, row, value, ranks_N)
            # One row with the score `before` is left out now: this one or the last.
            tied = tied + 1 if scores_K[k - 1] == before else 0
    return count, tied


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

"""Fused kernels that score rows and keep the best: by score, then by the rank of the id.

Scoring 50,000 rows of 384 dimensions given by number takes 10 ms, and 96 ms by a NumPy gather and product. All kernels
use one scoring function, `score`, so that a row has the same bits of score in each.

`ranks_N` and `twins_2N` are those of `Ties`; either may be empty. `vectors_ND` and `quantized_NB` are those of
`ScoredVectors`: a row that cannot be among the best k so far by its quantized vector is not scored, and if there are no
full vectors, the vectors are those that the quantized ones stand for.

Shapes: Q queries, N rows, D dimensions, K hits, R rows given by number, C candidates, X pairs of a row and a query.

`score` emits vector instructions with a fixed order of additions. If the compiler chooses the order, it depends on
the loop around the sum: then the score of a row differed in its last bit between a single query and a batch, and so did
the order of rows. A loop in Python with a fixed order is not vectorised, and takes six times as long.

Products are rounded before they are added (no fused multiply-add), so scores do not depend on the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as numba_cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from scannery.indexer.kernels.fused import compiled
from scannery.indexer.kernels.quantized_kernels import decode_row, highest_score, is_beaten, quantize_query

__all__ = [
    "AHEAD",
    "CHAINS",
    "NARROW",
    "WIDE",
    "fetch_row",
    "hash_rows",
    "insert",
    "is_allowed",
    "longest",
    "merge_sorted",
    "nearest_rows",
    "place_of",
    "prefetch",
    "rescore",
    "rescore_one",
    "row_buffer",
    "row_score",
    "score",
    "score_pairs",
    "score_rows",
]


WIDE, NARROW = 16, 4
"""Components added by one instruction; processors with narrower registers need several."""
CHAINS = 2
"""Independent sums of WIDE components: an addition waits only for the previous one of its own sum."""

cgutils: Any = numba_cgutils
_FLOAT = ir.FloatType()
_SIZE = ir.IntType(64)

_Term = Callable[[Any, Any, Any], Any]
"""Function from a builder, components of the row and the same components of the query, to the terms of the sum."""


def _product(builder: Any, row: Any, query: Any) -> Any:
    return builder.fmul(row, query)


def _minus_square(builder: Any, row: Any, query: Any) -> Any:
    difference = builder.fsub(row, query)
    return builder.fneg(builder.fmul(difference, difference))


def _typed(_: Any, vectors_ND: Any, row: Any, query_D: Any, squared: Any) -> Any:
    """Return the signature, and the function that emits the code."""
    for array, dimensions in ((vectors_ND, 2), (query_D, 1)):
        if (array.dtype, array.ndim, array.layout) != (types.float32, dimensions, "C"):
            raise TypingError(f"needs C-contiguous float32 arrays, got {array}")
    # `_emitted` is looked up when a kernel is compiled, after this module was executed.
    return types.float32(vectors_ND, types.int64, query_D, types.boolean), _emitted


score: Callable[[np.ndarray, int, np.ndarray, bool], np.float32] = intrinsic(_typed)  # type: ignore[assignment]
"""Function from vectors (N, D), a row number, a query (D,) and `squared`, to the product or minus the squared distance.

Both arrays are float32 and C-contiguous. For kernels compiled without fastmath, which would affect this code too."""


PREFETCHED, LINE = 8, 64
"""Cache lines of a row that are prefetched, and bytes of a line; the processor fetches what follows by itself."""


def _typed_row(_: Any, vectors_ND: Any, row: Any) -> Any:
    if (vectors_ND.ndim, vectors_ND.layout) != (2, "C"):
        raise TypingError(f"needs a C-contiguous array of rows, got {vectors_ND}")
    return types.void(vectors_ND, types.int64), _prefetched


prefetch: Callable[[np.ndarray, int], None] = intrinsic(_typed_row)  # type: ignore[assignment]
"""Fetch the beginning of a row of (N, D) into the processor's caches, without waiting for it."""


def _prefetched(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    vectors = context.make_array(signature.args[0])(context, builder, arguments[0])
    dimensions = builder.extract_value(vectors.shape, 1)
    row = builder.gep(vectors.data, [builder.mul(arguments[1], dimensions)])
    pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag]),
        "llvm.prefetch.p0i8",
    )
    row = builder.bitcast(row, pointer)
    for line in range(PREFETCHED):  # what lies beyond a short row is fetched in vain, or not at all
        builder.call(function, [builder.gep(row, [_SIZE(line * LINE)]), flag(0), flag(3), flag(1)])
    return context.get_dummy_value()


def _emitted(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    vectors, query = (
        context.make_array(signature.args[number])(context, builder, arguments[number]) for number in (0, 2)
    )
    dimensions = builder.extract_value(query.shape, 0)
    row = builder.gep(vectors.data, [builder.mul(arguments[1], dimensions)])
    result = cgutils.alloca_once(builder, _FLOAT)
    squared = context.cast(builder, arguments[3], types.boolean, types.boolean)
    with builder.if_else(cgutils.is_true(builder, squared)) as (distance, product):
        for branch, term in ((distance, _minus_square), (product, _product)):
            with branch:
                builder.store(_Sum(builder, row, query.data, dimensions, term).total(), result)
    return builder.load(result)


class _Sum:
    """Emits the sum of a term over all components of a row and a query."""

    def __init__(self, builder: Any, row: Any, query: Any, dimensions: Any, term: _Term) -> None:
        self._builder, self._row, self._query, self._term = builder, row, query, term
        self._dimensions = dimensions
        self._done = _SIZE(0)

    def total(self) -> Any:
        """Emit the sum, a float: of WIDE * CHAINS components at once, then of the rest in smaller steps."""
        add = self._builder.fadd
        first, second = self._added(WIDE, CHAINS)
        total = add(add(first, second), *self._added(WIDE, 1))
        total = add(self._halved(total, NARROW), *self._added(NARROW, 1))
        return add(self._builder.extract_element(self._halved(total, 1), _SIZE(0)), *self._added(1, 1))

    def _added(self, width: int, chains: int) -> list[Any]:
        """Emit a loop over the remaining components, `width * chains` at once; return the `chains` sums."""
        builder, step = self._builder, _SIZE(width * chains)
        kind = _FLOAT if width == 1 else ir.VectorType(_FLOAT, width)
        zero = ir.Constant(kind, 0.0 if width == 1 else [0.0] * width)
        sums = [cgutils.alloca_once(builder, kind) for _ in range(chains)]
        for total in sums:
            builder.store(zero, total)
        remaining = builder.sub(self._dimensions, self._done)
        end = builder.add(self._done, builder.mul(builder.udiv(remaining, step), step))
        with cgutils.for_range_slice(builder, self._done, end, step, _SIZE) as (component, _):
            for chain, total in enumerate(sums):
                at = builder.add(component, _SIZE(chain * width))
                term = self._term(
                    builder, self._loaded(self._row, at, kind), self._loaded(self._query, at, kind)
                )
                builder.store(builder.fadd(builder.load(total), term), total)
        self._done = end
        return [builder.load(total) for total in sums]

    def _loaded(self, vector: Any, at: Any, kind: Any) -> Any:
        pointer = self._builder.bitcast(self._builder.gep(vector, [at]), kind.as_pointer())
        return self._builder.load(pointer, align=4)

    def _halved(self, vector: Any, width: int) -> Any:
        """Add the upper half of a vector to its lower half until it has `width` components."""
        while vector.type.count > width:
            half = vector.type.count // 2
            low, high = (
                ir.Constant(ir.VectorType(ir.IntType(32), half), list(range(start, start + half)))
                for start in (0, half)
            )
            vector = self._builder.fadd(
                self._builder.shuffle_vector(vector, vector, low),
                self._builder.shuffle_vector(vector, vector, high),
            )
        return vector


HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
AHEAD, FAR_AHEAD = 4, 8
"""Number of rows by which fetching is ahead of scoring, for rows given by number: the processor cannot predict them.
The first ones of a list are not fetched ahead, so in lists of the dozen rows of a leaf it is less than in long ones."""
MINUS_ZERO = np.uint64(0x80000000)
SCANNED_ROWS = 1 << 12
"""Rows of which a scan keeps the highest scores at once: they stay in the processor's second cache."""
WORTH = 3
"""Rows for each of k hits from which on quantized vectors save time: of fewer, many are scored in full anyway."""


@partial(compiled, fastmath=False)
def row_buffer(vectors_ND: np.ndarray, query_D: np.ndarray) -> np.ndarray:
    """Return room for a decoded row, (1, D), for `row_score`; (1, 0) where there are full vectors."""
    return np.empty((1, 0 if vectors_ND.shape[0] > 0 else query_D.shape[0]), np.float32)


@partial(compiled, fastmath=False)
def row_score(
    vectors_ND: np.ndarray,
    quantized_NB: np.ndarray,
    row: int,
    query_D: np.ndarray,
    squared: bool,
    buffer_1D: np.ndarray,
) -> np.float32:
    """Return `score` of a full vector, or if there are none, of the vector that the quantized one stands for."""
    if vectors_ND.shape[0] > 0:
        return score(vectors_ND, row, query_D, squared)
    decode_row(quantized_NB, row, buffer_1D[0])
    return score(buffer_1D, 0, query_D, squared)


@partial(compiled, fastmath=False, inlined=True)
def fetch_row(vectors_ND: np.ndarray, quantized_NB: np.ndarray, row: int, in_full: bool) -> None:
    """Prefetch a row: the full vector if it will be scored `in_full` and there is one, else the quantized one."""
    if in_full and vectors_ND.shape[0] > 0:
        prefetch(vectors_ND, row)
    else:
        prefetch(quantized_NB, row)


@partial(compiled, fastmath=False)
def score_rows(
    vectors_ND: np.ndarray,
    quantized_NB: np.ndarray,
    rows_R: np.ndarray,
    query_D: np.ndarray,
    squared: bool,
    scores_R: np.ndarray,
) -> None:
    """Write the score of each given row for a query to `scores_R` (all float32, rows int64)."""
    buffer_1D = row_buffer(vectors_ND, query_D)
    for position in range(rows_R.shape[0]):
        scores_R[position] = row_score(
            vectors_ND, quantized_NB, rows_R[position], query_D, squared, buffer_1D
        )


@partial(compiled, fastmath=False)
def score_pairs(
    vectors_ND: np.ndarray,
    quantized_NB: np.ndarray,
    rows_X: np.ndarray,
    queries_QD: np.ndarray,
    queries_X: np.ndarray,
    squared: bool,
    scores_X: np.ndarray,
) -> None:
    """Write the score of each pair of a row and a query to `scores_X` (numbers int64)."""
    buffer_1D = row_buffer(vectors_ND, queries_QD[0])
    for position in range(rows_X.shape[0]):
        query_D = queries_QD[queries_X[position]]
        scores_X[position] = row_score(
            vectors_ND, quantized_NB, rows_X[position], query_D, squared, buffer_1D
        )


@compiled
def longest(vectors_ND: np.ndarray) -> float:
    """Return the length of the longest vector, up to rounding."""
    largest = np.float64(0)  # squares of short vectors underflow in float32
    for row in range(vectors_ND.shape[0]):
        total = np.float64(0)
        for component in range(vectors_ND.shape[1]):
            total += np.float64(vectors_ND[row, component]) * np.float64(vectors_ND[row, component])
        largest = max(largest, total)
    return float(np.sqrt(largest))


@partial(compiled, fastmath=False)
def comes_before(
    row: int, score: np.float32, other_row: int, other_score: np.float32, ranks_N: np.ndarray
) -> bool:
    """Return whether a row comes before another one: by score, then by the rank of its id.

    If `ranks_N` is empty, equal scores are ordered by row number.
    """
    if score != other_score:
        return bool(score > other_score)
    if ranks_N.shape[0] == 0:
        return row < other_row
    return bool(ranks_N[row] < ranks_N[other_row])


@partial(compiled, fastmath=False)
def place_of(
    rows_K: np.ndarray, scores_K: np.ndarray, count: int, row: int, score: np.float32, ranks_N: np.ndarray
) -> int:
    """Return how many of the first `count` rows come before a row."""
    # Binary search: k can be thousands.
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if comes_before(rows_K[middle], scores_K[middle], row, score, ranks_N):
            low = middle + 1
        else:
            high = middle
    return low


@partial(compiled, fastmath=False)
def insert(
    rows_K: np.ndarray, scores_K: np.ndarray, count: int, row: int, score: np.float32, ranks_N: np.ndarray
) -> int:
    """Insert a row into the `count` best rows so far, unless k are better; return the new number of rows."""
    k = rows_K.shape[0]
    if count == k and (k == 0 or not comes_before(row, score, rows_K[k - 1], scores_K[k - 1], ranks_N)):
        return count
    low = place_of(rows_K, scores_K, count, row, score, ranks_N)
    count = min(count + 1, k)
    for position in range(count - 1, low, -1):
        scores_K[position] = scores_K[position - 1]
        rows_K[position] = rows_K[position - 1]
    scores_K[low] = score
    rows_K[low] = row
    return count


@partial(compiled, fastmath=False)
def merge_sorted(
    rows_QK: np.ndarray,
    scores_QK: np.ndarray,
    starts_Q: np.ndarray,
    rows_X: np.ndarray,
    scores_X: np.ndarray,
    ranks_N: np.ndarray,
    merged_QK: np.ndarray,
    merged_scores_QK: np.ndarray,
) -> None:
    """Merge the hits so far with more rows, both in order, and write the best to `merged_QK` and `merged_scores_QK`.

    The further rows of query i are X from `starts_Q[i]` to `starts_Q[i + 1]`. The outputs must be filled with "no row".
    """
    k = rows_QK.shape[1]
    for query in range(rows_QK.shape[0]):
        old, new, end = 0, starts_Q[query], starts_Q[query + 1]
        for position in range(k):
            old_left = old < k and rows_QK[query, old] >= 0
            if new < end and (
                not old_left
                or comes_before(
                    rows_X[new], scores_X[new], rows_QK[query, old], scores_QK[query, old], ranks_N
                )
            ):
                merged_QK[query, position], merged_scores_QK[query, position] = rows_X[new], scores_X[new]
                new += 1
            elif old_left:
                merged_QK[query, position] = rows_QK[query, old]
                merged_scores_QK[query, position] = scores_QK[query, old]
                old += 1
            else:
                break


@partial(compiled, fastmath=False)
def nearest_rows(
    vectors_ND: np.ndarray,
    quantized_NB: np.ndarray,
    query_D: np.ndarray,
    squared: bool,
    rows_R: np.ndarray,
    mask_N: np.ndarray,
    ranks_N: np.ndarray,
    rows_K: np.ndarray,
    scores_K: np.ndarray,
) -> None:
    """Write the best rows for a query to `rows_K` and `scores_K`; -1 and minus infinity after the last.

    Searched are the rows in `rows_R`, in any order; if that is empty, those of the mask; if that is empty too, all.
    """
    k, by_number = rows_K.shape[0], rows_R.shape[0] > 0
    total = rows_R.shape[0] if by_number else max(vectors_ND.shape[0], quantized_NB.shape[0])
    bounded = quantized_NB.shape[0] > 0 and total >= WORTH * k
    steps_D, facts_4 = quantize_query(query_D, bounded)
    buffer_1D = row_buffer(vectors_ND, query_D)
    listed_B = np.empty(0 if by_number else SCANNED_ROWS + 1, np.int64)
    highest_B = np.empty(SCANNED_ROWS if bounded else 0, np.float64)
    count = 0
    for first in range(0, total if k > 0 else 0, SCANNED_ROWS):
        stop = min(first + SCANNED_ROWS, total)
        rows_B = rows_R[first:stop] if by_number else listed_B[: _list_rows(first, stop, mask_N, listed_B)]
        if bounded:
            count = _keep_best_bounded(
                vectors_ND, quantized_NB, query_D, steps_D, facts_4, buffer_1D, squared, rows_B, ranks_N,
                rows_K, scores_K, count, highest_B,
            )  # fmt: skip
        else:
            count = _keep_best(
                vectors_ND,
                quantized_NB,
                query_D,
                buffer_1D,
                squared,
                rows_B,
                ranks_N,
                rows_K,
                scores_K,
                count,
            )
    rows_K[count:] = -1
    scores_K[count:] = -np.float32(np.inf)


@partial(compiled, fastmath=False)
def _list_rows(first: int, stop: int, mask_N: np.ndarray, rows_R: np.ndarray) -> int:
    """Write the rows from `first` to `stop` that a mask allows, all if it is empty, to `rows_R`; return their number.

    Without a branch, which could not be predicted: `rows_R` has room for one row more.
    """
    count = 0
    if mask_N.shape[0] == 0:
        for row in range(first, stop):
            rows_R[row - first] = row
        return stop - first
    for row in range(first, stop):
        rows_R[count] = row
        count += mask_N[row]
    return count


@partial(compiled, fastmath=False)
def _keep_best(
    vectors_ND: np.ndarray,
    quantized_NB: np.ndarray,
    query_D: np.ndarray,
    buffer_1D: np.ndarray,
    squared: bool,
    rows_R: np.ndarray,
    ranks_N: np.ndarray,
    rows_K: np.ndarray,
    scores_K: np.ndarray,
    count: int,
) -> int:
    """Insert rows into the `count` best rows so far, by their score; return the new number of rows."""
    k, last = rows_K.shape[0], rows_R.shape[0] - 1
    for position in range(rows_R.shape[0]):
        fetch_row(vectors_ND, quantized_NB, rows_R[min(position + FAR_AHEAD, last)], True)
        value = row_score(vectors_ND, quantized_NB, rows_R[position], query_D, squared, buffer_1D)
        # Tested here, since it rejects most rows, and the call takes longer than the rest of the loop.
        if count < k or value >= scores_K[k - 1]:
            count = insert(rows_K, scores_K, count, rows_R[position], value, ranks_N)
    return count


@partial(compiled, fastmath=False)
def _keep_best_bounded(
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
    highest_R: np.ndarray,
) -> int:
    """Do what `_keep_best` does, but score in full only rows whose quantized vectors do not exclude them.

    First the highest score of each row is known, and only then is any row scored: hardly more than k are. If each were
    scored as it comes, several times as many would be, each from memory that nothing fetched ahead.
    """
    k, last = rows_K.shape[0], rows_R.shape[0] - 1
    for position in range(rows_R.shape[0]):
        prefetch(quantized_NB, rows_R[min(position + FAR_AHEAD, last)])
        highest_R[position] = highest_score(quantized_NB, rows_R[position], steps_D, facts_4, squared)
    least = scores_K[k - 1]
    if count < k:
        least = _least_of_likely(
            vectors_ND, quantized_NB, query_D, buffer_1D, squared, rows_R, highest_R, ranks_N, k
        )
    for position in range(rows_R.shape[0]):
        if highest_R[position] < least:
            continue
        value = row_score(vectors_ND, quantized_NB, rows_R[position], query_D, squared, buffer_1D)
        if value >= least:
            count = insert(rows_K, scores_K, count, rows_R[position], value, ranks_N)
            if count == k:
                least = max(least, scores_K[k - 1])
    return count


@partial(compiled, fastmath=False)
def _least_of_likely(
    vectors_ND: np.ndarray,
    quantized_NB: np.ndarray,
    query_D: np.ndarray,
    buffer_1D: np.ndarray,
    squared: bool,
    rows_R: np.ndarray,
    highest_R: np.ndarray,
    ranks_N: np.ndarray,
    k: int,
) -> np.float32:
    """Return the least score of the k rows that are likely the best; minus infinity if there are fewer."""
    rows_K, highest_K = np.empty(k, np.int64), np.empty(k, np.float32)
    count = 0
    for position in range(rows_R.shape[0]):
        highest = np.float32(highest_R[position])
        if count < k or highest >= highest_K[k - 1]:
            count = insert(rows_K, highest_K, count, rows_R[position], highest, ranks_N)
    for position in range(count):
        fetch_row(vectors_ND, quantized_NB, rows_K[position], True)
    least = np.float32(np.inf) if count == k else -np.float32(np.inf)
    for position in range(count):
        value = row_score(vectors_ND, quantized_NB, rows_K[position], query_D, squared, buffer_1D)
        if not value > -np.float32(np.inf):  # also if it is not a number, which `min` would leave out
            return -np.float32(np.inf)
        least = min(least, value)
    return least


@partial(compiled, fastmath=False)
def is_allowed(row: int, mask_N: np.ndarray, positions_N: np.ndarray, start: int, stop: int) -> bool:
    """Return whether a row is allowed, by the fields of a `RowTest`."""
    if mask_N.shape[0] > 0 and not mask_N[row]:
        return False
    return positions_N.shape[0] == 0 or bool(start <= positions_N[row] < stop)


@partial(compiled, fastmath=False)
def _insert_twins(
    rows_K: np.ndarray,
    scores_K: np.ndarray,
    count: int,
    row: int,
    score: np.float32,
    mask_N: np.ndarray,
    positions_N: np.ndarray,
    start: int,
    stop: int,
    ranks_N: np.ndarray,
    twins_2N: np.ndarray,
) -> int:
    """Insert all allowed rows with the vector of a row, in the order of their ids; return the new number of rows."""
    k = rows_K.shape[0]
    member = twins_2N[0, row]
    while member >= 0:
        if is_allowed(member, mask_N, positions_N, start, stop):
            position = place_of(rows_K, scores_K, count, member, score, ranks_N)
            # k rows are better; or another candidate has inserted these rows already.
            if position == k or (position < count and rows_K[position] == member):
                return count
            count = insert(rows_K, scores_K, count, member, score, ranks_N)
        member = twins_2N[1, member]
    return count


@partial(compiled, fastmath=False)
def rescore_one(
    vectors_ND: np.ndarray,
    quantized_NB: np.ndarray,
    query_D: np.ndarray,
    candidates_C: np.ndarray,
    squared: bool,
    mask_N: np.ndarray,
    positions_N: np.ndarray,
    start: int,
    stop: int,
    ranks_N: np.ndarray,
    twins_2N: np.ndarray,
    rows_K: np.ndarray,
    scores_K: np.ndarray,
) -> tuple[int, int, int, int]:
    """Score candidate rows exactly, and write the best k to `rows_K` and `scores_K`, best first.

    Candidates are distinct integers; negative ones are skipped, and those that a `RowTest` does not allow. A candidate
    stands for all allowed rows with the same vector: ScaNN proposes any of these, and ids decide. Places after the last
    row are not written. Returns the numbers of rows written, of candidates scored, of candidates up to the k-th that
    was scored, and of candidates, allowed or not, that have the vector of an earlier row in the order of ids.
    """
    k = rows_K.shape[0]
    count, scored, depth, repeated = 0, 0, 0, 0
    bounded, last = quantized_NB.shape[0] > 0, candidates_C.shape[0] - 1
    steps_D, facts_4 = quantize_query(query_D, bounded)
    buffer_1D = row_buffer(vectors_ND, query_D)
    for position in range(candidates_C.shape[0]):
        row = int(candidates_C[position])
        if bounded:
            prefetch(quantized_NB, int(candidates_C[min(position + AHEAD, last)]))
        if row < 0:
            continue
        has_twins = twins_2N.shape[1] > 0 and twins_2N[0, row] >= 0
        if has_twins and twins_2N[0, row] != row:
            repeated += 1
        if not is_allowed(row, mask_N, positions_N, start, stop):
            continue
        scored += 1
        if scored <= k:
            depth = position + 1
        if is_beaten(quantized_NB, row, steps_D, facts_4, squared, count, scores_K):
            continue
        value = row_score(vectors_ND, quantized_NB, row, query_D, squared, buffer_1D)
        if count == k and (k == 0 or value < scores_K[k - 1]):
            continue
        if has_twins:
            count = _insert_twins(
                rows_K, scores_K, count, row, value, mask_N, positions_N, start, stop, ranks_N, twins_2N
            )
        else:
            count = insert(rows_K, scores_K, count, row, value, ranks_N)
    return count, scored, depth, repeated


@partial(compiled, fastmath=False)
def rescore(
    vectors_ND: np.ndarray,
    quantized_NB: np.ndarray,
    queries_QD: np.ndarray,
    candidates_QC: np.ndarray,
    squared: bool,
    mask_N: np.ndarray,
    positions_N: np.ndarray,
    start: int,
    stop: int,
    ranks_N: np.ndarray,
    twins_2N: np.ndarray,
    rows_QK: np.ndarray,
    scores_QK: np.ndarray,
    scored_Q: np.ndarray,
    depth_Q: np.ndarray,
    repeated_Q: np.ndarray,
) -> None:
    """Call `rescore_one` for each query; `rows_QK` and `scores_QK` must be filled with "no row"."""
    for query in range(queries_QD.shape[0]):
        _, scored_Q[query], depth_Q[query], repeated_Q[query] = rescore_one(
            vectors_ND,
            quantized_NB,
            queries_QD[query],
            candidates_QC[query],
            squared,
            mask_N,
            positions_N,
            start,
            stop,
            ranks_N,
            twins_2N,
            rows_QK[query],
            scores_QK[query],
        )


@compiled
def hash_rows(words_ND: np.ndarray, hashes_N: np.ndarray) -> None:
    """Write a hash of each vector (uint32 of its float32) to `hashes_N` (uint64); 0 and -0 are equal."""
    for row in range(words_ND.shape[0]):
        total = np.uint64(0)
        for component in range(words_ND.shape[1]):
            word = np.uint64(words_ND[row, component])
            if word != MINUS_ZERO:
                total ^= word
            total *= HASH_FACTOR
            total ^= total >> np.uint64(29)
        hashes_N[row] = total

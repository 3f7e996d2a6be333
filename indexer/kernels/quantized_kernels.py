"""Kernels of vectors in 8 bits a number: they make them, and tell the highest score that a row can have.

A row of `quantized_NB` has a byte for each component, the step, and FACTORS float32: the scale (a component is about
its step times the scale), the error (the length of what the steps lose, and what rounding adds to it), and the length
of the vector that the steps stand for. The steps of a query are of 16 bits. Products of steps are integers, so a sum is
the same in any order, on any processor.

Shapes: N rows, B bytes of a row, D dimensions, R rows of a block.
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

__all__ = [
    "FACTORS",
    "FACTOR_BYTES",
    "decode_row",
    "decode_rows",
    "highest_score",
    "is_beaten",
    "quantize_query",
    "quantize_rows",
    "row_factor",
    "step_product",
]

LARGEST = 127
"""Largest step of a row."""
FACTORS = 3
FACTOR_BYTES = 4 * FACTORS
_SCALE, _ERROR, _LENGTH = range(FACTORS)
WIDE = 32
"""Components multiplied by one instruction; processors with narrower registers need several."""
UNIT_ROUNDOFF = 2.0**-24
ROOM = 1.5
"""Factor on the bound of rounding errors, as in vectors/exact_search.py."""
LENGTH_ROOM = 2.0**-22
"""Bound of the relative error of a squared length that was stored as float32."""
LEAST_ERROR = 1e-30
"""Error of products that are too small for float32."""

cgutils: Any = numba_cgutils
_BYTE, _SHORT, _INT, _SIZE = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def _typed_product(_: Any, quantized_NB: Any, row: Any, steps_D: Any) -> Any:
    kinds = (quantized_NB.dtype, quantized_NB.layout, steps_D.dtype, steps_D.layout)
    if kinds != (types.int8, "C", types.int16, "C"):
        raise TypingError(f"needs C-contiguous int8 and int16 arrays, got {quantized_NB} and {steps_D}")
    # `_emitted_product` is looked up when a kernel is compiled, after this module was executed.
    return types.int32(quantized_NB, types.int64, steps_D), _emitted_product


step_product: Callable[[np.ndarray, int, np.ndarray], int] = intrinsic(_typed_product)  # type: ignore[assignment]
"""Function from rows (N, B), a row number, and the steps of a query (D,), to the sum of the products of steps."""


def _emitted_product(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    row = _row_pointer(context, builder, signature, arguments)
    query = context.make_array(signature.args[2])(context, builder, arguments[2])
    dimensions = builder.extract_value(query.shape, 0)
    end = builder.mul(builder.udiv(dimensions, _SIZE(WIDE)), _SIZE(WIDE))

    def loaded(base: Any, at: Any, kind: Any, width: int) -> Any:
        wide = kind if width == 1 else ir.VectorType(kind, width)
        value = builder.load(
            builder.bitcast(builder.gep(base, [at]), wide.as_pointer()), align=kind.width // 8
        )
        return builder.sext(value, _INT if width == 1 else ir.VectorType(_INT, width))

    def products(at: Any, width: int) -> Any:
        return builder.mul(loaded(row, at, _BYTE, width), loaded(query.data, at, _SHORT, width))

    half = ir.VectorType(_INT, WIDE // 2)
    total = cgutils.alloca_once_value(builder, ir.Constant(half, [0] * (WIDE // 2)))
    with cgutils.for_range_slice(builder, _SIZE(0), end, _SIZE(WIDE), _SIZE) as (at, _):
        # Neighbours are added: that is one instruction with the product (pmaddwd).
        several = products(at, WIDE)
        pairs = [builder.shuffle_vector(several, several, _lanes(range(first, WIDE, 2))) for first in (0, 1)]
        builder.store(builder.add(builder.load(total), builder.add(*pairs)), total)
    tail = cgutils.alloca_once_value(builder, _INT(0))
    with cgutils.for_range_slice(builder, end, dimensions, _SIZE(1), _SIZE) as (at, _):
        builder.store(builder.add(builder.load(tail), products(at, 1)), tail)
    added = builder.load(total)
    while added.type.count > 1:
        middle, count = added.type.count // 2, added.type.count
        low, high = _lanes(range(middle)), _lanes(range(middle, count))
        added = builder.add(
            builder.shuffle_vector(added, added, low), builder.shuffle_vector(added, added, high)
        )
    return builder.add(builder.extract_element(added, _INT(0)), builder.load(tail))


def _lanes(numbers: range) -> Any:
    return ir.Constant(ir.VectorType(_INT, len(numbers)), list(numbers))


def _typed_factor(_: Any, quantized_NB: Any, row: Any, at: Any) -> Any:
    return types.float32(quantized_NB, types.int64, types.int64), _emitted_factor


row_factor: Callable[[np.ndarray, int, int], np.float32] = intrinsic(_typed_factor)  # type: ignore[assignment]
"""Function from rows (N, B), a row number and a number of bytes, to the float32 behind so many bytes of the row."""


def _emitted_factor(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    row = _row_pointer(context, builder, signature, arguments)
    position = builder.bitcast(builder.gep(row, [arguments[2]]), ir.FloatType().as_pointer())
    return builder.load(position, align=1)


def _row_pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    rows = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(rows.data, [builder.mul(arguments[1], builder.extract_value(rows.shape, 1))])


@compiled
def quantize_rows(vectors_RD: np.ndarray, steps_RD: np.ndarray, factors_R3: np.ndarray) -> None:
    """Write each vector (float32) as steps (int8), and its scale, error and length (float32)."""
    dimensions = vectors_RD.shape[1]
    share = ROOM * (dimensions + 4) * UNIT_ROUNDOFF
    for row in range(vectors_RD.shape[0]):
        largest = np.float32(0)
        for component in range(dimensions):
            largest = max(largest, abs(vectors_RD[row, component]))
        scale = np.float64(np.float32(largest / np.float32(LARGEST)))
        lost, square = np.float64(0), np.float64(0)
        for component in range(dimensions):
            value = np.float64(vectors_RD[row, component])
            step = np.float64(0) if scale == 0 else np.rint(value / scale)
            step = min(max(step, np.float64(-LARGEST)), np.float64(LARGEST))
            steps_RD[row, component] = np.int8(step)
            lost += (value - step * scale) ** 2
            square += (step * scale) ** 2
        residual, length = np.sqrt(lost), np.sqrt(square)
        error = residual + share * (length + residual) + LEAST_ERROR
        factors_R3[row, _SCALE] = np.float32(scale)
        # As float32 it may be less by rounding.
        factors_R3[row, _ERROR] = np.float32(error * (1 + 2 * UNIT_ROUNDOFF))
        factors_R3[row, _LENGTH] = np.float32(length)


@partial(compiled, fastmath=False)
def decode_row(quantized_NB: np.ndarray, row: int, vector_D: np.ndarray) -> None:
    """Write the vector that a row stands for, float32."""
    scale = row_factor(quantized_NB, row, vector_D.shape[0] + 4 * _SCALE)
    for component in range(vector_D.shape[0]):
        vector_D[component] = np.float32(quantized_NB[row, component]) * scale


@compiled
def decode_rows(quantized_NB: np.ndarray, rows_R: np.ndarray, vectors_RD: np.ndarray) -> None:
    """Write the vectors that some rows stand for, float32."""
    for position in range(rows_R.shape[0]):
        decode_row(quantized_NB, rows_R[position], vectors_RD[position])


_QUERY_SCALE, _QUERY_LENGTH, _QUERY_LOST, _QUERY_SQUARE = range(4)


@partial(compiled, fastmath=False)
def quantize_query(query_D: np.ndarray, needed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of a query, int16 (D,), and four facts of it, for `highest_score`; empty unless `needed`.

    The facts are its scale, its length, the length of what the steps lose, and the square of their length.
    """
    if not needed:
        return np.empty(0, np.int16), np.empty(0, np.float64)
    dimensions = query_D.shape[0]
    largest = np.float32(0)
    for component in range(dimensions):
        largest = max(largest, abs(query_D[component]))
    # A sum of products has at most 31 bits.
    limit = min(2**15 - 1, (2**31 - 1) // (LARGEST * dimensions))
    scale = np.float64(largest) / limit
    steps_D, facts_4 = np.empty(dimensions, np.int16), np.empty(4, np.float64)
    square, lost, kept = np.float64(0), np.float64(0), np.float64(0)
    for component in range(dimensions):
        value = np.float64(query_D[component])
        step = np.float64(0) if scale == 0 else np.rint(value / scale)
        step = min(max(step, np.float64(-limit)), np.float64(limit))
        steps_D[component] = np.int16(step)
        square += value * value
        lost += (value - step * scale) ** 2
        kept += (step * scale) ** 2
    facts_4[_QUERY_SCALE], facts_4[_QUERY_LENGTH] = scale, np.sqrt(square)
    facts_4[_QUERY_LOST], facts_4[_QUERY_SQUARE] = np.sqrt(lost), kept
    return steps_D, facts_4


@partial(compiled, fastmath=False, inlined=True)
def highest_score(
    quantized_NB: np.ndarray, row: int, steps_D: np.ndarray, facts_4: np.ndarray, squared: bool
) -> float:
    """Return a number that is at least the score of a row for a query, as `row_kernels.score` computes it; or NaN.

    The inner product with a vector differs from that with its steps at most by the length of what is lost times that of
    the query (Cauchy and Schwarz), and likewise for the query's steps. Distances obey the triangle inequality.
    """
    dimensions = steps_D.shape[0]
    scale = np.float64(row_factor(quantized_NB, row, dimensions + 4 * _SCALE))
    error = np.float64(row_factor(quantized_NB, row, dimensions + 4 * _ERROR))
    length = np.float64(row_factor(quantized_NB, row, dimensions + 4 * _LENGTH))
    product = np.float64(step_product(quantized_NB, row, steps_D)) * scale * facts_4[_QUERY_SCALE]
    if not squared:
        return float(product + error * facts_4[_QUERY_LENGTH] + length * facts_4[_QUERY_LOST] + LEAST_ERROR)
    between = facts_4[_QUERY_SQUARE] - 2 * product + (1 - LENGTH_ROOM) * length * length
    if not between > 0:
        return 0.0
    apart = np.sqrt(between) - facts_4[_QUERY_LOST] - error
    if not apart > 0:
        return 0.0
    return float(LEAST_ERROR - apart * apart * (1 - ROOM * (dimensions + 4) * UNIT_ROUNDOFF))


@partial(compiled, fastmath=False, inlined=True)
def is_beaten(
    quantized_NB: np.ndarray,
    row: int,
    steps_D: np.ndarray,
    facts_4: np.ndarray,
    squared: bool,
    count: int,
    scores_K: np.ndarray,
) -> bool:
    """Return whether a row cannot be among the best k, of which there are `count` so far; False without steps."""
    k = scores_K.shape[0]
    if steps_D.shape[0] == 0 or count < k or k == 0:
        return False
    return bool(highest_score(quantized_NB, row, steps_D, facts_4, squared) < scores_K[k - 1])

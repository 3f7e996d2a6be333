"""The score of one row for one query, for kernels: the same bits in every kernel.

This module emits vector instructions with a fixed order of additions. If the compiler chooses the order, it depends on
the loop around the sum: then the score of a row differed in its last bit between a single query and a batch, and so did
the order of rows. A loop in Python with a fixed order is not vectorised, and takes six times as long.

Products are rounded before they are added (no fused multiply-add), so scores do not depend on the processor.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as numba_cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

__all__ = ["CHAINS", "NARROW", "WIDE", "prefetch", "score"]

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


PREFETCHED, LINE = 8, 16
"""Cache lines of a row that are prefetched, and components of a line; the processor fetches what follows by itself."""


def _typed_row(_: Any, vectors_ND: Any, row: Any) -> Any:
    if (vectors_ND.dtype, vectors_ND.ndim, vectors_ND.layout) != (types.float32, 2, "C"):
        raise TypingError(f"needs a C-contiguous float32 array, got {vectors_ND}")
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
    for line in range(PREFETCHED):  # what lies beyond a short row is fetched in vain, or not at all
        at = builder.bitcast(builder.gep(row, [_SIZE(line * LINE)]), pointer)
        builder.call(function, [at, flag(0), flag(3), flag(1)])
    return context.get_dummy_value()


def _emitted(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    vectors, query = (
        context.make_array(signature.args[place])(context, builder, arguments[place]) for place in (0, 2)
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
        one, other = self._added(WIDE, CHAINS)
        total = add(add(one, other), *self._added(WIDE, 1))
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
        left = builder.sub(self._dimensions, self._done)
        end = builder.add(self._done, builder.mul(builder.udiv(left, step), step))
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
        place = self._builder.bitcast(self._builder.gep(vector, [at]), kind.as_pointer())
        return self._builder.load(place, align=4)

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

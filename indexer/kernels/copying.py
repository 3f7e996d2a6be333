"""Copies of bytes within kernels, by the C library's `memcpy`.

A loop over bytes is compiled to one byte at a time, since an index might be negative: a tenth of the speed.

Shapes: B bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["copy_bytes"]


@intrinsic
def copy_bytes(
    typing: Any, out_B: np.ndarray, at: int, from_B: np.ndarray, start: int, size: int
) -> tuple[Any, Any]:
    """Copy `size` bytes of `from_B` from `start` on to `out_B[at:]`, in a kernel; both are contiguous uint8.

    Nothing is checked, and the two must not overlap.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        out, at_, source, start_, size_ = values
        to = context.make_array(signature.args[0])(context, builder, out).data
        of = context.make_array(signature.args[2])(context, builder, source).data
        cgutils.raw_memcpy(builder, builder.gep(to, [at_]), builder.gep(of, [start_]), size_, itemsize=1)
        return context.get_dummy_value()

    return types.none(out_B, types.intp, from_B, types.intp, types.intp), generate

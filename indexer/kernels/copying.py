"""Copies of bytes within kernels, by the C library's `memcpy`.

A loop over bytes is compiled to one byte at a time, since an index might be negative: a tenth of the speed.

Shapes: B bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["copy_bytes"]


def _copy_bytes(typing: Any, out_B: Any, at: Any, from_B: Any, start: Any, size: Any) -> tuple[Any, Any]:
    """Return the signature, and what generates the code, for arguments of these types."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        out, at_, source, start_, size_ = values
        to = context.make_array(signature.args[0])(context, builder, out).data
        of = context.make_array(signature.args[2])(context, builder, source).data
        cgutils.raw_memcpy(builder, builder.gep(to, [at_]), builder.gep(of, [start_]), size_, itemsize=1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.none(out_B, types.intp, from_B, types.intp, types.intp), generate


copy_bytes = cast("Callable[[np.ndarray, int, np.ndarray, int, int], None]", intrinsic(_copy_bytes))
"""Copies from an offset of the second array as many bytes as the last argument says to an offset of the first, within
kernels. Both are contiguous uint8. Nothing is checked, and the two must not overlap."""

"""Compilation of kernels, and fused kernels for vectors and sparse vectors. Most run without the GIL.

Kernels are compiled on first use, and stored in numba's cache on disk (`NUMBA_CACHE_DIR`).

Shapes: N rows, D dimensions, T terms, P postings, M rows that match; Q vectors, or terms of a query.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

from scannery.indexer.local.files import keeps_code
from scannery.indexer.local.needless_imports import numba_is_needed

__all__ = [
    "add_products",
    "compiled",
    "surely_valid",
    "unit_vectors",
]


numba_is_needed()

if _named := os.environ.get("NUMBA_CACHE_DIR"):
    # A relative path would mean another folder after a chdir, and code would be loaded from there.
    os.environ["NUMBA_CACHE_DIR"] = str(Path(_named).absolute())
    numba.config.reload_config()  # type: ignore[no-untyped-call]

_FASTMATH = {"reassoc", "contract", "nsz"}
"""Allow sums to be reordered, and so vectorised; the error remains that of a float32 sum."""


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def compiled(
    function: FunctionT, *, fastmath: bool = True, brief: bool = False, inlined: bool = False
) -> FunctionT:
    """Return the function compiled by numba, from its cache on disk if that is private.

    It must not raise: numba does not release the arguments of a call that ends with an exception, so their memory is
    lost. Failures are values that it returns. A division by zero does not raise, but gives infinity, NaN, or 0.

    Args:
        function: takes arrays and numbers.
        fastmath: whether sums may be reordered.
        brief: whether it keeps the GIL, for kernels that take a few microseconds and read no file. Under load, another
            thread takes a released GIL, and getting it back costs two context switches: kernels that keep it saved a
            tenth of a server's cost per query.
        inlined: whether it becomes part of the kernels that call it, for what they call for every row. Any other
            callee may count references to its arrays, atomically: a scan of rows in 8 bits a number took 79 ns a row
            instead of 29.

    """
    options: dict[str, Any] = {
        "nogil": not brief,
        "fastmath": _FASTMATH if fastmath else False,
        "error_model": "numpy",
        "inline": "always" if inlined else "never",
    }
    try:
        kernel = numba.njit(cache=True, **options)(function)
        if keeps_code(Path(str(kernel.stats.cache_path)), Path(function.__code__.co_filename)):
            return cast("FunctionT", kernel)
    except (RuntimeError, OSError):  # no cache folder can be written
        pass
    return cast("FunctionT", numba.njit(**options)(function))


def _add_products(
    starts_T: np.ndarray,
    rows_P: np.ndarray,
    values_P: np.ndarray,
    numbers_Q: np.ndarray,
    weights_Q: np.ndarray,
    scores_N: np.ndarray,
    seen_N: np.ndarray,
    found_M: np.ndarray,
) -> int:
    """Add the products of a sparse query and each row to `scores_N` (zeros), and write rows that match to `found_M`.

    `seen_N` must be all False. Returns the number of rows that match. See `scannery.indexer.datapoints.sparse`.
    """
    count = 0
    for position in range(numbers_Q.shape[0]):
        number, weight = numbers_Q[position], weights_Q[position]
        for entry in range(starts_T[number], starts_T[number + 1]):
            row = rows_P[entry]
            if not seen_N[row]:
                seen_N[row] = True
                found_M[count] = row
                count += 1
            scores_N[row] += weight * values_P[entry]
    return count


add_products = compiled(_add_products, fastmath=False)


SURE_SQUARE = 1e30
"""Vectors with a squared length above 0 and below this are valid. Comparisons with NaN are false."""


@partial(compiled, brief=True)
def surely_valid(vectors_QD: np.ndarray) -> bool:
    """Return True only if all components are finite and below 1e15, and no vector is zero.

    May return False for valid vectors. Tests squared lengths in float64, in which squares of float32 do not overflow.
    """
    for query in range(vectors_QD.shape[0]):
        total = np.float64(0)
        for component in range(vectors_QD.shape[1]):
            total += np.float64(vectors_QD[query, component]) * np.float64(vectors_QD[query, component])
        # `not` of the comparison, so that NaN fails too.
        if not 0 < total < SURE_SQUARE:
            return False
    return True


@partial(compiled, brief=True)
def unit_vectors(vectors_QD: np.ndarray, units_QD: np.ndarray) -> bool:
    """Write the vectors scaled to length 1 to `units_QD`, zero vectors as zeros. Returns `surely_valid`."""
    valid = True
    for query in range(vectors_QD.shape[0]):
        total = np.float64(0)
        for component in range(vectors_QD.shape[1]):
            total += np.float64(vectors_QD[query, component]) * np.float64(vectors_QD[query, component])
        valid = valid and bool(0 < total < SURE_SQUARE)
        length = np.sqrt(total) if total > 0 else np.float64(1)
        for component in range(vectors_QD.shape[1]):
            units_QD[query, component] = vectors_QD[query, component] / length
    return valid

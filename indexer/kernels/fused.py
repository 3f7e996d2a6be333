"""Fused kernels of vectors and words, and how kernels are compiled. Most run without the GIL.

Compiled on first use and cached on disk, in numba's own cache (`NUMBA_CACHE_DIR`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

from scannery.indexer.local.private_folders import keeps_code

__all__ = [
    "COMPILING",
    "add_bm25",
    "add_products",
    "compiled",
    "surely_valid",
    "unit_vectors",
]


if _named := os.environ.get("NUMBA_CACHE_DIR"):
    # A relative one would be another after a change of folders, and code would be loaded from there.
    os.environ["NUMBA_CACHE_DIR"] = str(Path(_named).absolute())
    numba.config.reload_config()  # type: ignore[no-untyped-call]

COMPILING = threading.RLock()
"""Segments are opened by several threads, and a first one compiles kernels. Compilers parse Python code, as numpy does
with the header of every `.npy` file; and where two threads do that at once, CPython 3.11 before 3.11.8 can fail with a
SystemError about its own recursion depth."""

_FASTMATH = {"reassoc", "contract", "nsz"}
"""Lets the sum be vectorised, which reorders it; the error stays that of a float32 sum."""


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def compiled(function: FunctionT, *, fastmath: bool = True, brief: bool = False) -> FunctionT:
    """Return the function as machine code, which runs without the GIL unless it is `brief`.

    What takes a few microseconds and reads no file keeps the GIL: under load, each time it is let go another thread
    takes it, and to get it back costs two switches of context. Kernels that kept it saved a tenth of what a query
    costs a server.
    """
    allowed = _FASTMATH if fastmath else False
    try:
        kernel = numba.njit(cache=True, nogil=not brief, fastmath=allowed)(function)
        if keeps_code(Path(str(kernel.stats.cache_path)), Path(function.__code__.co_filename)):
            return cast("FunctionT", kernel)
    except (RuntimeError, OSError):  # there is no folder that can be written
        pass
    return cast("FunctionT", numba.njit(nogil=not brief, fastmath=allowed)(function))


def _add_bm25(
    starts_T: np.ndarray,
    rows_P: np.ndarray,
    counts_P: np.ndarray,
    lengths_N: np.ndarray,
    terms_Q: np.ndarray,
    weights_Q: np.ndarray,
    base: float,
    slope: float,
    scores_N: np.ndarray,
    found_M: np.ndarray,
) -> int:
    """Add the BM25 scores of a query's terms to `scores_N` (zeros); write the rows that match to `found_M`.

    The length of a row counts `base + slope * length`. Returns how many rows match (lexical/bm25.py).
    """
    found = 0
    for position in range(terms_Q.shape[0]):
        term, weight = terms_Q[position], weights_Q[position]
        for posting in range(starts_T[term], starts_T[term + 1]):
            row, count = rows_P[posting], counts_P[posting]
            if scores_N[row] == 0:
                found_M[found] = row
                found += 1
            scores_N[row] += weight * count / (count + base + slope * lengths_N[row])
    return found


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
    """Add the products of a sparse query and each row to `scores_N` (zeros); write the rows that match to `found_M`.

    `seen_N` comes all False. Returns how many rows match. See `scannery.indexer.datapoints.sparse`.
    """
    found = 0
    for position in range(numbers_Q.shape[0]):
        number, weight = numbers_Q[position], weights_Q[position]
        for entry in range(starts_T[number], starts_T[number + 1]):
            row = rows_P[entry]
            if not seen_N[row]:
                seen_N[row] = True
                found_M[found] = row
                found += 1
            scores_N[row] += weight * values_P[entry]
    return found


# Without the fast arithmetic of the others: the score of a row must not depend on the segment it is in.
add_bm25 = compiled(_add_bm25, fastmath=False)
add_products = compiled(_add_products, fastmath=False)


SURE_SQUARE = 1e30
"""Below this, and above 0, is the squared length of vectors that need no closer look; of NaN it is neither."""


@partial(compiled, brief=True)
def surely_valid(vectors_QD: np.ndarray) -> bool:
    """Return whether all vectors have only finite components below 1e15, and one that is not 0.

    Judged by their squares, in float64, which no float32 makes overflow. False may also be a false alarm.
    """
    for query in range(vectors_QD.shape[0]):
        total = np.float64(0)
        for component in range(vectors_QD.shape[1]):
            total += np.float64(vectors_QD[query, component]) * np.float64(vectors_QD[query, component])
        # This way round NaN fails, too.
        if not 0 < total < SURE_SQUARE:
            return False
    return True


@partial(compiled, brief=True)
def unit_vectors(vectors_QD: np.ndarray, units_QD: np.ndarray) -> bool:
    """Write the vectors scaled to length 1 to `units_QD`; zero vectors stay zero. Returns what `surely_valid` does."""
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

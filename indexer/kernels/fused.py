"""Compilation of kernels, and fused kernels for vectors, words and sparse vectors. Most run without the GIL.

Kernels are compiled on first use, and stored in numba's cache on disk (`NUMBA_CACHE_DIR`).

Shapes: N rows, D dimensions, T terms, P postings, M rows that match; Q vectors, or terms of a query; L documents of a
segment, U documents of an index.
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
    "add_bm25",
    "add_document_counts",
    "add_document_scores",
    "add_products",
    "add_row_counts",
    "compiled",
    "count_rows",
    "keep_best",
    "look_up_bm25",
    "rows_of_best_documents",
    "surely_valid",
    "take_row_counts",
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


_STEPS = 2048
"""Steps that scores are sorted into by `_keep_best`."""


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
    """Add the BM25 scores of a query's terms to `scores_N` (zeros), and write the rows that match to `found_M`.

    `base + slope * length` normalises by the length of a row. Returns the number of rows that match (lexical/bm25.py).
    """
    hits = 0
    for position in range(terms_Q.shape[0]):
        term, weight = terms_Q[position], weights_Q[position]
        for posting in range(starts_T[term], starts_T[term + 1]):
            row, count = rows_P[posting], counts_P[posting]
            if scores_N[row] == 0:
                found_M[hits] = row
                hits += 1
            scores_N[row] += weight * count / (count + base + slope * lengths_N[row])
    return hits


def _first_at_least(rows_P: np.ndarray, first: int, end: int, row: int) -> int:
    """Return the first of some postings, by row ascending, with at least a row; `end`: there is none."""
    # Steps that double, and then a binary search: a row nearby and one far away are found quickly.
    step = 1
    while first + step < end and rows_P[first + step] < row:
        first += step
        step *= 2
    last = min(first + step, end)
    while first < last:
        middle = (first + last) // 2
        if rows_P[middle] < row:
            first = middle + 1
        else:
            last = middle
    return first


_first_at_least = compiled(_first_at_least)


def _next_common(
    rows_P: np.ndarray, posting: int, end: int, rows_R: np.ndarray, position: int
) -> tuple[int, int]:
    """Return where the next row is that postings and some rows share, both ascending; `end` and any if there is none.

    Each list is passed in steps of the other one, so the time is that of the shorter one.
    """
    while position < rows_R.shape[0]:
        posting = _first_at_least(rows_P, posting, end, rows_R[position])
        if posting == end or rows_P[posting] == rows_R[position]:
            return posting, position
        position = _first_at_least(rows_R, position, rows_R.shape[0], rows_P[posting])
    return end, position


_next_common = compiled(_next_common)


def _look_up_bm25(
    starts_T: np.ndarray,
    rows_P: np.ndarray,
    counts_P: np.ndarray,
    lengths_N: np.ndarray,
    terms_Q: np.ndarray,
    weights_Q: np.ndarray,
    base: float,
    slope: float,
    rows_C: np.ndarray,
    scores_C: np.ndarray,
) -> None:
    """Add the BM25 scores of a query's terms of some rows, ascending, to `scores_C`, as `add_bm25` does for all."""
    for position in range(terms_Q.shape[0]):
        weight, first = weights_Q[position], starts_T[terms_Q[position]]
        end = starts_T[terms_Q[position] + 1]
        posting, candidate = _next_common(rows_P, first, end, rows_C, 0)
        while posting < end:
            count = counts_P[posting]
            scores_C[candidate] += weight * count / (count + base + slope * lengths_N[rows_C[candidate]])
            posting, candidate = _next_common(rows_P, posting, end, rows_C, candidate + 1)


def _keep_best(
    rows_M: np.ndarray,
    scores_N: np.ndarray,
    documents_N: np.ndarray,
    numbers_L: np.ndarray,
    scores_U: np.ndarray,
    limit: int,
    remaining: float,
    kept_M: np.ndarray,
) -> tuple[int, float]:
    """Write the rows to `kept_M` that may be among the best `limit` if each score can still grow by `remaining`.

    A score is that of the row and, unless `documents_N` is empty, that of its document, whose number in the index is in
    `numbers_L`. The limit-th score is rounded down to one of 2,048 steps, which needs no sorting. Returns the number of
    rows, and the least score of them.
    """
    values_M = np.empty(rows_M.shape[0])
    highest = 0.0
    for position in range(rows_M.shape[0]):
        value = scores_N[rows_M[position]]
        if documents_N.shape[0]:
            value += scores_U[numbers_L[documents_N[rows_M[position]]]]
        values_M[position] = value
        highest = max(highest, value)
    counts_S = np.zeros(_STEPS, np.int64)
    scale = (_STEPS - 1) / highest if highest > 0 else 0.0
    for position in range(rows_M.shape[0]):
        counts_S[int(values_M[position] * scale)] += 1
    step, above = _STEPS - 1, counts_S[_STEPS - 1]
    while step > 0 and above < limit:
        step -= 1
        above += counts_S[step]
    # Sums in another order differ in their last bits.
    least = (step / scale if scale else 0.0) * (1 - 1e-9) - remaining
    kept = 0
    for position in range(rows_M.shape[0]):
        if values_M[position] >= least:
            kept_M[kept] = rows_M[position]
            kept += 1
    return kept, least


def _rows_of_best_documents(
    scores_U: np.ndarray,
    numbers_L: np.ndarray,
    starts_L: np.ndarray,
    rows_N: np.ndarray,
    least: float,
    rows_R: np.ndarray,
) -> int:
    """Write the rows of the documents with at least a score to `rows_R`; returns their number, -1 if it has no room."""
    count = 0
    for document in range(numbers_L.shape[0]):
        if scores_U[numbers_L[document]] >= least:
            if count + starts_L[document + 1] - starts_L[document] > rows_R.shape[0]:
                return -1
            for position in range(starts_L[document], starts_L[document + 1]):
                rows_R[count] = rows_N[position]
                count += 1
    return count


def _add_document_counts(
    documents_P: np.ndarray,
    counts_P: np.ndarray,
    numbers_L: np.ndarray,
    counts_U: np.ndarray,
    found_U: np.ndarray,
    hits: int,
) -> int:
    """Add the occurrences of a term in the documents of a segment to `counts_U`, and write new ones to `found_U`.

    `numbers_L` has the number of each document in the index. `hits` of them were found before; returns those now.
    """
    for posting in range(documents_P.shape[0]):
        number = numbers_L[documents_P[posting]]
        if counts_U[number] == 0:
            found_U[hits] = number
            hits += 1
        counts_U[number] += counts_P[posting]
    return hits


def _count_rows(rows_P: np.ndarray, rows_R: np.ndarray) -> int:
    """Return how many of some rows, ascending, are among those of postings, ascending."""
    hits, end = 0, rows_P.shape[0]
    posting, position = _next_common(rows_P, 0, end, rows_R, 0)
    while posting < end:
        hits += 1
        posting, position = _next_common(rows_P, posting, end, rows_R, position + 1)
    return hits


def _take_row_counts(
    rows_P: np.ndarray,
    counts_P: np.ndarray,
    taken_R: np.ndarray,
    documents_N: np.ndarray,
    numbers_L: np.ndarray,
    counts_U: np.ndarray,
) -> None:
    """Subtract the occurrences of a term in some rows, ascending, from `counts_U` of their documents."""
    end = rows_P.shape[0]
    posting, position = _next_common(rows_P, 0, end, taken_R, 0)
    while posting < end:
        counts_U[numbers_L[documents_N[taken_R[position]]]] -= counts_P[posting]
        posting, position = _next_common(rows_P, posting, end, taken_R, position + 1)


def _add_row_counts(
    rows_P: np.ndarray,
    counts_P: np.ndarray,
    rows_R: np.ndarray,
    documents_N: np.ndarray,
    numbers_L: np.ndarray,
    counts_U: np.ndarray,
    found_U: np.ndarray,
    hits: int,
) -> int:
    """Add the occurrences of a term in some rows, ascending, to `counts_U` of their documents.

    New documents are written to `found_U`, of which `hits` were found before; returns those now.
    """
    end = rows_P.shape[0]
    posting, position = _next_common(rows_P, 0, end, rows_R, 0)
    while posting < end:
        number = numbers_L[documents_N[rows_R[position]]]
        if counts_U[number] == 0:
            found_U[hits] = number
            hits += 1
        counts_U[number] += counts_P[posting]
        posting, position = _next_common(rows_P, posting, end, rows_R, position + 1)
    return hits


def _add_document_scores(
    found_U: np.ndarray,
    hits: int,
    lengths_U: np.ndarray,
    weight: float,
    base: float,
    slope: float,
    counts_U: np.ndarray,
    scores_U: np.ndarray,
) -> None:
    """Add the BM25 scores of a term to `scores_U`, and set the counts of the documents that have it back to 0."""
    for position in range(hits):
        number = found_U[position]
        count = counts_U[number]
        counts_U[number] = 0
        scores_U[number] += weight * count / (count + base + slope * lengths_U[number])


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


# Without fastmath: the score of a row must not depend on its segment.
add_bm25 = compiled(_add_bm25, fastmath=False)
add_document_counts = compiled(_add_document_counts, fastmath=False)
add_row_counts = compiled(_add_row_counts)
add_document_scores = compiled(_add_document_scores, fastmath=False)
count_rows = compiled(_count_rows)
keep_best = compiled(_keep_best, fastmath=False)
rows_of_best_documents = compiled(_rows_of_best_documents)
look_up_bm25 = compiled(_look_up_bm25, fastmath=False)
take_row_counts = compiled(_take_row_counts)
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

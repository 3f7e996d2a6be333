"""Kernels for postings of words: packed and read in blocks, searched, and scored by BM25 (packed_postings.py).

They read postings where they are packed: a posting costs a load and a shift for its row and for its count, and a fourth
of the memory of two int32. Nothing is unpacked for a search: rows of a block stand at a fixed number of bits each, so
that a list is searched like an array.

Shapes: N rows, T terms, P postings, K blocks, B bytes, M rows that match, R rows by number, C candidates, Q lists of a
query; L documents of a segment, U documents of an index.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from scannery.indexer.kernels.fused import compiled

__all__ = [
    "add_bm25",
    "add_document_counts",
    "add_document_scores",
    "add_row_counts",
    "count_allowed",
    "count_rows",
    "keep_best",
    "look_up_bm25",
    "look_up_counts",
    "measure_blocks",
    "pack",
    "rows_of_best_documents",
    "sum_by_document",
    "take_row_counts",
    "unpack",
]

_Integer: TypeAlias = Any
"""An integer of Python, or of numpy: both are int64 in a kernel."""
_SHIFT, _LAST = 7, 127
"""Bits of the number of a posting in its block, of 128, and the last of these numbers."""
_UNIT = 16
"""Bytes that 128 numbers of a bit each take."""


def _typed_word(_: Any, blocks_B: Any, position: Any) -> Any:
    return types.uint64(blocks_B, types.int64), _loaded


def _loaded(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    pointer = builder.gep(array.data, [arguments[1]])
    return builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)


load_word: Callable[[np.ndarray, int], Any] = intrinsic(_typed_word)  # type: ignore[assignment]
"""Return the eight bytes of an array of bytes from a position on, which need not be aligned, as uint64."""


@partial(compiled, inlined=True)
def _number_at(blocks_B: np.ndarray, bit: int, bits: int) -> _Integer:
    """Return the number of so many bits, at most 57, that begins at a bit."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    return np.int64((load_word(blocks_B, bit >> 3) >> np.uint64(bit & 7)) & mask)


@partial(compiled, inlined=True)
def _row_bits(heads_K3: np.ndarray, block: int) -> _Integer:
    """Return the bits of a row in a block."""
    size = np.int64(heads_K3[block + 1, 1]) - np.int64(heads_K3[block, 1])
    return size - np.int64(heads_K3[block, 2])


@partial(compiled, inlined=True)
def _first_bit(heads_K3: np.ndarray, block: int) -> _Integer:
    """Return the bit at which the rows of a block begin."""
    return np.int64(heads_K3[block, 1]) * (8 * _UNIT)


@partial(compiled, inlined=True)
def _from(heads_K3: np.ndarray, posting: int) -> tuple[_Integer, _Integer, _Integer, _Integer, _Integer]:
    """Return how a block is read from a posting on: its least row, bits of rows and of counts, and the bit of each."""
    block, number = posting >> _SHIFT, posting & _LAST
    row_bits, count_bits = _row_bits(heads_K3, block), np.int64(heads_K3[block, 2])
    bit = _first_bit(heads_K3, block)
    count_bit = bit + (_LAST + 1) * row_bits + number * count_bits
    return np.int64(heads_K3[block, 0]), row_bits, count_bits, bit + number * row_bits, count_bit


@partial(compiled, inlined=True)
def _row_at(heads_K3: np.ndarray, blocks_B: np.ndarray, posting: int) -> _Integer:
    """Return the row of a posting."""
    least, bits, _, bit, _ = _from(heads_K3, posting)
    return least + _number_at(blocks_B, bit, bits)


@partial(compiled, inlined=True)
def _count_at(heads_K3: np.ndarray, blocks_B: np.ndarray, posting: int) -> _Integer:
    """Return the occurrences of the term of a posting in its row."""
    _, _, bits, _, bit = _from(heads_K3, posting)
    return _number_at(blocks_B, bit, bits) + 1


@partial(compiled, inlined=True)
def _first_row(heads_K3: np.ndarray, blocks_B: np.ndarray, block: int, end: int) -> _Integer:
    """Return the first row of a block that begins within a list, which ends before posting `end`."""
    # Where the list has the whole block, that is its least row.
    if (block + 1) << _SHIFT <= end:
        return np.int64(heads_K3[block, 0])
    return _row_at(heads_K3, blocks_B, block << _SHIFT)


@partial(compiled, inlined=True)
def _bits_of(number: _Integer) -> int:
    """Return the bits of a number; 0 below 1."""
    bits = 0
    while number >> bits > 0:
        bits += 1
    return bits


def _measure_blocks(rows_P: np.ndarray, counts_P: np.ndarray, heads_K3: np.ndarray) -> int:
    """Write the heads of the blocks of postings to `heads_K3`, (K + 1, 3), and return the bytes of the blocks."""
    offset = 0
    for block in range(heads_K3.shape[0] - 1):
        start, end = block << _SHIFT, min((block + 1) << _SHIFT, rows_P.shape[0])
        least, greatest, count = rows_P[start], rows_P[start], counts_P[start]
        for posting in range(start + 1, end):
            least, greatest = min(least, rows_P[posting]), max(greatest, rows_P[posting])
            count = max(count, counts_P[posting])
        bits = _bits_of(np.int64(count) - 1)
        heads_K3[block, 0], heads_K3[block, 1], heads_K3[block, 2] = least, offset, bits
        offset += _bits_of(np.int64(greatest) - np.int64(least)) + bits
    heads_K3[heads_K3.shape[0] - 1, 1] = offset
    return offset * _UNIT


def _put(blocks_B: np.ndarray, bit: _Integer, number: _Integer) -> None:
    """Add the bits of a number to zeros from a bit on."""
    position, remaining = bit >> 3, number << (bit & 7)
    while remaining > 0:
        blocks_B[position] |= np.uint8(remaining & 255)
        remaining >>= 8
        position += 1


_put = compiled(_put, inlined=True)


def _pack(rows_P: np.ndarray, counts_P: np.ndarray, heads_K3: np.ndarray, blocks_B: np.ndarray) -> None:
    """Write the blocks of postings whose heads `measure_blocks` wrote to `blocks_B`, which is all zeros."""
    for block in range(heads_K3.shape[0] - 1):
        start, end = block << _SHIFT, min((block + 1) << _SHIFT, rows_P.shape[0])
        least, count_bits = np.int64(heads_K3[block, 0]), np.int64(heads_K3[block, 2])
        row_bits = np.int64(heads_K3[block + 1, 1]) - np.int64(heads_K3[block, 1]) - count_bits
        row_bit = np.int64(heads_K3[block, 1]) * (8 * _UNIT)
        count_bit = row_bit + (_LAST + 1) * row_bits
        for posting in range(start, end):
            _put(blocks_B, row_bit, np.int64(rows_P[posting]) - least)
            _put(blocks_B, count_bit, np.int64(counts_P[posting]) - 1)
            row_bit += row_bits
            count_bit += count_bits


def _unpack(
    postings: tuple[np.ndarray, np.ndarray], start: int, end: int, rows_P: np.ndarray, counts_P: np.ndarray
) -> None:
    """Write the rows and counts of the postings from `start` to `end` - 1, int32."""
    heads_K3, blocks_B = postings
    for block in range(start >> _SHIFT, (end + _LAST) >> _SHIFT):
        first, last = max(start, block << _SHIFT), min(end, (block + 1) << _SHIFT)
        least, row_bits, count_bits, row_bit, count_bit = _from(heads_K3, first)
        for posting in range(first - start, last - start):
            rows_P[posting] = least + _number_at(blocks_B, row_bit, row_bits)
            counts_P[posting] = _number_at(blocks_B, count_bit, count_bits) + 1
            row_bit += row_bits
            count_bit += count_bits


def _add_bm25(
    postings: tuple[np.ndarray, np.ndarray],
    merged: tuple[np.ndarray, np.ndarray],
    is_merged_Q: np.ndarray,
    starts_Q: np.ndarray,
    ends_Q: np.ndarray,
    weights_Q: np.ndarray,
    lengths_N: np.ndarray,
    base: float,
    slope: float,
    scores_N: np.ndarray,
    found_M: np.ndarray,
) -> int:
    """Add the BM25 scores of a query's terms to `scores_N` (zeros), and write the rows that match to `found_M`.

    Each has the postings from `starts_Q` to `ends_Q` - 1 of the segment, or of `merged`. `base + slope * length`
    normalises by the length of a row. Returns the number of rows that match (lexical/bm25.py).
    """
    hits = 0
    for position in range(starts_Q.shape[0]):
        start, end, weight = starts_Q[position], ends_Q[position], weights_Q[position]
        heads_K3, blocks_B = merged if is_merged_Q[position] else postings
        for block in range(start >> _SHIFT, (end + _LAST) >> _SHIFT):
            first, last = max(start, block << _SHIFT), min(end, (block + 1) << _SHIFT)
            least, row_bits, count_bits, row_bit, count_bit = _from(heads_K3, first)
            for _ in range(first, last):
                # Without a sign: numba counts a negative index from the end, and would look for its sign.
                row = np.uint64(least + _number_at(blocks_B, row_bit, row_bits))
                count = _number_at(blocks_B, count_bit, count_bits) + 1
                row_bit += row_bits
                count_bit += count_bits
                if scores_N[row] == 0:
                    found_M[hits] = row
                    hits += 1
                scores_N[row] += weight * count / (count + base + slope * lengths_N[row])
    return hits


def _first_at_least(rows_R: np.ndarray, first: int, row: int) -> int:
    """Return the first of some rows, ascending, that is at least a row; their number: there is none."""
    # Steps that double, and then a binary search: a row nearby and one far away are found quickly.
    step, end = 1, rows_R.shape[0]
    while first + step < end and rows_R[first + step] < row:
        first += step
        step *= 2
    last = min(first + step, end)
    while first < last:
        middle = (first + last) // 2
        if rows_R[middle] < row:
            first = middle + 1
        else:
            last = middle
    return first


_first_at_least = compiled(_first_at_least, inlined=True)


def _seek(heads_K3: np.ndarray, blocks_B: np.ndarray, posting: int, end: int, row: int) -> int:
    """Return the first of the postings of a list up to `end` - 1 with at least a row; `end`: there is none."""
    # By blocks as `_first_at_least`: the last one that begins with at most the row, from the present one on.
    block, step, last = posting >> _SHIFT, 1, (end - 1) >> _SHIFT
    while block + step <= last and _first_row(heads_K3, blocks_B, block + step, end) <= row:
        block += step
        step *= 2
    above = min(block + step, last + 1)
    while block + 1 < above:
        middle = (block + above) >> 1
        if _first_row(heads_K3, blocks_B, middle, end) <= row:
            block = middle
        else:
            above = middle
    first, last = max(posting, block << _SHIFT), min(end, (block + 1) << _SHIFT)
    least, bits, _, bit, _ = _from(heads_K3, first)
    # Halves whose sizes do not depend on what is read: a load waits for nothing but the comparison before it.
    size, difference = last - first, row - least
    while size > 1:
        half = size >> 1
        if _number_at(blocks_B, bit + (half - 1) * bits, bits) < difference:
            first += half
            bit += half * bits
        size -= half
    return first + 1 if _number_at(blocks_B, bit, bits) < difference else first


_seek = compiled(_seek, inlined=True)


def _next_common(
    heads_K3: np.ndarray, blocks_B: np.ndarray, posting: int, end: int, rows_R: np.ndarray, position: int
) -> tuple[int, int]:
    """Return where the next row is that a list and some rows share, both ascending; `end` and any if there is none.

    Each is passed in steps of the other one, so the time is that of the shorter one.
    """
    while position < rows_R.shape[0] and posting < end:
        posting = _seek(heads_K3, blocks_B, posting, end, rows_R[position])
        if posting < end:
            row = _row_at(heads_K3, blocks_B, posting)
            if row == rows_R[position]:
                return posting, position
            position = _first_at_least(rows_R, position, row)
    return end, position


_next_common = compiled(_next_common, inlined=True)


def _look_up_bm25(
    postings: tuple[np.ndarray, np.ndarray],
    merged: tuple[np.ndarray, np.ndarray],
    is_merged_Q: np.ndarray,
    starts_Q: np.ndarray,
    ends_Q: np.ndarray,
    weights_Q: np.ndarray,
    lengths_N: np.ndarray,
    base: float,
    slope: float,
    rows_C: np.ndarray,
    scores_C: np.ndarray,
) -> None:
    """Add the BM25 scores of a query's terms of some rows, ascending, to `scores_C`, as `add_bm25` does for all."""
    for position in range(starts_Q.shape[0]):
        end, weight = ends_Q[position], weights_Q[position]
        heads_K3, blocks_B = merged if is_merged_Q[position] else postings
        posting, candidate = _next_common(heads_K3, blocks_B, starts_Q[position], end, rows_C, 0)
        while posting < end:
            count = _count_at(heads_K3, blocks_B, posting)
            scores_C[candidate] += weight * count / (count + base + slope * lengths_N[rows_C[candidate]])
            posting, candidate = _next_common(heads_K3, blocks_B, posting, end, rows_C, candidate + 1)


def _look_up_counts(
    postings: tuple[np.ndarray, np.ndarray], start: int, end: int, rows_R: np.ndarray, counts_R: np.ndarray
) -> None:
    """Write the occurrences of a term in some rows, ascending and distinct, to `counts_R` (zeros)."""
    heads_K3, blocks_B = postings
    posting, position = _next_common(heads_K3, blocks_B, start, end, rows_R, 0)
    while posting < end:
        counts_R[position] = _count_at(heads_K3, blocks_B, posting)
        posting, position = _next_common(heads_K3, blocks_B, posting, end, rows_R, position + 1)


def _count_allowed(postings: tuple[np.ndarray, np.ndarray], start: int, end: int, mask_N: np.ndarray) -> int:
    """Return how many rows of a mask a term is in."""
    heads_K3, blocks_B = postings
    hits = 0
    for block in range(start >> _SHIFT, (end + _LAST) >> _SHIFT):
        first, last = max(start, block << _SHIFT), min(end, (block + 1) << _SHIFT)
        least, row_bits, _, row_bit, _ = _from(heads_K3, first)
        for _ in range(first, last):
            hits += mask_N[np.uint64(least + _number_at(blocks_B, row_bit, row_bits))]
            row_bit += row_bits
    return hits


def _count_rows(postings: tuple[np.ndarray, np.ndarray], start: int, end: int, rows_R: np.ndarray) -> int:
    """Return how many of some rows, ascending, a term is in."""
    heads_K3, blocks_B = postings
    hits = 0
    posting, position = _next_common(heads_K3, blocks_B, start, end, rows_R, 0)
    while posting < end:
        hits += 1
        posting, position = _next_common(heads_K3, blocks_B, posting, end, rows_R, position + 1)
    return hits


_STEPS = 2048
"""Steps that scores are sorted into by `_keep_best`."""


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
    postings: tuple[np.ndarray, np.ndarray],
    start: int,
    end: int,
    numbers_L: np.ndarray,
    counts_U: np.ndarray,
    found_U: np.ndarray,
    hits: int,
) -> int:
    """Add the occurrences of a term in the documents of a segment to `counts_U`, and write new ones to `found_U`.

    `numbers_L` has the number of each document in the index. `hits` of them were found before; returns those now.
    """
    heads_K3, blocks_B = postings
    for block in range(start >> _SHIFT, (end + _LAST) >> _SHIFT):
        first, last = max(start, block << _SHIFT), min(end, (block + 1) << _SHIFT)
        least, row_bits, count_bits, row_bit, count_bit = _from(heads_K3, first)
        for _ in range(first, last):
            number = numbers_L[np.uint64(least + _number_at(blocks_B, row_bit, row_bits))]
            if counts_U[number] == 0:
                found_U[hits] = number
                hits += 1
            counts_U[number] += _number_at(blocks_B, count_bit, count_bits) + 1
            row_bit += row_bits
            count_bit += count_bits
    return hits


def _take_row_counts(
    postings: tuple[np.ndarray, np.ndarray],
    start: int,
    end: int,
    taken_R: np.ndarray,
    documents_N: np.ndarray,
    numbers_L: np.ndarray,
    counts_U: np.ndarray,
) -> None:
    """Subtract the occurrences of a term in some rows, ascending, from `counts_U` of their documents."""
    heads_K3, blocks_B = postings
    posting, position = _next_common(heads_K3, blocks_B, start, end, taken_R, 0)
    while posting < end:
        counts_U[numbers_L[documents_N[taken_R[position]]]] -= _count_at(heads_K3, blocks_B, posting)
        posting, position = _next_common(heads_K3, blocks_B, posting, end, taken_R, position + 1)


def _add_row_counts(
    postings: tuple[np.ndarray, np.ndarray],
    start: int,
    end: int,
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
    heads_K3, blocks_B = postings
    posting, position = _next_common(heads_K3, blocks_B, start, end, rows_R, 0)
    while posting < end:
        number = numbers_L[documents_N[rows_R[position]]]
        if counts_U[number] == 0:
            found_U[hits] = number
            hits += 1
        counts_U[number] += _count_at(heads_K3, blocks_B, posting)
        posting, position = _next_common(heads_K3, blocks_B, posting, end, rows_R, position + 1)
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
    weights_U: np.ndarray,
) -> None:
    """Add the BM25 scores of a term to `scores_U`, and set the counts of the documents that have it back to 0.

    Its weight is added to `weights_U` where a document has it, unless that is empty.
    """
    is_weighed = len(weights_U) > 0
    for position in range(hits):
        number = found_U[position]
        count = counts_U[number]
        counts_U[number] = 0
        if is_weighed and count > 0:
            weights_U[number] += weight
        scores_U[number] += weight * count / (count + base + slope * lengths_U[number])


def _sum_by_document(
    postings: tuple[np.ndarray, np.ndarray],
    starts_T: np.ndarray,
    documents_N: np.ndarray,
    positions_D: np.ndarray,
    sum_starts_T: np.ndarray,
    sum_documents_P: np.ndarray,
    sums_P: np.ndarray,
) -> int:
    """Write the documents that have each term, in the order of their first rows, and how often. Returns their number.

    `documents_N` has the document of each row; `positions_D`, of each document, must be all negative.
    """
    heads_K3, blocks_B = postings
    size = 0
    for term in range(starts_T.shape[0] - 1):
        first = size
        for posting in range(starts_T[term], starts_T[term + 1]):
            document = documents_N[_row_at(heads_K3, blocks_B, posting)]
            if positions_D[document] < first:
                positions_D[document] = size
                sum_documents_P[size] = document
                sums_P[size] = 0
                size += 1
            sums_P[positions_D[document]] += _count_at(heads_K3, blocks_B, posting)
        sum_starts_T[term + 1] = size
    return size


# Without fastmath: the score of a row must not depend on its segment.
add_bm25 = compiled(_add_bm25, fastmath=False)
look_up_bm25 = compiled(_look_up_bm25, fastmath=False)
keep_best = compiled(_keep_best, fastmath=False)
add_document_scores = compiled(_add_document_scores, fastmath=False)
measure_blocks = compiled(_measure_blocks)
pack = compiled(_pack)
unpack = compiled(_unpack)
look_up_counts = compiled(_look_up_counts)
count_allowed = compiled(_count_allowed)
count_rows = compiled(_count_rows)
rows_of_best_documents = compiled(_rows_of_best_documents)
add_document_counts = compiled(_add_document_counts)
add_row_counts = compiled(_add_row_counts)
take_row_counts = compiled(_take_row_counts)
sum_by_document = compiled(_sum_by_document)

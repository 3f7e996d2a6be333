"""Kernels for the sorted terms of a segment: which are looked up, and which differ by few edits.

Terms are UTF-8, one after the other: term t is `bytes_B[starts_T[t]:starts_T[t + 1]]`. Their order is that of their
bytes, which is that of their code points.

Shapes: T terms and one more, B bytes of all terms, Q terms that are looked up and one more, L letters of a word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scannery.indexer.kernels.fused import compiled

__all__ = ["MAX_LETTERS", "find_terms", "is_similar", "numbers_of", "similar_terms"]

MAX_LETTERS = 64
"""Letters of the longest word that `similar_terms` takes."""


def _compare(bytes_B: np.ndarray, start: int, end: int, key_B: np.ndarray, first: int, last: int) -> int:
    """Return -1, 0 or 1 as a term is below, equal to or above a key."""
    for offset in range(min(end - start, last - first)):
        if bytes_B[start + offset] != key_B[first + offset]:
            return -1 if bytes_B[start + offset] < key_B[first + offset] else 1
    lengths = (end - start) - (last - first)
    return 0 if lengths == 0 else (-1 if lengths < 0 else 1)


_compare = compiled(_compare)


def _find_terms(
    bytes_B: np.ndarray, starts_T: np.ndarray, keys_B: np.ndarray, starts_Q: np.ndarray, numbers_Q: np.ndarray
) -> None:
    """Write the number of each key's term to `numbers_Q`; of a key that is no term, -1 - that of the next term."""
    for key in range(starts_Q.shape[0] - 1):
        low, high, number = 0, starts_T.shape[0] - 1, -1
        while low < high:
            middle = (low + high) // 2
            order = _compare(
                bytes_B, starts_T[middle], starts_T[middle + 1], keys_B, starts_Q[key], starts_Q[key + 1]
            )
            if order == 0:
                number = middle
                break
            if order < 0:
                low = middle + 1
            else:
                high = middle
        numbers_Q[key] = number if number >= 0 else -1 - low


def _letters(bytes_B: np.ndarray, start: int, end: int, letters_L: np.ndarray) -> int:
    """Write the code points of a term to `letters_L`, and return their number; -1 if there are more."""
    count, at = 0, start
    while at < end:
        if count == letters_L.shape[0]:
            return -1
        lead = int(bytes_B[at])
        size = 1 if lead < 0x80 else (2 if lead < 0xE0 else (3 if lead < 0xF0 else 4))
        point = lead if size == 1 else lead & (0x7F >> size)
        for offset in range(1, size):
            point = point << 6 | int(bytes_B[at + offset]) & 0x3F
        letters_L[count] = point
        count += 1
        at += size
    return count


_letters = compiled(_letters)


def _edits(word_L: np.ndarray, other_L: np.ndarray, length: int, limit: int, table_LL: np.ndarray) -> int:
    """Return the edits between a word and the first `length` letters of another; above `limit`, any number above it.

    An edit inserts, removes or replaces a letter, or swaps two that are side by side (optimal string alignment).
    """
    size = word_L.shape[0]
    for column in range(length + 1):
        table_LL[0, column] = column
    for row in range(1, size + 1):
        table_LL[row, 0] = row
        least = row
        for column in range(1, length + 1):
            same = word_L[row - 1] == other_L[column - 1]
            edits = min(
                table_LL[row - 1, column] + 1,
                table_LL[row, column - 1] + 1,
                table_LL[row - 1, column - 1] + (0 if same else 1),
            )
            if (
                row > 1
                and column > 1
                and word_L[row - 1] == other_L[column - 2]
                and word_L[row - 2] == other_L[column - 1]
            ):
                edits = min(edits, table_LL[row - 2, column - 2] + 1)
            table_LL[row, column] = edits
            least = min(least, edits)
        if least > limit:
            return least
    return int(table_LL[size, length])


_edits = compiled(_edits)


def _similar_terms(
    bytes_B: np.ndarray,
    starts_T: np.ndarray,
    first: int,
    last: int,
    word_L: np.ndarray,
    limit: int,
    numbers_T: np.ndarray,
) -> int:
    """Write the numbers of the terms from `first` to `last` - 1 that differ from a word by at most `limit` edits.

    `word_L` are its code points, int32, at most MAX_LETTERS. Returns how many terms were written to `numbers_T`.
    """
    size = word_L.shape[0]
    letters_L = np.empty(size + limit, np.int32)
    table_LL = np.empty((size + 1, size + limit + 1), np.int32)
    count = 0
    for term in range(first, last):
        if starts_T[term + 1] - starts_T[term] < size - limit:  # a letter has at least a byte
            continue
        length = _letters(bytes_B, starts_T[term], starts_T[term + 1], letters_L)
        if length < 0 or length < size - limit:
            continue
        if _edits(word_L, letters_L, length, limit, table_LL) <= limit:
            numbers_T[count] = term
            count += 1
    return count


find_terms = compiled(_find_terms)
similar_terms = compiled(_similar_terms)


def numbers_of(bytes_B: np.ndarray, starts_T: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return the number of each text among the terms, int64; of one that is no term -1 - that of the next term."""
    keys = [text.encode("utf-8", "surrogatepass") for text in texts]
    starts_Q = np.cumsum([0, *map(len, keys)], dtype=np.int64)
    numbers_Q = np.empty(len(keys), np.int64)
    find_terms(bytes_B, starts_T, np.frombuffer(b"".join(keys), np.uint8), starts_Q, numbers_Q)
    return numbers_Q


def is_similar(word: str, term: str, limit: int) -> bool:
    """Return whether two words differ by at most `limit` edits."""
    word_L, term_L = (np.array([*map(ord, text)], np.int32) for text in (word, term))
    table_LL = np.empty((len(word) + 1, len(term) + 1), np.int32)
    return bool(_edits(word_L, term_L, len(term), limit, table_LL) <= limit)

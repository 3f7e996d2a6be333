"""The loops of wordpiece.py, compiled by numba on first use; they run without the GIL.

Legend: C characters of all texts, B texts, N tokens of all texts, E edges.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

from scannery.embed.cache_folders import is_ours

__all__ = ["hash_table", "tokenize"]

REMOVED, SPACE, ALONE = 1, 2, 3
"""Kinds of characters as in wordpiece.py; every other one is part of a word."""
EMPTY = -1
MIXER = 0x9E3779B97F4A7C15

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _compiled(function: FunctionT) -> FunctionT:
    """Return the function compiled, from numba's cache on disk if only this user can write there.

    It must not raise: numba does not release the arguments of a call that ends with an exception.
    """
    try:
        kernel = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
        folder = Path(str(kernel.stats.cache_path))
        if folder.parent == Path(function.__code__.co_filename).parent or is_ours(folder):
            return cast("FunctionT", kernel)
    except (RuntimeError, OSError):  # no cache folder can be written
        pass
    return cast("FunctionT", numba.njit(nogil=True, error_model="numpy")(function))


@_compiled
def _slot(key: Any, size: int) -> Any:
    mixed = np.uint64(key) * np.uint64(MIXER)
    return np.int64((mixed >> np.uint64(29)) & np.uint64(size - 1))


@_compiled
def hash_table(keys_E: np.ndarray, values_E: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and values as a hash table with open addressing, whose size is a power of two."""
    size = 16
    while size < 4 * len(keys_E):
        size *= 2
    table = np.full(size, EMPTY, np.int64)
    children = np.zeros(size, np.int32)
    for i in range(len(keys_E)):
        slot = _slot(keys_E[i], size)
        while table[slot] != EMPTY:
            slot = (slot + 1) & (size - 1)
        table[slot] = keys_E[i]
        children[slot] = values_E[i]
    return table, children


@_compiled
def _child(node: int, code: int, table: np.ndarray, children: np.ndarray) -> Any:
    """Return the node behind an edge, or -1."""
    key = np.int64(node) << 21 | np.int64(code)
    slot = _slot(key, len(table))
    while table[slot] != EMPTY:
        if table[slot] == key:
            return np.int64(children[slot])
        slot = (slot + 1) & (len(table) - 1)
    return np.int64(-1)


@_compiled
def _write_word(
    letters: np.ndarray,
    positions: np.ndarray,
    count: int,
    table: np.ndarray,
    children: np.ndarray,
    accepted: np.ndarray,
    unknown: int,
    ids_N: np.ndarray,
    starts_N: np.ndarray,
    ends_N: np.ndarray,
    at: int,
) -> int:
    """Write the tokens of one word: the longest entry of the vocabulary, again and again; return where they end."""
    first, done = at, 0
    while done < count:
        node, best, end = (0 if done == 0 else 1), -1, done
        for i in range(done, count):
            node = _child(node, letters[i], table, children)
            if node < 0:
                break
            if accepted[node] >= 0:
                best, end = accepted[node], i + 1
        if best < 0:  # no piece fits: the whole word is unknown
            ids_N[first], starts_N[first], ends_N[first] = unknown, positions[0], positions[count - 1] + 1
            return first + 1
        ids_N[at], starts_N[at], ends_N[at] = best, positions[done], positions[end - 1] + 1
        at += 1
        done = end
    return at


@_compiled
def tokenize(  # noqa: PLR0912  one loop over the characters, since a call for each would cost more
    codes_C: np.ndarray,
    ends_B1: np.ndarray,
    kinds: np.ndarray,
    mapped: np.ndarray,
    longer: np.ndarray,
    table: np.ndarray,
    children: np.ndarray,
    accepted: np.ndarray,
    unknown: int,
    longest: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return ids, starts and ends of all tokens, and where those of each text begin.

    Args:
        codes_C: characters of all texts, uint32.
        ends_B1: where each text begins, and the end of the last, int64.
        kinds: of each character.
        mapped: what a character becomes, or -row - 1 of `longer` where these are several, int32.
        longer: rows of up to four characters, padded with zeros, int32.
        table: of `hash_table`, as `children`.
        children: nodes behind the edges.
        accepted: token at each node, or -1.
        unknown: token of a word that has no pieces.
        longest: characters after which a word is unknown.

    """
    # A character becomes at most four, each of which can be a token.
    size = len(codes_C)
    for i in range(len(codes_C)):
        if mapped[codes_C[i]] < 0:
            size += 3
    ids_N, starts_N, ends_N = np.empty(size, np.int32), np.empty(size, np.int64), np.empty(size, np.int64)
    bounds_B1 = np.zeros(len(ends_B1), np.int64)
    letters, positions = np.empty(longest + 8, np.int32), np.empty(longest + 8, np.int64)
    at = 0
    for text in range(len(ends_B1) - 1):
        begin, end = ends_B1[text], ends_B1[text + 1]
        count, first = 0, 0
        last = 0
        for i in range(begin, end + 1):
            kind = SPACE if i == end else kinds[codes_C[i]]
            if kind == REMOVED:
                continue
            if kind in (SPACE, ALONE):
                if count > longest:
                    ids_N[at], starts_N[at], ends_N[at] = unknown, first, last + 1
                    at += 1
                elif count:
                    at = _write_word(
                        letters,
                        positions,
                        count,
                        table,
                        children,
                        accepted,
                        unknown,
                        ids_N,
                        starts_N,
                        ends_N,
                        at,
                    )
                count = 0
                if kind == ALONE:
                    letters[0], positions[0] = mapped[codes_C[i]], i - begin
                    at = _write_word(
                        letters, positions, 1, table, children, accepted, unknown, ids_N, starts_N, ends_N, at
                    )
                continue
            code = mapped[codes_C[i]]
            if count == 0:
                first = i - begin
            last = i - begin
            for part in range(4):
                letter = code if code >= 0 else longer[-code - 1, part]
                if letter == 0:
                    break
                if count <= longest:
                    letters[count], positions[count] = letter, i - begin
                count += 1
                if code >= 0:
                    break
        bounds_B1[text + 1] = at
    return ids_N[:at].copy(), starts_N[:at].copy(), ends_N[:at].copy(), bounds_B1

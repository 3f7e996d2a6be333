"""Postings in as few bits as their numbers need, which are searched as they are.

The postings of all terms, one after the other, are cut into blocks of 128. In a block a row is its distance from the
block's least row, and a count is one less than it is; each has as many bits as the greatest of the block needs, so that
any posting is read with a load and a shift. Blocks do not begin anew with each term: most terms have few postings. A
block has 128 rows, and then 128 counts, from the lowest bit of the lowest byte on, so that it begins at a multiple of
16 bytes; the head of each block tells its least row, where it begins, and the bits of a count.

The distance of each row from the one before it would take fewer bits, but then a row in a block is not found without
unpacking it (docs/adr/0063-packed-postings.md).

Shapes: P postings, K blocks, B bytes, R rows.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

__all__ = ["PackedPostings", "counts_in", "packed_postings", "unpacked"]

PackedPostings: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Heads and blocks, read-only. Heads, int32 (K + 1, 3): the least row of each block, where the block begins in units of
16 bytes, and the bits of a count; the last one tells the end. Blocks, uint8 (B,): with eight bytes of zeros at the end.
A plain tuple, since one with names makes each call of a kernel twice as long."""

BLOCK_POSTINGS = 128
"""Postings of a block; posting_kernels.py has it, too."""
_WORD_BYTES = 8
"""Bytes that a kernel loads at once, and so needs behind the last block."""


def packed_postings(rows_P: np.ndarray, counts_P: np.ndarray) -> PackedPostings:
    """Return postings packed.

    Args:
        rows_P: int32, at least 0.
        counts_P: int32, at least 1.

    """
    from scannery.indexer.kernels import posting_kernels  # compiles on import: only where it is needed

    heads_K3 = np.zeros((-(-len(rows_P) // BLOCK_POSTINGS) + 1, 3), np.int32)
    blocks_B = np.zeros(posting_kernels.measure_blocks(rows_P, counts_P, heads_K3) + _WORD_BYTES, np.uint8)
    posting_kernels.pack(rows_P, counts_P, heads_K3, blocks_B)
    for array in (heads_K3, blocks_B):
        array.setflags(write=False)  # like those of files: kernels for others are compiled separately
    return heads_K3, blocks_B


def unpacked(postings: PackedPostings, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the counts of the postings from `start` to `end` - 1, both int32."""
    from scannery.indexer.kernels import posting_kernels  # compiles on import: only where it is needed

    rows_P, counts_P = np.empty(end - start, np.int32), np.empty(end - start, np.int32)
    posting_kernels.unpack(postings, start, end, rows_P, counts_P)
    return rows_P, counts_P


def counts_in(postings: PackedPostings, start: int, end: int, rows_R: np.ndarray) -> np.ndarray:
    """Return how often some rows have a term, int32 (R,); 0: not at all.

    Args:
        postings: with those of the term from `start` to `end` - 1.
        start: the first one.
        end: one past the last one.
        rows_R: row numbers, in any order, each once.

    """
    from scannery.indexer.kernels import posting_kernels  # compiles on import: only where it is needed

    order_R = np.argsort(rows_R)
    counts_R, ordered_R = np.empty(len(rows_R), np.int32), np.zeros(len(rows_R), np.int32)
    posting_kernels.look_up_counts(postings, start, end, rows_R[order_R].astype(np.int64), ordered_R)
    counts_R[order_R] = ordered_R
    return counts_R

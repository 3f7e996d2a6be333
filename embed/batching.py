"""Which texts go through the model together, and in which shape.

Legend: N texts, B texts in a batch, T tokens of the longest of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Batch", "Bucket", "bucket_batches", "choose_buckets", "snug_batches"]


@dataclass(frozen=True)
class Bucket:
    """A shape of batches: `rows` texts of `width` tokens."""

    rows: int
    width: int
    fixed: bool = False
    """The device has compiled this very shape, so it always gets an attention mask, needed or not."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts that are computed together."""

    positions: np.ndarray
    """Which texts, as positions in the call (int64)."""

    bucket: Bucket
    """The shape they are padded to: at least as many rows, at least as many tokens as the longest has."""


def snug_batches(lengths_N: np.ndarray, budget: int, enough: int) -> Iterator[Batch]:
    """Yield batches with next to no padding, longest texts first, for devices that take any shape.

    Texts of equal length come together, as many as fit into `budget` tokens: they need no padding, so no
    attention mask. Where they are fewer than `enough` tokens, the next shorter ones fill the batch up to that
    size: a matrix of few rows multiplies slower than a little padding costs. A text that is longer than the
    budget is a batch by itself. Equal lengths keep their order, so batches are reproducible.
    """
    order_N = np.argsort(-lengths_N, kind="stable")
    sorted_N = np.maximum(lengths_N[order_N], 1)
    start = 0
    while start < len(order_N):
        width = int(sorted_N[start])
        equal = int(np.searchsorted(-sorted_N, -width, side="right")) - start
        rows = min(max(equal, enough // width), max(1, budget // width), len(order_N) - start)
        yield Batch(order_N[start : start + rows], Bucket(rows, width))
        start += rows


def choose_buckets(lengths_N: np.ndarray, max_width: int, budget: int, count: int) -> list[Bucket]:
    """Return at most `count` shapes that cover lengths 1 to `max_width` with the least padding for `lengths_N`.

    An exact dynamic programme over the lengths in steps of 8: O(count * (max_width / 8)^2). Each shape has about
    `budget` tokens. The widest is always `max_width`, so that every text has a bucket.
    """
    step = 8
    tops = np.unique(np.append(np.arange(step, max_width, step), max_width))
    clipped = np.clip(lengths_N, 1, max_width)
    at = np.searchsorted(tops, clipped)
    texts = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=len(tops)))])
    # cost[k][j]: fewest padded tokens for all texts up to tops[j], with k + 1 buckets of which tops[j] is the widest.
    best = tops * texts[1:].astype(np.float64)
    back: list[np.ndarray] = []
    for _ in range(1, min(count, len(tops))):
        # Row i, column j: the next narrower bucket is tops[i], and what lies between goes into tops[j].
        table = best[:, None] + tops[None, :] * (texts[None, 1:] - texts[1:, None])
        table[np.tril_indices(len(tops))] = np.inf
        chosen = table.argmin(axis=0)
        improved = table[chosen, np.arange(len(tops))]
        back.append(np.where(improved < best, chosen, -1))
        best = np.minimum(improved, best)
    widths, j = [int(tops[-1])], len(tops) - 1
    for choice in reversed(back):
        if choice[j] >= 0:
            j = int(choice[j])
            widths.append(int(tops[j]))
    return [Bucket(_rows(budget, width), width, fixed=True) for width in sorted(widths)]


def bucket_batches(lengths_N: np.ndarray, buckets: Sequence[Bucket]) -> Iterator[Batch]:
    """Yield batches in the given shapes only, widest first.

    A batch that its own width does not fill takes the longest of the narrower texts, so only the very last
    batch can have empty rows.
    """
    tops = np.array([bucket.width for bucket in buckets])
    order_N = np.argsort(-lengths_N, kind="stable")
    at_N = np.minimum(np.searchsorted(tops, lengths_N[order_N]), len(tops) - 1)
    start = 0
    while start < len(order_N):
        bucket = buckets[int(at_N[start])]
        rows = min(bucket.rows, len(order_N) - start)
        yield Batch(order_N[start : start + rows], bucket)
        start += rows


def _rows(budget: int, width: int) -> int:
    rows = max(1, budget // width)
    return rows - rows % 8 if rows >= 8 else rows  # matrix units work on eight rows at a time

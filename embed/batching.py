"""Batches of texts: which are computed together, and padded to which shape.

Legend: N texts, B texts in a batch, T tokens of the longest of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Batch", "Bucket", "bucket_batches", "choose_buckets", "fitted_batches", "snug_batches"]


@dataclass(frozen=True)
class Bucket:
    """The shape of a batch."""

    rows: int
    """Texts."""

    width: int
    """Tokens per text, padding included."""

    fixed: bool = False
    """Whether the device compiled this shape; then the batch always has an attention mask."""

    packed: bool = False
    """Whether the texts stand one behind the other in one row, without padding (packing.py)."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts that are computed together."""

    positions: np.ndarray
    """Positions of the texts in the call, int64."""

    bucket: Bucket
    """Shape they are padded to: at least their number of rows, at least the width of the longest."""


def snug_batches(lengths_N: np.ndarray, budget: int, enough: int) -> Iterator[Batch]:
    """Yield batches with little padding, longest texts first, for devices that take any shape.

    Texts of equal length form a batch of up to `budget` tokens, without padding and attention mask. If they have
    fewer than `enough` tokens, the next shorter texts fill the batch up to `enough`: the padding costs less than
    multiplying a matrix of few rows. A text longer than `budget` is a batch of its own. Texts of equal length keep
    their order, so batches are reproducible.

    Args:
        lengths_N: tokens of each text, int64.
        budget: most tokens in a batch.
        enough: tokens up to which shorter texts fill a batch.

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
    """Return at most `count` shapes, by ascending width, that cover lengths 1 to `max_width` with the least padding.

    An exact dynamic programme over lengths in steps of 8: O(count * (max_width / 8)^2). The widest shape is always
    `max_width`, so every text has a bucket.

    Args:
        lengths_N: tokens of each text, int64; the padding of these texts is minimised.
        max_width: tokens of the longest text to cover.
        budget: tokens of each shape, about.
        count: most shapes.

    """
    step = 8
    tops = np.unique(np.append(np.arange(step, max_width, step), max_width))
    clipped = np.clip(lengths_N, 1, max_width)
    at = np.searchsorted(tops, clipped)
    texts = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=len(tops)))])
    # best[j]: fewest tokens, padding included, for all texts up to tops[j], if tops[j] is the widest bucket so far.
    best = tops * texts[1:].astype(np.float64)
    back: list[np.ndarray] = []
    for _ in range(1, min(count, len(tops))):
        # Row i, column j: the next narrower bucket is tops[i]; texts between the two go into tops[j].
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
    """Yield batches in the given shapes (by ascending width) only, widest first.

    If the texts of a width do not fill a batch, the next shorter texts do, so only the last batch can have empty rows.
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


def fitted_batches(lengths_N: np.ndarray, buckets: Sequence[Bucket], step_tokens: int) -> Iterator[Batch]:
    """Yield batches in the given shapes only, longest texts first, each in the shape with the most text for its cost.

    The cost of a batch is its tokens, padding included, and `step_tokens` more: many texts fill shapes of many
    rows, and few texts, such as a query, take a shape of few rows.

    Args:
        lengths_N: tokens of each text, int64.
        buckets: at least one of them as wide as the longest text.
        step_tokens: fixed cost of a batch, as the number of tokens that take the same time.

    """
    rows_S, widths_S = (np.array([getattr(one, name) for one in buckets]) for name in ("rows", "width"))
    costs_S = rows_S * widths_S + step_tokens
    order_N = np.argsort(-lengths_N, kind="stable")
    sorted_N = np.maximum(lengths_N[order_N], 1)
    total_N1 = np.concatenate([[0], np.cumsum(sorted_N)])
    start = 0
    while start < len(order_N):
        ends_S = np.minimum(start + rows_S, len(order_N))
        worth_S = (total_N1[ends_S] - total_N1[start]) / costs_S
        worth_S[widths_S < sorted_N[start]] = -1
        best = int(worth_S.argmax())
        yield Batch(order_N[start : ends_S[best]], buckets[best])
        start = int(ends_S[best])


def _rows(budget: int, width: int) -> int:
    rows = max(1, budget // width)
    return rows - rows % 8 if rows >= 8 else rows  # matrix units compute eight rows at a time

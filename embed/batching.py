"""Batches of texts: which are computed together, and padded to which shape.

Legend: N texts, B texts in a batch, T tokens of the longest of them.

Packed batches: the tokens of several texts one behind the other, without padding.

A device with an attention kernel for sequences of different lengths computes nothing but tokens this way, and needs no
mask. A packed batch has these features instead of tensors `(B, T)`:

    input_ids   int64 (S,): the tokens of all texts
    positions   int64 (S,): the position of each token in its text
    ends        int32 (B + 1,): where each text begins, and the end of the last one
    lengths     list of B ints: tokens of each text, on the host, so that the device need not be asked

Legend: N texts, B texts in a batch, T tokens of the longest of them, S tokens of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

__all__ = [
    "Batch",
    "Bucket",
    "bucket_batches",
    "choose_buckets",
    "constants_of",
    "even_batches",
    "fitted_batches",
    "is_packed",
    "pack",
    "packed_batches",
    "packed_halves",
    "packed_like",
    "snug_batches",
]


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
    """Whether the texts stand one behind the other in one row, without padding (batching.py)."""


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
    rows_S, widths_S = (np.array([getattr(bucket, name) for bucket in buckets]) for name in ("rows", "width"))
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


def is_packed(features: Mapping[str, Any]) -> bool:
    """Return whether features are a packed batch."""
    return "ends" in features


def constants_of(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the features that are no tensors."""
    return {name: value for name, value in features.items() if not hasattr(value, "shape")}


def pack(items: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return the packed batch of texts, given as token ids; a text must have a token."""
    import torch

    lengths_B = np.fromiter(map(len, items), np.int64, len(items))
    ends_B1 = np.concatenate([[0], np.cumsum(lengths_B)])
    positions_S = np.arange(ends_B1[-1]) - np.repeat(ends_B1[:-1], lengths_B)
    return {
        "input_ids": torch.from_numpy(np.concatenate(items).astype(np.int64)),
        "positions": torch.from_numpy(positions_S),
        "ends": torch.from_numpy(ends_B1.astype(np.int32)),
        "lengths": lengths_B.tolist(),
    }


def packed_batches(lengths_N: np.ndarray, budget: int) -> Iterator[Batch]:
    """Yield batches of at most `budget` tokens, longest texts first; a longer text is a batch of its own.

    Texts of similar length are together, so that a kernel that gives each text the time of the longest loses little.
    """
    order_N = np.argsort(-lengths_N, kind="stable")
    ends_N = np.cumsum(lengths_N[order_N])
    start, done = 0, 0
    while start < len(order_N):
        end = max(start + 1, int(np.searchsorted(ends_N, done + budget, side="right")))
        tokens = int(ends_N[end - 1]) - done
        yield Batch(order_N[start:end], Bucket(1, tokens, packed=True))
        start, done = end, done + tokens


def packed_like(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts of a padded batch as a packed batch."""
    ids_BT, mask_BT = features["input_ids"], features["attention_mask"].bool()
    items = [ids_T[mask_T].numpy() for ids_T, mask_T in zip(ids_BT, mask_BT, strict=True)]
    return constants_of(features) | pack(items)


def even_batches(lengths_N: np.ndarray, budget: int, enough: int, cores: int) -> Iterator[Batch]:
    """Yield batches of about equal size, at most `budget` tokens and half a text, longest texts first.

    Their number is a multiple of `cores`, so that all are busy to the end; few texts are one batch.

    Args:
        lengths_N: tokens of each text, int64.
        budget: tokens in a batch above which a core is slower.
        enough: tokens in a batch below which a core is slower.
        cores: batches that are computed at once.

    """
    total = int(lengths_N.sum())
    order_N = np.argsort(-lengths_N, kind="stable")
    if total < cores * enough:
        if len(order_N):
            yield Batch(order_N, Bucket(1, total, packed=True))
        return
    ends_N = np.cumsum(lengths_N[order_N])
    count = cores * -(-total // (cores * budget))
    # Where the next text would end nearer to the end of the batch than this one, it belongs to it.
    middles_N = ends_N - lengths_N[order_N] / 2
    starts = np.searchsorted(middles_N, np.arange(count) * (total / count))
    for start, end in pairwise([*np.unique(starts).tolist(), len(order_N)]):
        positions = order_N[start:end]
        if len(positions):
            yield Batch(positions, Bucket(1, int(lengths_N[positions].sum()), packed=True))


def packed_halves(features: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a packed batch of at least two texts as two batches with half of the texts each."""
    lengths = features["lengths"]
    middle = len(lengths) // 2
    cut, ends = sum(lengths[:middle]), features["ends"]
    constants = constants_of(features)
    return [
        {
            **constants,
            "input_ids": features["input_ids"][tokens],
            "positions": features["positions"][tokens],
            "ends": own_ends,
            "lengths": own_lengths,
        }
        for tokens, own_ends, own_lengths in (
            (slice(cut), ends[: middle + 1], lengths[:middle]),
            (slice(cut, None), ends[middle:] - cut, lengths[middle:]),
        )
    ]

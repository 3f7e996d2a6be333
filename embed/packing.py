"""Packed batches: the tokens of several texts one behind the other, without padding.

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
from itertools import pairwise
from typing import Any

import numpy as np

from scannery.embed.batching import Batch, Bucket

__all__ = [
    "constants_of",
    "even_batches",
    "is_packed",
    "pack",
    "packed_batches",
    "packed_halves",
    "packed_like",
]


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

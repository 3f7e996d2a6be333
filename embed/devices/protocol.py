"""Where a model runs: one small protocol, so that a new kind of accelerator is one new file.

Legend: N texts, B texts in a batch, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from scannery.embed.batching import Batch
from scannery.embed.errors import DeviceError
from scannery.embed.tokenization import Features

__all__ = ["Device", "Emit", "Forward", "Work", "cosines", "halving", "unavailable"]

Forward: TypeAlias = Callable[[Any, Features], Any]
"""`(model, features) -> vectors_BD`, a float32 tensor on the model's device."""

Work: TypeAlias = Iterator[tuple[Batch, Callable[[], Features]]]
"""Batches with the function that pads them; called by the device when, and in the thread in which, it suits it."""

Emit: TypeAlias = Callable[[Batch, np.ndarray], None]
"""Takes float32 vectors `(B, D)` of a batch, in any order of batches, from any thread, one call at a time a batch."""


class Device(Protocol):
    """Runs one model. Calls of `run` may overlap, from several threads."""

    name: str
    """What the user calls it, such as `cpu` or `cuda:0`."""

    dtype: str
    """The type it computes in."""

    window_texts: int
    """How many texts to sort by length together: enough to fill its batches with texts of like length."""

    fixed_shapes: bool
    """It takes only batches of exactly the shapes it asked for."""

    longest_tokens: int | None
    """Longest text that it takes, in tokens; None: any that the model reads."""

    def place(self, model: Any, forward: Forward, probes: Sequence[Features]) -> None:
        """Take a float32 model in eval mode, bring it here and prepare it.

        `probes` are batches to try it on: one of documents, and one of queries where these are prepared otherwise.
        A device that computes in a smaller type compares the vectors of the first one, and keeps float32 if
        they are not faithful and the type was its own choice.
        """
        ...

    def batches(self, lengths_N: np.ndarray) -> Iterator[Batch]:
        """Yield batches of shapes that suit the device."""
        ...

    def run(self, work: Work, emit: Emit) -> None:
        """Compute all batches, and give each result to `emit`. Returns when all are done."""
        ...


def cosines(one_ND: np.ndarray, two_ND: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair of rows (float64); 0 where a row is zero or not finite."""
    one, two = one_ND.astype(np.float64), two_ND.astype(np.float64)
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines_N: np.ndarray = np.nan_to_num((one * two).sum(axis=1) / norms, nan=0.0)
    return cosines_N


def halving(
    compute: Callable[[Features], Any],
    features: Features,
    out_of_memory: type[Exception],
    free: Callable[[], None],
) -> Any:
    """Return `compute(features)`; a batch that does not fit is computed in halves, and those in halves again.

    Args:
        compute: from a batch to its vectors, a tensor `(B, D)`.
        features: the batch; every tensor in it has B rows.
        out_of_memory: what `compute` raises when memory is short.
        free: gives unused memory back before the next attempt.

    Raises:
        DeviceError: a single text does not fit.
    """
    import torch

    try:
        return compute(features)
    except out_of_memory as error:
        rows = max(len(value) for value in features.values() if torch.is_tensor(value))
        if rows == 1:
            raise DeviceError(f"out of memory on a single text: {error}") from error
    free()  # outside of the except block, whose traceback holds on to the tensors
    halves = [
        {name: value[part] if torch.is_tensor(value) else value for name, value in features.items()}
        for part in (slice(rows // 2), slice(rows // 2, None))
    ]
    return torch.cat([halving(compute, half, out_of_memory, free) for half in halves])


def unavailable(name: str, why: str) -> DeviceError:
    """Return the error for a device that this machine lacks."""
    return DeviceError(f"device {name!r} is not available: {why}", field="device")

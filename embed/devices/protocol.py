"""The protocol of devices that run a model: a new kind of accelerator is one new module.

Legend: N texts, B texts in a batch, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from scannery.embed.batching import Batch
from scannery.embed.errors import DeviceError
from scannery.embed.tokenization import Features

__all__ = ["Device", "Emit", "Forward", "Work", "cosines", "unavailable"]

Forward: TypeAlias = Callable[[Any, Features], Any]
"""`(model, features) -> vectors_BD`, a float32 tensor on the device of the model."""

Work: TypeAlias = Iterator[tuple[Batch, Callable[[], Features]]]
"""Batches, each with a function that pads it; the device calls it at any time, from any thread."""

Emit: TypeAlias = Callable[[Batch, np.ndarray], None]
"""Receives the vectors of a batch, float32 `(B, D)`: one call per batch, in any order, from any thread."""


class Device(Protocol):
    """Runs one model. Calls of `run` may overlap, from several threads."""

    name: str
    """Name in options, such as `cpu` or `cuda:0`."""

    dtype: str
    """The type it computes in."""

    window_texts: int
    """Texts to sort by length together: enough to fill its batches with texts of similar length."""

    fixed_shapes: bool
    """Whether it takes only batches of the shapes that `batches` chose."""

    longest_tokens: int | None
    """Longest text that it takes, in tokens; None: the model's limit."""

    def plan(self, widths: Sequence[int]) -> None:
        """Take the planned widths of batches, in tokens, where shapes are compiled; else do nothing."""
        ...

    def place(self, model: Any, forward: Forward, probes: Sequence[Features]) -> None:
        """Move a model to the device, and convert it to the device's type.

        Args:
            model: float32, in eval mode, on the CPU.
            forward: computes vectors of features.
            probes: a batch of documents, and a batch of queries if these are prepared differently. For dtype `auto`,
                the vectors of the first one decide between a smaller type and float32.

        """
        ...

    def batches(self, lengths_N: np.ndarray) -> Iterator[Batch]:
        """Yield batches of shapes that suit the device."""
        ...

    def run(self, work: Work, emit: Emit) -> None:
        """Compute all batches, and pass each result to `emit`. Returns when all are done."""
        ...

    def vector_of(self, ids: Sequence[int]) -> np.ndarray | None:
        """Return the vector of one text, float32 (D,), given as its tokens; None: texts are computed by `run` only."""
        ...


def cosines(one_ND: np.ndarray, two_ND: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair of rows (float64); 0 where a row is zero or not finite."""
    first, two = one_ND.astype(np.float64), two_ND.astype(np.float64)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(two, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines_N: np.ndarray = np.nan_to_num((first * two).sum(axis=1) / norms, nan=0.0)
    return cosines_N


def unavailable(name: str, why: str) -> DeviceError:
    """Return the error for a device that this machine lacks."""
    return DeviceError(f"device {name!r} is not available: {why}", field="device")

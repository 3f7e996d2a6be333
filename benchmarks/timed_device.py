"""A device that computes nothing and takes a stated time per token: what remains is the work of the host."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from scannery.embed import encoder as encoder_module
from scannery.embed.batching import Batch, Bucket, bucket_batches
from scannery.embed.devices.protocol import Emit, Forward, Work
from scannery.embed.tokenization import Features

__all__ = ["TOKENS_PER_PASSAGE", "TimedDevice", "TokenSums", "replace_devices"]

TOKENS_PER_PASSAGE = 115

BUDGET_TOKENS = 32_768
WIDTHS = range(16, 257, 16)


class TimedDevice:
    """Takes batches as `CudaDevice` does, and gives all texts the same vector.

    Args:
        dimensions: of a vector.
        seconds_per_token: how long it takes for a token, padding included; it computes one batch at a time.

    """

    name = "timed"
    dtype = "float32"
    window_texts = 16_384
    fixed_shapes = False
    longest_tokens: int | None = None

    def __init__(self, dimensions: int, seconds_per_token: float = 0.0) -> None:
        self._vector = np.full(dimensions, dimensions**-0.5, np.float32)
        self._seconds_per_token = seconds_per_token
        self._lock = threading.Lock()
        self.spans: list[tuple[float, float]] = []
        """When each batch was computed, in seconds of `time.perf_counter`."""

    def plan(self, widths: Sequence[int]) -> None:
        """Do nothing."""

    def place(self, model: Any, forward: Forward, probes: Sequence[Features]) -> None:
        """Do nothing."""

    def batches(self, lengths_N: np.ndarray) -> Iterator[Batch]:
        """Yield batches in a few shapes."""
        return bucket_batches(lengths_N, [Bucket(BUDGET_TOKENS // width, width) for width in WIDTHS])

    def vector_of(self, ids: Sequence[int]) -> np.ndarray | None:
        """Return None: texts are computed by `run` only."""
        return None

    def run(self, work: Work, emit: Emit) -> None:
        """Pad every batch, and wait for the time that the device would compute.

        The host pads a batch while the device computes the one before, as a queue of kernels allows.
        """
        with self._lock:
            free_at = time.perf_counter()
            for batch, collate in work:
                features = collate()
                free_at = max(free_at, time.perf_counter())
                seconds = self._seconds_per_token * batch.bucket.rows * batch.bucket.width
                self.spans.append((free_at, free_at + seconds))
                free_at += seconds
                emit(batch, self.vectors(batch, features))
            time.sleep(max(0.0, free_at - time.perf_counter()))

    def vectors(self, batch: Batch, features: Features) -> np.ndarray:
        """Return the vectors of a batch, float32 (B, D)."""
        return np.tile(self._vector, (len(batch.positions), 1))


class TokenSums(TimedDevice):
    """A timed device whose vectors depend on the texts' tokens alone; arguments are those of `TimedDevice`."""

    def __init__(self, dimensions: int, seconds_per_token: float = 0.0) -> None:
        super().__init__(dimensions, seconds_per_token)
        # A random vector for each token: sums of them are apart for different texts, and near where words are shared.
        generator = np.random.default_rng(0)
        self._table = generator.standard_normal((1 << 15, dimensions)).astype(np.float32)

    def vectors(self, batch: Batch, features: Features) -> np.ndarray:
        """Return the normalised sum of a few tokens of each text: cheap, and different for different texts."""
        ids_BT = features["input_ids"].numpy()
        vectors_BD = self._table[ids_BT[:, 1:9] % len(self._table)].sum(axis=1)
        made: np.ndarray = vectors_BD / np.linalg.norm(vectors_BD, axis=1, keepdims=True)
        return made


def replace_devices(seconds_per_token: float) -> None:
    """Make every encoder of this process run on such a device."""
    device = TokenSums(384, seconds_per_token)
    setattr(encoder_module, "open_device", lambda *_arguments, **_options: device)  # noqa: B010  for mypy

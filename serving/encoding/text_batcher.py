"""Encodes texts of concurrent callers in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from scannery.runtime.retry import Deadline
from scannery.serving.scheduling.affinity import on_all_cores
from scannery.serving.scheduling.coalescer import Coalescer

__all__ = ["TextBatcher"]

Encode = Callable[[Sequence[str]], np.ndarray]


class TextBatcher:
    """Encodes a few batches at a time. Safe to use from several threads."""

    def __init__(
        self, encode: Encode, *, max_texts: int, observe: Callable[[float], None], at_once: int = 1
    ) -> None:
        """Prepare.

        Args:
            encode: returns the vectors of texts.
            max_texts: limit of texts in a batch of several callers.
            observe: called with the number of texts of each batch.
            at_once: batches.

        """
        self._encode, self._observe = encode, observe
        self._coalescer: Coalescer[Sequence[str], list[np.ndarray]] = Coalescer(
            concurrency=at_once, max_weight=max_texts
        )

    def encode(self, texts: Sequence[str], deadline: Deadline) -> list[np.ndarray]:
        """Return the vector of each text; raises as `Coalescer.run`."""
        return self._coalescer.run(self, texts, deadline, self._encode_batch, weight=len(texts))

    def _encode_batch(self, batch: Sequence[Sequence[str]], deadline: Deadline) -> list[list[np.ndarray]]:
        deadline.check()
        # Concurrent callers often send equal texts.
        texts = list(dict.fromkeys(text for each in batch for text in each))
        self._observe(len(texts))
        with on_all_cores():
            vectors = dict(zip(texts, self._encode(texts), strict=True))
        return [[vectors[text] for text in each] for each in batch]

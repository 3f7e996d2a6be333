"""A query and texts to scores: a cross-encoder, which reads both together and so judges better than two vectors.

It is far slower than comparing vectors (one pass of a transformer for every pair), and meant for the first hits of a
search. Any `CrossEncoder` of sentence-transformers with one output works.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scannery.embed.errors import DeviceError, InvalidModelError
from scannery.embed.library_output import quiet
from scannery.embed.models.model_checks import check_model_folder
from scannery.embed.models.model_files import find_model

__all__ = ["Reranker"]

BATCH_TEXTS = 16
"""Pairs that are scored at once: little enough to stop in time between two batches."""


class Reranker:
    """A cross-encoder. Safe to use from several threads, which take turns."""

    def __init__(self, model: Any, name: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self.name = name
        """The name or folder it was loaded by."""

    @classmethod
    def load(cls, model: str | Path, *, device: str = "auto", max_tokens: int | None = None) -> Reranker:
        """Return the cross-encoder `model`: a folder, or a name in an installed package, the hub's cache or the hub.

        Args:
            model: what to load. It never runs code of its own.
            device: `cpu`, `cuda`, or `auto`, which is the latter where there is one.
            max_tokens: longest pair, what is beyond is cut off; default: the model's own limit.

        Raises:
            ModelNotFoundError: it is in none of these places.
            InvalidModelError: it cannot be loaded, wants code of its own, or has more than one output.
            DeviceError: the device is not there.

        """
        folder = find_model(model)
        check_model_folder(folder)
        encoder = _loaded(folder, _device(device), max_tokens)
        labels = encoder.config.num_labels
        if labels != 1:
            raise InvalidModelError(
                f"{model} has {labels} outputs; a reranker has one, the score of a pair", field="model"
            )
        return cls(encoder, str(model))

    def scores(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """Return the score of each text for a query, float32 `(len(texts),)`: bigger is better.

        What the numbers are is the model's choice: of most, a probability, or its logit.
        """
        pairs = [(query, text) for text in texts]
        if not pairs:
            return np.zeros(0, np.float32)
        with self._lock:  # tokenizers are not safe to share
            scores = self._model.predict(pairs, batch_size=BATCH_TEXTS, show_progress_bar=False)
        return np.asarray(scores, np.float32).reshape(len(pairs))


def _device(device: str) -> str:
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise DeviceError(f"a reranker runs on cpu or cuda, got {device!r}", field="device")
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("there is no CUDA device", field="device")
    return device


def _loaded(folder: Path, device: str, max_tokens: int | None) -> Any:
    with quiet():
        from sentence_transformers import CrossEncoder

        try:
            return CrossEncoder(
                str(folder), device=device, max_length=max_tokens, trust_remote_code=False, local_files_only=True
            )  # fmt: skip
        # The libraries raise whatever a damaged file makes them trip over: SafetensorError, KeyError, OSError, …
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            raise InvalidModelError(
                f"cannot load {folder} as a cross-encoder: {type(error).__name__}: {first}", field="model"
            ) from error

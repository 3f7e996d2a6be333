"""Cross-encoders: score a query and a text read together, which is more accurate than comparing two vectors.

Each pair costs a pass of a transformer, so a cross-encoder is used for the first hits of a search only. Any
`CrossEncoder` of sentence-transformers with one output works.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scannery.embed.devices.cuda_devices import free_gpu, has_cuda
from scannery.embed.errors import DeviceError, InvalidModelError
from scannery.embed.fingerprint import hash_model_folder
from scannery.embed.library_imports import quiet
from scannery.embed.models.model_files import check_model_folder, find_model, module_folders

__all__ = ["Reranker", "reranker_digest"]

BATCH_TEXTS = 16
"""Pairs scored at once: few, so that a search can stop at its deadline between two batches."""


class Reranker:
    """A cross-encoder. Safe to share between threads; calls run one at a time."""

    def __init__(self, model: Any, name: str, digest: str) -> None:
        """Wrap a loaded model; use `Reranker.load`.

        Args:
            model: a `CrossEncoder` of sentence-transformers with one output.
            name: name or folder of the model.
            digest: as of `reranker_digest`.

        """
        self._model = model
        self._lock = threading.Lock()
        self.name = name
        """Name or folder of the model."""
        self.digest = digest
        """Identity of the model, as `reranker_digest` returns it."""

    @classmethod
    def load(cls, model: str | Path, *, device: str = "auto", max_tokens: int | None = None) -> Reranker:
        """Return the cross-encoder `model`: a folder, or a name in an installed package, the hub's cache or the hub.

        Args:
            model: name or folder. Code in the folder is never run.
            device: `cpu`, `cuda`, or `auto`: `cuda` if there is a CUDA device, else `cpu`.
            max_tokens: most tokens of a pair, the rest is cut off; default: the model's own limit.

        Raises:
            ModelNotFoundError: it is in none of these places.
            InvalidModelError: it cannot be loaded, needs its own code, or has more than one output.
            DeviceError: the machine has no such device.

        """
        folder = find_model(model)
        check_model_folder(folder)
        encoder = _loaded(folder, _device(device), max_tokens)
        labels = encoder.config.num_labels
        if labels != 1:
            raise InvalidModelError(
                f"{model} has {labels} outputs; a reranker has one, the score of a pair", field="model"
            )
        return cls(encoder, str(model), _digest(folder, max_tokens))

    def scores(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """Return the score of each text for a query, float32 `(len(texts),)`: bigger is better.

        The model decides on the scale: most give a probability or its logit.
        """
        pairs = [(query, text) for text in texts]
        if not pairs:
            return np.zeros(0, np.float32)
        with self._lock:  # tokenizers are not safe to share
            scores = self._model.predict(pairs, batch_size=BATCH_TEXTS, show_progress_bar=False)
        return np.asarray(scores, np.float32).reshape(len(pairs))


def reranker_digest(model: str | Path, *, max_tokens: int | None = None) -> str:
    """Return what the scores of a cross-encoder depend on, as 64 hexadecimal digits; it is not loaded.

    That is SHA-256 over weights, configuration, tokenizer and `max_tokens`. Raises ModelNotFoundError and
    InvalidModelError, as `Reranker.load` does.
    """
    return _digest(find_model(model), max_tokens)


def _digest(folder: Path, max_tokens: int | None) -> str:
    hashes = hash_model_folder(folder, module_folders(folder))
    return hashlib.sha256(" ".join((*hashes, str(max_tokens))).encode()).hexdigest()


def _device(device: str) -> str:
    kind, _, number = device.partition(":")
    if not (device in ("auto", "cpu", "cuda") or (kind == "cuda" and number.isdecimal())):
        raise DeviceError(f"a reranker runs on auto, cpu, cuda or cuda:N, got {device!r}", field="device")
    if device == "cpu" or (device == "auto" and not has_cuda()):
        return "cpu"
    if not has_cuda():
        raise DeviceError("there is no CUDA device", field="device")
    return device if number else f"cuda:{free_gpu()}"


def _loaded(folder: Path, device: str, max_tokens: int | None) -> Any:
    with quiet():
        from sentence_transformers import CrossEncoder

        try:
            return CrossEncoder(
                str(folder), device=device, max_length=max_tokens, trust_remote_code=False, local_files_only=True
            )  # fmt: skip
        # A damaged file can make the libraries raise any type: SafetensorError, KeyError, OSError, …
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            raise InvalidModelError(
                f"cannot load {folder} as a cross-encoder: {type(error).__name__}: {first}", field="model"
            ) from error

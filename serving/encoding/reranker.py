"""The cross-encoders of a process, loaded on first use.

Vectors of sentences, from a cache or encoded while there is time.

Shapes: D dimensions.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from scannery.indexer import Manifest
from scannery.runtime.bounded_cache import BoundedCache
from scannery.runtime.errors import DeadlineError, InvalidRequestError, RerankerUnavailableError
from scannery.runtime.paths import current_folder, placed_model
from scannery.runtime.retry import Deadline
from scannery.serving.security.principal import CURRENT

if TYPE_CHECKING:
    from scannery.embed import Reranker

__all__ = ["RerankerPool", "SentenceVectors"]


class RerankerPool:
    """Cross-encoders by model. Safe to use from several threads."""

    def __init__(self, *, model: str | None = None, device: str = "auto") -> None:
        """Prepare; models load on first use.

        Args:
            model: for all indexes, in place of those in their specs; None: those in the specs.
            device: of the models.

        """
        self._model = model
        self._folder = current_folder()
        # Rerankers do not support XLA.
        self._device = "auto" if device.startswith("xla") else device
        self._rerankers: dict[tuple[str, int | None], Reranker] = {}
        self._lock = threading.Lock()

    def reranker_of(self, manifest: Manifest) -> Reranker:
        """Return the cross-encoder of an index, loaded at the first call.

        The model comes from the server's options, or else from the spec; never from a request.

        Raises:
            RerankerUnavailableError: none is configured, or it cannot be loaded.

        """
        spec = manifest.spec.reranker
        model = self._model or (spec.model if spec else None)
        if model is None:
            raise RerankerUnavailableError(
                f"rerank: index {manifest.index!r} has no reranker; name one in its spec, or start the server with "
                "--reranker",
                field="rerank",
            )
        key = (model, spec.max_tokens if spec else None)
        with self._lock:
            if key not in self._rerankers:
                self._rerankers[key] = _load(placed_model(model, self._folder), key[1], self._device)
            return self._rerankers[key]


def _load(model: str, max_tokens: int | None, device: str) -> Reranker:
    # Imported late: takes seconds (torch), and most servers do not rerank.
    from scannery.embed import EmbedError, Reranker

    try:
        return Reranker.load(model, device=device, max_tokens=max_tokens)
    except EmbedError as error:
        raise RerankerUnavailableError(
            f"rerank: the reranker cannot be used: {error}", field="rerank"
        ) from error


CACHED_BYTES = 32 << 20
"""Limit of the cache: about 10,000 sentences of 384 dimensions."""
BATCH_SENTENCES = 64
"""Encoded between two looks at the clock; about 0.2 s on two cores."""


class EncodeDocuments(Protocol):
    """Encodes texts as documents, as `QueryEncoder.encode_documents` does."""

    def __call__(self, texts: Sequence[str], deadline: Deadline, *, path: str) -> np.ndarray: ...


class SentenceVectors:
    """Vectors by sentence. Safe to use from several threads."""

    def __init__(self, encode: EncodeDocuments, *, cached_bytes: int = CACHED_BYTES) -> None:
        """Prepare an empty cache.

        Args:
            encode: returns the vectors of documents, float32 (texts, D).
            cached_bytes: limit of the cache, sentences and vectors together.

        """
        self._encode = encode
        # By caller and text: response times must not reveal what other callers read.
        self._vectors: BoundedCache[tuple[str, str], np.ndarray] = BoundedCache(cached_bytes)

    def find(self, sentences: Sequence[str], deadline: Deadline) -> dict[str, np.ndarray]:
        """Return the vectors of sentences, float32 (D,) each, as far as they are known or encoded in time.

        A batch is begun only if the slowest one so far would end in time. Raises EncoderUnavailableError.

        Args:
            sentences: those that matter most first.
            deadline: until which to encode.

        """
        principal = CURRENT.get()
        caller = principal.name if principal else ""
        by_sentence: dict[str, np.ndarray] = {}
        missing: list[str] = []
        for sentence in dict.fromkeys(sentences):
            vector = self._vectors.find((caller, sentence))
            if vector is None:
                missing.append(sentence)
            else:
                by_sentence[sentence] = vector
        longest_s = 0.0
        for start in range(0, len(missing), BATCH_SENTENCES):
            left_s = deadline.remaining_s
            if left_s <= longest_s:
                break
            batch = missing[start : start + BATCH_SENTENCES]
            try:
                vectors = self._encode(batch, deadline, path="highlight")
            except (DeadlineError, InvalidRequestError):
                # The sentences of the hits are no input of the request, which cannot be wrong because of them.
                break
            longest_s = max(longest_s, left_s - deadline.remaining_s if left_s < np.inf else 0.0)
            for sentence, vector in zip(batch, vectors, strict=True):
                by_sentence[sentence] = kept = np.array(vector)
                self._vectors.keep((caller, sentence), kept, kept.nbytes + sys.getsizeof(sentence))
        return by_sentence

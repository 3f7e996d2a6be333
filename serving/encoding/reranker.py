"""The cross-encoders of a process, loaded on first use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from scannery.indexer import Manifest
from scannery.runtime.errors import RerankerUnavailableError
from scannery.runtime.paths import current_folder, placed_model

if TYPE_CHECKING:
    from scannery.embed import Reranker

__all__ = ["RerankerPool"]


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

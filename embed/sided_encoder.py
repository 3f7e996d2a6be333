"""An encoder with two models: one of queries, and one of the documents that these find.

Shapes: N texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from scannery.embed.text.chunking import Chunker

__all__ = ["SidedEncoder", "TextEncoder"]


class TextEncoder(Protocol):
    """A model in this process (`Encoder`), or one in an encoder process, or two such models (`SidedEncoder`)."""

    @property
    def dimensions(self) -> int:
        """Components of a vector."""

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of queries, float32 (N, D)."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of documents, float32 (N, D)."""

    def chunker(self, max_tokens: int, overlap_tokens: int, *, headings: bool = False) -> Chunker:
        """Return a chunker with the tokenizer of this encoder; sizes in tokens."""


class SidedEncoder:
    """Encodes queries by one model, and all else by another. Its models are as safe to share as each of them is."""

    def __init__(self, *, queries: TextEncoder, documents: TextEncoder) -> None:
        """Join two models whose vectors are compared with each other, and so have the same dimensions.

        Args:
            queries: encodes queries.
            documents: encodes documents and their sentences, and cuts them into passages.

        """
        self.dimensions = documents.dimensions
        self.device: str = getattr(documents, "device", "cpu")
        self.encode_queries: Callable[[Sequence[str]], np.ndarray] = queries.encode_queries
        self.encode_documents: Callable[[Sequence[str]], np.ndarray] = documents.encode_documents
        self.encode_now: Callable[[str, float], np.ndarray | None] | None = getattr(
            queries, "encode_now", None
        )
        self._documents = documents

    def chunker(self, max_tokens: int, overlap_tokens: int, *, headings: bool = False) -> Chunker:
        """Return a chunker with the tokenizer of the documents' model; sizes in tokens."""
        return self._documents.chunker(max_tokens, overlap_tokens, headings=headings)

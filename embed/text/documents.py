"""A document as what is embedded of it: its pieces, and a vector for each.

Builds and live updates both go through here, so that the same document becomes the same rows.

Shapes: P pieces of a document, D dimensions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

import numpy as np

from scannery.embed.errors import InvalidTextError
from scannery.embed.text.chunking import Chunker
from scannery.embed.text.transcripts import spoken_text

__all__ = ["DocumentEncoder", "Piece", "cut", "cut_all", "encode_pieces", "piece_columns", "whole_piece"]

# What one call of the encoder gets: enough to sort by length, little enough to repeat when a text is refused.
ENCODE_TEXTS = 8192

MOST_CUTTING = 8
"""Threads that cut texts at most; a third of the work holds the interpreter's lock, so more would wait for it."""


class DocumentEncoder(Protocol):
    """What encodes documents: an `Encoder`, or one in another process."""

    @property
    def dimensions(self) -> int:
        """Components of a vector."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, float32 (N, D); InvalidTextError if one has none."""


@dataclass(frozen=True)
class Piece:
    """One passage of a text."""

    text: str | None
    start: int | None
    end: int | None
    time_start_s: float | None = None
    time_end_s: float | None = None
    spoken: str | None = None
    """What is embedded and searched: what is spoken, where the text is a transcript; None: the text."""
    speakers: tuple[str, ...] = ()


_COLUMNS = {
    "text": "text",
    "text_start": "start",
    "text_end": "end",
    "time_start_s": "time_start_s",
    "time_end_s": "time_end_s",
    "_spoken": "spoken",
    "speakers": "speakers",
}


def whole_piece(text: str | None) -> Piece:
    """Return a text that is not cut as a piece."""
    if text is None:
        return Piece(None, None, None)
    return Piece(text, 0, len(text), spoken=spoken_text(text))


def cut(text: str | None, chunker: Chunker | None, title: str | None = None) -> list[Piece]:
    """Return the passages of a text; without a chunker or a text, the whole."""
    if chunker is None or text is None:
        return [whole_piece(text)]
    return [
        Piece(
            p.text, p.start, p.end, p.time_start_s, p.time_end_s,
            None if p.embedding_text is p.text else p.embedding_text, p.speakers,
        )
        for p in chunker.split(text, max_tokens=chunker.fit(title)[1])
    ]  # fmt: skip


def cut_all(
    texts: Sequence[str | None], chunker: Chunker | None, titles: Sequence[str | None] | None = None
) -> list[list[Piece]]:
    """Return `cut` of each text, worked out on all cores: most of it is the tokenizer, which lets threads run."""
    titles = [None] * len(texts) if titles is None else titles
    cores = min(len(os.sched_getaffinity(0)), MOST_CUTTING, len(texts))
    if chunker is None or cores < 2:
        return [cut(text, chunker, title) for text, title in zip(texts, titles, strict=True)]
    with ThreadPoolExecutor(cores, thread_name_prefix="scannery-cut") as threads:
        return list(threads.map(cut, texts, repeat(chunker), titles))


def piece_columns(pieces: Sequence[Piece]) -> dict[str, list[Any]]:
    """Return the fields of pieces as columns, by the names that an index has for them."""
    return {name: [getattr(piece, field) for piece in pieces] for name, field in _COLUMNS.items()}


def encode_pieces(
    titles: Sequence[str | None],
    pieces: Sequence[Sequence[Piece]],
    encoder: DocumentEncoder,
    chunker: Chunker | None = None,
) -> tuple[list[np.ndarray], list[str | None]]:
    """Return for each document the vectors of its pieces, float32 (P, D), and the encoder's objection, if any.

    `chunker` is the one that cut the pieces: it says how much of a title goes in front of each.
    """
    titles = titles if chunker is None else [chunker.fit(title)[0] for title in titles]
    texts = [_embedded_text(title, piece) for title, own in zip(titles, pieces, strict=True) for piece in own]
    vectors_ND = np.empty((len(texts), encoder.dimensions), np.float32)
    problems: dict[int, str] = {}
    for start in range(0, len(texts), ENCODE_TEXTS):
        _encode_into(vectors_ND, texts, start, min(start + ENCODE_TEXTS, len(texts)), encoder, problems)
    vectors, refused, start = [], [], 0
    for own in pieces:
        rows = range(start, start + len(own))
        vectors.append(vectors_ND[rows.start : rows.stop])
        no_passage = None if own else "the text has no passage: nothing in it is a token"
        refused.append(next((problems[row] for row in rows if row in problems), no_passage))
        start = rows.stop
    return vectors, refused


def _encode_into(
    vectors_ND: np.ndarray,
    texts: Sequence[str],
    start: int,
    end: int,
    encoder: DocumentEncoder,
    problems: dict[int, str],
) -> None:
    """Encode a range of texts; where one is refused, halve until it stands alone, and note what the encoder said.

    So one bad text costs twice the work, and even a model that refuses everything no more than log2(8192) times.
    """
    try:
        vectors_ND[start:end] = encoder.encode_documents(texts[start:end])
    except InvalidTextError as error:
        if end - start == 1:
            problems[start] = error.message
            return
        middle = (start + end) // 2
        _encode_into(vectors_ND, texts, start, middle, encoder, problems)
        _encode_into(vectors_ND, texts, middle, end, encoder, problems)


def _embedded_text(title: str | None, piece: Piece) -> str:
    text = (piece.text or "") if piece.spoken is None else piece.spoken
    return f"{title}\n{text}" if title else text

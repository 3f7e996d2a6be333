"""A document to its passages, and a vector for each.

Builds and live updates both use these functions, so the same document becomes the same rows.

Shapes: N texts, P passages of a document, D dimensions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, repeat
from typing import Any, Protocol, cast

import numpy as np

from scannery.embed.errors import InvalidTextError
from scannery.embed.text.chunking import Chunker, Passage
from scannery.embed.text.markdown import passage_title
from scannery.embed.text.transcripts import spoken_text

__all__ = [
    "CountingEncoder",
    "DocumentEncoder",
    "cut",
    "cut_all",
    "embedded_texts",
    "encode_passages",
    "passage_columns",
    "uncut",
]

# Texts in one call of the encoder: enough to sort by length, few enough to encode again when one is refused.
ENCODE_TEXTS = 8192

MOST_CUTTING = 8
"""Most threads that cut texts: a third of the work holds the interpreter's lock, so more threads would wait for it."""


class DocumentEncoder(Protocol):
    """An encoder of documents: an `Encoder`, or one in another process."""

    @property
    def dimensions(self) -> int:
        """Components of a vector."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, float32 (N, D); InvalidTextError for a text without a vector."""


class CountingEncoder(DocumentEncoder, Protocol):
    """An encoder that also tells what it cut off: an `Encoder`."""

    def encode_documents(self, texts: Sequence[str], *, cut_tokens: np.ndarray | None = None) -> np.ndarray:
        """Return the vectors of texts; `cut_tokens`, integers (N,), gets the number of tokens cut off each text."""


_COLUMNS = {
    "text": "text",
    "text_start": "start",
    "text_end": "end",
    "time_start_s": "time_start_s",
    "time_end_s": "time_end_s",
    "_spoken": "spoken",
    "speakers": "speakers",
    "section": "section",
    "page": "page",
}


def uncut(text: str | None) -> Passage:
    """Return a whole text as one passage."""
    return (
        Passage(None, None, None) if text is None else Passage(text, 0, len(text), spoken=spoken_text(text))
    )


def cut(text: str | None, chunker: Chunker | None, title: str | None = None) -> list[Passage]:
    """Return the passages of a text, with room for its title; one passage if there is no chunker or no text."""
    if chunker is None or text is None:
        return [uncut(text)]
    return chunker.split(text, title=title)


def cut_all(
    texts: Sequence[str | None], chunker: Chunker | None, titles: Sequence[str | None] | None = None
) -> list[list[Passage]]:
    """Return `cut` of each text, computed in threads: most of the time is the tokenizer's, which releases the GIL."""
    titles = [None] * len(texts) if titles is None else titles
    cores = min(len(os.sched_getaffinity(0)), MOST_CUTTING, len(texts))
    if chunker is None or cores < 2:
        return [cut(text, chunker, title) for text, title in zip(texts, titles, strict=True)]
    with ThreadPoolExecutor(cores, thread_name_prefix="scannery-cut") as threads:
        return list(threads.map(cut, texts, repeat(chunker), titles))


def passage_columns(
    titles: Sequence[str | None], passages: Sequence[Sequence[Passage]]
) -> dict[str, list[Any]]:
    """Return the fields of the passages of documents as columns, by their names in an index, with their titles."""
    every = [passage for own in passages for passage in own]
    columns: dict[str, list[Any]] = {
        name: [getattr(passage, field) for passage in every] for name, field in _COLUMNS.items()
    }
    columns["title"] = [
        passage_title(title, one.section) for title, own in zip(titles, passages, strict=True) for one in own
    ]
    return columns


def encode_passages(
    titles: Sequence[str | None],
    passages: Sequence[Sequence[Passage]],
    encoder: DocumentEncoder,
    chunker: Chunker | None = None,
    *,
    cut_tokens: np.ndarray | None = None,
) -> tuple[list[np.ndarray], list[str | None]]:
    """Return for each document the vectors of its passages, float32 (P, D), and the encoder's error message or None.

    Args:
        titles: of each document; put in front of each of its passages.
        passages: of each document.
        encoder: computes the vectors.
        chunker: the one that cut the passages, which shortens titles; None: titles are used whole.
        cut_tokens: integers, one for each passage; gets the number of tokens that the encoder, a `CountingEncoder`,
            cut off it.

    """
    texts = [
        text
        for title, own in zip(titles, passages, strict=True)
        for text in embedded_texts(title, own, chunker)
    ]
    vectors_ND = np.empty((len(texts), encoder.dimensions), np.float32)
    problems: dict[int, str] = {}
    for start in range(0, len(texts), ENCODE_TEXTS):
        end = min(start + ENCODE_TEXTS, len(texts))
        _encode_into(vectors_ND, texts, start, end, encoder, problems, cut_tokens)
    vectors, refused, start = [], [], 0
    for own in passages:
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
    cut_tokens: np.ndarray | None,
) -> None:
    """Encode a range of texts into rows of `vectors_ND`; find refused texts by halving, and record their errors.

    One refused text costs twice the work; a model that refuses every text costs log2(8192) times the work.
    """
    try:
        if cut_tokens is None:
            vectors_ND[start:end] = encoder.encode_documents(texts[start:end])
        else:
            counting = cast(CountingEncoder, encoder)
            vectors_ND[start:end] = counting.encode_documents(
                texts[start:end], cut_tokens=cut_tokens[start:end]
            )
    except InvalidTextError as error:
        if end - start == 1:
            problems[start] = error.message
            return
        middle = (start + end) // 2
        _encode_into(vectors_ND, texts, start, middle, encoder, problems, cut_tokens)
        _encode_into(vectors_ND, texts, middle, end, encoder, problems, cut_tokens)


def embedded_texts(title: str | None, passages: Sequence[Passage], chunker: Chunker | None) -> Iterator[str]:
    """Yield the texts of a document's passages, each below its title: the document's and that of its section."""
    for section, run in groupby(passages, key=lambda passage: passage.section):
        front = passage_title(title, section)
        front = front if chunker is None else chunker.fit(front)[0]
        for passage in run:
            yield f"{front}\n{passage.embedding_text}" if front else passage.embedding_text

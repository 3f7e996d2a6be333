"""A document to its passages, and a vector for each.

Builds and live updates both use these functions, so the same document becomes the same rows.

Shapes: N texts, P passages of a document, D dimensions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from scannery.embed.errors import InvalidTextError
from scannery.embed.statistics import EncodedWindow
from scannery.embed.text.chunking import Chunker, Passage
from scannery.embed.text.markdown import passage_title
from scannery.embed.text.transcripts import spoken_text

__all__ = [
    "CutAndEncoded",
    "DocumentEncoder",
    "EncodingTimes",
    "Splitter",
    "WindowEncoder",
    "cut",
    "cut_and_encode",
    "embedded_texts",
    "encode_passages",
    "passage_columns",
    "uncut",
]

# Texts in one call of the encoder: enough to sort by length, few enough to encode again when one is refused.
ENCODE_TEXTS = 8192

MOST_CUTTING = 8
"""Most threads that cut texts: most of the work holds the interpreter's lock, so more threads would wait for it."""
BLOCK_CHARS = 1 << 16
"""Characters of documents that a thread cuts at once, at least."""


class DocumentEncoder(Protocol):
    """An encoder of documents: an `Encoder`, or one in another process."""

    @property
    def dimensions(self) -> int:
        """Components of a vector."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, float32 (N, D); InvalidTextError for a text without a vector."""


class WindowEncoder(Protocol):
    """An encoder that takes texts while they come: an `Encoder`."""

    @property
    def dimensions(self) -> int:
        """Components of a vector."""

    def encode_windows(self, texts: Iterable[str]) -> Iterator[EncodedWindow]:
        """Yield the vectors of texts, window by window."""


class Splitter(Protocol):
    """Other processes with the same chunker."""

    count: int
    """How many texts they cut at once."""

    def split_all(
        self, texts: Sequence[str | None], titles: Sequence[str | None]
    ) -> list[list[Passage]] | None:
        """Return the passages of each text, or None if they cannot cut these."""


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


class CutDocument(NamedTuple):
    """A document as its passages."""

    passages: list[Passage]
    texts: list[str]
    """What is embedded: each passage below its titles."""


def cut_ahead(
    texts: Sequence[str | None],
    titles: Sequence[str | None],
    chunker: Chunker | None,
    times: EncodingTimes | None = None,
    helpers: Splitter | None = None,
) -> Iterator[CutDocument]:
    """Yield the passages of each document, in order; threads or processes cut those that follow.

    Args:
        texts: of the documents.
        titles: of the documents.
        chunker: cuts the texts; None: they are not cut.
        times: gets the time of the threads.
        helpers: other processes with the same chunker; None: threads cut.

    """
    blocks = [(texts[start:end], titles[start:end]) for start, end in _blocks(texts)]
    cut_block = partial(_cut_block, chunker=chunker, times=times or EncodingTimes(), helpers=helpers)
    workers = min(len(os.sched_getaffinity(0)), MOST_CUTTING) if helpers is None else helpers.count
    workers = min(workers, len(blocks))
    if chunker is None or (workers < 2 and helpers is None):
        for block in blocks:
            yield from cut_block(block)
        return
    threads = ThreadPoolExecutor(max(1, workers), thread_name_prefix="scannery-cut")
    try:
        for done in threads.map(cut_block, blocks):
            yield from done
    finally:
        threads.shutdown(cancel_futures=True)


def _blocks(texts: Sequence[str | None]) -> Iterator[tuple[int, int]]:
    """Yield ranges of documents of at least BLOCK_CHARS together."""
    start, size = 0, 0
    for end, text in enumerate(texts, 1):
        size += len(text or "")
        if size >= BLOCK_CHARS or end == len(texts):
            yield start, end
            start, size = end, 0


def _cut_block(
    block: tuple[Sequence[str | None], Sequence[str | None]],
    chunker: Chunker | None,
    times: EncodingTimes,
    helpers: Splitter | None,
) -> list[CutDocument]:
    started = time.perf_counter()
    texts, titles = block
    passages = None if helpers is None else helpers.split_all(texts, titles)
    if passages is None:
        passages = [cut(text, chunker, title) for text, title in zip(texts, titles, strict=True)]
    documents = [
        CutDocument(document_passages, [*embedded_texts(title, document_passages, chunker)])
        for document_passages, title in zip(passages, titles, strict=True)
    ]
    times.cut(time.perf_counter() - started)
    return documents


def passage_columns(
    titles: Sequence[str | None], passages: Sequence[Sequence[Passage]]
) -> dict[str, list[Any]]:
    """Return the fields of the passages of documents as columns, by their names in an index, with their titles."""
    every = [passage for group in passages for passage in group]
    columns: dict[str, list[Any]] = {
        name: [getattr(passage, field) for passage in every] for name, field in _COLUMNS.items()
    }
    columns["title"] = [
        passage_title(title, passage.section)
        for title, group in zip(titles, passages, strict=True)
        for passage in group
    ]
    return columns


class EncodingTimes:
    """Seconds of cutting and encoding; those of cutting are the sum over its threads."""

    def __init__(self) -> None:
        self.cut_s = self.tokenise_s = self.wait_s = self.compute_s = 0.0
        self._lock = threading.Lock()

    def cut(self, seconds: float) -> None:
        """Add the time of a thread that cuts."""
        with self._lock:
            self.cut_s += seconds

    def encode(self, window: EncodedWindow) -> None:
        """Add the times of a window."""
        self.tokenise_s += window.tokenise_s
        self.wait_s += window.wait_s
        self.compute_s += window.compute_s


class CutAndEncoded(NamedTuple):
    """Documents as passages with vectors."""

    passages: list[list[Passage]]
    vectors: list[np.ndarray]
    """Vectors of the passages of each document, float32 (P, D)."""
    cut_tokens: list[np.ndarray]
    """Tokens that the encoder cut off each passage, int64 (P,)."""
    refused: list[str | None]
    """Why a document cannot be embedded; None where it can."""
    tokens: int
    padding_tokens: int
    times: EncodingTimes


def cut_and_encode(
    texts: Sequence[str | None],
    titles: Sequence[str | None],
    encoder: WindowEncoder,
    chunker: Chunker | None,
    helpers: Splitter | None = None,
) -> CutAndEncoded:
    """Return the passages of documents and their vectors, as `cut` and `encode_passages` make them.

    Threads cut texts, another one tokenises a window ahead, and this one keeps the device busy.

    Args:
        texts: of the documents.
        titles: of the documents; put in front of each of their passages.
        encoder: computes the vectors.
        chunker: cuts the texts; None: they are not cut.
        helpers: other processes with the same chunker; None: threads cut.

    """
    passages: list[list[Passage]] = []
    times = EncodingTimes()

    def all_texts() -> Iterator[str]:
        for document in cut_ahead(texts, titles, chunker, times, helpers):
            passages.append(document.passages)
            yield from document.texts

    windows: list[EncodedWindow] = []
    problems: dict[int, str] = {}
    done = 0
    for window in encoder.encode_windows(all_texts()):
        times.encode(window)
        # As the error of a call with this text alone.
        problems |= {
            done + row: InvalidTextError(why, index=0).message for row, why in window.problems.items()
        }
        windows.append(window)
        done += len(window.vectors_ND)
    vectors_ND = np.concatenate([
        np.empty((0, encoder.dimensions), np.float32), *(window.vectors_ND for window in windows)
    ])  # fmt: skip
    cut_N = np.concatenate([np.empty(0, np.int64), *(window.cut_N for window in windows)])
    ends = np.cumsum([0, *map(len, passages)]).tolist()
    parts = [slice(*pair) for pair in pairwise(ends)]
    return CutAndEncoded(
        passages, [vectors_ND[part] for part in parts], [cut_N[part] for part in parts],
        [_refusal(part, problems) for part in parts],
        sum(window.tokens for window in windows), sum(window.padding_tokens for window in windows), times,
    )  # fmt: skip


def encode_passages(
    titles: Sequence[str | None],
    passages: Sequence[Sequence[Passage]],
    encoder: DocumentEncoder,
    chunker: Chunker | None = None,
) -> tuple[list[np.ndarray], list[str | None]]:
    """Return for each document the vectors of its passages, float32 (P, D), and the encoder's error message or None.

    Args:
        titles: of each document; put in front of each of its passages.
        passages: of each document.
        encoder: computes the vectors.
        chunker: the one that cut the passages, which shortens titles; None: titles are used whole.

    """
    texts = [
        text
        for title, group in zip(titles, passages, strict=True)
        for text in embedded_texts(title, group, chunker)
    ]
    vectors_ND = np.empty((len(texts), encoder.dimensions), np.float32)
    problems: dict[int, str] = {}
    for start in range(0, len(texts), ENCODE_TEXTS):
        end = min(start + ENCODE_TEXTS, len(texts))
        _encode_into(vectors_ND, texts, start, end, encoder, problems)
    ends = np.cumsum([0, *map(len, passages)]).tolist()
    parts = [slice(*pair) for pair in pairwise(ends)]
    return [vectors_ND[part] for part in parts], [_refusal(part, problems) for part in parts]


def _refusal(part: slice, problems: Mapping[int, str]) -> str | None:
    """Return why the document with these passages cannot be embedded, or None."""
    if part.start == part.stop:
        return "the text has no passage: nothing in it is a token"
    if not problems:
        return None
    return next((problems[row] for row in range(part.start, part.stop) if row in problems), None)


def _encode_into(
    vectors_ND: np.ndarray,
    texts: Sequence[str],
    start: int,
    end: int,
    encoder: DocumentEncoder,
    problems: dict[int, str],
) -> None:
    """Encode a range of texts into rows of `vectors_ND`; find refused texts by halving, and record their errors.

    One refused text costs twice the work; a model that refuses every text costs log2(8192) times the work.
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


def embedded_texts(title: str | None, passages: Sequence[Passage], chunker: Chunker | None) -> Iterator[str]:
    """Yield the texts of a document's passages, each below its title: the document's and that of its section."""
    for section, run in groupby(passages, key=lambda passage: passage.section):
        front = passage_title(title, section)
        front = front if chunker is None else chunker.fit(front)[0]
        for passage in run:
            yield f"{front}\n{passage.embedding_text}" if front else passage.embedding_text

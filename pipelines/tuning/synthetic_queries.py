"""Queries for tuning an index of texts, made from the texts themselves.

Stored vectors are easier to find than the questions of users: on 28,000 podcast passages, with 67 of 336 leaves,
recall@10 is 0.98 for stored vectors, 0.96 for points between two of them, and 0.89 for the questions of TREC Podcasts.
Short runs of words, encoded as queries, behave like those questions at every setting (table: docs/benchmarks/index.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from scannery.embed import Encoder

__all__ = ["NO_ENCODERS", "QUESTIONS", "EncoderSource", "EncoderSources", "questions_of"]

EncoderSource = Callable[[], "Encoder"]
"""Returns the encoder, loading it on the first call."""


class EncoderSources(NamedTuple):
    """The encoders of an index."""

    unnamed: EncoderSource | None = None
    """Of unnamed vectors; None: the index has none for them."""
    named: Mapping[str, EncoderSource] = MappingProxyType({})
    """Of named vectors, by name; names without an encoder are left out."""


NO_ENCODERS = EncoderSources()

QUESTIONS = 300
"""Questions per segment: the standard error of their recall is about 0.01."""
WORDS = 4
_WORD = re.compile(r"\w[\w'’-]*")


def questions_of(
    table: pa.Table, encoder: EncoderSource, *, seed: int = 0, column: str = "text"
) -> np.ndarray | None:
    """Return query vectors, float32 `(at most QUESTIONS, dimensions)`, or None if the table has no texts.

    The same table and seed give the same questions. Texts are in `column`.
    """
    texts = table.column(column)
    if texts.null_count == len(texts):
        return None
    generator = np.random.default_rng(seed)
    rows = generator.choice(len(texts), min(QUESTIONS, len(texts)), replace=False)
    chosen = texts.take(pa.array(np.sort(rows))).to_pylist()
    runs = [_run(text, generator) for text in chosen if text]
    return encoder().encode_queries(runs)


def _run(text: str, generator: np.random.Generator) -> str:
    words = _WORD.findall(text)
    # Scripts without spaces give few words here: then the beginning of the text is the question.
    if len(words) <= WORDS:
        return text[:40]
    start = int(generator.integers(0, len(words) - WORDS + 1))
    return " ".join(words[start : start + WORDS])

"""Queries to tune an index of texts for, made of the texts themselves.

Stored vectors are no stand-in for what people ask: on 28,000 podcast passages, 67 of 336 leaves give stored vectors a
recall@10 of 0.98, points between two of them 0.96, and the questions of TREC Podcasts 0.89. Short runs of words,
encoded as queries, behave like those questions at every setting (docs/benchmarks/index.md has the table).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from scannery.embed import Encoder

__all__ = ["QUESTIONS", "EncoderSource", "questions_of"]

EncoderSource = Callable[[], "Encoder"]
"""Gives the encoder, and loads it only then."""

QUESTIONS = 300
"""Questions per segment: their recall has a standard error of about a hundredth."""
WORDS = 4
_WORD = re.compile(r"\w[\w'’-]*")


def questions_of(table: pa.Table, encoder: EncoderSource, *, seed: int = 0) -> np.ndarray | None:
    """Return query vectors, float32 `(at most QUESTIONS, dimensions)`, or None if the table has no texts.

    The same table gives the same questions.
    """
    texts = table.column("text")
    if texts.null_count == len(texts):
        return None
    generator = np.random.default_rng(seed)
    rows = generator.choice(len(texts), min(QUESTIONS, len(texts)), replace=False)
    chosen = texts.take(pa.array(np.sort(rows))).to_pylist()
    runs = [_run(text, generator) for text in chosen if text]
    return encoder().encode_queries(runs)


def _run(text: str, generator: np.random.Generator) -> str:
    words = _WORD.findall(text)
    # Scripts that do not separate words have few of them here: then the text's own beginning has to do.
    if len(words) <= WORDS:
        return text[:40]
    start = int(generator.integers(0, len(words) - WORDS + 1))
    return " ".join(words[start : start + WORDS])

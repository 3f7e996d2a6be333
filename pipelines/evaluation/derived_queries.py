"""A test collection without judgements: each query is taken from a stored document, which it should find.

It shows whether search works at all, and gives queries to begin judging with. It does not show which mode is better,
since lexical search finds a text by its own words. nDCG@10 on Cranfield: people's queries 0.38 dense, 0.37 lexical,
0.42 hybrid; titles 0.94, 0.99, 0.98; sentences 0.70, 0.99, 0.96.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from scannery.pipelines.errors import CollectionError
from scannery.pipelines.evaluation.judgements import query_id_of

__all__ = ["DerivedQuery", "Source", "derive_queries", "sample_passages"]

Source = Literal["title", "sentence"]

_WINDOW = 5
"""Hits taken at each random rank."""
_TRIES = 8
"""Windows asked for each wanted passage at most: an index may have fewer passages than are wanted."""
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+|(?<=[。！？])|\n{2,}")
_SHORTEST, _LONGEST = 20, 300
"""Characters of a sentence."""


class Passage(Protocol):
    """The part of a hit that is needed here."""

    @property
    def id(self) -> str: ...
    @property
    def document_id(self) -> str: ...
    @property
    def title(self) -> str | None: ...
    @property
    def text(self) -> str | None: ...


Window = Callable[[np.ndarray, int, int], Sequence[Passage]]
"""From a vector (dimensions,), an offset and a number to the hits from that rank on."""


@dataclass(frozen=True, kw_only=True)
class DerivedQuery:
    """A query, and what it is taken from."""

    query_id: str
    text: str
    passage_id: str
    document_id: str
    source: Source


def derive_queries(
    window: Window, *, count: int, rows: int, dimensions: int, seed: int = 0
) -> list[DerivedQuery]:
    """Return at most `count` queries, each from another document: all of titles if most have one, else of sentences.

    A title that several of the documents have is no query, since it would not name one of them.

    Args:
        window: asks the index.
        count: queries wanted.
        rows: datapoints of the index.
        dimensions: of its vectors.
        seed: the same one and the same index give the same queries.

    Raises:
        CollectionError: the index has no texts.

    """
    passages = sample_passages(window, count=count, rows=rows, dimensions=dimensions, seed=seed)
    titles = Counter(_title(passage) for passage in passages)
    distinct = {title for title, times in titles.items() if times == 1 and title}
    source: Source = "title" if 2 * len(distinct) >= len(passages) > 0 else "sentence"
    picker = random.Random(seed)
    queries: dict[str, DerivedQuery] = {}
    for passage in passages:
        text = _title(passage) if source == "title" else _sentence(passage.text or "", picker)
        if text and (source == "sentence" or text in distinct):
            query = DerivedQuery(
                query_id=query_id_of(text),
                text=text,
                passage_id=passage.id,
                document_id=passage.document_id,
                source=source,
            )
            queries.setdefault(query.query_id, query)
    if not queries:
        raise CollectionError("derive: the index has no texts to take queries from", field="derive")
    return list(queries.values())


def sample_passages(
    window: Window, *, count: int, rows: int, dimensions: int, seed: int = 0
) -> list[Passage]:
    """Return at most `count` passages with a text, each of another document.

    They are taken at random ranks of the hits for random vectors, which reaches every row of an index with up to
    10,000 rows about equally often. The first hits alone would be the few rows that lie at the border of all others.
    """
    generator = np.random.default_rng(seed)
    picker = random.Random(seed)
    # The largest offset that a search takes is 10,000.
    last = max(0, min(rows - _WINDOW, 10_000))
    found: dict[str, Passage] = {}
    tries = _TRIES * count // _WINDOW + 1
    while tries and len(found) < count:
        vector_D = generator.standard_normal(dimensions).astype(np.float32)
        hits = window(vector_D, picker.randint(0, last), _WINDOW)
        if not hits and last:  # a filter allows fewer rows than the index has
            last //= 2
            continue
        tries -= 1
        for hit in hits:
            if hit.text and hit.text.strip():
                found.setdefault(hit.document_id, hit)
    return list(found.values())[:count]


def _title(passage: Passage) -> str:
    return " ".join((passage.title or "").split())


def _sentence(text: str, picker: random.Random) -> str:
    parts = [" ".join(part.split())[:_LONGEST] for part in _SENTENCE_END.split(text)]
    sentences = [part for part in parts if len(part) >= _SHORTEST]
    return picker.choice(sentences) if sentences else " ".join(text.split())[:_LONGEST]

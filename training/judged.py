"""Judged queries of a training, and what the index returns for them today.

What is learned is compared with the hits of these: nDCG@10 in the default mode, query by query.

Shapes: Q queries, D dimensions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scannery.client import Index, SearchOptions
from scannery.client.request.queries import QueryLike
from scannery.evaluation.judgements import Judgements, read_judgements, read_queries
from scannery.evaluation.measures import MAIN_MEASURE, measured_values, parse_measures
from scannery.indexer.traffic.texts import same_text
from scannery.pipelines.errors import CollectionError
from scannery.runtime.search_modes import Mode
from scannery.training.gate.decision import query_set_of
from scannery.training.spec import JudgedQueries

__all__ = ["AsQuery", "Judged", "Progress", "as_text", "judged_queries", "question_digest", "searched_gains"]

COMPARED_HITS = 10
"""Hits of an order: as many as nDCG@10 reads."""

Progress = Callable[[int, int], None]
"""Gets the number of finished steps and of all."""
AsQuery = Callable[[str], QueryLike]
"""Returns the query that is sent for a text: the text, or its words with a vector by a model that is not promoted."""


def question_digest(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal digits, without differences of case and blanks."""
    return hashlib.sha256(same_text(text).encode()).hexdigest()


def as_text(text: str) -> QueryLike:
    """Return a text itself, which the index encodes."""
    return text


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Judged queries, and how good the hits of today are."""

    texts: Mapping[str, str]
    """Texts by the id of the query, each text once."""
    judgements: Judgements
    """Levels by id of the query and judged key, of these queries."""
    passages: bool
    """Whether judged keys are ids of datapoints, not of documents."""
    current_Q: np.ndarray
    """nDCG@10 of the hits that the index returns today, float64."""

    @property
    def query_set(self) -> str:
        """SHA-256 of queries and judgements."""
        return query_set_of(self.texts, self.judgements)

    @property
    def questions(self) -> frozenset[str]:
        """`question_digest` of the queries."""
        return frozenset(map(question_digest, self.texts.values()))

    @property
    def relevant(self) -> dict[str, list[str]]:
        """Judged keys that answer each query, by its id; at least one."""
        return {
            name: [key for key, level in self.judgements[name].items() if level > 0] for name in self.texts
        }


def judged_queries(
    index: Index,
    spec: JudgedQueries,
    folder: Path,
    progress: Progress | None = None,
    *,
    fitted: frozenset[str] = frozenset(),
) -> Judged:
    """Return judged queries with how good an index answers them, each text once; those without a text are left out.

    Args:
        index: an open index.
        spec: the files.
        folder: that their paths are relative to.
        progress: gets the number of answered queries and of all.
        fitted: `Judged.questions` that a model is fitted to, which are left out: it is too good for them.

    Raises:
        InputNotFoundError: a file is not there.
        CollectionError: a file cannot be read, or no query that is left has a relevant document.

    """
    queries = {name: query.text for name, query in read_queries(folder / spec.queries).items() if query.text}
    new = {name: text for name, text in queries.items() if question_digest(text) not in fitted}
    if queries and not new:
        raise CollectionError(
            f"queries: all of {spec.queries} are among the queries that the model is fitted to",
            field="queries",
        )
    texts, judgements = _questions(new, read_judgements(folder / spec.qrels))
    if not texts:
        raise CollectionError(
            f"qrels: no query of {spec.queries} with a text has a relevant document; do the ids of both files match?",
            field="qrels",
        )
    gains_Q = searched_gains(index, texts, judgements, as_text, passages=spec.passages, progress=progress)
    return Judged(texts, judgements, spec.passages, gains_Q)


def searched_gains(
    index: Index,
    texts: Mapping[str, str],
    judgements: Judgements,
    as_query: AsQuery,
    *,
    passages: bool,
    progress: Progress | None = None,
    mode: Mode | None = None,
    vector_model: str | None = None,
    map_vectors: bool = False,
) -> np.ndarray:
    """Return nDCG@10 of the hits that an index returns for judged queries, float64 (Q,); options as of a search."""
    groups = None if passages else 1
    options: SearchOptions = {
        "fields": [],
        "max_per_group": groups,
        "mode": mode,
        "vector_model": vector_model,
        "map_vectors": map_vectors,
    }
    rankings = []
    for done, text in enumerate(texts.values(), 1):
        hits = index.search(as_query(text), COMPARED_HITS, **options)
        rankings.append([hit.id if passages else hit.document_id for hit in hits])
        if progress is not None:
            progress(done, len(texts))
    judged = {name: judgements[name] for name in texts}
    return measured_values(parse_measures([MAIN_MEASURE]), judged, rankings)[MAIN_MEASURE]


def _questions(queries: Mapping[str, str], judgements: Judgements) -> tuple[dict[str, str], Judgements]:
    """Return the queries with a relevant document, each text once, and their judgements.

    Queries whose texts differ in case or blanks only are one, with the judgements of all: of two, one would be fitted
    to while the other is held out, and an interval would be that of more queries than there are.
    """
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    merged: Judgements = {}
    for name, text in queries.items():
        levels = judgements.get(name, {})
        if any(level > 0 for level in levels.values()):
            first = names.setdefault(same_text(text), name)
            texts.setdefault(first, text)
            of_first = merged.setdefault(first, {})
            of_first |= {key: max(level, of_first.get(key, level)) for key, level in levels.items()}
    return texts, merged

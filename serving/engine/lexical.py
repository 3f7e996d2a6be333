"""Lexical search: the best rows of a snapshot by BM25, or by sparse vectors that users brought.

Statistics are those of all live rows of the snapshot, without the filter, so that a score does not depend on how the
index is sharded, on deleted rows, or on other queries.

Shapes: M rows that match, T terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from scannery.indexer import (
    Analyser,
    CorpusStatistics,
    LexicalSpec,
    Manifest,
    Postings,
    Segment,
    analyser_of,
    corpus_statistics,
    score_rows,
    score_sparse,
)
from scannery.runtime.errors import InvalidRequestError, LexicalUnavailableError
from scannery.serving.engine.query_vectors import Lookup, members_of
from scannery.serving.engine.top_k import EMPTY, Ranking, best
from scannery.serving.request.query import ById, ByText, Query, Single, WithSparse, WithWords
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = [
    "LexicalSearch",
    "QueryTerms",
    "WeightedTerms",
    "Words",
    "check_sparse",
    "postings_of",
    "query_words",
    "spec_of",
]


@dataclass(frozen=True, slots=True)
class WeightedTerms:
    """The words of a query, as rows are scored by them."""

    weights: Mapping[str, float]
    """Inverse document frequency times the weight in the query, in the order in which scores are added up."""
    average_length: float
    """Mean number of words of a row of the whole corpus."""

    @classmethod
    def of(cls, terms: QueryTerms, corpus: CorpusStatistics) -> WeightedTerms:
        """Return the words of a query with statistics that have its terms."""
        weights = {
            term: corpus.idf(term) * weight for term, weight in terms.items() if term in corpus.frequencies
        }
        return cls(weights, corpus.average_length)


QueryTerms: TypeAlias = Mapping[str, float]
"""How often a query has each term, in the order of the query; parts of its words of code weigh less."""
Words: TypeAlias = QueryTerms | WeightedTerms | WithSparse
"""What a query is searched by: terms without statistics, with them, or a sparse vector."""


def query_words(
    lookup: Lookup, manifest: Manifest, queries: Sequence[Query], mode: str, *, paths: Sequence[str]
) -> list[Words]:
    """Return what queries are searched by: terms, or a sparse vector.

    Args:
        lookup: finds the datapoints that queries name.
        manifest: of the index.
        queries: of any kind.
        mode: lexical or hybrid.
        paths: of the queries.

    Raises:
        LexicalUnavailableError: the index has no words.
        InvalidRequestError: a query is a vector, which has no words.
        UnknownDatapointError: a query names a datapoint that is not there.

    """
    if any(isinstance(query, WithSparse) for query in queries):
        check_sparse(manifest)
    if all(isinstance(query, WithSparse) for query in queries):
        return [query for query in queries if isinstance(query, WithSparse)]
    analyser = analyser_of(spec_of(manifest, mode))
    return [
        query if isinstance(query, WithSparse) else _weighted_terms(lookup, query, mode, path, analyser)
        for query, path in zip(queries, paths, strict=True)
    ]


class LexicalSearch:
    """Some queries, as terms or as sparse vectors, over one snapshot.

    Raises:
        LexicalUnavailableError: the index has no words.

    """

    def __init__(self, snapshot: Snapshot, words: Sequence[Words], mode: str) -> None:
        self._snapshot = snapshot
        self._words = list(words)
        self._postings: Sequence[Postings] = []
        if not all(isinstance(each, WithSparse) for each in words):
            self._postings = postings_of(snapshot, mode)
        check_not_cold(snapshot.manifest.index, snapshot.segments, mode)  # which lack sparse vectors, too

    def best(self, query: int, allowed: Sequence[tuple[int, np.ndarray | None]], limit: int) -> Ranking:
        """Return the best rows for a query, at most `limit`, by score and then by id, of those with any of its words.

        Args:
            query: its number.
            allowed: the segments to search by number, each with the mask of the rows that may be returned.
            limit: rows wanted.

        """
        words = self._words[query]
        if isinstance(words, WithSparse):
            return self._best_sparse(words, allowed, limit)
        if not isinstance(words, WeightedTerms):
            words = self._words[query] = self._weighted(words)
        if not words.weights:
            return EMPTY
        parts = [
            (number, *score_rows(self._postings[number], words.weights, words.average_length, mask))
            for number, mask in allowed
        ]
        return best(parts, limit, self._snapshot.segments)

    def best_score(self, query: int) -> float:
        """Return the score of the best row for a query without a filter; minus infinity if there is none."""
        everywhere = [
            (number, None if alive is None else alive.mask_N)
            for number, alive in enumerate(self._snapshot.alive)
        ]
        return float(max(self.best(query, everywhere, 1).scores, default=-np.inf))

    def _weighted(self, terms: QueryTerms) -> WeightedTerms:
        """Return the words of a query with the statistics of this snapshot, all of the corpus."""
        corpus = corpus_statistics(self._postings, list(terms), self._snapshot.alive)
        return WeightedTerms.of(terms, corpus)

    def _best_sparse(
        self, query: WithSparse, allowed: Sequence[tuple[int, np.ndarray | None]], limit: int
    ) -> Ranking:
        segments = self._snapshot.segments
        parts = [
            (number, *score_sparse(sparse, segments[number].rows, query.indices_T, query.values_T, mask))
            for number, mask in allowed
            if (sparse := segments[number].sparse) is not None
        ]
        return best(parts, limit, segments)


def check_sparse(manifest: Manifest) -> None:
    """Raise LexicalUnavailableError if an index has no sparse vectors."""
    if manifest.spec.source.sparse_vector is None:
        raise LexicalUnavailableError(
            f"query.sparse_vector: index {manifest.index!r} has no sparse vectors; build it with "
            "`source.sparse_vector`",
            field="query.sparse_vector",
        )


def spec_of(manifest: Manifest, mode: str) -> LexicalSpec:
    """Return how the words of an index are analysed; LexicalUnavailableError if it has none."""
    spec = manifest.spec.lexical
    if spec is None:
        raise LexicalUnavailableError(
            f"mode: index {manifest.index!r} has no words for {mode} search; build it with `lexical: true`",
            field="mode",
        )
    return spec


def check_not_cold(index: str, segments: Sequence[Segment], mode: str) -> None:
    """Raise LexicalUnavailableError if an index is served without its words and sparse vectors."""
    if any(segment.is_cold for segment in segments):
        raise LexicalUnavailableError(
            f"mode: index {index!r} is served cold (scannery serve --cold), without its words and sparse vectors: "
            f"it has no {mode} search; ask by vector (mode dense), or serve it without --cold",
            field="mode",
        )


def postings_of(snapshot: Snapshot, mode: str) -> list[Postings]:
    """Return the postings of each segment; LexicalUnavailableError if there are none."""
    spec_of(snapshot.manifest, mode)
    check_not_cold(snapshot.manifest.index, snapshot.segments, mode)
    postings = [segment.postings for segment in snapshot.segments if segment.postings is not None]
    if len(postings) < len(snapshot.segments):
        raise LexicalUnavailableError(
            f"mode: index {snapshot.manifest.index!r} was built before words were kept, and has none for {mode} "
            "search; build it again",
            field="mode",
        )
    return postings


def _weighted_terms(
    lookup: Lookup, query: Query, mode: str, path: str, analyser: Analyser
) -> dict[str, float]:
    """Return the weight of each term in a query; of a blend, the weighted mean of its members."""
    if isinstance(query, WithWords):
        return analyser.query_terms(query.text)
    weighted: dict[str, float] = {}
    members = members_of(query, path)
    least = min(weight for _, weight, _ in members)
    if least <= 0:
        raise InvalidRequestError.at(
            f"{path}.group.weights", f"must be above 0 for {mode} search, got {least:g}"
        )
    total = sum(weight for _, weight, _ in members)
    for member, weight, member_path in members:
        for term, count in analyser.query_terms(_text(lookup, member, mode, member_path)).items():
            weighted[term] = weighted.get(term, 0.0) + count * weight / total
    return weighted


def _text(lookup: Lookup, query: Single, mode: str, path: str) -> str:
    if isinstance(query, ByText):
        return query.text
    if not isinstance(query, ById):
        raise InvalidRequestError.at(path, f"{mode} search needs a text, a vector has no words")
    return lookup.searched_text(*lookup.require(query.id, path=path))

"""Lexical search: the best rows of a snapshot by BM25, or by sparse vectors that users brought.

Statistics are those of all live rows of the snapshot (`Snapshot.words`), without the filter, so that a score does not
depend on how the index is sharded, on deleted rows, or on other queries.

Shapes: M rows that match, T terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from scannery.indexer import (
    AllowedRows,
    Analyser,
    CorpusStatistics,
    LexicalSpec,
    Manifest,
    QueryText,
    SearchSpec,
    Segment,
    Synonyms,
    WeightedTerms,
    WordIndex,
    WordMatches,
    WordSearch,
    analyser_of,
    score_sparse,
    weighted_terms,
)
from scannery.indexer.lexical import term_patterns
from scannery.runtime.errors import InvalidRequestError, LexicalUnavailableError
from scannery.runtime.retry import Deadline
from scannery.serving.engine.query_vectors import Lookup, members_of
from scannery.serving.engine.top_k import EMPTY, Ranking, best
from scannery.serving.request.options import Options
from scannery.serving.request.query import ById, ByText, Query, Single, WithSparse, WithWords
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats

__all__ = [
    "LexicalSearch",
    "Words",
    "check_sparse",
    "query_words",
    "snapshot_corpus",
    "spec_of",
    "synonyms_of",
    "texts_of",
    "word_index",
]


Words: TypeAlias = WeightedTerms | WithSparse
"""What a query is searched by: terms with their weights, or a sparse vector."""


def query_words(
    lookup: Lookup,
    manifest: Manifest,
    queries: Sequence[Query],
    options: Options,
    corpus: Callable[[Sequence[str]], CorpusStatistics],
    stats: QueryStats,
    *,
    paths: Sequence[str],
) -> list[Words]:
    """Return what queries are searched by: weighted terms, or a sparse vector.

    Args:
        lookup: finds the datapoints that queries name.
        manifest: of the index.
        queries: of any kind.
        options: with mode lexical or hybrid.
        corpus: returns the statistics of all live rows for some terms.
        stats: where words that stand for others are recorded.
        paths: of the queries.

    Raises:
        LexicalUnavailableError: the index has no words.
        InvalidRequestError: a query is a vector, which has no words.
        UnknownDatapointError: a query names a datapoint that is not there.

    """
    by_sparse = [isinstance(query, WithSparse) for query in queries]
    if any(by_sparse):
        check_sparse(manifest)
    if all(by_sparse):
        return [query for query in queries if isinstance(query, WithSparse)]
    analyser = analyser_of(spec_of(manifest, options.mode))
    texts = [
        texts_of(lookup, query, options.mode, path)
        for query, path in zip(queries, paths, strict=True)
        if not isinstance(query, WithSparse)
    ]
    synonyms = synonyms_of(manifest.spec.search, analyser)
    terms = iter(weighted_terms(texts, analyser, corpus, options.expansion, synonyms))
    words = [query if isinstance(query, WithSparse) else next(terms) for query in queries]
    if stats.explained:
        stats.expanded |= {
            path: each.expanded
            for path, each in zip(paths, words, strict=True)
            if isinstance(each, WeightedTerms)
        }
    return words


TITLE_CHARACTERS = 200
"""Characters of a title that a ranker knows; more are a text, whose words would take time and memory."""


class TextFeatures(NamedTuple):
    """What a learned ranker knows of the titles of rows, and of their places in documents."""

    title_shares_R: np.ndarray
    """Shares of the words of their titles that the query has, float64; 0 where a row has no title."""
    starts_R: np.ndarray
    """Characters of their documents before them, float64; 0 where that is not known."""


@lru_cache(maxsize=1 << 14)
def _title_terms(analyser: Analyser, title: str | None) -> frozenset[str]:
    """Return the terms of a title, kept: queries share candidates."""
    title = title or ""
    if len(title) > TITLE_CHARACTERS:  # half a word is none that a query has
        title = title.rpartition(" ")[0] or title
    return frozenset(analyser.terms(title))


def _share(terms: Set[str], patterns: Sequence[str], title: frozenset[str]) -> float:
    """Return the share of the terms of a title that are among some terms and patterns; 0 if it has none."""
    shared = terms & title
    if patterns:
        more = title - shared
        shared |= {term for term in more if any(term_patterns.matches(each, term) for each in patterns)}
    return len(shared) / (len(title) or 1)


class LexicalSearch:
    """Some queries, as terms or as sparse vectors, over one snapshot.

    Raises:
        LexicalUnavailableError: the index has no words.

    """

    def __init__(self, snapshot: Snapshot, words: Sequence[Words], mode: str, *, weigh: bool) -> None:
        """Prepare; `weigh`: `matches` are wanted, too."""
        self._snapshot, self._weigh = snapshot, weigh
        self._words = list(words)
        self._searches: dict[int, WordSearch] = {}
        by_words = any(isinstance(each, WeightedTerms) for each in words)
        self._index = word_index(snapshot, mode) if by_words else None
        check_not_cold(snapshot.manifest.index, snapshot.segments, mode)  # which lack sparse vectors, too

    def of(self, query: int) -> Words:
        """Return what a query is searched by, by its number."""
        return self._words[query]

    def best(self, query: int, allowed: Sequence[tuple[int, AllowedRows | None]], limit: int) -> Ranking:
        """Return the best rows for a query, at most `limit`, by score and then by id, of those with any of its words.

        Args:
            query: its number.
            allowed: the segments to search by number, each with the rows that may be returned; None: all.
            limit: rows wanted.

        """
        words = self._words[query]
        if isinstance(words, WithSparse):
            return self._best_sparse(words, allowed, limit)
        if not words.weights:
            return EMPTY
        search = self._search(query)
        parts = [(number, *search.best(number, limit, rows)) for number, rows in allowed]
        return best(parts, limit, self._snapshot.segments)

    def matches(self, query: int, numbers_R: np.ndarray, rows_R: np.ndarray) -> WordMatches:
        """Return what rows have of the words of a query, which has no sparse vector.

        Args:
            query: its number.
            numbers_R: number of the segment of each row, int64.
            rows_R: the row in that segment, int64.

        """
        return self._search(query).matches(numbers_R, rows_R)

    def texts(self, query: int, numbers_R: np.ndarray, rows_R: np.ndarray) -> TextFeatures:
        """Return what a learned ranker knows of the titles and places of rows; the arguments are those of `matches`."""
        words, shares_R, starts_R = self._words[query], np.zeros(len(rows_R)), np.zeros(len(rows_R))
        assert isinstance(words, WeightedTerms)
        analyser, terms = analyser_of(spec_of(self._snapshot.manifest, "hybrid")), [*words.weights]
        # A word with synonyms is one pattern of all of them.
        patterns = [terms[position] for position in term_patterns.patterns_among(terms)]
        for number in np.unique(numbers_R).tolist():
            is_here_R = numbers_R == number
            segment, rows_H = self._snapshot.segments[number], rows_R[is_here_R]
            starts_R[is_here_R] = np.maximum(segment.text_starts[rows_H], 0)
            titles = segment.titles(rows_H, TITLE_CHARACTERS + 1)
            # Most candidates share their title with others.
            shares = {
                title: _share(words.weights.keys(), patterns, _title_terms(analyser, title))
                for title in {*titles}
            }
            shares_R[is_here_R] = [shares[title] for title in titles]
        return TextFeatures(shares_R, starts_R)

    def _search(self, query: int) -> WordSearch:
        """Return the search by the words of a query, made once."""
        search = self._searches.get(query)
        if search is None:
            words = self._words[query]
            assert isinstance(words, WeightedTerms)
            assert self._index is not None
            search = self._searches[query] = self._index.search(words, weigh=self._weigh)
        return search

    def best_score(self, query: int) -> float:
        """Return the score of the best row for a query without a filter; minus infinity if there is none."""
        return float(max(self.best(query, [*enumerate(self._snapshot.alive)], 1).scores, default=-np.inf))

    def _best_sparse(
        self, query: WithSparse, allowed: Sequence[tuple[int, AllowedRows | None]], limit: int
    ) -> Ranking:
        segments, parts = self._snapshot.segments, []
        for number, rows in allowed:
            if (sparse := segments[number].sparse) is not None:
                mask_N = None if rows is None else rows.mask_N
                scored = score_sparse(sparse, segments[number].rows, query.indices_T, query.values_T, mask_N)
                parts.append((number, *scored))
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


def word_index(snapshot: Snapshot, mode: str) -> WordIndex:
    """Return the words of an index; LexicalUnavailableError if it has none."""
    spec_of(snapshot.manifest, mode)
    check_not_cold(snapshot.manifest.index, snapshot.segments, mode)
    words = snapshot.words
    if words is None:
        raise LexicalUnavailableError(
            f"mode: index {snapshot.manifest.index!r} was built before words were kept, and has none for {mode} "
            "search; build it again",
            field="mode",
        )
    return words


def snapshot_corpus(
    snapshot: Snapshot, mode: str, deadline: Deadline, terms: Sequence[str]
) -> CorpusStatistics:
    """Return the statistics of all live rows for some terms and patterns.

    Raises:
        LexicalUnavailableError: the index has no words.
        DeadlineError: the deadline passed.

    """
    deadline.check()
    return word_index(snapshot, mode).statistics(terms)


def synonyms_of(search: SearchSpec, analyser: Analyser) -> Synonyms | None:
    """Return the rules of an index, the same for equal ones; None: there are none."""
    return _synonyms(tuple(search.synonyms), analyser) if search.synonyms else None


_synonyms = lru_cache(maxsize=16)(Synonyms)


def texts_of(lookup: Lookup, query: Query, mode: str, path: str) -> list[QueryText]:
    """Return the texts that a query is searched by."""
    if isinstance(query, WithWords):
        return [QueryText(query.text, 1.0)]
    members = members_of(query, path)
    least = min(weight for _, weight, _ in members)
    if least <= 0:
        raise InvalidRequestError.at(
            f"{path}.group.weights", f"must be above 0 for {mode} search, got {least:g}"
        )
    return [_text(lookup, member, weight, mode, member_path) for member, weight, member_path in members]


def _text(lookup: Lookup, query: Single, weight: float, mode: str, path: str) -> QueryText:
    if isinstance(query, ByText):
        return QueryText(query.text, weight)
    if not isinstance(query, ById):
        raise InvalidRequestError.at(path, f"{mode} search needs a text, a vector has no words")
    return QueryText(lookup.searched_text(*lookup.require(query.id, path=path)), weight, is_typed=False)

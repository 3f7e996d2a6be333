"""The words of a query that are marked in the texts of its hits, and where they are.

A word of a text matches if the analyser of the index gives it a term of the query: other forms of a word, other
accents, and compounds with it match, too. An index without words is taken as if it had those of its hits' language.

Function words ("the", "of") are marked only if the query has no others. Of Chinese and Japanese, pairs of characters
are marked, not single ones that are part of a longer run: nearly every text has some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final, get_args

import regex

from scannery.embed.text.language import MOST_CHARS, UNKNOWN, function_words, language_of
from scannery.indexer import Analyser, CorpusStatistics, Language, LexicalSpec, Manifest
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.engine.lexical import analyser_of
from scannery.serving.engine.query_vectors import members_of
from scannery.serving.request.query import ByText, Query, WithWords

__all__ = ["Places", "QueryWords", "texts_of_query", "words_of_query"]

MAX_WORDS: Final = 1_000
"""Of one hit."""
NEWEST: Final = 4
"""The analyser of indexes without words."""
_HAN = regex.compile(r"[\p{Han}]")
_STEMMED = frozenset(get_args(Language))


@dataclass(frozen=True, slots=True)
class Places:
    """Where a text has words of a query."""

    spans: list[tuple[int, int]]
    """First character and one past the last, in order and apart; at most MAX_WORDS."""
    found: list[tuple[int, str]]
    """Where each term of the query begins, in order, with repetitions."""


@dataclass(frozen=True, slots=True)
class QueryWords:
    """The terms of a query that are marked, with their weights."""

    analyser: Analyser
    weights: Mapping[str, float]
    language: str | None
    """Of the query and its hits, where the spec names it or it was told by them."""

    def places(self, text: str) -> Places:
        """Return where a text has these terms."""
        weights = self.weights
        found: list[tuple[int, str]] = []
        spans: list[tuple[int, int]] = []
        if weights:
            for terms, start, end in self.analyser.places(text):
                for term in terms:
                    if term in weights:
                        found.append((start, term))
                        spans.append((start, end))
        return Places(list(islice(_merged(sorted(spans)), MAX_WORDS)), sorted(found))

    def gain(self, terms: Iterable[str]) -> float:
        """Return the sum of the weights of distinct terms."""
        return sum(self.weights[term] for term in set(terms))


def texts_of_query(query: Query, path: str) -> list[tuple[str, float]]:
    """Return the texts of a query with their weights, above 0; InvalidRequestError if it has none."""
    if isinstance(query, WithWords):
        return [(query.text, 1.0)]
    texts = [
        (member.text, weight)
        for member, weight, _ in members_of(query, path)
        if isinstance(member, ByText) and weight > 0
    ]
    if not texts:
        raise InvalidRequestError.at("highlight", f"{path} must be a text, or a group that has one")
    return texts


def words_of_query(
    texts: Sequence[tuple[str, float]],
    manifest: Manifest,
    samples: Iterable[str],
    corpus: Callable[[Sequence[str]], CorpusStatistics | None],
) -> QueryWords:
    """Return the words of a query.

    Args:
        texts: of the query, with their weights.
        manifest: of the index.
        samples: texts of the hits, by which a language is told that no spec names.
        corpus: returns the statistics of terms; None: the index has no words.

    """
    spec = manifest.spec.lexical
    language = spec.language if spec else "none"
    if language == "none":
        sample = "\n".join([*samples, *(text for text, _ in texts)])
        language = language_of(sample[:MOST_CHARS])  # type: ignore[assignment]  # those that Snowball lacks are told below
    analyser = analyser_of(spec or _default_spec(language))
    known = "english" if language == "porter" else language
    weights = _weighted(texts, analyser, _function_terms(analyser, known))
    return QueryWords(
        analyser, _with_idf(weights, corpus(list(weights))), None if known == UNKNOWN else known
    )


def _weighted(
    texts: Sequence[tuple[str, float]], analyser: Analyser, ignored: frozenset[str]
) -> dict[str, float]:
    """Return the terms of some texts, each with the weight of its text, or of its part of a word."""
    kept: dict[str, float] = {}
    rest: dict[str, float] = {}
    for text, weight in texts:
        places, own = list(analyser.places(text)), analyser.query_terms(text)
        paired = {place for _, start, end in places if end - start == 2 for place in (start, end - 1)}
        for terms, start, end in places:
            is_part = end - start == 1 and start in paired and _HAN.match(text[start])
            for term in () if is_part else terms:
                into = rest if term in ignored else kept
                into[term] = max(into.get(term, 0.0), weight * min(own[term], 1.0))
    return kept or rest


def _with_idf(weights: dict[str, float], corpus: CorpusStatistics | None) -> dict[str, float]:
    if corpus is None:
        return weights
    # Terms that no row has match nothing, but a passage may have changed while the query ran.
    return {
        term: weight * (corpus.idf(term) if term in corpus.frequencies else 1.0)
        for term, weight in weights.items()
    }


@lru_cache(maxsize=64)
def _default_spec(language: str) -> LexicalSpec:
    known = language if language in _STEMMED and language != UNKNOWN else "none"
    return LexicalSpec.model_validate({"language": known, "analyser": NEWEST, "compounds": False})


@lru_cache(maxsize=64)
def _function_terms(analyser: Analyser, language: str) -> frozenset[str]:
    words = function_words(language)
    return frozenset(term for word in words for term in analyser.terms(word))


def _merged(spans: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Yield sorted spans, those that overlap as one: pairs of characters do."""
    latest: tuple[int, int] | None = None
    for start, end in spans:
        if latest is not None and start < latest[1]:
            latest = latest[0], max(latest[1], end)
            continue
        if latest is not None:
            yield latest
        latest = start, end
    if latest is not None:
        yield latest

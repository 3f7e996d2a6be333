"""Expansion of the words of a query by the dictionary of an index: typing errors, beginnings of words, synonyms.

**Typing errors.** A word that no row has stands for the words of the dictionary that differ from it by an edit: a
letter that is inserted, left out or replaced, or two adjacent ones that are swapped; if there are none and it is long,
for those that differ by two (word_variants.py). The first letter always counts. Words that a row has and words with
synonyms stay as they are, and so do numbers, words with digits or signs, and words of code.

**Beginnings.** The last word of a query may be the beginning of a word. It stands for all terms that begin so, and for
shorter stems of words that do ("eruptio": "erupt"). If it is a word itself, the others count half.

**Synonyms** are rules of the spec (synonyms.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, NamedTuple

from scannery.indexer.lexical import term_patterns
from scannery.indexer.lexical.analyser import Analyser, QueryWord
from scannery.indexer.lexical.bm25 import CorpusStatistics
from scannery.indexer.lexical.synonyms import Synonyms, WordSynonyms
from scannery.indexer.lexical.word_variants import (
    beginning_pattern,
    may_have_typo,
    neighbours,
    two_edits_pattern,
)

__all__ = ["NO_EXPANSION", "Expansion", "QueryText", "WeightedTerms", "weighted_terms"]

MAX_TEXT_CHARACTERS: Final = 2_000
"""Most characters of a text whose words are expanded: longer ones are pasted, and have words enough."""
BATCH_WORDS: Final = 16
"""Words with typing errors that are looked up at once: some 8 ms of work for Latin words, at most 200 ms."""
PREFIX_WEIGHT: Final = 0.5
"""Weight of the words that begin as a word does that is itself in the dictionary."""
MIN_SHARE: Final = 0.1
"""Least share of the rows of the most frequent word among those that a typing error stands for."""


class QueryText(NamedTuple):
    """One of the texts that a query is searched by."""

    text: str
    weight: float
    """Weight among the texts of the query, above 0."""
    is_typed: bool = True
    """Whether a person wrote it, so that its words may be expanded; False: it is a text of the index."""


Corpus = Callable[[Sequence[str]], CorpusStatistics]
"""Returns the statistics of all rows for some terms and patterns."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """Which words of a query are expanded."""

    typos: bool = True
    """Whether words that no row has stand for similar ones."""
    prefix: bool = False
    """Whether the last word is the beginning of a word."""


NO_EXPANSION = Expansion(typos=False)


@dataclass(frozen=True, slots=True)
class WeightedTerms:
    """The words of a query, as rows are scored by them."""

    weights: Mapping[str, float]
    """Weights by term or pattern: inverse document frequency times the weight in the query. Scores are added up in this
    order."""
    average_length: float
    """Mean number of words of a row of the whole corpus."""
    highest_score: float = 0.0
    """Score that rows approach which have all words of the query often, those that no row has included."""
    expanded: Mapping[str, str] = field(default_factory=dict)
    """Patterns of the words that were expanded, by word; alternatives of several words have spaces."""
    average_document_length: float = 0.0
    """Mean number of words of a document of the whole corpus; 0: rows are scored by their own words alone."""

    @classmethod
    def of(
        cls,
        terms: Mapping[str, float],
        query: Mapping[str, float],
        corpus: CorpusStatistics,
        expanded: Mapping[str, str],
    ) -> WeightedTerms:
        """Return the terms and patterns of a query with statistics that have them; `query`: those without synonyms."""
        weights = {
            term: corpus.idf(term) * weight for term, weight in terms.items() if corpus.frequency(term)
        }
        highest = sum(corpus.idf(term) * weight for term, weight in query.items())
        return cls(weights, corpus.average_length, highest, expanded, corpus.average_document_length)


def weighted_terms(
    queries: Sequence[Sequence[QueryText]],
    analyser: Analyser,
    corpus: Corpus,
    expansion: Expansion = NO_EXPANSION,
    synonyms: Synonyms | None = None,
) -> list[WeightedTerms]:
    """Return the weighted terms and patterns of some queries.

    Args:
        queries: texts of each query.
        analyser: of the index.
        corpus: returns statistics; it is asked once for all queries, and again for every BATCH_WORDS words that have
            typing errors. It may raise, to end a request whose time is over.
        expansion: which words are expanded.
        synonyms: rules of the index.

    """
    expanders = [_QueryExpander(texts, analyser, expansion, synonyms) for texts in queries]
    terms = [term for each in expanders for term in each.terms]
    if not terms:
        return [WeightedTerms({}, 1.0)] * len(expanders)
    statistics = corpus(terms)
    similar: dict[str, _Similar] = {}
    if expansion.typos and statistics.rows:
        unknown = {word.text: word for each in expanders for word in each.unknown(statistics)}
        for words in _batches(list(unknown.values())):
            similar |= _similar_terms(words, analyser, corpus)
    return [each.weighted(statistics, similar) for each in expanders]


class _QueryExpander:
    """The words of one query, and what they stand for."""

    def __init__(
        self, texts: Sequence[QueryText], analyser: Analyser, expansion: Expansion, synonyms: Synonyms | None
    ) -> None:
        total = sum(each.weight for each in texts)
        self._analyser = analyser
        self._words: list[QueryWord] = []
        self._synonyms: list[WordSynonyms] = []
        self._beginning, self._begun = -1, ""
        """Number of the word that may be the beginning of one, and the pattern of these; -1: there is none."""
        for text, weight, is_typed in texts:
            first, expands = len(self._words), is_typed and len(text) <= MAX_TEXT_CHARACTERS
            words = analyser.query_words(text) if expands else _fixed_words(analyser, text)
            self._words += [word._replace(weight=word.weight * weight / total) for word in words]
            if expands and synonyms is not None:
                self._synonyms += (_moved(each, first) for each in synonyms.of(words))
            if expands and expansion.prefix:
                self._add_beginning(words, first, len(text))
        self.terms = [term for word in self._words for term in word.terms]
        """Terms and patterns whose statistics are needed."""
        self.terms += [*term_patterns.alternatives_of(self._begun)] if self._begun else []
        self.terms += [term for each in self._synonyms for terms in each.alternatives for term in terms]
        self._kept = {number for each in self._synonyms for number in each.numbers}
        """Words with synonyms, which are no typing errors."""

    def _add_beginning(self, words: Sequence[QueryWord], first: int, end: int) -> None:
        for number, word in enumerate(words, first):
            pattern = beginning_pattern(self._analyser, word) if word.end == end else None
            if pattern is not None:
                self._beginning, self._begun = number, pattern

    def unknown(self, corpus: CorpusStatistics) -> list[QueryWord]:
        """Return the words that no row has, and that may have a typing error."""
        return [
            word
            for number, word in enumerate(self._words)
            if not _is_known(word, corpus)
            and number not in self._kept
            and not self._begins(number, corpus)
            and may_have_typo(self._analyser, word)
        ]

    def weighted(self, corpus: CorpusStatistics, similar: Mapping[str, _Similar]) -> WeightedTerms:
        """Return the weighted terms; `similar` has what words with typing errors stand for."""
        weights: dict[str, float] = {}
        expanded: dict[str, list[str]] = {}
        frequencies: dict[str, int] = {}
        same = {each.numbers[0]: each.one_word for each in self._synonyms}
        for number, word in enumerate(self._words):
            patterns = [term_patterns.any_of([word.terms[0], *same.get(number, ())]), *word.terms[1:]]
            is_known = any(map(corpus.frequency, patterns))
            if self._begins(number, corpus):
                _add(weights, [self._begun], word.weight * (PREFIX_WEIGHT if is_known else 1.0))
                expanded.setdefault(word.text, []).append(self._begun)
                patterns = patterns if is_known else []
            elif not is_known and number not in self._kept and not word.in_code and word.text in similar:
                patterns = [similar[word.text].pattern]
                expanded.setdefault(word.text, []).append(patterns[0])
                frequencies |= similar[word.text].frequencies
            _add(weights, patterns, word.weight)
        query = dict(weights)
        for each in self._synonyms:
            total = sum(self._words[number].weight for number in each.numbers)
            for terms in each.several_words:
                _add(weights, terms, total / len(terms))
            stems = [self._words[number].terms[0] for number in each.numbers] if each.one_word else []
            expanded.setdefault(each.text, []).extend([*stems, each.label])
        if frequencies:
            corpus = replace(corpus, frequencies={**corpus.frequencies, **frequencies})
        labels = {word: term_patterns.any_of(patterns) for word, patterns in expanded.items()}
        return WeightedTerms.of(weights, query, corpus, labels)

    def _begins(self, number: int, corpus: CorpusStatistics) -> bool:
        """Return whether a word is the beginning of some words that rows have."""
        return number == self._beginning and corpus.frequency(self._begun) > 0


def _fixed_words(analyser: Analyser, text: str) -> list[QueryWord]:
    """Return the terms of a text as words that are not expanded, in a tenth of the time of `Analyser.query_words`."""
    terms = analyser.query_terms(text).items()
    return [QueryWord(term, (term,), weight, 0, 0, in_code=True) for term, weight in terms]


def _moved(synonyms: WordSynonyms, by: int) -> WordSynonyms:
    """Return synonyms of words whose numbers are higher."""
    return replace(synonyms, numbers=tuple(number + by for number in synonyms.numbers))


def _is_known(word: QueryWord, corpus: CorpusStatistics) -> bool:
    return not corpus.frequencies.keys().isdisjoint(word.terms)


def _add(weights: dict[str, float], patterns: Sequence[str], weight: float) -> None:
    for pattern in patterns:
        weights[pattern] = weights.get(pattern, 0.0) + weight


@dataclass(frozen=True, slots=True)
class _Similar:
    """What a word with a typing error stands for."""

    pattern: str
    frequencies: Mapping[str, int]
    """Number of rows by alternative of the pattern."""


def _batches(words: Sequence[QueryWord]) -> Iterator[Sequence[QueryWord]]:
    return (words[start : start + BATCH_WORDS] for start in range(0, len(words), BATCH_WORDS))


def _similar_terms(words: Sequence[QueryWord], analyser: Analyser, corpus: Corpus) -> dict[str, _Similar]:
    """Return what words stand for by word; words without similar terms are left out."""
    near = {word.text: neighbours(analyser, word.text) for word in words}
    far = {word.text: pattern for word in words if (pattern := two_edits_pattern(analyser, word)) is not None}
    patterns = dict.fromkeys(chain(chain.from_iterable(near.values()), far.values()))
    frequencies = corpus(list(patterns)).frequencies
    similar = {}
    for word, stems in near.items():
        counts = {stem: frequencies[stem] for stem in stems if stem in frequencies}
        if not counts and far.get(word) in frequencies:
            counts = {far[word]: frequencies[far[word]]}
        if counts:
            least = MIN_SHARE * max(counts.values())
            counts = {pattern: count for pattern, count in counts.items() if count >= least}
            similar[word] = _Similar(term_patterns.any_of(counts), counts)
    return similar

"""Expansion of the words of a query by the dictionary of an index: typing errors, beginnings of words, synonyms.

**Typing errors.** A word that no row has stands for the words of the dictionary that differ from it by an edit: a
letter that is inserted, left out or replaced, or two adjacent ones that are swapped. Words from EDIT_LETTERS letters
may have one edit, from TWO_EDITS_LETTERS two, if no word is one edit away; the first letter always counts. Words that a
row has stay as they are, and so do numbers, words with digits or signs, and words of code.

The dictionary of an index has stems. So words one edit away are made and stemmed, which finds them whatever their
endings ("eruptin" is an edit from "eruption", whose stem is "erupt"). With two edits there are too many: the stem of
the word is compared with those of the dictionary.

**Beginnings.** The last word of a query may be the beginning of a word. It stands for all terms that begin so, and for
shorter stems of words that do ("eruptio": "erupt"). If it is a word itself, the others count half.

**Synonyms** are rules of the spec. A word that is replaced by one word becomes both of them, as one term. Where one of
both sides has several words, the other side is added, each of its words with a part of the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

import regex

from scannery.indexer.lexical import term_patterns
from scannery.indexer.lexical.analyser import Analyser, QueryWord
from scannery.indexer.lexical.bm25 import CorpusStatistics

__all__ = ["NO_EXPANSION", "Expansion", "QueryText", "Synonyms", "WeightedTerms", "weighted_terms"]

EDIT_LETTERS: Final = 4
"""Least letters of a word that may have an edit."""
TWO_EDITS_LETTERS: Final = 8
"""Least letters of a word that may have two."""
MAX_LETTERS: Final = 32
"""Most letters of a word that may have an edit, which bounds the words that are made."""
MAX_TEXT_CHARACTERS: Final = 2_000
"""Most characters of a text whose words are expanded: longer ones are pasted, and have words enough."""
BATCH_WORDS: Final = 64
"""Words with typing errors that are looked up at once: about 30 ms of work, and 25,000 terms."""
MIN_PREFIX_LETTERS: Final = 2
"""Least letters of the beginning of a word: with one, a tenth of the dictionary would be one term."""
PREFIX_WEIGHT: Final = 0.5
"""Weight of the words that begin as a word does that is itself in the dictionary."""
_LETTERS: Final = regex.compile(r"[\p{L}\p{M}]+")
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
    expanded: Mapping[str, str] = field(default_factory=dict)
    """Patterns of the words that were expanded, by word; alternatives of several words have spaces."""

    @classmethod
    def of(
        cls, terms: Mapping[str, float], corpus: CorpusStatistics, expanded: Mapping[str, str]
    ) -> WeightedTerms:
        """Return the terms and patterns of a query with statistics that have them."""
        weights = {
            term: corpus.idf(term) * weight for term, weight in terms.items() if corpus.frequency(term)
        }
        return cls(weights, corpus.average_length, expanded)


class Synonyms:
    """The rules of an index, as its words are analysed.

    A rule is `tv, television` (each side also finds the others) or `nyc, big apple => new york` (texts before the arrow
    also find those after it).
    """

    def __init__(self, rules: Sequence[str], analyser: Analyser) -> None:
        """Analyse the rules; they are valid (`LexicalSpec.synonyms`)."""
        self._by_stem: dict[str, dict[tuple[str, ...], list[tuple[str, ...]]]] = {}
        for rule in rules:
            left, _, right = rule.partition("=>")
            sides = [[_stems(analyser, text) for text in side.split(",")] for side in (left, right or left)]
            for terms in filter(None, sides[0]):
                alternatives = [other for other in sides[1] if other and other != terms]
                self._by_stem.setdefault(terms[0], {}).setdefault(terms, []).extend(alternatives)
        self._longest = max((len(terms) for rules in self._by_stem.values() for terms in rules), default=0)

    def of(self, words: Sequence[QueryWord]) -> Iterator[WordSynonyms]:
        """Yield the synonyms of the words of a query, those of the most words first; no word is in two of them."""
        stems, start = [word.terms[0] for word in words], 0
        while start < len(words):
            rules = self._by_stem.get(stems[start], {})
            sizes = range(min(self._longest, len(words) - start), 0, -1)
            size = next((size for size in sizes if tuple(stems[start : start + size]) in rules), 0)
            if size:
                alternatives = dict.fromkeys(rules[tuple(stems[start : start + size])])
                single = [terms for terms in alternatives if size == len(terms) == 1]
                several = [terms for terms in alternatives if terms not in single]
                if single:
                    yield WordSynonyms(start, size, single, is_word=True)
                if several:
                    yield WordSynonyms(start, size, several, is_word=False)
            start += size or 1


@dataclass(frozen=True, slots=True)
class WordSynonyms:
    """What some adjacent words of a query also stand for."""

    first: int
    """Number of the first word."""
    size: int
    """Number of the words."""
    alternatives: Sequence[tuple[str, ...]]
    """Terms of each text that they stand for."""
    is_word: bool
    """Whether this is one word, and all alternatives are."""

    def pattern(self, stem: str) -> str:
        """Return the pattern of a word, given by its stem, and its alternatives."""
        return term_patterns.any_of([stem, *(term for terms in self.alternatives for term in terms)])

    def text(self, words: Sequence[QueryWord]) -> str:
        """Return the words of the query."""
        return " ".join(word.text for word in words[self.first : self.first + self.size])

    @property
    def label(self) -> str:
        """The alternatives as `explain` shows them."""
        return term_patterns.any_of(" ".join(terms) for terms in self.alternatives)

    def add_to(self, weights: dict[str, float], words: Sequence[QueryWord]) -> None:
        """Add the terms of the alternatives; each alternative has the weight of the words that it stands for."""
        total = sum(word.weight for word in words[self.first : self.first + self.size])
        for terms in self.alternatives:
            _add(weights, terms, total / len(terms))


def _stems(analyser: Analyser, text: str) -> tuple[str, ...]:
    return tuple(word.terms[0] for word in analyser.query_words(text) if not word.in_code)


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
    if expansion.typos and statistics.documents:
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
        self._words: list[QueryWord] = []
        self._synonyms: list[WordSynonyms] = []
        self._beginning = -1
        """Number of the last word, where it may be the beginning of one; -1: there is none."""
        for text, weight, is_typed in texts:
            first, expands = len(self._words), is_typed and len(text) <= MAX_TEXT_CHARACTERS
            words = analyser.query_words(text) if expands else _fixed_words(analyser, text)
            self._words += [word._replace(weight=word.weight * weight / total) for word in words]
            if expands and synonyms is not None:
                self._synonyms += (replace(each, first=first + each.first) for each in synonyms.of(words))
            if expands and expansion.prefix:
                at_end = [number for number, word in enumerate(words, first) if _may_be_beginning(word, text)]
                self._beginning = max(at_end, default=-1)
        self._begun = ""
        if self._beginning >= 0:
            self._begun = _beginning_pattern(analyser, self._words[self._beginning].text)
        self.terms = [term for word in self._words for term in word.terms]
        """Terms and patterns whose statistics are needed."""
        self.terms += [*term_patterns.alternatives_of(self._begun)] if self._begun else []
        self.terms += [term for each in self._synonyms for terms in each.alternatives for term in terms]

    def unknown(self, corpus: CorpusStatistics) -> list[QueryWord]:
        """Return the words that no row has, and that may have a typing error."""
        return [
            word
            for number, word in enumerate(self._words)
            if may_have_typo(word) and not _is_known(word, corpus) and not self._begins(number, corpus)
        ]

    def weighted(self, corpus: CorpusStatistics, similar: Mapping[str, _Similar]) -> WeightedTerms:
        """Return the weighted terms; `similar` has what words with typing errors stand for."""
        weights: dict[str, float] = {}
        expanded: dict[str, str] = {}
        frequencies: dict[str, int] = {}
        same = {each.first: each for each in self._synonyms if each.is_word}
        for number, word in enumerate(self._words):
            is_known, patterns = _is_known(word, corpus), list(word.terms)
            if number in same:
                patterns[0] = expanded[word.text] = same[number].pattern(patterns[0])
            if self._begins(number, corpus):
                _add(weights, [self._begun], word.weight * (PREFIX_WEIGHT if is_known else 1.0))
                expanded[word.text] = self._begun
                patterns = patterns if is_known else []
            elif not is_known and not word.in_code and word.text in similar:
                patterns = [similar[word.text].pattern]
                expanded[word.text] = patterns[0]
                frequencies |= similar[word.text].frequencies
            _add(weights, patterns, word.weight)
        for each in self._synonyms:
            if not each.is_word:
                each.add_to(weights, self._words)
                expanded[each.text(self._words)] = each.label
        if frequencies:
            corpus = replace(corpus, frequencies={**corpus.frequencies, **frequencies})
        return WeightedTerms.of(weights, corpus, expanded)

    def _begins(self, number: int, corpus: CorpusStatistics) -> bool:
        """Return whether a word is the beginning of some words that rows have."""
        return number == self._beginning and corpus.frequency(self._begun) > 0


def _fixed_words(analyser: Analyser, text: str) -> list[QueryWord]:
    """Return the terms of a text as words that are not expanded, in a tenth of the time of `Analyser.query_words`."""
    terms = analyser.query_terms(text).items()
    return [QueryWord(term, (term,), weight, 0, in_code=True) for term, weight in terms]


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
    far = {
        word.text: term_patterns.similar(word.terms[0], 2)
        for word in words
        if len(word.text) >= TWO_EDITS_LETTERS and len(word.terms[0]) <= MAX_LETTERS
    }
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


def may_have_typo(word: QueryWord) -> bool:
    """Return whether a word that no row has may be another one with an error."""
    is_short = not EDIT_LETTERS <= len(word.text) <= MAX_LETTERS
    return not word.in_code and not is_short and _LETTERS.fullmatch(word.text) is not None


def _may_be_beginning(word: QueryWord, text: str) -> bool:
    return word.end == len(text) and not word.in_code and len(word.text) >= MIN_PREFIX_LETTERS


def _beginning_pattern(analyser: Analyser, beginning: str) -> str:
    """Return the pattern of the terms of all words that begin so."""
    plain = analyser.plain_word(beginning)
    return term_patterns.any_of([term_patterns.prefix(plain), *_shorter_stems(analyser, plain)])


@lru_cache(maxsize=256)
def _shorter_stems(analyser: Analyser, beginning: str) -> tuple[str, ...]:
    """Return the stems that do not begin as their words do, of words with one or two more letters."""
    letters = _letters_of(analyser, beginning)
    longer = [beginning + first + second for first in letters for second in ("", *letters)]
    return tuple(sorted(stem for stem in analyser.distinct_stems(longer) if not stem.startswith(beginning)))


@lru_cache(maxsize=256)
def neighbours(analyser: Analyser, word: str) -> tuple[str, ...]:
    """Return the stems of the words that are an edit from a word, and have its first letter."""
    plain = analyser.plain_word(word)
    return tuple(sorted(analyser.distinct_stems({*_edited(plain, _letters_of(analyser, plain))} - {plain})))


def _edited(word: str, letters: str) -> Iterator[str]:
    for at in range(1, len(word) + 1):
        before, after = word[:at], word[at:]
        yield from [before + letter + after for letter in letters]
        if after:
            yield before + after[1:]
            yield from [before + letter + after[1:] for letter in letters]
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]


def _letters_of(analyser: Analyser, word: str) -> str:
    """Return the letters of a word's script, as stems have them: of the blocks of 128 characters with its letters."""
    return "".join(
        _letters_of_block(analyser, block) for block in sorted({ord(letter) >> 7 for letter in word})
    )


@lru_cache(maxsize=256)
def _letters_of_block(analyser: Analyser, block: int) -> str:
    letters = map(chr, range(block << 7, (block + 1) << 7))
    return "".join(
        letter for letter in letters if _LETTERS.fullmatch(letter) and analyser.plain_word(letter) == letter
    )

"""Texts to terms, so that "Volcanoes" in a query matches "volcano" in a passage.

The steps: Unicode normalisation and case folding, words by Unicode's segmentation (UAX #29), removal of stop words,
Snowball stems. Documents and queries are analysed alike. Terms of documents are stored, so a change of the steps is a
new version, and an index keeps its version.

Version 1: NFKC and lower case. Version 2: NFKC and case folding (ß is ss, ς is σ); invisible characters (soft hyphens,
word joiners) and the vowel signs of Arabic and Hebrew are removed; scripts without spaces between words (Thai, Lao,
Khmer, Burmese) give pairs of adjacent syllables. Version 3: as 2, and accents of Latin and Greek letters are removed,
so that "cafe" finds "café"; runs of Chinese and Japanese characters give each Han character and each pair of adjacent
characters, Korean words each pair of syllables. Version 4: as 3, and words of code and of networks are found whole with
their signs (C++, .NET, AT&T, @handle, #tag, emoji) and by their parts (getUserById, snake_case, Node.js), see
code_words.py. These are additional terms, besides those of version 3: they do not make a text longer, and in a query
all parts of a word weigh half as much as the word.

If the spec has a list of `compounds`, a compound also gives the stems of its parts (compounds.py), in every version.

All functions take time linear in the text.
"""

from __future__ import annotations

import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Final

import regex

from scannery.indexer.lexical.code_words import code_words
from scannery.indexer.lexical.compounds import CompoundSplitter, Stem, costs_of
from scannery.indexer.lexical.word_places import word_places
from scannery.indexer.lexical.words import MAX_WORD_CHARACTERS, normalised, words_of
from scannery.indexer.spec.spec import LexicalSpec

__all__ = ["ANALYSER_VERSION", "Analyser", "stem_of"]

ANALYSER_VERSION: Final = 4
"""The newest version; `LexicalSpec.version` is that of an index."""

_ACCENTS = regex.compile(r"(?V1)([\p{Latin}\p{Greek}])\p{M}++")
# Letters that do not decompose into another letter and an accent. Russian words are often written without ё.
_PLAIN_LETTERS = str.maketrans(
    {"ø": "o", "đ": "d", "ł": "l", "ı": "i", "ħ": "h", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th", "ё": "е"}
)

_MAX_CACHED = 1 << 18

_PARTS_WEIGHT: Final = 0.5
"""Weight in a query of all parts of a word of code. A row with the word has its parts, too, so with half of the weight
rows with the word come before those with many of its parts."""

_Place = tuple[tuple[str, ...], int, int]


class Analyser:
    """Turns texts into terms. Safe to use from several threads."""

    def __init__(self, spec: LexicalSpec) -> None:
        """Prepare the stop words.

        Args:
            spec: language, stop words, version and parts of compounds.

        """
        self._language = None if spec.language == "none" else spec.language
        self._version = spec.version
        self._parts = _costs(spec.language, spec.compound_parts, spec.version)
        self._local = threading.local()
        # Stop words are normalised like the words that they are compared with, but not stemmed.
        self._stop_words = frozenset(
            word for text in spec.stop_words for word in words_of(text, self._version)
        )

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in order, with repetitions."""
        return [*self._terms_of(words_of(text, self._version)), *self._additional(text)]

    def counts(self, text: str) -> tuple[Counter[str], int]:
        """Return how often a text has each term, and its length: the number of terms without additional ones."""
        terms = self._terms_of(words_of(text, self._version))
        counts = Counter(terms)
        counts.update(self._additional(text))
        return counts, len(terms)

    def query_terms(self, text: str) -> dict[str, float]:
        """Return the weight of each term in a query, in their order: its occurrences, those of parts for less."""
        code = list(self._code_places(text))
        if not code:
            return {term: float(count) for term, count in Counter(self.terms(text)).items()}
        base = list(self._located(word_places(text, self._version)))
        weights: dict[str, float] = {}
        for (terms, _, _), weight in zip(chain(base, code), _place_weights(base, code), strict=True):
            for term in terms:
                weights[term] = weights.get(term, 0.0) + weight
        return weights

    def places(self, text: str) -> Iterator[_Place]:
        """Yield the terms of each word, and where it is in the text as given: first character, one past the last.

        Together they are `terms(text)`. Words of scripts without spaces overlap: each pair of characters is one; so do
        words of code and their parts.
        """
        yield from self._located(word_places(text, self._version))
        yield from self._code_places(text)

    def _additional(self, text: str) -> list[str]:
        return [term for terms, _, _ in self._code_places(text) for term in terms]

    def _code_places(self, text: str) -> Iterator[_Place]:
        words = code_words(text) if self._version > 3 else ()
        return self._located(
            (normalised(word, self._version)[:MAX_WORD_CHARACTERS], start, end) for word, start, end in words
        )

    def _located(self, words: Iterable[tuple[str, int, int]]) -> Iterator[_Place]:
        own = self._of_thread()
        for word, start, end in words:
            terms = own.cache.get(word)
            yield self._kept_terms(word, own) if terms is None else terms, start, end

    def _terms_of(self, words: Iterable[str]) -> list[str]:
        own = self._of_thread()
        found: list[str] = []
        for word in words:
            terms = own.cache.get(word)
            found += self._kept_terms(word, own) if terms is None else terms
        return found

    def _kept_terms(self, word: str, own: _OfThread) -> tuple[str, ...]:
        terms = self._terms(word, own)
        # The cache is bounded by its number of entries, so these must be small.
        if len(word) <= MAX_WORD_CHARACTERS:
            own.cache[word] = terms
        return terms

    def _terms(self, word: str, own: _OfThread) -> tuple[str, ...]:
        """Return the terms of a word, none for a stop word; those of a compound's parts follow its own."""
        if word in self._stop_words:
            return ()
        terms = self._stems(word, own.stem)
        for part in own.splitter.split(word) if own.splitter else ():
            terms += self._stems(part, own.stem)
        return terms

    def _stems(self, word: str, stem: Stem) -> tuple[str, ...]:
        if self._version < 3 or word.isascii():
            return (stem(word),)
        # Stemmers know words with their accents, and people type words without: both stems are terms, without accents.
        both = _without_accents(stem(word)), stem(_without_accents(word))
        return tuple(dict.fromkeys(both))

    def _of_thread(self) -> _OfThread:
        # A stemmer has state, so each thread has its own.
        local = self._local
        if not hasattr(local, "own"):
            local.own = _OfThread(self._language, self._parts)
        elif len(local.own.cache) > _MAX_CACHED:
            local.own.cache.clear()
        own: _OfThread = local.own
        return own


class _OfThread:
    """What each thread has of an analyser: a stemmer, and the terms of the words that it has met."""

    def __init__(self, language: str | None, parts: Mapping[str, float]) -> None:
        self.stem = stem_of(language)
        self.splitter = CompoundSplitter(parts, self.stem) if parts else None
        self.cache: dict[str, tuple[str, ...]] = {}


def _place_weights(base: list[_Place], code: list[_Place]) -> list[float]:
    """Return the weight of each place of a query: 1, and _PARTS_WEIGHT together for those inside a word of code."""
    places = [*base, *code]
    outer = {}
    whole = -1
    for number in sorted(range(len(places)), key=lambda number: (places[number][1], -places[number][2])):
        # Pairs of characters of scripts without spaces contain words of one character; both are words of their own.
        is_part = whole >= 0 and places[number][2] <= places[whole][2] and max(number, whole) >= len(base)
        if is_part:
            outer[number] = whole
        elif whole < 0 or places[number][2] > places[whole][2]:
            whole = number
    parts = Counter(outer.values())
    return [_PARTS_WEIGHT / parts[outer[number]] if number in outer else 1.0 for number in range(len(places))]


def _without_accents(word: str) -> str:
    plain: str = _ACCENTS.sub(r"\1", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", plain).translate(_PLAIN_LETTERS)


def stem_of(language: str | None) -> Stem:
    """Return a new stemmer of a language, for one thread; for None or `none`, one that returns each word as it is."""
    if language is None or language == "none":
        return str
    import Stemmer  # only if an index has words

    # No cache: that of `Analyser` also saves the call.
    stem: Stem = Stemmer.Stemmer(language, 0).stemWord
    return stem


@lru_cache(maxsize=16)
def _costs(language: str, lines: tuple[str, ...], version: int) -> Mapping[str, float]:
    """Return `costs_of`; kept, since live updates make an analyser for each batch."""
    if not lines:
        return {}
    # A list that a user wrote can have capitals.
    return costs_of([" ".join(words_of(line, version)) for line in lines], stem_of(language))

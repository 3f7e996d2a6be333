"""Texts to terms, so that "Volcanoes" in a query matches "volcano" in a passage.

The steps: Unicode normalisation and case folding, words by Unicode's segmentation (UAX #29), removal of stop words,
Snowball stems. Documents and queries are analysed alike. Terms of documents are stored, so a change of the steps is a
new version, and an index keeps its version.

Version 1: NFKC and lower case. Version 2: NFKC and case folding (ß is ss, ς is σ); invisible characters (soft hyphens,
word joiners) and the vowel signs of Arabic and Hebrew are removed; scripts without spaces between words (Thai, Lao,
Khmer, Burmese) give pairs of adjacent syllables. Version 3: as 2, and accents of Latin and Greek letters are removed,
so that "cafe" finds "café"; runs of Chinese and Japanese characters give each Han character and each pair of adjacent
characters, Korean words each pair of syllables.

If the spec has a list of `compounds`, a compound also gives the stems of its parts (compounds.py), in every version.

All functions take time linear in the text.
"""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

import regex

from scannery.indexer.lexical.compounds import CompoundSplitter, Stem, costs_of
from scannery.indexer.lexical.word_places import word_places
from scannery.indexer.lexical.words import MAX_WORD_CHARACTERS, words_of
from scannery.indexer.spec.spec import LexicalSpec

__all__ = ["ANALYSER_VERSION", "Analyser", "stem_of"]

ANALYSER_VERSION: Final = 3
"""The newest version; `LexicalSpec.version` is that of an index."""

_ACCENTS = regex.compile(r"(?V1)([\p{Latin}\p{Greek}])\p{M}++")
# Letters that do not decompose into another letter and an accent. Russian words are often written without ё.
_PLAIN_LETTERS = str.maketrans(
    {"ø": "o", "đ": "d", "ł": "l", "ı": "i", "ħ": "h", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th", "ё": "е"}
)

_MAX_CACHED = 1 << 18


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
        own = self._of_thread()
        found: list[str] = []
        for word in words_of(text, self._version):
            terms = own.cache.get(word)
            found += self._kept_terms(word, own) if terms is None else terms
        return found

    def places(self, text: str) -> Iterator[tuple[tuple[str, ...], int, int]]:
        """Yield the terms of each word, and where it is in the text as given: first character, one past the last.

        Together they are `terms(text)`. Words of scripts without spaces overlap: each pair of characters is one.
        """
        own = self._of_thread()
        for word, start, end in word_places(text, self._version):
            terms = own.cache.get(word)
            yield self._kept_terms(word, own) if terms is None else terms, start, end

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

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
from itertools import pairwise
from typing import Final

import regex

from scannery.indexer.lexical.compounds import CompoundSplitter, Stem, costs_of
from scannery.indexer.spec.spec import LexicalSpec

__all__ = ["ANALYSER_VERSION", "Analyser", "stem_of", "words_of"]

ANALYSER_VERSION: Final = 3
"""The newest version; `LexicalSpec.version` is that of an index."""

MAX_WORD_CHARACTERS = 128
"""Longest word, others are cut: longer ones are base64 and similar, and only enlarge the vocabulary."""

MAX_MARKS = 30
"""Most combining marks per character, as in Unicode's stream-safe format; others are removed. Normalisation sorts
marks, in time quadratic in their number."""

_MARK = r"[\p{M}\uff9e\uff9f]"
_MARKS = regex.compile(rf"(?V1)(?<!{_MARK})({_MARK}{{{MAX_MARKS}}}){_MARK}++")
# All but the zero-width space, which ends a word.
_UNSEEN = regex.compile(r"(?V1)[\p{Default_Ignorable_Code_Point}--\u200b]+")
_VOWEL_SIGNS = regex.compile(
    r"[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]+"
)

# `w` makes \b Unicode's word boundary: "can't", "3.14" and "U.S.A" are one word each, and so is every ideograph.
_WORD = regex.compile(r"(?V1w)\b\w.*?\b")
_UNSPACED = r"[[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]&&[\p{L}\p{M}\p{N}]]"
_WORD_OR_RUN = regex.compile(rf"(?V1w){_UNSPACED}++|\b\w.*?\b")
_RUN = regex.compile(rf"(?V1){_UNSPACED}")
_IDEOGRAPHIC = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3005-\u3007\u30fc]"
_WORD_RUN_OR_IDEOGRAPHS = regex.compile(rf"(?V1w){_UNSPACED}++|{_IDEOGRAPHIC}++|\b\w.*?\b")
_PAIRED = regex.compile(rf"(?V1){_UNSPACED}|{_IDEOGRAPHIC}|\p{{Hangul}}")
_HAN = regex.compile(r"(?V1)[\p{Han}\u3005-\u3007]")
_HANGUL = regex.compile(r"(?V1)\p{Hangul}++")
_ACCENTS = regex.compile(r"(?V1)([\p{Latin}\p{Greek}])\p{M}++")
# Letters that do not decompose into another letter and an accent. Russian words are often written without ё.
_PLAIN_LETTERS = str.maketrans(
    {"ø": "o", "đ": "d", "ł": "l", "ı": "i", "ħ": "h", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th", "ё": "е"}
)
_SYLLABLE = regex.compile(r"(?V1)\P{M}\p{M}*+|\p{M}++")
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
            if terms is None:
                terms = self._terms(word, own)
                # The cache is bounded by its number of entries, so these must be small.
                if len(word) <= MAX_WORD_CHARACTERS:
                    own.cache[word] = terms
            found += terms
        return found

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


def words_of(text: str, version: int) -> Iterator[str]:
    """Yield the words of a text in order, cut to MAX_WORD_CHARACTERS."""
    plain = text.lower() if text.isascii() else (_lowered if version == 1 else _folded)(text)
    plain = plain.replace("\u2019", "'")
    if version > 2:
        yield from _words_and_pairs(plain)
        return
    # Looked for once in the text: most texts have none, and a match per word is a third of the time.
    has_runs = version > 1 and not plain.isascii() and _RUN.search(plain) is not None
    for word in (_WORD if version == 1 else _WORD_OR_RUN).findall(plain):
        if has_runs and not word.isascii() and _RUN.match(word):
            yield from _pairs(word)
        else:
            yield word[:MAX_WORD_CHARACTERS]


def _words_and_pairs(plain: str) -> Iterator[str]:
    """Yield the words of a normalised text, with the pairs of scripts that have no spaces between words."""
    has_pairs = not plain.isascii() and _PAIRED.search(plain) is not None
    for word in (_WORD_RUN_OR_IDEOGRAPHS if has_pairs else _WORD).findall(plain):
        if not has_pairs or word.isascii() or not _PAIRED.match(word):
            yield word[:MAX_WORD_CHARACTERS]
        elif _RUN.match(word):
            yield from _pairs(word)
        elif _HANGUL.fullmatch(word):
            yield from _adjacent(word)
        elif _HANGUL.match(word):
            yield word[:MAX_WORD_CHARACTERS]
        else:
            # Single Han characters are words of their own, single kana hardly ever.
            yield from _HAN.findall(word) if len(word) > 1 else ()
            yield from _adjacent(word)


def _adjacent(run: str) -> Iterator[str]:
    """Yield each pair of adjacent characters of a run; the character if there is only one."""
    if len(run) == 1:
        yield run
    for one, two in pairwise(run):
        yield one + two


def _lowered(text: str) -> str:
    return unicodedata.normalize("NFKC", _few_marks(text)).lower()


def _folded(text: str) -> str:
    seen = _UNSEEN.sub("", unicodedata.normalize("NFKC", _few_marks(text)))
    folded = _VOWEL_SIGNS.sub("", seen).casefold()
    # Case folding can undo the normal form, and removing characters can join marks.
    return unicodedata.normalize("NFKC", _few_marks(folded))


def _without_accents(word: str) -> str:
    plain: str = _ACCENTS.sub(r"\1", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", plain).translate(_PLAIN_LETTERS)


def _few_marks(text: str) -> str:
    kept: str = _MARKS.sub(r"\1", text)
    return kept


def _pairs(run: str) -> Iterator[str]:
    """Yield each pair of adjacent syllables of a run; the syllable if there is only one."""
    syllables = [syllable[:MAX_WORD_CHARACTERS] for syllable in _SYLLABLE.findall(run)]
    if len(syllables) == 1:
        yield syllables[0]
    for one, two in pairwise(syllables):
        yield (one + two)[:MAX_WORD_CHARACTERS]


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

"""Text to terms: what makes "Volcanoes" in a query match "volcano" in a passage.

Normal form and case folded away, words as Unicode segments them (UAX #29), stop words out, stems by Snowball. Documents
and queries take the same way; the terms of documents are stored, so a change here is a new version, and an index keeps
the one it was made with.

Version 1: NFKC and lower case. Version 2: NFKC and case folding (ß is ss, ς is σ); without characters that are not seen
(soft hyphens, word joiners) and without the vowel signs of Arabic and Hebrew; scripts that set no spaces between words
(Thai, Lao, Khmer, Burmese) as pairs of neighbouring syllables.

Everything takes time linear in the text.
"""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import regex

from scannery.indexer.spec.spec import LexicalSpec

__all__ = ["ANALYSER_VERSION", "Analyser", "words_of"]

ANALYSER_VERSION: Final = 2
"""The newest; that of an index is `LexicalSpec.version`."""

MAX_WORD_CHARACTERS = 128
"""Longer words are cut: they are base64 and the like, and would only swell the vocabulary."""

MAX_MARKS = 30
"""Combining marks that a character keeps, as in Unicode's stream-safe format: normalisation sorts them, and takes time
quadratic in their number."""

_MARK = r"[\p{M}\uff9e\uff9f]"
_MARKS = regex.compile(rf"(?V1)(?<!{_MARK})({_MARK}{{{MAX_MARKS}}}){_MARK}++")
# A zero-width space stays, since it ends a word.
_UNSEEN = regex.compile(r"(?V1)[\p{Default_Ignorable_Code_Point}--\u200b]+")
_VOWEL_SIGNS = regex.compile(
    r"[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]+"
)

# `w` makes \b the word boundary of Unicode: "can't", "3.14" and "U.S.A" are one word, ideographs are one each.
_WORD = regex.compile(r"(?V1w)\b\w.*?\b")
_UNSPACED = r"[[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]&&[\p{L}\p{M}\p{N}]]"
_WORD_OR_RUN = regex.compile(rf"(?V1w){_UNSPACED}++|\b\w.*?\b")
_RUN = regex.compile(rf"(?V1){_UNSPACED}")
_SYLLABLE = regex.compile(r"(?V1)\P{M}\p{M}*+|\p{M}++")
_MAX_CACHED = 1 << 18


class Analyser:
    """Turns texts into terms. Safe to use from several threads."""

    def __init__(self, spec: LexicalSpec) -> None:
        self._language = None if spec.language == "none" else spec.language
        self._version = spec.version
        self._local = threading.local()
        # Stop words go by the same way as the words that they are compared with, up to the stem.
        self._stop_words = frozenset(
            word for text in spec.stop_words for word in words_of(text, self._version)
        )

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in their order, repeated as often as they occur."""
        cache, stemmer = self._stemming()
        found = []
        for word in words_of(text, self._version):
            term = cache.get(word)
            if term is None:
                term = self._term(word, stemmer)
                # The bound is on entries, so these must be small.
                if len(word) <= MAX_WORD_CHARACTERS:
                    cache[word] = term
            if term:
                found.append(term)
        return found

    def _term(self, word: str, stemmer: Any) -> str:
        """Return the term of a word, empty if it is none."""
        if word in self._stop_words:
            return ""
        return str(stemmer.stemWord(word)) if stemmer else word

    def _stemming(self) -> tuple[dict[str, str], Any]:
        # A stemmer has state, so every thread has its own.
        local = self._local
        if not hasattr(local, "cache"):
            local.cache = {}
            local.stemmer = _stemmer(self._language)
        elif len(local.cache) > _MAX_CACHED:
            local.cache.clear()
        return local.cache, local.stemmer


def words_of(text: str, version: int) -> Iterator[str]:
    """Yield the words of a text in their order, none longer than MAX_WORD_CHARACTERS."""
    plain = text.lower() if text.isascii() else (_lowered if version == 1 else _folded)(text)
    plain = plain.replace("\u2019", "'")
    for word in (_WORD if version == 1 else _WORD_OR_RUN).findall(plain):
        if version > 1 and not word.isascii() and _RUN.match(word):
            yield from _pairs(word)
        else:
            yield word[:MAX_WORD_CHARACTERS]


def _lowered(text: str) -> str:
    return unicodedata.normalize("NFKC", _few_marks(text)).lower()


def _folded(text: str) -> str:
    seen = _UNSEEN.sub("", unicodedata.normalize("NFKC", _few_marks(text)))
    folded = _VOWEL_SIGNS.sub("", seen).casefold()
    # Folding can take a text out of its normal form, and what was apart can stand side by side now.
    return unicodedata.normalize("NFKC", _few_marks(folded))


def _few_marks(text: str) -> str:
    kept: str = _MARKS.sub(r"\1", text)
    return kept


def _pairs(run: str) -> Iterator[str]:
    """Yield each two neighbouring syllables of a run; one that is alone, by itself."""
    syllables = [syllable[:MAX_WORD_CHARACTERS] for syllable in _SYLLABLE.findall(run)]
    if len(syllables) == 1:
        yield syllables[0]
    for one, two in pairwise(syllables):
        yield (one + two)[:MAX_WORD_CHARACTERS]


def _stemmer(language: str | None) -> Any:
    if language is None:
        return None
    import Stemmer  # only where words are asked for

    return Stemmer.Stemmer(language, 0)  # no cache: ours spares the call, too

"""Text to terms: what makes "Volcanoes" in a query match "volcano" in a passage.

NFKC and lower case, words as Unicode segments them (UAX #29), stop words out, stems by Snowball. Documents and queries
take the same way; the terms of documents are stored, so a change here needs a new `ANALYSER_VERSION`.
"""

from __future__ import annotations

import threading
import unicodedata
from typing import Any

import regex

from scannery.indexer.spec import LexicalSpec

__all__ = ["ANALYSER_VERSION", "Analyser"]

ANALYSER_VERSION = 1
"""Stored with the terms of a segment."""

MAX_WORD_CHARACTERS = 128
"""Longer words are cut: they are base64 and the like, and would only swell the vocabulary."""

# `w` makes \b the word boundary of Unicode: "can't", "3.14" and "U.S.A" are one word, ideographs are one each.
_WORD = regex.compile(r"(?V1w)\b\w.*?\b")
_MAX_CACHED = 1 << 18


class Analyser:
    """Turns texts into terms. Safe to use from several threads."""

    def __init__(self, spec: LexicalSpec) -> None:
        self._language = None if spec.language == "none" else spec.language
        self._local = threading.local()
        # Stop words go by the same way as the words that they are compared with, up to the stem.
        self._stop_words = frozenset(word for text in spec.stop_words for word in _words(text))

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in their order, repeated as often as they occur."""
        cache, stemmer = self._stemming()
        found = []
        for word in _words(text):
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
        word = word[:MAX_WORD_CHARACTERS]
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


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'")
    words: list[str] = _WORD.findall(plain)
    return words


def _stemmer(language: str | None) -> Any:
    if language is None:
        return None
    import Stemmer  # only where words are asked for

    return Stemmer.Stemmer(language, 0)  # no cache: ours spares the call, too

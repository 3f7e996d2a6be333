"""Phrases: words in order, which stand next to each other in a title or a text, or nearly so.

Segments keep which words a row has, and not where. So a phrase is looked for in two steps: the rows that have all of
its words, from the postings, and of these those whose title or text has them in order, read again by the analyser.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from scannery.indexer.lexical.analyser import Analyser

__all__ = ["MAX_KEPT_WORDS", "Phrase", "PhraseFinder", "PhraseWord"]

MAX_KEPT_WORDS = 1 << 17
"""Words of texts that a finder remembers, some 10 MB: texts may have any number of distinct ones, such as numbers."""


@dataclass(frozen=True, slots=True)
class PhraseWord:
    """A word of a phrase, or a pair of characters of a script without spaces."""

    position: int
    """Number of the word in the phrase, from 0; words of one position stand together in a text, too."""
    terms: tuple[str, ...]
    """Terms that stand for it: any of them."""
    is_indexed: bool
    """Whether postings have these terms; they have none of stop words."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words in order, as the analyser of an index reads them. Immutable, hashable."""

    analyser: Analyser
    words: tuple[PhraseWord, ...]
    """Words by position; at least one is indexed."""
    slop: int
    """Other words that may stand between these, in all."""

    @property
    def length(self) -> int:
        """Number of words, or of characters of scripts without spaces."""
        return self.words[-1].position + 1

    @property
    def size_bytes(self) -> int:
        """Memory besides the analyser, which the index has anyway."""
        terms = (term for word in self.words for term in word.terms)
        return sum(map(sys.getsizeof, (self, self.words, *self.words, *terms)))

    @classmethod
    def of(cls, analyser: Analyser, text: str, slop: int = 0) -> Phrase | None:
        """Return the phrase of a text; None if it has no word that is indexed."""
        pairs = sorted(zip(*reversed(analyser.numbered_words(text)), strict=True))
        words = [
            PhraseWord(position, analyser.stems_of(word), bool(analyser.terms_of(word)))
            for position, word in dict.fromkeys(pairs)
        ]
        return cls(analyser, tuple(words), slop) if any(word.is_indexed for word in words) else None


class PhraseFinder:
    """Tells which texts have a phrase. For one thread."""

    def __init__(self, phrase: Phrase) -> None:
        """Read no text yet."""
        self._analyser, self._slop = phrase.analyser, phrase.slop
        # A phrase may have a word several times, and a text may have it often.
        self._terms = [*dict.fromkeys(word.terms for word in phrase.words)]
        self._matches = _Matches(phrase.analyser, self._terms)
        by_position = groupby(phrase.words, key=lambda word: word.position)
        self._groups = [[self._terms.index(word.terms) for word in words] for _, words in by_position]

    def is_in(self, text: str) -> bool:
        """Return whether a text has the phrase."""
        words, numbers = self._analyser.numbered_words(text)
        positions: list[set[int]] = [set() for _ in self._terms]
        for number, matches in zip(numbers, map(self._matches.__getitem__, words), strict=True):
            for match in matches:
                positions[match].add(number)
        if not all(positions):
            return False
        ordered = [sorted(set.intersection(*(positions[match] for match in group))) for group in self._groups]
        return all(ordered) and _is_near(ordered, self._slop)


class _Matches(dict[str, tuple[int, ...]]):
    """For words that were met, the numbers of those of some alternative terms of which each has any."""

    def __init__(self, analyser: Analyser, terms: Sequence[tuple[str, ...]]) -> None:
        super().__init__()
        self._analyser, self._terms = analyser, terms

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= MAX_KEPT_WORDS:
            self.clear()
        terms = {*(self._analyser.terms_of(word) or self._analyser.stems_of(word))}
        numbers = [number for number, each in enumerate(self._terms) if not terms.isdisjoint(each)]
        self[word] = matches = tuple(numbers)
        return matches


def _is_near(positions: Sequence[Sequence[int]], slop: int) -> bool:
    """Return whether positions of all words, ascending for each, can be chosen in order with few others between."""
    for first in positions[0]:
        last = first
        # The nearest word is the best choice, whatever follows.
        for following in positions[1:]:
            nearest = bisect_left(following, last + 1)
            if nearest == len(following):
                return False  # nor behind any later first word
            last = following[nearest]
        if last - first - (len(positions) - 1) <= slop:
            return True
    return False

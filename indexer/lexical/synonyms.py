"""Synonyms: rules by which words of a query also find others.

A rule is `tv, television` (each text also finds the others) or `nyc, big apple => new york` (texts before the arrow
also find those after it). A text is one word or several; words of code are words (`c++, cplusplus`). Of Chinese and
Japanese, texts are pairs of characters, as in lexical search.

Where a word and its synonym are one word each, both are one term of the query. Else the synonym is added: each of its
words has a part of the weight of the words that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from scannery.indexer.lexical import term_patterns
from scannery.indexer.lexical.analyser import Analyser, QueryWord
from scannery.indexer.lexical.words import HAN
from scannery.indexer.spec.spec import synonym_sides

__all__ = ["Synonyms", "WordSynonyms"]

MAX_ALTERNATIVES: Final = 64
"""Most texts that some words also stand for, of all rules together."""

_Terms = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WordSynonyms:
    """What some adjacent words of a query also stand for."""

    numbers: tuple[int, ...]
    """Numbers of the words in the query."""
    text: str
    """Text of the words, normalised."""
    alternatives: Sequence[_Terms]
    """Terms of each text that they stand for."""

    @property
    def one_word(self) -> list[str]:
        """The alternatives that count as one term with the word: one word in place of one."""
        return [terms[0] for terms in self.alternatives if len(self.numbers) == len(terms) == 1]

    @property
    def several_words(self) -> list[_Terms]:
        """The other alternatives."""
        return [terms for terms in self.alternatives if not len(self.numbers) == len(terms) == 1]

    @property
    def label(self) -> str:
        """The alternatives as `explain` shows them."""
        return term_patterns.any_of(" ".join(terms) for terms in self.alternatives)


class Synonyms:
    """The rules of an index, as its words are analysed."""

    def __init__(self, rules: Sequence[str], analyser: Analyser) -> None:
        """Analyse the rules; they are valid (`SearchSpec.synonyms`). Texts without words are left out."""
        self._sides: dict[_Terms, list[list[_Terms]]] = {}
        """Texts of the right side of each rule that has some terms on its left."""
        for rule in rules:
            terms, alternatives = (
                [*filter(None, (_terms_of(analyser, text) for text in side))] for side in synonym_sides(rule)
            )
            for each in terms:
                self._sides.setdefault(each, []).append(alternatives)
        self._longest = max(map(len, self._sides), default=0)
        self._firsts = {terms[0] for terms in self._sides}

    def of(self, words: Sequence[QueryWord]) -> Iterator[WordSynonyms]:
        """Yield what the words of a text also stand for, the most words first; no word is in two of them."""
        numbers, start = _whole_words(words), 0
        stems = [words[number].terms[0] for number in numbers]
        while start < len(stems):
            sizes = (
                range(min(self._longest, len(stems) - start), 0, -1) if stems[start] in self._firsts else ()
            )
            size = next((size for size in sizes if tuple(stems[start : start + size]) in self._sides), 0)
            if size:
                matched = tuple(numbers[start : start + size])
                text = " ".join(words[number].text for number in matched)
                if alternatives := self._alternatives(tuple(stems[start : start + size])):
                    yield WordSynonyms(matched, text, alternatives)
            start += size or 1

    def _alternatives(self, terms: _Terms) -> list[_Terms]:
        alternatives = dict.fromkeys(text for side in self._sides[terms] for text in side)
        alternatives.pop(terms, None)
        return list(alternatives)[:MAX_ALTERNATIVES]


def _terms_of(analyser: Analyser, text: str) -> _Terms:
    words = analyser.query_words(text)
    return tuple(words[number].terms[0] for number in _whole_words(words))


def _whole_words(words: Sequence[QueryWord]) -> list[int]:
    """Return the numbers of the words that are no part of another one, in their order in the text."""
    pairs = {word.start for word in words if word.end - word.start == 2}
    numbers = [
        number
        for number, word in enumerate(words)
        if word.weight == 1  # parts of a word of code weigh less
        and not (HAN.fullmatch(word.text) and ({word.start, word.start - 1} & pairs))
    ]
    return sorted(numbers, key=lambda number: (words[number].start, words[number].end))

"""Texts to terms: stems of words, and the parts of compound words.

A part is a word that also occurs by itself, as learned from texts of the index. Parts are compared by their stems:
inflected forms count, and linking elements ("Arbeit-s-markt") need no rules, because stemmers remove them. Of all ways
to split a word, that with the highest geometric mean of the parts' frequencies is taken, if this is not below the
word's own frequency (Koehn and Knight, "Empirical Methods for Compound Splitting", EACL 2003). Frequencies are
estimated from the rank, so a list of parts needs no numbers: it has lines of equally frequent words, the most frequent
ones first.

Figures: docs/benchmarks/lexical.md.

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

import math
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby
from typing import Final, Literal, NamedTuple

import regex

from scannery.indexer.lexical.words import (
    MAX_WORD_CHARACTERS,
    code_words,
    normalised,
    numbered_words,
    word_places,
    words_of,
)
from scannery.indexer.spec.spec import Language, LexicalSpec

__all__ = [
    "ANALYSER_VERSION",
    "MAX_PARTS",
    "Analyser",
    "CompoundSplitter",
    "QueryWord",
    "analyser_of",
    "chosen_parts",
    "costs_of",
    "stem_of",
]


MAX_PARTS = 10_000
"""Parts of an index, about 100 kB in each manifest. Without a limit, 34,000 parts gained .0008 nDCG@10 more."""
MIN_LETTERS = 4
"""Least letters of a part, and of its stem. With stems of three letters a third more words are split, for the same
nDCG@10."""
MAX_LETTERS = 64
"""Longer words are not split, so the time per word is bounded."""
MOST_IN_A_WORD = 4
_RANK_OFFSET = 10
"""The most frequent words differ less in frequency than their ranks (Mandelbrot)."""

_ROUNDING = 1e-9

Stem = Callable[[str], str]


class CompoundSplitter:
    """Splits words into parts. Not safe to use from several threads, like the stemmer."""

    def __init__(self, costs: Mapping[str, float], stem: Stem) -> None:
        """Keep both.

        Args:
            costs: of each stem that can be a part, from `costs_of`.
            stem: the stemmer.

        """
        self._costs = costs
        self._stem = stem

    def split(self, word: str) -> tuple[str, ...]:
        """Return the parts of a word as it has them, linking elements included; none if it is not a compound."""
        if not 2 * MIN_LETTERS <= len(word) <= MAX_LETTERS or not word.isalpha():
            return ()
        cuts = self._best(word)
        if cuts is None:
            return ()
        return tuple(word[start:end] for start, end in zip((0, *cuts), (*cuts, len(word)), strict=True))

    def _best(self, word: str) -> tuple[int, ...] | None:
        """Return where to cut a word: the ends of all parts but the last."""
        # By number of parts and end of the last one: the least sum of costs, and its cuts.
        reached: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
        best, least = None, self._cost(word) + _ROUNDING
        for count in range(1, MOST_IN_A_WORD + 1):
            reached = self._one_more(word, reached)
            if count > 1 and len(word) in reached:
                cost, cuts = reached[len(word)]
                if cost / count < least:
                    best, least = cuts[:-1], cost / count
        return best

    def _one_more(
        self, word: str, reached: Mapping[int, tuple[float, tuple[int, ...]]]
    ) -> dict[int, tuple[float, tuple[int, ...]]]:
        further: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (cost, cuts) in reached.items():
            for end in range(start + MIN_LETTERS, len(word) + 1):
                sum_ = cost + self._cost(word[start:end])
                if sum_ < further.get(end, (math.inf,))[0]:
                    further[end] = sum_, (*cuts, end)
        return further

    def _cost(self, part: str) -> float:
        return self._costs.get(self._stem(part), math.inf)


def chosen_parts(words: Mapping[str, int], stem: Stem, dictionary: Collection[str] = ()) -> list[str]:
    """Return the words to use as parts, one per stem, as `costs_of` takes them.

    Stems that occur in compounds come before others where there are more than MAX_PARTS.

    Args:
        words: how often each word occurs in texts.
        stem: the stemmer.
        dictionary: other words; each counts once.

    """
    counts: Counter[str] = Counter()
    best: dict[str, str] = {}
    word_counts = Counter(words) + Counter({*dictionary})
    for word, count in sorted(word_counts.items(), key=lambda item: (-item[1], item[0])):
        stemmed = stem(word) if word.isalpha() and len(word) <= MAX_LETTERS else ""
        if len(stemmed) >= MIN_LETTERS:
            counts[stemmed] += count
            best.setdefault(stemmed, word)
    order = sorted(counts, key=lambda part: (-counts[part], part))
    splitter = CompoundSplitter(_word_costs(_equally_frequent(order, counts)), stem)
    used = {stem(part) for word in words for part in splitter.split(word)}
    kept = {*sorted(order, key=lambda part: part not in used)[:MAX_PARTS]}
    lines = _equally_frequent([part for part in order if part in kept], counts)
    return [" ".join(best[part] for part in line) for line in lines]


def costs_of(lines: Sequence[str], stem: Stem) -> dict[str, float]:
    """Return the cost of each part by its stem, minus the logarithm of its estimated frequency.

    Args:
        lines: equally frequent words each, separated by spaces; the most frequent ones first.
        stem: the stemmer.

    """
    return _word_costs([stem(word) for word in line.split()] for line in lines)


def _equally_frequent(parts: Iterable[str], counts: Mapping[str, int]) -> list[list[str]]:
    return [list(line) for _, line in groupby(parts, key=lambda part: counts[part])]


def _word_costs(lines: Iterable[Sequence[str]]) -> dict[str, float]:
    costs: dict[str, float] = {}
    for line in lines:
        new = {part for part in line if part not in costs}
        middle = len(costs) + (len(new) - 1) / 2
        costs.update(dict.fromkeys(new, math.log(middle + _RANK_OFFSET)))
    return costs


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

_TermSpan = tuple[tuple[str, ...], int, int]


class QueryWord(NamedTuple):
    """A word of a query."""

    text: str
    """The word, normalised."""
    terms: tuple[str, ...]
    """The terms of the word, its stem first."""
    weight: float
    """Weight of each term."""
    start: int
    """Position of the first character in the query."""
    end: int
    """Position after the last character in the query."""
    in_code: bool
    """Whether it is a word of code, or a part of one."""


class Analyser:
    """Turns texts into terms. Safe to use from several threads."""

    def __init__(self, spec: LexicalSpec) -> None:
        """Prepare the stop words.

        Args:
            spec: language, stop words, version and parts of compounds.

        """
        self.language = spec.language
        """Language of the stemmer, or `none`."""
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

    def query_words(self, text: str) -> list[QueryWord]:
        """Return the words of a query in order, with the terms and weights of `query_terms`.

        Parts of words of code come last. Words that are not indexed are left out.
        """
        words = list(word_places(text, self._version))
        base, code = list(self._located(words)), list(self._code_places(text))
        weights = _place_weights(base, code)
        inside = [(start, end) for _, start, end in code]
        plain = [
            QueryWord(
                word, terms, weight, start, end, any(first < end and start < last for first, last in inside)
            )
            for (word, start, end), (terms, _, _), weight in zip(words, base, weights, strict=False)
        ]
        parts = [
            QueryWord(normalised(text[start:end], self._version), terms, weight, start, end, in_code=True)
            for (terms, start, end), weight in zip(code, weights[len(base) :], strict=True)
        ]
        return [word for word in (*plain, *parts) if word.terms]

    def plain_word(self, word: str) -> str:
        """Return a word with the letters that stems have: normalised, and without accents from version 3 on."""
        word = normalised(word, self._version)
        return word if self._version < 3 else _without_accents(word)

    def distinct_stems(self, words: Iterable[str]) -> set[str]:
        """Return the stems of plain words, without keeping them, as nobody wrote these; none of stop words."""
        stem = self._of_thread().stem
        return {stem(word) for word in words if word not in self._stop_words} - {""}

    def spans(self, text: str) -> Iterator[_TermSpan]:
        """Yield the terms of each word, and where it is in the text as given: first character, one past the last.

        Together they are `terms(text)`. Words of scripts without spaces overlap: each pair of characters is one; so do
        words of code and their parts.
        """
        yield from self._located(word_places(text, self._version))
        yield from self._code_places(text)

    def numbered_words(self, text: str) -> tuple[Sequence[str], Sequence[int]]:
        """Return the words of a text, stop words and words of code included, and the position of each."""
        return numbered_words(text, self._version)

    def stems_of(self, word: str) -> tuple[str, ...]:
        """Return the terms that stand for a whole word, one of `numbered_words`: any of them; of a stop word, too."""
        return self._stems(word, self._of_thread().stem)

    def terms_of(self, word: str) -> tuple[str, ...]:
        """Return the terms of a word, one of `numbered_words`, those of its parts included; none for a stop word."""
        state = self._of_thread()
        terms = state.cache.get(word)
        return self._kept_terms(word, state) if terms is None else terms

    def _additional(self, text: str) -> list[str]:
        return [term for terms, _, _ in self._code_places(text) for term in terms]

    def _code_places(self, text: str) -> Iterator[_TermSpan]:
        words = code_words(text) if self._version > 3 else ()
        return self._located(
            (normalised(word, self._version)[:MAX_WORD_CHARACTERS], start, end) for word, start, end in words
        )

    def _located(self, words: Iterable[tuple[str, int, int]]) -> Iterator[_TermSpan]:
        state = self._of_thread()
        for word, start, end in words:
            terms = state.cache.get(word)
            yield self._kept_terms(word, state) if terms is None else terms, start, end

    def _terms_of(self, words: Iterable[str]) -> list[str]:
        state = self._of_thread()
        terms_found: list[str] = []
        for word in words:
            terms = state.cache.get(word)
            terms_found += self._kept_terms(word, state) if terms is None else terms
        return terms_found

    def _kept_terms(self, word: str, state: _OfThread) -> tuple[str, ...]:
        terms = self._terms(word, state)
        # The cache is bounded by its number of entries, so these must be small.
        if len(word) <= MAX_WORD_CHARACTERS:
            state.cache[word] = terms
        return terms

    def _terms(self, word: str, state: _OfThread) -> tuple[str, ...]:
        """Return the terms of a word, none for a stop word; those of a compound's parts follow its own."""
        if word in self._stop_words:
            return ()
        terms = self._stems(word, state.stem)
        for part in state.splitter.split(word) if state.splitter else ():
            terms += self._stems(part, state.stem)
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
        if not hasattr(local, "state"):
            local.state = _OfThread(self.language, self._parts)
        elif len(local.state.cache) > _MAX_CACHED:
            local.state.cache.clear()
        state: _OfThread = local.state
        return state


class _OfThread:
    """What each thread has of an analyser: a stemmer, and the terms of the words that it has met."""

    def __init__(self, language: str, parts: Mapping[str, float]) -> None:
        self.stem = stem_of(language)
        self.splitter = CompoundSplitter(parts, self.stem) if parts else None
        self.cache: dict[str, tuple[str, ...]] = {}


def _place_weights(base: list[_TermSpan], code: list[_TermSpan]) -> list[float]:
    """Return the weight of each place of a query: 1, and _PARTS_WEIGHT together for those inside a word of code."""
    ranges = [*base, *code]
    outer = {}
    whole = -1
    for number in sorted(range(len(ranges)), key=lambda number: (ranges[number][1], -ranges[number][2])):
        # Pairs of characters of scripts without spaces contain words of one character; both are words of their own.
        is_part = whole >= 0 and ranges[number][2] <= ranges[whole][2] and max(number, whole) >= len(base)
        if is_part:
            outer[number] = whole
        elif whole < 0 or ranges[number][2] > ranges[whole][2]:
            whole = number
    parts = Counter(outer.values())
    return [_PARTS_WEIGHT / parts[outer[number]] if number in outer else 1.0 for number in range(len(ranges))]


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


def analyser_of(spec: LexicalSpec) -> Analyser:
    """Return the analyser of an index, the same for equal specs."""
    return _analyser(spec.language, tuple(spec.stop_words), spec.analyser, spec.compound_parts)


@lru_cache(maxsize=64)
def _analyser(
    language: Language,
    stop_words: tuple[str, ...],
    version: Literal[1, 2, 3, 4] | None,
    parts: tuple[str, ...],
) -> Analyser:
    """Return the analyser of an index; kept, since it remembers stems."""
    spec = LexicalSpec(
        language=language, stop_words=list(stop_words), analyser=version, compounds=list(parts)
    )
    return Analyser(spec)

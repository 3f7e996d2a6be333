"""Split compound words, so that "Schiff" in a query matches "Dampfschiff" in a passage.

A part is a word that also occurs by itself, as learned from texts of the index. Parts are compared by their stems:
inflected forms count, and linking elements ("Arbeit-s-markt") need no rules, because stemmers remove them. Of all ways
to split a word, that with the highest geometric mean of the parts' frequencies is taken, if this is above the word's
own frequency (Koehn and Knight, "Empirical Methods for Compound Splitting", EACL 2003). The frequency is estimated from
the rank, so a list of parts in order of frequency needs no numbers.

Figures: docs/benchmarks/lexical.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["MAX_PARTS", "CompoundSplitter", "chosen_parts", "costs_of"]

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
        best, least = None, self._cost(word)
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


def chosen_parts(words: Mapping[str, int], stem: Stem) -> list[str]:
    """Return the words to use as parts, one per stem, in order of frequency.

    Stems that occur in compounds come before others where there are more than MAX_PARTS.

    Args:
        words: how often each word occurs; 0 for words of a dictionary.
        stem: the stemmer.

    """
    frequencies: Counter[str] = Counter()
    best: dict[str, str] = {}
    for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0])):
        stemmed = stem(word) if word.isalpha() and len(word) <= MAX_LETTERS else ""
        if len(stemmed) >= MIN_LETTERS:
            frequencies[stemmed] += count
            best.setdefault(stemmed, word)
    order = sorted(frequencies, key=lambda part: (-frequencies[part], part))
    splitter = CompoundSplitter(_costs(order), stem)
    used = {stem(part) for word, count in words.items() if count for part in splitter.split(word)}
    kept = {*sorted(order, key=lambda part: part not in used)[:MAX_PARTS]}
    return [best[part] for part in order if part in kept]


def costs_of(lines: Sequence[str], stem: Stem) -> dict[str, float]:
    """Return the cost of each part by its stem, minus the logarithm of its estimated frequency.

    Args:
        lines: words in order of frequency, separated by spaces where several are in a line.
        stem: the stemmer.

    """
    return _costs(dict.fromkeys(stem(word) for word in " ".join(lines).split()))


def _costs(stems: Iterable[str]) -> dict[str, float]:
    return {part: math.log(rank + _RANK_OFFSET) for rank, part in enumerate(stems)}

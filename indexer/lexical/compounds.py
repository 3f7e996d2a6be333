"""Split compound words, so that "Schiff" in a query matches "Dampfschiff" in a passage.

A part is a word that also occurs by itself, as learned from texts of the index. Parts are compared by their stems:
inflected forms count, and linking elements ("Arbeit-s-markt") need no rules, because stemmers remove them. Of all ways
to split a word, that with the highest geometric mean of the parts' frequencies is taken, if this is not below the
word's own frequency (Koehn and Knight, "Empirical Methods for Compound Splitting", EACL 2003). Frequencies are
estimated from the rank, so a list of parts needs no numbers: it has lines of equally frequent words, the most frequent
ones first.

Figures: docs/benchmarks/lexical.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby

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
    known = Counter(words) + Counter({*dictionary})
    for word, count in sorted(known.items(), key=lambda item: (-item[1], item[0])):
        stemmed = stem(word) if word.isalpha() and len(word) <= MAX_LETTERS else ""
        if len(stemmed) >= MIN_LETTERS:
            counts[stemmed] += count
            best.setdefault(stemmed, word)
    order = sorted(counts, key=lambda part: (-counts[part], part))
    splitter = CompoundSplitter(_costs(_equally_frequent(order, counts)), stem)
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
    return _costs([stem(word) for word in line.split()] for line in lines)


def _equally_frequent(parts: Iterable[str], counts: Mapping[str, int]) -> list[list[str]]:
    return [list(line) for _, line in groupby(parts, key=lambda part: counts[part])]


def _costs(lines: Iterable[Sequence[str]]) -> dict[str, float]:
    costs: dict[str, float] = {}
    for line in lines:
        new = {part for part in line if part not in costs}
        middle = len(costs) + (len(new) - 1) / 2
        costs.update(dict.fromkeys(new, math.log(middle + _RANK_OFFSET)))
    return costs

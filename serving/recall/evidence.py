"""Statistics of how far the recall of sampled queries is from their targets.

A sample is a query, and its value the query's recall less its target: hits of one query are found or missed together,
so the error is that of queries, not of hits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["FIELDS", "Evidence"]

FIELDS = 4
"""Numbers that an evidence is made of."""
PRIOR_VARIANCE = 0.04
PRIOR_QUERIES = 6.0
"""Some queries of this variance are assumed besides those seen: if all have been found, the error is not 0."""


class Evidence:
    """Deviations of queries, where older ones count less. Not safe to use from several threads."""

    __slots__ = ("_keep", "_squares", "_sum", "_weight", "_weights2")

    def __init__(self, window: float = math.inf, numbers: Sequence[float] = (0.0, 0.0, 0.0, 0.0)) -> None:
        """Begin.

        Args:
            window: queries after which an older one counts 1/e as much.
            numbers: of another evidence.

        """
        self._keep = 1 - 1 / window
        self._weight, self._weights2, self._sum, self._squares = numbers

    @classmethod
    def merged(cls, rows: Iterable[Sequence[float]]) -> Evidence:
        """Return the evidence of several processes, from their `numbers`."""
        return cls(numbers=[sum(column) for column in zip(*rows, strict=True)] or [0.0] * FIELDS)

    def add(self, deviation: float) -> None:
        """Add a query: its recall less its target."""
        keep = self._keep
        self._weight = self._weight * keep + 1
        self._weights2 = self._weights2 * keep * keep + 1
        self._sum = self._sum * keep + deviation
        self._squares = self._squares * keep + deviation * deviation

    @property
    def numbers(self) -> tuple[float, ...]:
        """What the evidence is made of."""
        return self._weight, self._weights2, self._sum, self._squares

    @property
    def count(self) -> float:
        """How many queries of equal weight would say as much."""
        return self._weight**2 / self._weights2 if self._weights2 else 0.0

    @property
    def mean(self) -> float:
        """The mean deviation; 0 without queries."""
        return self._sum / self._weight if self._weight else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite without queries."""
        count = self.count
        if not count:
            return math.inf
        variance = max(self._squares / self._weight - self.mean**2, 0.0)
        return math.sqrt(variance * count + PRIOR_VARIANCE * PRIOR_QUERIES) / count

    def below(self, errors: float) -> bool:
        """Return whether the mean is below 0 by more than some standard errors."""
        return self.mean + errors * self.error < 0

    def above(self, errors: float) -> bool:
        """Return whether the mean is above 0 by more than some standard errors."""
        return self.mean - errors * self.error > 0

"""Retrieval quality against relevance judgements: the measures of each configuration, and what differs between two.

Shapes: M measures, Q queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from scannery.pipelines.errors import CollectionError
from scannery.pipelines.evaluation.judgements import Judgements
from scannery.pipelines.evaluation.measures import (
    MAIN_MEASURE,
    Measure,
    default_measures,
    measured_values,
    measuring_engine,
)
from scannery.pipelines.evaluation.significance import Interval, intervals_of, paired_bootstrap

__all__ = ["Comparison", "Difference", "Evaluation", "compare", "evaluate", "largest_differences"]

QueryT = TypeVar("QueryT")
Search = Callable[[Sequence[QueryT]], Sequence[Sequence[str]]]
"""From Q queries to the ids found for each, best first."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Measures of one configuration of a search."""

    name: str
    """Name of the configuration, such as a mode."""

    query_ids: tuple[str, ...]
    """Queries with a relevant document, in the order of the queries file."""
    values: Mapping[str, np.ndarray]
    """By measure, the value of each query: float64 (Q,)."""
    found: tuple[tuple[str, ...], ...]
    """The ids found for each query, best first."""
    seconds: float
    """Time of all searches together."""

    @cached_property
    def means(self) -> dict[str, Interval]:
        """The mean of each measure, with its interval."""
        intervals = intervals_of(np.stack(list(self.values.values())))
        return dict(zip(self.values, intervals, strict=True))

    @property
    def empty(self) -> int:
        """Number of queries without a hit."""
        return sum(not documents for documents in self.found)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The difference between two configurations in one measure, over the same queries."""

    measure: str
    difference: Interval
    """Mean of the first minus the second, with the interval of a paired bootstrap."""
    better: int
    """Number of queries that the first answers better."""
    worse: int
    """Number of queries that the second answers better."""
    equal: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A query that one configuration answers better than the other, with both values of the measure."""

    query_id: str
    one: float
    """Value of the measure in the first configuration."""

    other: float
    """Value in the second."""


def evaluate(
    searches: Mapping[str, Search[QueryT]],
    queries: Mapping[str, QueryT],
    judgements: Judgements,
    *,
    k: int = 100,
    measures: Sequence[Measure] | None = None,
) -> list[Evaluation]:
    """Return the measures of each search.

    Queries without a relevant document (a level above 0) are left out, since every answer to them scores 0.

    Args:
        searches: by name; each returns up to k ids per query, best first.
        queries: texts, or what the searches take, by id.
        judgements: by query id.
        k: for the recall, if no measures are given.
        measures: to compute; default: `default_measures(k)`.

    Raises:
        CollectionError: no query has a relevant document.
        MissingPackageError: `ir_measures` is not installed.

    """
    judged = {
        name: judgements[name]
        for name in queries
        if any(level > 0 for level in judgements.get(name, {}).values())
    }
    if not judged:
        raise CollectionError(
            "qrels: no query has a relevant document; do the ids of both files match?", field="qrels"
        )
    wanted = default_measures(k) if measures is None else measures
    measuring_engine()  # a missing package should show before the searches, not after them
    asked = [queries[name] for name in judged]
    return [_evaluated(name, search, asked, judged, wanted) for name, search in searches.items()]


def _evaluated(
    name: str,
    search: Search[QueryT],
    asked: Sequence[QueryT],
    judged: Judgements,
    measures: Sequence[Measure],
) -> Evaluation:
    started = time.perf_counter()
    found = search(asked)
    seconds = time.perf_counter() - started
    return Evaluation(
        name=name,
        query_ids=tuple(judged),
        values=measured_values(measures, judged, found),
        found=tuple(map(tuple, found)),
        seconds=seconds,
    )


def compare(one: Evaluation, other: Evaluation) -> list[Comparison]:
    """Return the differences in each measure of two configurations that were asked the same queries."""
    found = []
    for measure, one_Q in one.values.items():
        gaps_Q = one_Q - other.values[measure]
        better, worse = int((gaps_Q > 0).sum()), int((gaps_Q < 0).sum())
        found.append(
            Comparison(
                measure=measure,
                difference=paired_bootstrap(one_Q, other.values[measure]),
                better=better,
                worse=worse,
                equal=len(gaps_Q) - better - worse,
            )
        )
    return found


def largest_differences(
    one: Evaluation, other: Evaluation, count: int, *, measure: str = MAIN_MEASURE
) -> list[Difference]:
    """Return the `count` queries with the largest differences in the measure, largest first."""
    gaps_Q = np.abs(one.values[measure] - other.values[measure])
    order = np.argsort(-gaps_Q, kind="stable")[:count]
    return [
        Difference(
            query_id=one.query_ids[i],
            one=float(one.values[measure][i]),
            other=float(other.values[measure][i]),
        )
        for i in order.tolist()
        if gaps_Q[i] > 0
    ]

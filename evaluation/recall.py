"""Recall of an index as it is served: the share of an exact search's hits that a search finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from scannery.evaluation.measures import Interval, interval_of
from scannery.indexer.tuning.settings_choice import near, score_to_reach

__all__ = ["RecallReport", "Truth", "measure_served_recall", "near_vectors", "recall_of"]

QueryT = TypeVar("QueryT")


@dataclass(frozen=True)
class Truth:
    """The hits of an exact search for one query."""

    scores: Sequence[float]
    """Best first."""
    magnitude: float = 0.0
    """Magnitude of the terms that the last score sums, which bounds its rounding (`indexer.tuning.magnitudes`)."""


@dataclass(frozen=True, kw_only=True)
class RecallReport:
    """Recall and times of a set of queries."""

    k: int
    """Hits per query."""

    queries: int
    """Number of queries."""

    recall: Interval
    """Mean recall@k."""

    worst: float
    """Recall of the worst query."""
    short: int
    """Queries that got fewer hits than the exact search; 0 is expected."""
    seconds: float
    """Time of the searches as served."""
    exact_seconds: float
    """Time of the exact searches."""


def measure_served_recall(
    search: Callable[[Sequence[QueryT]], Sequence[Sequence[float]]],
    exact: Callable[[Sequence[QueryT]], Sequence[Truth]],
    queries: Sequence[QueryT],
    k: int,
) -> RecallReport:
    """Return the recall of `search` against `exact`.

    Args:
        search: from queries to the scores of their k hits, best first.
        exact: from queries to the hits of an exact search.
        queries: to measure with; at least one.
        k: hits per query.

    """
    started = time.perf_counter()
    answers = search(queries)
    between = time.perf_counter()
    truth = exact(queries)
    recalls_Q = np.array([recall_of(scores, exact) for scores, exact in zip(answers, truth, strict=True)])
    return RecallReport(
        k=k,
        queries=len(queries),
        recall=interval_of(recalls_Q),
        worst=float(recalls_Q.min()),
        short=sum(len(scores) < len(exact.scores) for scores, exact in zip(answers, truth, strict=True)),
        seconds=between - started,
        exact_seconds=time.perf_counter() - between,
    )


def recall_of(scores: Sequence[float], truth: Truth) -> float:
    """Return the share of the true hits found: a hit counts if its score reaches that of the last true hit."""
    if not truth.scores:
        return 1.0
    reach = float(score_to_reach(np.array([truth.scores]), truth.magnitude)[0, 0])
    return min(len(truth.scores), sum(score >= reach for score in scores)) / len(truth.scores)


def near_vectors(vectors_ND: np.ndarray, *, seed: int = 1) -> np.ndarray:
    """Return queries near the given vectors, float32 (N, D) (distance: `indexer.tuning.settings_choice.near`)."""
    return near(vectors_ND, np.random.default_rng(seed))

"""Recall of an index as it is served: what a search finds of what an exact search finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from scannery.indexer.tuning.settings_choice import near, score_to_reach
from scannery.pipelines.evaluation.evaluate import Interval, interval_of

__all__ = ["RecallReport", "Truth", "measure_served_recall", "near_vectors", "recall_of"]

QueryT = TypeVar("QueryT")


@dataclass(frozen=True)
class Truth:
    """What an exact search found."""

    scores: Sequence[float]
    """Best first."""
    magnitude: float = 0.0
    """How large the terms are that the last of them is the sum of (`indexer.tuning.magnitudes`)."""


@dataclass(frozen=True, kw_only=True)
class RecallReport:
    """What was measured."""

    k: int
    queries: int
    recall: Interval
    worst: float
    """Recall of the worst query."""
    short: int
    """Queries that got fewer hits than the exact search: should be none."""
    seconds: float
    """Time of the searches as they are served."""
    exact_seconds: float
    """Time of the exact searches."""


def measure_served_recall(
    search: Callable[[Sequence[QueryT]], Sequence[Sequence[float]]],
    exact: Callable[[Sequence[QueryT]], Sequence[Truth]],
    queries: Sequence[QueryT],
    k: int,
) -> RecallReport:
    """Return the recall of a search, which returns the scores of its k hits, best first, against an exact one."""
    started = time.perf_counter()
    found = search(queries)
    between = time.perf_counter()
    truth = exact(queries)
    recalls_Q = np.array([recall_of(one, other) for one, other in zip(found, truth, strict=True)])
    return RecallReport(
        k=k,
        queries=len(queries),
        recall=interval_of(recalls_Q),
        worst=float(recalls_Q.min()),
        short=sum(len(one) < len(other.scores) for one, other in zip(found, truth, strict=True)),
        seconds=between - started,
        exact_seconds=time.perf_counter() - between,
    )


def recall_of(found: Sequence[float], truth: Truth) -> float:
    """Return the share of the true hits that were found, by score: one as good as the last true one counts."""
    if not truth.scores:
        return 1.0
    reach = float(score_to_reach(np.array([truth.scores]), truth.magnitude)[0, 0])
    return min(len(truth.scores), sum(score >= reach for score in found)) / len(truth.scores)


def near_vectors(vectors_ND: np.ndarray, *, seed: int = 1) -> np.ndarray:
    """Return queries near given vectors, float32 (`indexer.tuning.near` says how near)."""
    return near(vectors_ND, np.random.default_rng(seed))

"""Recall of an index as it is served: what a search finds of what an exact search finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from scannery.pipelines.evaluate import Interval, interval_of

__all__ = ["RecallReport", "measure_served_recall", "near_vectors", "recall_of"]

QueryT = TypeVar("QueryT")

# Scores are float32 and summed in different orders by different plans; equal ones must count as equal.
_RELATIVE_TOLERANCE = 1e-5
NOISE = 0.3


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
    exact: Callable[[Sequence[QueryT]], Sequence[Sequence[float]]],
    queries: Sequence[QueryT],
    k: int,
) -> RecallReport:
    """Return the recall of one search against another; both return the scores of their k hits, best first."""
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
        short=sum(len(one) < len(other) for one, other in zip(found, truth, strict=True)),
        seconds=between - started,
        exact_seconds=time.perf_counter() - between,
    )


def recall_of(found: Sequence[float], truth: Sequence[float]) -> float:
    """Return the share of the true hits that were found, by score: one as good as the last true one counts."""
    if not truth:
        return 1.0
    tolerance = _RELATIVE_TOLERANCE * max(abs(truth[-1]), 1e-3)
    return min(len(truth), sum(score >= truth[-1] - tolerance for score in found)) / len(truth)


def near_vectors(vectors_ND: np.ndarray, *, seed: int = 1) -> np.ndarray:
    """Return queries near given vectors, float32: each moved by 0.3 of its length in a random direction."""
    generator = np.random.default_rng(seed)
    noise_ND = generator.standard_normal(vectors_ND.shape)
    noise_ND /= np.linalg.norm(noise_ND, axis=1, keepdims=True)
    lengths_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    moved_ND: np.ndarray = (vectors_ND + NOISE * lengths_N1 * noise_ND).astype(np.float32)
    return moved_ND

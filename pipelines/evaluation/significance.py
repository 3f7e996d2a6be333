"""Bootstrap intervals of means over queries: of one configuration, and of the difference between two.

Queries are drawn with replacement, with a fixed seed; the interval has the percentiles of the means of the samples
(Efron & Tibshirani, An Introduction to the Bootstrap, 1993; for retrieval: Sakai, SIGIR 2006). It estimates how far
the mean may differ for other queries of the same kind.

Shapes: M series of values, Q queries, R resamples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["CONFIDENCE", "RESAMPLES", "Interval", "interval_of", "intervals_of", "paired_bootstrap"]

RESAMPLES = 2000
CONFIDENCE = 0.95
_MOST_COUNTS = 1 << 22
"""Counts in one part of the resamples: 32 MiB."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean over queries, and the bounds of its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether chance alone is an unlikely cause of a difference."""
        return self.low > 0 or self.high < 0


def interval_of(values_Q: np.ndarray, *, seed: int = 0) -> Interval:
    """Return the mean of at least one value, and its interval."""
    return intervals_of(np.asarray(values_Q)[None, :], seed=seed)[0]


def paired_bootstrap(one_Q: np.ndarray, other_Q: np.ndarray, *, seed: int = 0) -> Interval:
    """Return the mean of `one - other` over the same queries, and its interval.

    Both configurations are resampled with the same queries. Hard queries are hard for both, so this interval is
    narrower than the intervals of the two means suggest.

    Raises:
        ValueError: the arrays differ in length, or are empty.

    """
    one_Q, other_Q = np.asarray(one_Q, np.float64), np.asarray(other_Q, np.float64)
    if one_Q.shape != other_Q.shape or one_Q.ndim != 1 or not len(one_Q):
        raise ValueError(f"needs two values for each query, got the shapes {one_Q.shape} and {other_Q.shape}")
    return interval_of(one_Q - other_Q, seed=seed)


def intervals_of(values_MQ: np.ndarray, *, seed: int = 0) -> list[Interval]:
    """Return the interval of each of M series over the same queries; all are resampled with the same draws."""
    values_MQ = np.asarray(values_MQ, np.float64)
    means_RM = _resampled_means(values_MQ, np.random.default_rng(seed))
    lows_M, highs_M = np.quantile(means_RM, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    bounds = zip(values_MQ.mean(axis=1).tolist(), lows_M.tolist(), highs_M.tolist(), strict=True)
    # Sums of equal values differ in their last bit with the order of summing.
    return [Interval(mean=mean, low=min(low, mean), high=max(high, mean)) for mean, low, high in bounds]


def _resampled_means(values_MQ: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return the means of resamples, float64 (R, M), from how often each resample drew each query."""
    count = values_MQ.shape[1]
    part = max(1, min(RESAMPLES, _MOST_COUNTS // count))
    means = []
    for start in range(0, RESAMPLES, part):
        size = min(part, RESAMPLES - start)
        draws_RQ = generator.integers(0, count, (size, count)) + np.arange(size)[:, None] * count
        counts_RQ = np.bincount(draws_RQ.ravel(), minlength=size * count).reshape(size, count)
        means.append(counts_RQ @ values_MQ.T / count)
    return np.concatenate(means)

"""Measures of retrieval quality by name, computed by `ir_measures` (the extra `eval`) as trec_eval does.

| name | of a query |
| --- | --- |
| `nDCG@10` | gain of the first 10 hits by level and rank, as a share of the best possible |
| `MRR@10` | 1 / rank of the first relevant hit, 0 if it is below 10 |
| `MAP` | mean of the precision at the rank of each relevant document |
| `recall@100` | share of the relevant documents in the first 100 hits |
| `success@10` | 1 if a relevant document is in the first 10 hits |
| `precision@10` | share of relevant documents in the first 10 hits |
| `judged@10` | share of the first 10 hits that have a judgement, of whatever level |

Without `@`, a measure looks at all hits. The means over queries are what the names stand for.

Shapes: Q queries.

Bootstrap intervals of means over queries: of one configuration, and of the difference between two.

Queries are drawn with replacement, with a fixed seed; the interval has the percentiles of the means of the samples
(Efron & Tibshirani, An Introduction to the Bootstrap, 1993; for retrieval: Sakai, SIGIR 2006). It estimates how far
the mean may differ for other queries of the same kind.

Shapes: M series of values, Q queries, R resamples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scannery.pipelines.errors import CollectionError, MissingPackageError

__all__ = [
    "MAIN_MEASURE",
    "RESAMPLES",
    "Interval",
    "Measure",
    "default_measures",
    "interval_of",
    "intervals_of",
    "measured_values",
    "measuring_engine",
    "paired_bootstrap",
    "parse_measures",
]


MAIN_MEASURE = "nDCG@10"

_FAMILIES = {
    "nDCG": "nDCG",
    "MRR": "RR",
    "MAP": "AP",
    "recall": "R",
    "success": "Success",
    "precision": "P",
    "judged": "",
}
"""Name here → name in ir_measures, whose `Judged` divides by the number of hits, also if it is 0."""
_OTHER_NAMES = {"rr": "MRR", "ap": "MAP", "r": "recall", "p": "precision", "hit": "success"}
_PATTERN = re.compile(r"([a-z]+)(?:@([1-9][0-9]{0,4}))?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure, by its name."""

    family: str
    """One of `nDCG`, `MRR`, `MAP`, `recall`, `success`, `precision`, `judged`."""
    cutoff: int | None
    """Number of first hits that count; None: all."""

    @property
    def name(self) -> str:
        """The name with the cutoff, such as `nDCG@10`."""
        return self.family if self.cutoff is None else f"{self.family}@{self.cutoff}"


def default_measures(k: int) -> list[Measure]:
    """Return the measures that answer most questions; recall is that of all `k` hits."""
    return parse_measures([MAIN_MEASURE, "MRR@10", "MAP", f"recall@{k}", "success@10", "judged@10"])


def parse_measures(names: Sequence[str]) -> list[Measure]:
    """Return measures from their names, in any case, each once.

    Raises:
        CollectionError: there is no measure of that name.

    """
    measures = {measure.name: measure for measure in map(_parsed, names)}
    return list(measures.values())


def _parsed(text: str) -> Measure:
    match = _PATTERN.fullmatch(text.strip())
    families = {family.lower(): family for family in _FAMILIES} | _OTHER_NAMES
    if match is None or match[1].lower() not in families:
        raise CollectionError(
            f"measure: must be one of {', '.join(_FAMILIES)}, with or without a cutoff such as @10, got {text!r:.80}",
            field="measure",
        )
    return Measure(family=families[match[1].lower()], cutoff=int(match[2]) if match[2] else None)


def measured_values(
    measures: Sequence[Measure],
    judged: Mapping[str, Mapping[str, int]],
    rankings: Sequence[Sequence[str]],
) -> dict[str, np.ndarray]:
    """Return, by the name of each measure, the value of each query: float64 (Q,).

    Args:
        measures: to compute.
        judged: levels by document, by query.
        rankings: ids of the hits of each query, best first, in the order of `judged`.

    Raises:
        MissingPackageError: `ir_measures` is not installed.

    """
    calculate, parse = measuring_engine()
    depth = max((len(documents) for documents in rankings), default=0) or 1
    # Ranks as scores, because trec_eval orders equal scores by its own rule.
    run = {
        name: {document: -float(rank) for rank, document in enumerate(documents)}
        for name, documents in zip(judged, rankings, strict=True)
    }
    names: dict[Any, list[str]] = {}
    for measure in measures:
        if measure.family != "judged":
            names.setdefault(parse(_theirs(measure, depth)), []).append(measure.name)
    positions = {name: position for position, name in enumerate(judged)}
    values = {
        measure.name: _judged_shares(measure.cutoff, judged, rankings)
        if measure.family == "judged"
        else np.zeros(len(judged))
        for measure in measures
    }
    for item in calculate(list(names), judged, run):
        for name in names[item.measure]:
            values[name][positions[item.query_id]] = item.value
    return values


def _judged_shares(
    cutoff: int | None, judged: Mapping[str, Mapping[str, int]], rankings: Sequence[Sequence[str]]
) -> np.ndarray:
    shares = []
    for levels, documents in zip(judged.values(), rankings, strict=True):
        first = documents[:cutoff]
        shares.append(sum(name in levels for name in first) / len(first) if first else 0.0)
    return np.array(shares)


def _theirs(measure: Measure, depth: int) -> str:
    family = _FAMILIES[measure.family]
    if measure.cutoff is None and family in ("nDCG", "RR", "AP"):
        return family
    return f"{family}@{measure.cutoff or depth}"


def measuring_engine() -> tuple[Any, Any]:
    """Return what measures a run, and what parses the name of a measure.

    Raises:
        MissingPackageError: `ir_measures` is not installed.

    """
    try:
        import ir_measures
    except ImportError as error:
        raise MissingPackageError(
            "evaluation needs the package `ir-measures`: pip install 'scannery[eval]'"
        ) from error
    return ir_measures.iter_calc, ir_measures.parse_measure


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

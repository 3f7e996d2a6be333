"""Retrieval quality against relevance judgements: metrics, and differences between search modes.

The metrics are those of trec_eval, through `ir_measures` (the extra `eval`).

Shapes: Q queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scannery.pipelines.errors import CollectionError, MissingPackageError
from scannery.pipelines.evaluation.judgements import Judgements
from scannery.pipelines.evaluation.significance import Interval, interval_of

__all__ = ["Difference", "Evaluation", "evaluate", "largest_differences"]

Search = Callable[[Sequence[str]], Sequence[Sequence[str]]]
"""From Q texts to the ids found for each, best first."""

MAIN_METRIC = "nDCG@10"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics of one search mode."""

    name: str
    """Name of the mode."""

    query_ids: tuple[str, ...]
    """Queries with a relevant document, in the order of the queries file."""
    values: Mapping[str, np.ndarray]
    """By metric, the value of each query: float64 (Q,)."""
    seconds: float
    """Time of all searches together."""

    @property
    def means(self) -> dict[str, Interval]:
        """The mean of each metric."""
        return {metric: interval_of(values_Q) for metric, values_Q in self.values.items()}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A query that one search mode answers better than the other, with both values of the metric."""

    query_id: str
    one: float
    """Value of the metric in the first mode."""

    other: float
    """Value in the second mode."""


def evaluate(
    searches: Mapping[str, Search], queries: Mapping[str, str], judgements: Judgements, *, k: int = 100
) -> list[Evaluation]:
    """Return nDCG@10, MRR@10 and recall@k of each search mode.

    Queries without a relevant document (a level above 0) are left out, since every answer to them scores 0.

    Args:
        searches: by name; each returns up to k ids per text, best first.
        queries: texts by id.
        judgements: by query id.
        k: for the recall.

    Raises:
        CollectionError: no query has a relevant document.
        MissingPackageError: `ir_measures` is not installed.

    """
    measures = _measures(k)
    judged = {
        name: judgements[name]
        for name in queries
        if any(level > 0 for level in judgements.get(name, {}).values())
    }
    if not judged:
        raise CollectionError(
            "qrels: no query has a relevant document; do the ids of both files match?", field="qrels"
        )
    texts = [queries[name] for name in judged]
    results = []
    for name, search in searches.items():
        started = time.perf_counter()
        found = search(texts)
        seconds = time.perf_counter() - started
        values = _values(measures, judged, found)
        results.append(Evaluation(name=name, query_ids=tuple(judged), values=values, seconds=seconds))
    return results


def largest_differences(
    one: Evaluation, other: Evaluation, count: int, *, metric: str = MAIN_METRIC
) -> list[Difference]:
    """Return the `count` queries with the largest differences in the metric, largest first."""
    gaps_Q = np.abs(one.values[metric] - other.values[metric])
    order = np.argsort(-gaps_Q, kind="stable")[:count]
    return [
        Difference(
            query_id=one.query_ids[i], one=float(one.values[metric][i]), other=float(other.values[metric][i])
        )
        for i in order.tolist()
        if gaps_Q[i] > 0
    ]


def _measures(k: int) -> dict[str, Any]:
    try:
        import ir_measures
    except ImportError as error:
        raise MissingPackageError(
            "evaluation needs the package `ir-measures`: pip install 'scannery[eval]'"
        ) from error
    names = {MAIN_METRIC: MAIN_METRIC, "MRR@10": "RR@10", f"recall@{k}": f"R@{k}"}
    return {name: ir_measures.parse_measure(measure) for name, measure in names.items()}


def _values(
    measures: Mapping[str, Any], judged: Judgements, found: Iterable[Sequence[str]]
) -> dict[str, np.ndarray]:
    import ir_measures

    # Ranks as scores, because trec_eval orders equal scores by its own rule.
    run = {
        name: {document: -float(rank) for rank, document in enumerate(documents)}
        for name, documents in zip(judged, found, strict=True)
    }
    positions = {name: position for position, name in enumerate(judged)}
    names = {measure: name for name, measure in measures.items()}
    values = {name: np.zeros(len(judged)) for name in measures}
    for item in ir_measures.iter_calc(list(measures.values()), judged, run):
        values[names[item.measure]][positions[item.query_id]] = item.value
    return values

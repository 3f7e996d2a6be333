"""Two samples of a server's metrics → a point of its history: rates, quantiles, gauges."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

from scannery.client.response.server_info import Metric, MetricSample
from scannery.runtime.histograms import quantile

__all__ = ["METRICS", "Point", "Sample", "point", "requests"]

Sample: TypeAlias = Mapping[str, Metric]
"""Metrics by name, as the SDK returns them."""
Point: TypeAlias = dict[tuple[str, str], float]
"""Owner and name of a series → value. The owner is empty for the server, else `index:NAME` or `group:NAME`."""

_REQUESTS = "scannery_request_seconds"
_SERVER_GAUGES = {
    "scannery_in_flight": "in_flight",
    "scannery_in_flight_limit": "in_flight_limit",
    "scannery_workers": "workers",
    "scannery_private_bytes": "private_bytes",
    "scannery_resident_bytes": "resident_bytes",
    "scannery_memory_ceiling_bytes": "ceiling_bytes",
}
_INDEX_GAUGES = {
    "scannery_index_version": "version",
    "scannery_index_rows": "rows",
    "scannery_memory_rows": "memory_rows",
    "scannery_index_sequence": "sequence",
    "scannery_index_up": "workers",
    "scannery_index_failures": "open_failures",
    "scannery_recall_now": "recall",
    "scannery_recall_error": "recall_error",
    "scannery_recall_target": "recall_target",
    "scannery_recall_effective_target": "recall_effective",
}
_GROUP_RATES = {"scannery_leaf_hedges_total": "hedges", "scannery_leaf_failovers_total": "failovers"}
_REFUSED, _FAILURES = "scannery_refused_total", "scannery_background_failures_total"
_MEMORY = "scannery_memory_bytes"
_LEAF_CALLS, _LEAF_SECONDS = "scannery_leaf_calls_total", "scannery_leaf_seconds"

METRICS = (
    *(_REQUESTS, _REFUSED, _FAILURES, _MEMORY, _LEAF_CALLS, _LEAF_SECONDS),
    *_SERVER_GAUGES,
    *_INDEX_GAUGES,
    *_GROUP_RATES,
)
"""Names of the metrics that points are made of."""
_POLLS = "GetMetrics"
"""Method by which this history is read: it is no work of the server's callers."""
_SEARCHES = ("Search", "SearchMany", "SearchStream")
"""Methods whose times are those of searches; a stream has one for each of its requests."""
MAX_ROWS = 50


@dataclass(frozen=True, slots=True)
class _Growth:
    """What a counter or a histogram grew by."""

    labels: Mapping[str, str]
    count: float
    """Growth of a counter, or observations of a histogram."""
    buckets: Sequence[int]


def point(before: Sample | None, now: Sample, seconds: float) -> Point:
    """Return the rates per second and quantiles of the time between two samples, and the gauges of the second.

    Args:
        before: the first sample; None: there are gauges alone.
        now: the second sample.
        seconds: time between them.

    Returns:
        Of the server and of each index: `requests`, `failed`, and of searches with an answer `p50_ms`, `p99_ms` and
        `plan:PLAN`. Of the server: `refused`, `in_flight`, `in_flight_limit`, `failures` of work in the background
        since its start, `workers`, and bytes. Of an index: what `_INDEX_GAUGES` names, and `memory_bytes`. Of a group
        of leaves: `calls`, `failed`, `hedges`, `failovers`, `p50_ms`, `p99_ms`.

    """
    values: Point = {}
    for name, series in _SERVER_GAUGES.items():
        if samples := _samples(now, name):
            values["", series] = sum(sample.value for sample in samples)
    for name, series in _INDEX_GAUGES.items():
        for sample in _samples(now, name):
            values[f"index:{sample.labels['index']}", series] = sample.value
    memory: dict[str, float] = defaultdict(float)
    for sample in _samples(now, _MEMORY):
        if index := sample.labels["index"]:
            memory[f"index:{index}"] += sample.value
        memory[""] += sample.value
    values.update({(owner, "memory_bytes"): size for owner, size in memory.items()})
    values["", "failures"] = sum(sample.value for sample in _samples(now, _FAILURES))
    if before is not None:
        values.update(_rates(before, now, seconds))
    return values


def requests(before: Sample, now: Sample, seconds: float) -> list[dict[str, Any]]:
    """Return requests by method, index, plan and status with their rate and times, the most frequent first."""
    metric = now.get(_REQUESTS)
    rows: list[dict[str, Any]] = [
        {**each.labels, "per_s": each.count / seconds, **_quantiles(metric, [each])}
        for each in _requests(before, now)
        if metric is not None and each.count
    ]
    return sorted(rows, key=lambda row: -row["per_s"])[:MAX_ROWS]


def _rates(before: Sample, now: Sample, seconds: float) -> Point:
    values: Point = {("", "refused"): sum(each.count for each in _grown(before, now, _REFUSED)) / seconds}
    owners: dict[str, list[_Growth]] = {"": []}
    for each in _requests(before, now):
        owners[""].append(each)
        if index := each.labels["index"]:
            owners.setdefault(f"index:{index}", []).append(each)
    for owner, grown in owners.items():
        values[owner, "requests"] = sum(each.count for each in grown) / seconds
        values[owner, "failed"] = sum(each.count for each in grown if each.labels["code"] != "OK") / seconds
        searches = [
            each for each in grown if each.labels["method"] in _SEARCHES and each.labels["code"] == "OK"
        ]
        for each in searches:
            # A root has none: its leaves have.
            if plan := each.labels["plan"]:
                series = (owner, f"plan:{plan}")
                values[series] = values.get(series, 0.0) + each.count / seconds
        for name, value in _quantiles(now.get(_REQUESTS), searches).items():
            values[owner, name] = value
    for each in _grown(before, now, _LEAF_CALLS):
        owner = f"group:{each.labels['group']}"
        for name, counts in (("calls", True), ("failed", each.labels["code"] != "OK")):
            values[owner, name] = values.get((owner, name), 0.0) + counts * each.count / seconds
    for metric, series_name in _GROUP_RATES.items():
        for each in _grown(before, now, metric):
            values[f"group:{each.labels['group']}", series_name] = each.count / seconds
    for each in _grown(before, now, _LEAF_SECONDS):
        for name, value in _quantiles(now.get(_LEAF_SECONDS), [each]).items():
            values[f"group:{each.labels['group']}", name] = value
    return values


def _requests(before: Sample, now: Sample) -> Iterator[_Growth]:
    return (each for each in _grown(before, now, _REQUESTS) if each.labels["method"] != _POLLS)


def _grown(before: Sample, now: Sample, name: str) -> Iterator[_Growth]:
    """Yield what each sample of a metric grew by; what became less has begun again with the server."""
    first = {tuple(sample.labels.items()): sample for sample in _samples(before, name)}
    for sample in _samples(now, name):
        former = first.get(tuple(sample.labels.items()))
        if former is None or former.value > sample.value:
            yield _Growth(sample.labels, sum(sample.buckets) or sample.value, sample.buckets)
        elif sample.buckets:
            buckets = [after - count for count, after in zip(former.buckets, sample.buckets, strict=True)]
            yield _Growth(sample.labels, sum(buckets), buckets)
        else:
            yield _Growth(sample.labels, sample.value - former.value, ())


def _quantiles(metric: Metric | None, grown: Sequence[_Growth]) -> dict[str, float]:
    """Return median and 99th percentile of a histogram of seconds, in milliseconds; empty without observations."""
    if metric is None or not grown:
        return {}
    counts = reduce(
        lambda total, each: list(map(operator.add, total, each.buckets)), grown[1:], list(grown[0].buckets)
    )
    shares = {"p50_ms": 0.5, "p99_ms": 0.99}
    values = {name: quantile(metric.bounds, counts, share) for name, share in shares.items()}
    return {name: 1000 * value for name, value in values.items() if value is not None}


def _samples(sample: Sample, name: str) -> Sequence[MetricSample]:
    metric = sample.get(name)
    return metric.samples if metric is not None else ()

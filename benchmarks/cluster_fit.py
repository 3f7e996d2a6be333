"""A small real cluster beside the model of it: what is measured, what is fitted, and what the model then predicts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import scannery
from benchmarks.cluster import INDEX, QUERIES, K
from benchmarks.cluster_machines import Work
from benchmarks.cluster_model import Shape, simulate
from benchmarks.serve_load import cpu_s, served, throughput

__all__ = ["Measured", "Prediction", "as_rows", "fitted", "measure", "predicted", "root_costs"]

SIMULATED = 6_000
HOPS_S = tuple(1e-6 * each for each in (20, 50, 100, 200, 300, 450, 600, 800, 1100))
VARIATIONS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.9)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A cluster of some groups and its callers, as measured."""

    groups: int
    callers: int
    p50_ms: float
    p99_ms: float
    rate: float
    root_s: float
    """Processor time of the root for each query."""
    leaf_s: float
    """Of one leaf."""
    caller_s: float


@dataclass(frozen=True)
class Prediction:
    """What the model says of it."""

    p50_ms: float
    p99_ms: float
    rate: float


@contextmanager
def _cluster(store: str, groups: int) -> Iterator[tuple[int, str, list[int]]]:
    with ExitStack() as stack:
        leaves = [
            stack.enter_context(served(store, "--role", "leaf", "--group", f"{group}/{groups}"))
            for group in range(groups)
        ]
        target = ",".join(address for _, address, _ in leaves)
        pid, address, _ = stack.enter_context(served(store, "--role", "root", "--leaves", target))
        yield pid, address, [leaf for leaf, _, _ in leaves]


def measure(
    store: str, queries_QD: np.ndarray, groups: Sequence[int], callers: Sequence[int], seconds: float
) -> list[Measured]:
    """Return what clusters of one leaf a group take, each with some callers, on this machine."""
    found = []
    for count in groups:
        with _cluster(store, count) as (root, address, leaves), scannery.connect(address) as client:
            index = client.index(INDEX)

            def ask(number: int, index: Any = index) -> object:
                return index.search(queries_QD[number % QUERIES], K)

            throughput(ask, 4, seconds)  # fills caches
            found += [_measured(count, each, ask, seconds, root, leaves) for each in callers]
    return found


def _measured(
    groups: int, callers: int, ask: Any, seconds: float, root: int, leaves: Sequence[int]
) -> Measured:
    before = [cpu_s(root), sum(map(cpu_s, leaves)), time.process_time()]
    rate, latencies = throughput(ask, callers, seconds)
    after = [cpu_s(root), sum(map(cpu_s, leaves)), time.process_time()]
    root_s, leaves_s, caller_s = (
        (end - begin) / len(latencies) for begin, end in zip(before, after, strict=True)
    )
    p50, p99 = 1e3 * np.quantile(latencies, (0.5, 0.99))
    return Measured(
        groups=groups, callers=callers, p50_ms=float(p50), p99_ms=float(p99), rate=rate, root_s=root_s,
        leaf_s=leaves_s / groups, caller_s=caller_s,
    )  # fmt: skip


def root_costs(measured: Sequence[Measured]) -> tuple[float, float]:
    """Return the processor time of a root for a query, and for each group of it: a line through what was measured."""
    alone = [each for each in measured if each.callers == 1]
    slope, fixed = np.polyfit([each.groups for each in alone], [each.root_s for each in alone], 1)
    return max(0.0, float(fixed)), max(0.0, float(slope))


def predicted(
    one: Measured, hop_s: float, variation: float, cores: int, queries: int = SIMULATED
) -> Prediction:
    """Return what the model says, with the processor times of a measurement and everything on the same cores."""
    work = Work(
        root_s=one.root_s, root_group_s=0.0, leaf_s=one.leaf_s, caller_s=one.caller_s, hop_s=hop_s,
        variation=variation,
    )  # fmt: skip
    shape = Shape(groups=one.groups, callers=one.callers, shared_cores=cores, queries=queries)
    outcome = simulate(shape, work)
    p50, p99 = outcome.quantiles_ms(0.5, 0.99)
    return Prediction(p50, p99, outcome.rate)


def fitted(one: Measured, cores: int) -> tuple[float, float]:
    """Return time of a hop and variation with which the model has p50 and p99 of one measurement."""
    hop_s = min(HOPS_S, key=lambda each: abs(predicted(one, each, 0.3, cores, 1500).p50_ms - one.p50_ms))
    variation = min(
        VARIATIONS, key=lambda each: abs(predicted(one, hop_s, each, cores, 3000).p99_ms - one.p99_ms)
    )
    return hop_s, variation


def as_rows(measured: Sequence[Measured]) -> list[dict[str, float]]:
    """Return measurements for a file of JSON."""
    return [asdict(each) for each in measured]

"""Plans a cluster: leaves, roots, memory, disk and cost; latency against queries per second; what a failure does.

    python -m benchmarks.cluster_sim measure FILE [--rows 100000] [--dimensions 64] [--groups 1,2,4] [--store FOLDER]
    python -m benchmarks.cluster_sim validate FILE
    python -m benchmarks.cluster_sim plan FILE [--sizes FILE] [--vectors 1e9] [--groups 32] [--replicas 2] [--leaf-ms 3]
        [--leaf-cores 8] [--rates 500,2000,4000] [--root-us N] [--root-group-us N]
        [--price-core 0.04] [--price-gib 0.005] [--price-gb-month 0.08]

`measure` starts real clusters on this machine and writes processor times, latencies and rates to FILE. `validate`
fits two numbers (time between processes, variation) to the smallest of them, and predicts the others. `plan` takes
what a root costs from FILE, bytes of a row from the file of `benchmarks.cluster sizes --json`, and the time of a leaf
of the planned size from `--leaf-ms`, which is an estimate. Prices are in any currency: a core and a GiB of memory for
an hour, a GB of disk for a month.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from benchmarks.cluster import INDEX, QUERIES, near, store_of, vectors_of
from benchmarks.cluster_machines import Work
from benchmarks.cluster_model import Failure, Outcome, Shape, simulate
from benchmarks.harness import (
    K,
    cpu_s,
    environment,
    folder_of,
    milliseconds,
    options,
    served,
    table,
    throughput,
)

HOURS_A_MONTH = 730
CORE_IN_USE = 0.6
"""Share of the cores of roots that queries may take: above it, waits grow."""
TAIL_TITLES = ("p50 ms", "p99 ms", "p99.9 ms")
SIZES: dict[str, float] = {"disk_bytes": 2000, "memory_bytes": 500, "first_rows_per_s": 100_000}


SIMULATED = 6_000
HOPS_S = tuple(1e-6 * each for each in (20, 50, 100, 200, 300, 450, 600, 800, 1100))
VARIATIONS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.9)


@dataclass(frozen=True)
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


def _cluster(
    store: Path, groups: int, queries_QD: np.ndarray, callers: Sequence[int], seconds: float
) -> list[Measured]:
    """Return what a cluster of one leaf a group takes, with some numbers of callers, on this machine."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(served(store, "--role", "leaf", "--group", f"{group}/{groups}"))
            for group in range(groups)
        ]
        target = ",".join(address for _, address, _ in servers)
        root, address, _ = stack.enter_context(served(store, "--role", "root", "--leaves", target))
        index = stack.enter_context(scannery.connect(address)).index(INDEX)
        leaves = [pid for pid, _, _ in servers]

        def ask(number: int) -> object:
            return index.search(queries_QD[number % QUERIES], K)

        def used_s() -> list[float]:
            return [cpu_s(root), sum(map(cpu_s, leaves)) / groups, time.process_time()]

        throughput(ask, 4, seconds)  # fills caches
        found = []
        for count in callers:
            before = used_s()
            rate, latencies = throughput(ask, count, seconds)
            spent = [(end - begin) / len(latencies) for begin, end in zip(before, used_s(), strict=True)]
            p50, p99 = (milliseconds(latencies, share) for share in (0.5, 0.99))
            found.append(Measured(groups, count, p50, p99, rate, *spent))
    return found


def root_costs(measured: Sequence[Measured]) -> tuple[float, float]:
    """Return the processor time of a root for a query, and for each group of it: a line through what was measured."""
    alone = [each for each in measured if each.callers == 1]
    slope, fixed = np.polyfit([each.groups for each in alone], [each.root_s for each in alone], 1)
    return max(0.0, float(fixed)), max(0.0, float(slope))


def predicted(
    one: Measured, hop_s: float, variation: float, cores: int, queries: int = SIMULATED
) -> tuple[float, float, float]:
    """Return p50 and p99 in ms and queries/s by the model, with measured processor times, all on the same cores."""
    work = Work(
        root_s=one.root_s, root_group_s=0.0, leaf_s=one.leaf_s, caller_s=one.caller_s, hop_s=hop_s,
        variation=variation,
    )  # fmt: skip
    shape = Shape(groups=one.groups, callers=one.callers, shared_cores=cores, queries=queries)
    outcome = simulate(shape, work)
    p50, p99 = outcome.quantiles_ms(0.5, 0.99)
    return (p50, p99, outcome.rate)


def fitted(one: Measured, cores: int) -> tuple[float, float]:
    """Return time of a hop and variation with which the model has p50 and p99 of one measurement."""
    hop_s = min(HOPS_S, key=lambda each: abs(predicted(one, each, 0.3, cores, 1500)[0] - one.p50_ms))
    variation = min(
        VARIATIONS, key=lambda each: abs(predicted(one, hop_s, each, cores, 3000)[1] - one.p99_ms)
    )
    return hop_s, variation


def main() -> None:
    """Run one of the three commands."""
    given = options(
        __doc__, "command", "file", rows=100_000, dimensions=64, groups=list[int](), callers=[1, 4], seconds=3.0,
        store=Path, sizes=Path, vectors=1e9, replicas=2, root_us=float, root_group_us=float, leaf_ms=3.0, leaf_cores=8,
        pauses_per_s=0.1, rates=[500, 2000, 4000], queries=3000, price_core=0.04, price_gib=0.005, price_gb_month=0.08,
    )  # fmt: skip
    given.file = Path(given.file)
    {"measure": _measure, "validate": _validate, "plan": _plan}[given.command](given)


def _measure(given: argparse.Namespace) -> None:
    found = []
    with folder_of(given.store) as folder:
        vectors_ND = vectors_of(given.rows, given.dimensions)
        store, queries_QD = store_of(folder, vectors_ND), near(vectors_ND, QUERIES, 0.1)
        for groups in given.groups or (1, 2, 4):
            found += _cluster(store, groups, queries_QD, given.callers, given.seconds)
    rows = [asdict(each) for each in found]
    about = {"environment": environment("scann", "grpcio"), "cores": len(os.sched_getaffinity(0))}
    given.file.write_text(json.dumps({**about, "measured": rows}, indent=1) + "\n")
    print(json.dumps(rows))


def _validate(given: argparse.Namespace) -> None:
    told, measured = _read(given.file)
    first = measured[0]
    hop_s, variation = fitted(first, told["cores"])
    print(
        f"{told['environment']}\nfitted to the first row: {1e6 * hop_s:.0f} µs a hop, variation {variation}\n"
    )
    rows = []
    for one in measured:
        model = predicted(one, hop_s, variation, told["cores"])
        pairs = zip((one.p50_ms, one.p99_ms, one.rate), model, strict=True)
        rows.append(
            (
                one.groups,
                one.callers,
                *(f"{real:.1f} / {said:.1f} ({said / real - 1:+.0%})" for real, said in pairs),
            )
        )
    titles = ("groups", "callers", "p50 ms: measured / predicted", "p99 ms", "queries/s")
    print(table(titles, rows))


def _plan(given: argparse.Namespace) -> None:
    [given.groups] = given.groups or [32]
    _, measured = _read(given.file)
    root_s, group_s = root_costs(measured)
    root_s = root_s if given.root_us is None else given.root_us / 1e6
    group_s = group_s if given.root_group_us is None else given.root_group_us / 1e6
    sizes: dict[str, float] = json.loads(given.sizes.read_text()) if given.sizes else SIZES
    work = Work(
        root_s=root_s, root_group_s=group_s, leaf_s=given.leaf_ms / 1e3, variation=0.5,
        pauses_per_s=given.pauses_per_s,
    )  # fmt: skip
    print(f"a root: {1e6 * root_s:.0f} µs a query and {1e6 * group_s:.0f} µs a group\n")
    print(table(("", ""), _capacity(given, sizes)), end="\n\n")
    print(
        table(
            ("queries/s", "root cores", "leaves in use", *TAIL_TITLES, "hedges", "cost a month"),
            [_at_rate(given, work, sizes, rate) for rate in given.rates],
        ),
        end="\n\n",
    )
    print(
        table(
            ("one leaf, from 2 s to 6 s", *TAIL_TITLES, "failed", "hedges", "failovers"),
            [_failing(given, work, kind) for kind in ("", "paused", "dead")],
        )
    )


def _capacity(given: argparse.Namespace, sizes: dict[str, float]) -> list[tuple[str, str]]:
    rows = given.vectors / given.groups
    return [
        ("leaves", f"{given.groups} groups × {given.replicas} = {given.groups * given.replicas}"),
        ("rows of a leaf", f"{rows:,.0f}"),
        ("disk of a leaf", f"{rows * sizes['disk_bytes'] / 1e9:,.0f} GB"),
        ("memory of a leaf", f"{rows * sizes['memory_bytes'] / 2**30:,.0f} GiB"),
        ("memory of all leaves", f"{_memory_gib(given, sizes):,.0f} GiB"),
        ("disk of all leaves", f"{_disk_gb(given, sizes):,.0f} GB"),
        ("first opening", f"{rows / sizes['first_rows_per_s'] / 60:.0f} minutes"),
    ]


def _memory_gib(given: argparse.Namespace, sizes: dict[str, float]) -> float:
    return float(given.vectors * given.replicas * sizes["memory_bytes"] / 2**30)


def _disk_gb(given: argparse.Namespace, sizes: dict[str, float]) -> float:
    return float(given.vectors * given.replicas * sizes["disk_bytes"] / 1e9)


def _roots(given: argparse.Namespace, work: Work, rate: float) -> int:
    return math.ceil(rate * (work.root_s + work.root_group_s * given.groups) / CORE_IN_USE)


def _simulated(
    given: argparse.Namespace, work: Work, rate: float, failures: Sequence[Failure] = ()
) -> Outcome:
    cores = _roots(given, work, rate)
    # A process of Python uses one core. Above some number they only make the simulation slow.
    roots = min(cores, 16)
    shape = Shape(
        groups=given.groups, replicas=given.replicas, roots=roots, root_cores=math.ceil(cores / roots),
        leaf_cores=given.leaf_cores, rate=rate, failures=failures, queries=given.queries,
    )  # fmt: skip
    return simulate(shape, work)


def _at_rate(given: argparse.Namespace, work: Work, sizes: dict[str, float], rate: float) -> tuple[Any, ...]:
    outcome, cores = _simulated(given, work, rate), _roots(given, work, rate)
    use = rate * work.leaf_s / (given.replicas * given.leaf_cores)
    leaf_cores = given.groups * given.replicas * given.leaf_cores
    month = HOURS_A_MONTH * (
        (cores + leaf_cores) * given.price_core + _memory_gib(given, sizes) * given.price_gib
    )
    month += _disk_gb(given, sizes) * given.price_gb_month
    tail = (
        [f"{each:.1f}" for each in outcome.quantiles_ms(0.5, 0.99, 0.999)]
        if use < 1 and outcome.kept_up
        else ["-"] * 3
    )
    return rate, cores, f"{use:.0%}", *tail, f"{outcome.hedges / max(1, outcome.calls):.1%}", f"{month:,.0f}"


def _failing(given: argparse.Namespace, work: Work, kind: str) -> tuple[Any, ...]:
    rate = min(given.rates)
    failures = (Failure(kind, 0, 0, 2.0, 6.0),) if kind else ()
    outcome = _simulated(given, work, rate, failures)
    tail = [f"{each:.1f}" for each in outcome.quantiles_ms(0.5, 0.99, 0.999)]
    return kind or "nothing", *tail, outcome.failed, outcome.hedges, outcome.failovers


def _read(file: Path) -> tuple[dict[str, Any], list[Measured]]:
    told = json.loads(file.read_text())
    return told, [Measured(**each) for each in told["measured"]]


if __name__ == "__main__":
    main()

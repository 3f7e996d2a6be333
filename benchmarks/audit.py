"""What the audit log costs: a server without and one with it, which take turns.

    python -m benchmarks.audit [http] [grpc] [upserts] [--rounds 30] [--seconds 0.5] [--rows 20000] [--callers 1,8]

`http` and `grpc`: generated vectors × 384 are asked by vector, for ids and scores: the quickest searches that there
are, so that the log shows most. `upserts`: one datapoint a call, whose call has two records, of which one is synced.
The ratio is the median of those of the turns, in which both servers are measured one right after the other, in the
opposite order of the turn before; the processor time is that of the server, and needs no quiet machine.

Shapes: N rows, Q queries, D dimensions.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from benchmarks.harness import (
    K,
    cpu_s,
    publish,
    random_vectors,
    run_cases,
    served,
    table,
    throughput,
)
from scannery.indexer import Store, parse_spec

QUERIES = 2000
LIVE = {
    "seal_rows": 5_000_000,
    "seal_bytes": 1 << 36,
    "seal_age_s": 86_400.0,
    "max_rows": 9_000_000,
    "max_bytes": 1 << 36,
}
"""Bounds that no task of maintenance begins within."""
TITLES = (
    "callers",
    "calls/s without",
    "with",
    "rate, with / without",
    "middle half",
    "server, µs a call without",
    "with",
)

Turn = tuple[float, float]
"""Calls a second, and microseconds of processor time of the server for a call."""
Ask = Callable[[int], object]


def compare(
    arguments: argparse.Namespace, folder: Path, asking: Callable[[scannery.Client], Ask], *, http: bool
) -> None:
    """Print the rates of calls to a server of each way."""
    spec = {
        "index": "vectors",
        "source": {"id": "id", "vector": "v"},
        "attributes": {"n": "int"},
        "live": LIVE,
    }
    vectors_ND = random_vectors(arguments.rows, 384)
    ways = {"without": (), "with": ("--audit", str(folder / "audit"))}
    publish(Store.open(folder / "without", create=True), parse_spec(spec), vectors_ND, folder)
    # Copies: another build could be tuned in another way.
    shutil.copytree(folder / "without", folder / "with")
    with ExitStack() as stack:
        processes, asks = dict[str, int](), dict[str, Ask]()
        for name, flags in ways.items():
            store = folder / name
            processes[name], address, _ = stack.enter_context(served(store, *flags))
            asks[name] = asking(stack.enter_context(scannery.connect(address, http=http)))
        rows = []
        for callers in arguments.callers:

            def turn(name: str, callers: int = callers) -> Turn:
                before_s = cpu_s(processes[name])
                rate, latencies = throughput(asks[name], callers, arguments.seconds)
                return rate, (cpu_s(processes[name]) - before_s) * 1e6 / len(latencies)

            turns = []
            for number in range(arguments.rounds + 2):
                order = ("without", "with")[:: 1 if number % 2 else -1]
                figures = {name: turn(name) for name in order}
                turns.append([figures["without"], figures["with"]])
            rates, used_us = np.array(turns[2:]).transpose(2, 1, 0)
            low, median, high = np.quantile(rates[1] / rates[0], (0.25, 0.5, 0.75))
            rows.append(
                [
                    callers, f"{np.median(rates[0]):,.0f}", f"{np.median(rates[1]):,.0f}", f"{median:.3f}",
                    f"{low:.2f} to {high:.2f}", f"{np.median(used_us[0]):.0f}", f"{np.median(used_us[1]):.0f}",
                ]
            )  # fmt: skip
    print(table(TITLES, rows), flush=True)


def searches(arguments: argparse.Namespace, folder: Path, *, http: bool) -> None:
    """Searches by vector."""
    queries_QD = random_vectors(QUERIES, 384)

    def asking(client: scannery.Client) -> Ask:
        index = client.index("vectors")
        return lambda number: index.search(queries_QD[number % QUERIES], K, fields=[])

    compare(arguments, folder, asking, http=http)


def upserts(arguments: argparse.Namespace, folder: Path) -> None:
    """Writes of one datapoint."""
    queries_QD, numbers = random_vectors(QUERIES, 384), itertools.count()

    def asking(client: scannery.Client) -> Ask:
        index = client.index("vectors")
        return lambda number: index.upsert(
            [{"id": f"w{next(numbers) % 20_000}", "vector": queries_QD[number % QUERIES]}]
        )

    compare(arguments, folder, asking, http=True)


def main() -> None:
    """Run the cases of the command line."""
    cases: dict[str, Any] = {
        "http": partial(searches, http=True),
        "grpc": partial(searches, http=False),
        "upserts": upserts,
    }
    run_cases(
        __doc__, cases, "scann grpcio", rounds=30, seconds=0.5, rows=20_000, callers=[1, 8],
    )  # fmt: skip


if __name__ == "__main__":
    main()

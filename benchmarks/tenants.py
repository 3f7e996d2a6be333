"""Ten thousand tenants of a hundred rows in one index: memory by component, start, and what their searches take.

    python -m benchmarks.tenants [--rows 1000000] [--folder FOLDER] [--searches 2000] [--starts 3]

The rows are those of `generated` in fresh_filters.py: vectors × 96, a `tenant` of 100 rows, and a moment `at`.
*Component*: memory as it is counted. *Server*: that of all processes of a server with one worker, with pages that are
shared divided among those that have them. *First*: the first question with a filter of that kind to a new server, after
twenty without one; the median of as many servers as `--starts` says. *New*: each search has another filter. *Again*:
the same filters once more. Ten hits, one caller over HTTP. With a folder, the index is kept there for the next run.

Shapes: Q queries, D dimensions.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np

import scannery
from benchmarks.callers import OtherProcesses
from benchmarks.fresh_filters import WARM, Collection, Draw, Where, collections, store_of
from benchmarks.harness import (
    K,
    cpu_s,
    environment,
    folder_of,
    free_port,
    milliseconds,
    options,
    pss_bytes,
    served,
    table,
    timed,
)
from scannery.indexer import MemoryBytes, Store, index_memory, open_index

MIB = 2**20


@contextmanager
def server(store: Path) -> Iterator[tuple[scannery.Index, int, float]]:
    """Yield the index of a new server, its process, and how long the start took."""
    port = free_port()
    with (
        served(store, "--workers", "1", "--http", f"127.0.0.1:{port}") as (pid, _, start_s),
        scannery.connect(f"http://127.0.0.1:{port}", timeout_s=60) as client,
    ):
        yield client.index("bench"), pid, start_s


def ask_ms(index: scannery.Index, query_D: np.ndarray, where: Where | None) -> float:
    """Return how long a search takes, in ms."""
    return timed(lambda: index.search(query_D, K, where=where, fields=["id"])) * 1e3


def counted(store: Path) -> Iterator[list[object]]:
    """Yield a line for each component of the index."""
    index = open_index(Store.open(store), "bench")
    memory, rows = index_memory(index), sum(segment.rows for segment in index.segments)
    for name, size in [*memory.items(), ("in all", sum(memory.values(), MemoryBytes()))]:
        yield [name, *(f"{each / MIB:,.0f} ({each / rows:,.0f})" for each in (size.needed, size.mapped))]


def memory_of_server(store: Path, collection: Collection) -> list[object]:
    """Return the start of a server, and its memory before and after a search by each tenant."""
    with server(store) as (index, pid, start_s):
        started = pss_bytes(pid) / MIB
        for number in range(collection.tenants):
            query_D = collection.queries_QD[number % len(collection.queries_QD)]
            ask_ms(index, query_D, {"tenant": f"tenant {number}"})
        return [f"{start_s:.1f}", f"{started:,.0f}", f"{pss_bytes(pid) / MIB:,.0f}"]


def searches(collection: Collection, store: Path, given: argparse.Namespace) -> Iterator[list[object]]:
    """Yield a line for each kind of filter."""
    for kind, draw in collection.kinds.items():
        firsts = [first_ms(collection, store, draw) for _ in range(given.starts)]
        filters = [draw() for _ in range(given.searches)]
        with server(store) as (index, pid, _):
            asked_ms(index, pid, collection.queries_QD, [draw() for _ in range(WARM)])
            new, again = (asked_ms(index, pid, collection.queries_QD, filters) for _ in range(2))
        yield [kind, f"{median(firsts):.1f}", *new, *again]


def first_ms(collection: Collection, store: Path, draw: Draw) -> float:
    """Return how long the first question with a filter takes in a new server."""
    with server(store) as (index, _, _):
        for query_D in collection.queries_QD[:WARM]:
            ask_ms(index, query_D, None)
        return ask_ms(index, collection.queries_QD[WARM], draw())


def asked_ms(
    index: scannery.Index, pid: int, queries_QD: np.ndarray, filters: Sequence[Where | None]
) -> list[str]:
    """Search once with each filter; return p50 and p99 in ms, and processor time of the server in µs."""
    before_s = cpu_s(pid)
    times_s = [
        ask_ms(index, queries_QD[number % len(queries_QD)], where) / 1e3
        for number, where in enumerate(filters)
    ]
    server_us = (cpu_s(pid) - before_s) / len(times_s) * 1e6
    return [*(f"{milliseconds(times_s, share):.2f}" for share in (0.5, 0.99)), f"{server_us:,.0f}"]


def main() -> None:
    """Print the tables."""
    given = options(__doc__, rows=1_000_000, folder=str, searches=2000, starts=3)
    given.cases, given.rows = ("generated",), [given.rows]
    print(environment("scann", "httptools"), flush=True)
    with folder_of(Path(given.folder) if given.folder else None) as folder:
        [collection] = collections(given, folder)
        store, others = store_of(collection, folder), OtherProcesses()
        os.environ["SCANNERY_CACHE_DIR"] = str(folder / collection.name / "cache")
        print(f"{len(collection.vectors_ND):,} rows, {collection.tenants:,} tenants\n")
        print(table(["component", "needed, MiB (bytes a row)", "mapped"], counted(store)), "\n", flush=True)
        header = ["start, s", "server after it, MiB", "after a search by each tenant"]
        print(table(header, [memory_of_server(store, collection)]), "\n", flush=True)
        header = ["filter", "first, ms", "new: p50", "p99", "server, µs", "again: p50", "p99", "server, µs"]
        print(table(header, searches(collection, store, given)))
        print(f"Other processes had {others.share:.0%} of the cores.\n", flush=True)


if __name__ == "__main__":
    main()

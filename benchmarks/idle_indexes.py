"""A server of many small indexes of which few are asked at a time, as of one for each tenant.

    python -m benchmarks.idle_indexes [--indexes 1000] [--rows 100] [--folder FOLDER]

Each index has vectors × 384 and an attribute. Two workers serve them, at first with an empty local cache, and then once
more. *Start*: until all are open. *First*, *later*: searches of every tenth index by one caller over HTTP, ms. Memory
is that of all processes; *idle*: processor time while nobody asks, as a share of a core.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from benchmarks.harness import (
    cpu_s,
    environment,
    folder_of,
    free_port,
    milliseconds,
    options,
    pss_bytes,
    publish,
    served,
    table,
    timed,
)
from scannery.indexer import Store, parse_spec

DIMENSIONS = 384
EVERY = 10
IDLE_S = 20.0


def made(path: Path, indexes: int, rows: int) -> Path:
    """Return a store with the indexes, made if it is missing."""
    if not path.exists():
        store, generator = Store.open(path, create=True), np.random.default_rng(0)
        for number in range(indexes):
            spec = parse_spec({"index": _name(number), "source": {"vector": "v"}, "attributes": {"n": "int"}})
            publish(store, spec, generator.standard_normal((rows, DIMENSIONS), np.float32), path.parent)
    return path


def _name(number: int) -> str:
    return f"tenant-{number:05}"


def measured(store: Path, indexes: int) -> list[str]:
    """Start a server, search, and return a row of the table."""
    port, query_D = free_port(), np.ones(DIMENSIONS, np.float32)
    with served(store, "--workers", "2", "--http", f"127.0.0.1:{port}") as (pid, _, start_s):
        with scannery.connect(f"http://127.0.0.1:{port}", timeout_s=60) as client:
            handles: list[Any] = [client.index(_name(number)) for number in range(0, indexes, EVERY)]
            first = [timed(lambda handle=handle: handle.search(query_D, k=10)) for handle in handles]  # type: ignore[misc]
            later = [timed(lambda handle=handle: handle.search(query_D, k=10)) for handle in 3 * handles]  # type: ignore[misc]
        memory_mib = pss_bytes(pid) / 2**20
        before_s = cpu_s(pid)
        time.sleep(IDLE_S)
        idle = (cpu_s(pid) - before_s) / IDLE_S
    times = (f"{milliseconds(each, share):.2f}" for each in (first, later) for share in (0.5, 0.99))
    return [f"{start_s:.1f}", *times, f"{memory_mib:.0f}", f"{100 * idle:.0f} %"]


def main() -> None:
    """Print the table."""
    given = options(__doc__, indexes=1000, rows=100, folder=Path)
    print(environment("scann"), flush=True)
    with folder_of(given.folder) as folder:
        store = made(folder / f"store-{given.indexes}-{given.rows}", given.indexes, given.rows)
        os.environ["SCANNERY_CACHE_DIR"] = str(folder / f"cache-{time.time_ns()}")
        rows = [["empty", *measured(store, given.indexes)], ["full", *measured(store, given.indexes)]]
    header = ["cache", "start, s", "first, p50", "p99", "later, p50", "p99", "memory, MiB", "idle"]
    print(table(header, rows))


if __name__ == "__main__":
    main()

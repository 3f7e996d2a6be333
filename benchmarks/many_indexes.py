"""A server of many small indexes that nobody asks. docs/benchmarks/serve.md has the results.

    python -m benchmarks.many_indexes FOLDER [--indexes 100,1000] [--seconds 60]

Half of the indexes have a built segment, every fourth has live updates beside it, and the other half only live updates:
100 datapoints × 64 each. The stores are kept in FOLDER for another run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import scannery
from benchmarks.harness import (
    anonymous_mib,
    children,
    cpu_s,
    environment,
    options,
    publish,
    random_vectors,
    served,
    spec_of,
    table,
    timed,
)
from scannery.indexer import Store

DIMENSIONS = 64
ROWS = 100
SEARCHES = 20
"""Searches whose median is reported; each first one is of another index."""


def main() -> None:
    arguments = options(__doc__, "folder", indexes=[100, 1000], seconds=60.0)
    columns = []
    for count in arguments.indexes:
        folder = Path(arguments.folder) / str(count)
        if not folder.exists():
            fill(folder, count - 1)  # to which the measurement adds one
        columns.append(measured(folder, count, arguments.seconds))
    print(environment("pyarrow", "grpcio"))
    print(table(["", *(column["indexes"] for column in columns)], rows(columns)))


def rows(columns: list[dict[str, str]]) -> list[list[str]]:
    return [[name, *(column[name] for column in columns)] for name in columns[0] if name != "indexes"]


def fill(folder: Path, count: int) -> None:
    """Make a store: i0000, i0001, ….

    Seals by age are put off, so that none falls into the measurement.
    """
    folder.mkdir(parents=True)
    store, vectors_ND = Store.open(folder), random_vectors(ROWS, DIMENSIONS)
    with scannery.connect(folder) as client, tempfile.TemporaryDirectory() as scratch:
        for i in range(count):
            name = f"i{i:04}"
            if i % 2:
                client.create_index(name, dimensions=DIMENSIONS, live={"seal_age_s": 86_400})
            else:
                spec = spec_of(name, "cosine", seal_age_s=86_400)
                publish(store, spec, vectors_ND, Path(scratch))
            if i % 4:
                client.index(name).upsert(
                    [{"id": f"l{n}", "vector": vector_D} for n, vector_D in enumerate(vectors_ND)]
                )


def measured(folder: Path, count: int, seconds: float) -> dict[str, str]:
    """Return the measures of a server, by their names."""
    with served(str(folder)) as (pid, address, ready_s), scannery.connect(address) as client:
        vector_D = np.ones(DIMENSIONS, np.float32)
        time.sleep(5.0)  # the first sweep
        before_s = cpu_s(pid)
        time.sleep(seconds)
        idle = (cpu_s(pid) - before_s) / seconds
        processes = [pid, *children(pid)]
        result = {
            "indexes": f"{count:,} indexes",
            "from the command to ready, s": f"{ready_s:.1f}",
            "processor time while idle, of a core": f"{idle:.1%}",
            "anonymous memory of all processes, MiB": f"{sum(map(anonymous_mib, processes)):.0f}",
            "threads": str(sum(entries(each, "task") for each in processes)),
            "descriptors": str(sum(entries(each, "fd") for each in processes)),
        }
        indexes = [client.index(f"i{i:04}") for i in range(4, 4 + SEARCHES)]
        for kind in ("first search of an index, ms", "later search, ms"):
            result[kind] = f"{np.median([ms(lambda: index.search(vector_D, 10)) for index in indexes]):.1f}"  # noqa: B023
        listing = [sys.executable, "-m", "scannery.cli.main", "index", "list"]
        for place in (["--target", address], ["--store", str(folder)]):
            started_s = time.perf_counter()
            subprocess.run([*listing, *place], check=True, stdout=subprocess.DEVNULL)
            took_s = time.perf_counter() - started_s
            result[f"`scannery index list {place[0]}`, s"] = f"{took_s:.1f}"
        result["creation of one more, ms"] = f"{ms(lambda: client.create_index('more', dimensions=8)):.0f}"
        result["first write to it, ms"] = (
            f"{ms(lambda: client.index('more').upsert([{'id': 1, 'vector': [1.0] * 8}])):.0f}"
        )
        client.drop_index("more")
    return result


def entries(pid: int, kind: str) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/{kind}").iterdir())


def ms(call: Callable[[], object]) -> float:
    return 1000 * timed(call)


if __name__ == "__main__":
    main()

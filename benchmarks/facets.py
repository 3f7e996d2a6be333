"""Counts, facets, and deletions and changes by filter, in an index of 500,000 rows: `python -m benchmarks.facets`.

Embedded, in one process. "First" is the first question about an attribute, which indexes it; the others are the median
of 20 calls. Processor time is of all threads. While rows are deleted and changed, a thread writes other ones.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import scannery
from benchmarks.report import environment, table
from scannery.client import Index
from scannery.indexer import (
    IndexSpec,
    Store,
    build_segment,
    commit,
    datapoint_schema,
    expected_recall,
    parse_spec,
    store_segment,
)
from scannery.indexer.manifest import Manifest

__all__: list[str] = []

DIMENSIONS = 16
SEGMENTS = 4
SPEC: IndexSpec = parse_spec(
    {
        "index": "rows",
        "source": {"id": "id", "vector": "v", "document_id": "doc"},
        "attributes": {"show": "string", "year": "int", "tags": "string_list", "rating": "float"},
        # Nothing is sealed meanwhile.
        "live": {"seal_rows": 2_000_000, "max_rows": 4_000_000, "max_bytes": 1 << 34},
    }
)
TENTH: dict[str, Any] = {"rating": {"$lt": 0.1}}
HALF: dict[str, Any] = {"rating": {"$lt": 0.5}}


class Took(NamedTuple):
    wall_ms: float
    cpu_ms: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=500_000)
    options = parser.parse_args()
    print(environment("pyarrow", "numpy"), f"\nload {os.getloadavg()[0]:.1f}\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        publish(folder, options.rows)
        with scannery.connect(folder / "store", timeout_s=600) as client:
            index = client.index("rows")
            index.count()
            questions(index, options.rows)
            writes(index, options.rows)


def publish(folder: Path, rows: int) -> None:
    """Write an index of four segments with rows in a random order."""
    store = Store.open(folder / "store", create=True)
    rng = np.random.default_rng(0)
    entries = []
    for part in range(SEGMENTS):
        count = rows // SEGMENTS
        built = build_segment(rows_of(rng, part * count, count), spec=SPEC, shard=0, directory=folder)
        store_segment(store, SPEC.index, built)
        entries.append(built.entry)
    manifest = Manifest(
        index=SPEC.index,
        version=1,
        created_at="2026-01-01T00:00:00Z",
        spec=SPEC,
        dimensions=DIMENSIONS,
        shards=1,
        segments=tuple(entries),
        recall=expected_recall(entries, SPEC.target_recall),
    )
    commit(store, manifest)


def rows_of(rng: np.random.Generator, first: int, count: int) -> pa.Table:
    vectors_ND = rng.normal(size=(count, DIMENSIONS)).astype(np.float32)
    tags = np.array([f"tag{i}" for i in range(200)])[rng.integers(0, 200, 2 * count)]
    columns: dict[str, Any] = {
        "id": [f"row{first + i}" for i in range(count)],
        "document_id": [f"doc{(first + i) // 10}" for i in range(count)],
        "show": pa.array([f"show {i}" for i in range(1000)]).take(pa.array(rng.integers(0, 1000, count))),
        "year": rng.integers(1950, 2030, count),
        "tags": pa.ListArray.from_arrays(
            pa.array(np.arange(0, 2 * count + 1, 2), pa.int32()), pa.array(tags)
        ),
        "rating": rng.random(count),
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.reshape(-1)), DIMENSIONS),
    }
    schema = datapoint_schema(SPEC, DIMENSIONS)
    arrays = [
        pa.array(columns[field.name]).cast(field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def questions(index: Index, rows: int) -> None:
    print(f"\n{index.count():,} rows in {SEGMENTS} segments:\n")
    header = ["", "first, ms", "processor, ms", "warm, ms", "processor, ms"]
    first: dict[str, Took] = {name: timed(ask) for name, ask in asked(index)}
    print(table(header, list(measured(index, first))))
    index.delete([f"row{i * 7}" for i in range(1000)])
    print(f"\nafter 1,000 deletions, {index.count():,} rows:\n")
    print(table(header, list(measured(index, {name: timed(ask) for name, ask in asked(index)}))))


def asked(index: Index) -> Iterator[tuple[str, Callable[[], object]]]:
    filters = (("", None), (", filter 10 %", TENTH), (", filter 50 %", HALF))
    for attribute, what in (
        ("show", "string, 1,000 values"),
        ("year", "int, 80 values"),
        ("tags", "list of two strings, 200 values"),
        ("document_id", "string, ten rows each"),
    ):
        for name, where in filters:
            yield (
                f"facets of {attribute} ({what}){name}",
                partial(index.facets, attribute, where),
            )
    for name, where in filters:
        yield (
            f"statistics of rating (all distinct){name}",
            partial(index.attribute_stats, "rating", where),
        )
    for name, where in filters:
        yield f"count{name}", partial(index.count, where)


def measured(index: Index, first: dict[str, Took]) -> Iterator[list[str]]:
    for name, ask in asked(index):
        took = [timed(ask) for _ in range(20)]
        wall, cpu = (statistics.median(values) for values in zip(*took, strict=True))
        yield [name, *(f"{value:.1f}" for value in (*first[name], wall, cpu))]


def writes(index: Index, rows: int) -> None:
    fifth = {"rating": {"$lt": 0.2}}
    lines = []
    for name, work in (
        ("update where", lambda: index.update(where=fifth, attributes={"show": "new"}).written),
        ("delete where", lambda: index.delete(where=fifth).deleted),
    ):
        with other_writes(index) as waits_s:
            started_s, cpu_s = time.perf_counter(), time.process_time()
            count = work()
            took_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
        longest_ms = f"{max(waits_s) * 1e3:.0f}" if waits_s else ""
        lines.append(
            [name, f"{count:,}", f"{took_s:.2f}", f"{cpu_s:.2f}", f"{count / took_s:,.0f}", longest_ms]
        )
    print()
    print(table(["", "rows", "seconds", "processor, s", "rows/s", "longest other write, ms"], lines))


@contextmanager
def other_writes(index: Index) -> Iterator[list[float]]:
    """Write a row about a hundred times a second, and yield the list of the seconds that each took."""
    waits_s: list[float] = []
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.wait(0.01):
            started_s = time.perf_counter()
            index.upsert([{"id": f"other{number}", "vector": [1.0] * DIMENSIONS}])
            waits_s.append(time.perf_counter() - started_s)
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield waits_s
    finally:
        done.set()
        thread.join()


def timed(work: Callable[[], object]) -> Took:
    started_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return Took((time.perf_counter() - started_s) * 1e3, (time.process_time() - cpu_s) * 1e3)


if __name__ == "__main__":
    main()

"""Scans of an index: datapoints per second, embedded and served, and the cost of an order, a filter, or a page ahead.

    python -m benchmarks.scan [--rows 500000] [--dimensions 32] [--store FOLDER]

Embedded figures are of processor time, and contain the sort. The server is a process of its own, with one worker: its
datapoints/s are of wall time, and the processor time of both sides is beside them. A second index has each attribute
twice, declared and dynamic: what it takes to sort by either.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

import scannery
from benchmarks.live_setup import random_vectors
from benchmarks.report import environment, table
from benchmarks.serve_load import cpu_s, served
from scannery.client import Datapoint, Scan
from scannery.indexer import (
    DYNAMIC_COLUMN,
    IndexSpec,
    Manifest,
    SegmentEntry,
    Store,
    build_segment,
    commit,
    datapoint_schema,
    expected_recall,
    latest_version,
    parse_spec,
    store_segment,
)
from scannery.indexer.datapoints.dynamic import dynamic_json

Took: TypeAlias = tuple[float, ...]
Clock: TypeAlias = Callable[[], Took]
INDEX = "scanned"
SORTED = "sorted"
SEGMENTS = 4
ATTRIBUTES = {"show": "string", "year": "int", "rating": "float"}
SPEC = parse_spec({"index": INDEX, "source": {"id": "id", "vector": "v"}, "attributes": ATTRIBUTES})
DYNAMIC = SPEC.model_copy(update={"index": SORTED, "dynamic": True})
"""Each attribute is declared, and dynamic with an `any_` before its name."""
DIGESTS = count(1)
"""Seeds, which change nothing where no sample is asked for: of each scan another, or a server keeps its order."""
SCANS: dict[str, dict[str, Any]] = {
    "all": {},
    "all, pages of 10,000": {"page_size": 10_000},
    "a filter that allows a quarter": {"where": {"year": {"$gte": 2018}}},
    "by an attribute": {"order_by": "year"},
    "by id": {"order_by": "-id"},
    "a sample of 10,000": {"sample": 10_000},
    "with vectors": {"vectors": True},
}


def publish(store: Store, spec: IndexSpec, rows: int, dimensions: int, folder: Path) -> None:
    """Commit an index of four segments, each with three attributes and no text."""
    vectors_ND = random_vectors(rows, dimensions)
    entries = [
        _segment(store, spec, number, part_ND, folder)
        for number, part_ND in enumerate(np.array_split(vectors_ND, SEGMENTS))
    ]
    commit(
        store,
        Manifest(
            index=spec.index,
            version=1,
            created_at=datetime.now(timezone.utc),
            spec=spec,
            dimensions=dimensions,
            shards=SEGMENTS,
            segments=tuple(entries),
            recall=expected_recall(entries, spec.target_recall),
        ),
    )


def _segment(
    store: Store, spec: IndexSpec, number: int, vectors_ND: np.ndarray, folder: Path
) -> SegmentEntry:
    generator, rows = np.random.default_rng(number), len(vectors_ND)
    ids = [f"{number}-{row:07}" for row in range(rows)]
    given: dict[str, Any] = {
        "id": ids,
        "document_id": ids,
        "show": [f"show {n}" for n in generator.integers(0, 300, rows)],
        "year": generator.integers(2000, 2024, rows),
        "rating": generator.integers(0, 50, rows) / 10,
    }
    values = zip(*(np.asarray(given[name]).tolist() for name in ATTRIBUTES), strict=True)
    names = [f"any_{name}" for name in ATTRIBUTES]
    given[DYNAMIC_COLUMN] = [dynamic_json(dict(zip(names, row, strict=True))) for row in values]
    schema = datapoint_schema(spec, vectors_ND.shape[1])
    arrays = [
        pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.reshape(-1)), type=field.type)
        if field.name == "embedding"
        else pa.array(given[field.name], field.type)
        if field.name in given
        else pa.nulls(rows, field.type)
        for field in schema
    ]
    built = build_segment(pa.table(arrays, schema=schema), spec=spec, shard=number, directory=folder)
    store_segment(store, spec.index, built)
    return built.entry


def taken(scan: Iterable[Datapoint]) -> None:
    """Take all datapoints, and read no field of them."""
    deque(scan, maxlen=0)


def read(scan: Iterable[Datapoint]) -> None:
    """Take all datapoints, and read the id and the attributes of each."""
    for point in scan:
        _ = point.id, point.attributes


def best(scan: Callable[..., Scan], use: Callable[[Iterable[Datapoint]], None], clock: Clock) -> Took:
    """Return the seconds for each datapoint of a scan by some clocks, those of the faster of two."""
    found = []
    for _ in range(2):
        started, running = clock(), scan(seed=next(DIGESTS))
        use(running)
        rows = running.total or 1
        found.append(tuple((now - then) / rows for then, now in zip(started, clock(), strict=True)))
    return min(found)


def embedded_rows(index: Any) -> Iterator[list[str]]:
    for name, arguments in SCANS.items():
        cells = []
        for use in (taken, read):
            (each_s,) = best(partial(index.scan, **arguments), use, lambda: (time.process_time(),))
            cells.append(f"{1 / each_s:,.0f}")
        yield [name, *cells]


def sorted_rows(index: Any) -> Iterator[list[str]]:
    for name, kind in ATTRIBUTES.items():
        took = []
        for field in (name, f"any_{name}"):
            first_s = []
            for _ in range(5):
                started = time.process_time()
                next(index.scan(order_by=field, page_size=1, fields=[], seed=next(DIGESTS)))
                first_s.append(time.process_time() - started)
            took.append(min(first_s))
        yield [kind, *(f"{each_s * 1e3:,.0f}" for each_s in took), f"{took[1] / took[0]:.1f}"]


def in_turn(index: Any) -> Callable[..., Scan]:
    """Return what makes scans that read no page ahead."""

    def scan(**arguments: Any) -> Scan:
        running: Scan = index.scan(**arguments)
        running._reads_ahead = False
        return running

    return scan


def served_rows(index: Any, server: int) -> Iterator[list[str]]:
    def clock() -> Took:
        return time.perf_counter(), time.process_time(), cpu_s(server)

    for name, arguments in SCANS.items():
        alone_s, *_ = best(partial(in_turn(index), **arguments), read, clock)
        wall_s, client_s, server_s = best(partial(index.scan, **arguments), read, clock)
        rates = [f"{1 / each_s:,.0f}" for each_s in (wall_s, alone_s)]
        yield [name, *rates, f"{client_s * 1e6:.1f}", f"{server_s * 1e6:.1f}"]


def report(store: Path) -> None:
    header = ["scan", "datapoints/s", "with fields read, datapoints/s"]
    with scannery.connect(store) as client:
        print("Embedded\n\n" + table(header, embedded_rows(client.index(INDEX))), end="\n\n")
        header = ["sort by", "declared, ms", "dynamic, ms", "ratio"]
        print("First page\n\n" + table(header, sorted_rows(client.index(SORTED))), end="\n\n")
    header = ["scan", "datapoints/s", "no page ahead", "client, µs a datapoint", "server, µs a datapoint"]
    with served(str(store), "--workers", "1") as (server, address, _):
        for name, http in (("gRPC", False), ("HTTP", True)):
            with scannery.connect(address, http=http) as client:
                index = client.index(INDEX)
                index.get(["0-0000000"])
                print(f"{name}, fields read\n\n" + table(header, served_rows(index, server)), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--dimensions", type=int, default=32)
    parser.add_argument("--store", type=Path, help="keep the index in this folder, or use the one there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.store or Path(folder) / "store"
        store = Store.open(path, create=True)
        for spec in (SPEC, DYNAMIC):
            if latest_version(store, spec.index) is None:
                publish(store, spec, arguments.rows, arguments.dimensions, Path(folder))
        print(environment("numpy", "pyarrow", "protobuf", "grpcio"))
        print(f"load {os.getloadavg()[0]:.1f} before\n")
        report(path)


if __name__ == "__main__":
    main()

"""Rows added to an empty index while it is searched, against a build of the same vectors.

Shapes: N rows, D dimensions, Q queries.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import scannery
from benchmarks.live_setup import K, milliseconds, random_vectors, serving
from benchmarks.report import table

__all__ = ["measure_fill"]

INDEX = "filled"
CLI = "from scannery.cli.main import run; run()"
DIMENSIONS = 64
QUERIES = 200
BATCH_SIZE, IN_FLIGHT = 500, 4
PAUSE_S = 0.01
SETTLED_S = 10.0
"""Seconds without a new version after which maintenance is taken to be done."""


class _Filled(NamedTuple):
    acknowledged_s: float
    """Until the last batch was acknowledged."""
    settled_s: float
    """Until all rows were sealed and segments were merged."""
    search_s: list[float]
    failures: int
    recall: float
    segments: int


def measure_fill(folder: Path, rows: int) -> None:
    """Print the rate of writes, the times of searches and the recall at the end, and the time of a build."""
    vectors_ND = random_vectors(rows + QUERIES, DIMENSIONS)
    given_ND, queries_QD = vectors_ND[:rows], vectors_ND[rows:]
    filled = _fill(folder / "live", given_ND, queries_QD)
    built_s = _build(folder, given_ND)
    print(
        f"{rows:,} rows of {DIMENSIONS} dimensions; `scannery build` of the same vectors: {built_s:.0f} s\n"
    )
    header = ["until", "seconds", "rows/s", "× the build"]
    parts = [
        ("the last row is durable and is found", filled.acknowledged_s),
        ("all rows are in segments, and these are merged", filled.settled_s),
    ]
    print(
        table(header, [[name, f"{s:.0f}", f"{rows / s:,.0f}", f"{s / built_s:.2f}"] for name, s in parts]),
        "\n",
    )
    print(
        f"{len(filled.search_s):,} searches meanwhile, {filled.failures} failed: "
        f"p50 {milliseconds(filled.search_s, 0.5):.1f} ms, p99 {milliseconds(filled.search_s, 0.99):.1f} ms; "
        f"at the end {filled.segments} segments, recall@{K} {filled.recall:.3f}"
    )


def _fill(folder: Path, given_ND: np.ndarray, queries_QD: np.ndarray) -> _Filled:
    store = folder / "store"
    store.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    with serving(store) as address, scannery.connect(address, timeout_s=120) as client:
        index = client.create_index(INDEX, dimensions=DIMENSIONS, attributes={"n": "int"})
        probe = context.Process(target=_search, args=(address, queries_QD, stop, results))
        probe.start()
        started = time.perf_counter()
        index.upsert_many(_points(given_ND), batch_size=BATCH_SIZE, in_flight=IN_FLIGHT)
        acknowledged_s = time.perf_counter() - started
        settled_s = _settled(index, started)
        stop.set()
        search_s, failures = results.get(timeout=60)
        probe.join(60)
        found = index.search_many(queries_QD, k=K, fields=[])
        exact = index.search_many(queries_QD, k=K, fields=[], exact=True)
        shared = [
            len({hit.id for hit in one} & {hit.id for hit in other})
            for one, other in zip(found, exact, strict=True)
        ]
        info = index.stats()
        assert info.rows == len(given_ND), f"{info.rows} of {len(given_ND)} rows"
        return _Filled(
            acknowledged_s, settled_s, search_s, failures, float(np.mean(shared)) / K, len(info.segments)
        )


def _points(given_ND: np.ndarray) -> Iterator[Any]:
    for number, vector_D in enumerate(given_ND):
        yield {"id": f"p{number}", "vector": vector_D, "attributes": {"n": number}}


def _settled(index: scannery.Index, started: float) -> float:
    """Wait until no row is in memory and no version has come for SETTLED_S; return when the last one came."""
    version, since = 0, time.perf_counter()
    while True:
        info = index.stats()
        if info.version != version or info.memory_rows:
            version, since = info.version, time.perf_counter()
        if time.perf_counter() - since > SETTLED_S:
            return since - started
        time.sleep(0.5)


def _search(address: str, queries_QD: np.ndarray, stop: Event, results: Queue[Any]) -> None:
    """Search in sequence until told to stop, in a process of its own; give the seconds of each, and the failures."""
    took, failures, number = [], 0, 0
    with scannery.connect(address) as client:
        index = client.index(INDEX)
        while not stop.is_set():
            started = time.perf_counter()
            try:
                index.search(queries_QD[number % len(queries_QD)], K)
            except scannery.ScanneryError:
                failures += 1
            took.append(time.perf_counter() - started)
            number += 1
            time.sleep(PAUSE_S)
    results.put((took, failures))


def _build(folder: Path, given_ND: np.ndarray) -> float:
    spec = {"index": INDEX, "source": {"id": "id", "vector": "v"}, "attributes": {"n": "int"}}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(given_ND.reshape(-1)), DIMENSIONS)
    ids = [f"p{number}" for number in range(len(given_ND))]
    rows = pa.table({"id": ids, "v": embedding, "n": pa.array(np.arange(len(given_ND)))})
    pq.write_table(rows, folder / "input.parquet")
    command = ["build", str(folder / "spec.yaml"), "--input", str(folder / "input.parquet")]
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", CLI, *command, "--store", str(folder / "built")],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - started

"""Rows added to an empty index while it is searched, against a build of the same vectors.

Shapes: N rows, D dimensions, Q queries.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
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
from scannery.indexer import Store, read_manifest
from scannery.live.maintenance.lag import log_status

__all__ = ["measure_fill"]

INDEX = "filled"
CLI = "from scannery.cli.main import run; run()"
QUERIES = 200
BATCH_SIZE, IN_FLIGHT = 500, 4
PAUSE_S = 0.01
WATCHED_S, WATCHED_QUERIES = 5.0, 100
"""Pause between two looks at recall and segments, and queries of each."""
SETTLED_S = 10.0
"""Seconds without a new version and without a task that is due, after which maintenance is taken to be done."""


class _Filled(NamedTuple):
    acknowledged_s: float
    """Until the last batch was acknowledged."""
    settled_s: float
    """Until rows were sealed, as far as they are due, and segments were merged."""
    search_s: list[float]
    failures: int
    least_recall: float
    """Of searches at one time while the index was filled, and at the end."""
    recall: float
    segments: list[int]
    """Rows of each at the end."""
    most_segments: int
    most_in_memory: int
    worked_s: dict[str, float]
    """Processor time of each part."""


def measure_fill(folder: Path, rows: int, dimensions: int) -> None:
    """Print the rate of writes, the times of searches, recall, and the time of a build of the same vectors."""
    vectors_ND = random_vectors(rows + QUERIES, dimensions)
    given_ND, queries_QD = vectors_ND[:rows], vectors_ND[rows:]
    filled = _fill(folder / "live", given_ND, queries_QD)
    before_s = _children_s()
    built_s = _build(folder, given_ND)
    built_worked_s = _children_s() - before_s
    print(
        f"{rows:,} rows of {dimensions} dimensions; `scannery build` of the same vectors: {built_s:.0f} s, "
        f"{built_worked_s:.0f} s of processor time; load {os.getloadavg()[0]:.1f}\n"
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
    worked = ", ".join(f"{part} {s:.0f} s" for part, s in filled.worked_s.items())
    print(f"Processor time: {worked}\n")
    print(
        f"{len(filled.search_s):,} searches meanwhile, {filled.failures} failed: "
        f"p50 {milliseconds(filled.search_s, 0.5):.1f} ms, p99 {milliseconds(filled.search_s, 0.99):.1f} ms; "
        f"recall@{K} at least {filled.least_recall:.3f}, at the end {filled.recall:.3f}; at most "
        f"{filled.most_segments} segments and {filled.most_in_memory:,} rows in memory; at the end segments of "
        f"{', '.join(f'{size:,}' for size in sorted(filled.segments))} rows"
    )


def _fill(folder: Path, given_ND: np.ndarray, queries_QD: np.ndarray) -> _Filled:
    store = folder / "store"
    store.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    before_s, own_s = _children_s(), time.process_time()
    with serving(store) as address, scannery.connect(address, timeout_s=120) as client:
        index = client.create_index(INDEX, dimensions=given_ND.shape[1], attributes={"n": "int"})
        probe = context.Process(target=_search, args=(address, queries_QD, stop, results))
        probe.start()
        watch = _Watch(index, queries_QD)
        watch.start()
        started = time.perf_counter()
        index.upsert_many(_points(given_ND), batch_size=BATCH_SIZE, in_flight=IN_FLIGHT)
        acknowledged_s = time.perf_counter() - started
        settled_s = _settled(index, store, started)
        stop.set()
        search_s, failures, searching_s = results.get(timeout=60)
        probe.join(60)
        watch.close()
        recall = _recall(index, queries_QD)
        info = index.stats()
        assert info.rows == len(given_ND), f"{info.rows} of {len(given_ND)} rows"
        tasks_s = _tasks_s()
        writing_s = time.process_time() - own_s
    worked_s = {
        "maintenance": tasks_s,
        "the server": _children_s() - before_s - tasks_s - searching_s,
        "the client that writes": writing_s,
        "the client that searches": searching_s,
    }
    return _Filled(
        acknowledged_s=acknowledged_s,
        settled_s=settled_s,
        search_s=search_s,
        failures=failures,
        least_recall=min(recall, *watch.recalls),
        recall=recall,
        segments=[segment.rows for segment in info.segments],
        most_segments=watch.most_segments,
        most_in_memory=watch.most_in_memory,
        worked_s=worked_s,
    )


class _Watch(threading.Thread):
    """Notes recall, segments and rows in memory while an index is filled."""

    def __init__(self, index: scannery.Index, queries_QD: np.ndarray) -> None:
        super().__init__()
        self._index, self._queries_QD = index, queries_QD
        self._ended = threading.Event()
        self.recalls: list[float] = [1.0]
        self.most_segments = self.most_in_memory = 0

    def run(self) -> None:
        while not self._ended.wait(WATCHED_S):
            info = self._index.stats()
            self.most_segments = max(self.most_segments, len(info.segments))
            self.most_in_memory = max(self.most_in_memory, info.memory_rows)
            self.recalls.append(_recall(self._index, self._queries_QD[:WATCHED_QUERIES]))

    def close(self) -> None:
        self._ended.set()
        self.join()


def _recall(index: scannery.Index, queries_QD: np.ndarray) -> float:
    """Return the mean recall of searches; rows that are added between the exact searches and these do not count."""
    exact = index.search_many(queries_QD, k=K, fields=[], exact=True)
    found = index.search_many(queries_QD, k=K, fields=[])
    missed = []
    for true, hits in zip(exact, found, strict=True):
        ids, worst = {hit.id for hit in hits}, hits[-1].score if len(hits) == K else -np.inf
        missed.append(sum(hit.id not in ids and hit.score > worst for hit in true))
    return 1 - float(np.mean(missed)) / K


def _children_s() -> float:
    """Return the processor time of child processes that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tasks_s() -> float:
    """Return the processor time of the ended children of all descendants of this process: of maintenance tasks."""
    ticks = 0
    for process in _descendants(os.getpid()):
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[13]) + int(fields[14])
    return ticks / os.sysconf("SC_CLK_TCK")


def _descendants(parent: int) -> Iterator[int]:
    for task in Path(f"/proc/{parent}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _points(given_ND: np.ndarray) -> Iterator[Any]:
    for number, vector_D in enumerate(given_ND):
        yield {"id": f"p{number}", "vector": vector_D, "attributes": {"n": number}}


def _settled(index: scannery.Index, folder: Path, started: float) -> float:
    """Wait until nothing is due and no version has come for SETTLED_S; return when the last one came."""
    store, version, since = Store.open(str(folder)), 0, time.perf_counter()
    while True:
        info = index.stats()
        manifest = read_manifest(store, INDEX)
        log = log_status(store, manifest)
        due = info.memory_rows >= manifest.spec.live.seal_rows or (log is not None and log.merges)
        if manifest.version != version or due:
            version, since = manifest.version, time.perf_counter()
        if time.perf_counter() - since > SETTLED_S:
            return since - started
        time.sleep(0.5)


def _search(address: str, queries_QD: np.ndarray, stop: Event, results: Queue[Any]) -> None:
    """Search in sequence until told to stop, in a process of its own; give the seconds of each, failures, and work."""
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
    results.put((took, failures, time.process_time()))


def _build(folder: Path, given_ND: np.ndarray) -> float:
    spec = {"index": INDEX, "source": {"id": "id", "vector": "v"}, "attributes": {"n": "int"}}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(given_ND.reshape(-1)), given_ND.shape[1])
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

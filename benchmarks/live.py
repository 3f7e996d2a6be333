"""Live updates: speed of writes, time until they are visible, and their effect on queries.

    python -m benchmarks.live writes      upserts/s, single upserts against one fsync, visibility in another process
    python -m benchmarks.live queries     latency of queries: quiet, during writes, a seal, a merge, a new version
    python -m benchmarks.live fill [--points 1000000] [--dimensions 64]
                                          rows added to an empty index that is searched, against a build
    python -m benchmarks.live maintenance [--points 500000] [--dimensions 64] [--part 50000]
                                          processor time of seals and merges while an index is filled
    python -m benchmarks.live runbook [--name final_runbook.yaml] [--points 60000] [--every 10] [--dataset NAME]
    python -m benchmarks.live log [--url postgresql://…]
                                          the mutation log in SQLite and in PostgreSQL, which is started here by default

Servers are separate processes with two workers, on loopback. The runbooks are those of the streaming track of
NeurIPS'23, with their point numbers scaled to Fashion-MNIST, whose images are ordered by class, so that runbooks by
cluster become runbooks by class.

Shapes: N rows, D dimensions, Q queries.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

import scannery
from benchmarks.data import embeddings, fashion_images
from benchmarks.harness import (
    BATCH,
    K,
    descendants,
    in_turns,
    milliseconds,
    publish,
    random_vectors,
    run_cases,
    served,
    shared_data,
    spec_of,
    table,
    timed,
)
from scannery.indexer import Store, list_versions, python_command, python_environment, read_manifest, rollback
from scannery.live.log.homes import log_home
from scannery.live.log.location import DatabaseUrl
from scannery.live.log.sqlite_log import SqliteLog
from scannery.live.maintenance.lag import log_status
from scannery.live.maintenance.locks import locked
from scannery.live.maintenance.merge_policy import due
from scannery.live.maintenance.scheduler import PROGRAM, bounds

TWO = ("--workers", "2")
NEVER_SEALED = {"seal_rows": 1_000_000, "max_rows": 2_000_000, "max_bytes": 1 << 34}


def store_at(folder: Path, name: str, vectors_ND: np.ndarray, **live: int) -> Store:
    """Return a new store with an index of these vectors."""
    folder.mkdir(parents=True, exist_ok=True)
    store = Store.open(folder / "store", create=True)
    publish(store, spec_of(name, "cosine", **live), vectors_ND, folder)
    return store


def maintain(task: str, index: str, store: Path, *arguments: str) -> float:
    """Run a maintenance process as a server does; return its processor time and that of its children, in seconds."""
    places = ["--store", str(store), "--log", str(store), "--lock", "0"]
    command = python_command(PROGRAM, [task, index, *places, *arguments])
    process = subprocess.Popen(command, env=python_environment(bounds()))
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{task} failed with status {process.returncode}")
    return used.ru_utime + used.ru_stime


def upserts(indexes: Sequence[Any], vectors_ND: np.ndarray, batch: int, seconds: float) -> list[str]:
    """Return upserts/s, calls/s, p50 and p99 of callers, each with an index, that write for some seconds."""
    took: list[float] = []
    end_s = time.perf_counter() + seconds

    def work(number: int) -> None:
        call = 0
        while time.perf_counter() < end_s:
            rows = range(call * batch, (call + 1) * batch)
            points = [
                {"id": f"{number}-{batch}-{row}", "vector": vectors_ND[row % len(vectors_ND)], "attributes": {"n": row}}
                for row in rows
            ]  # fmt: skip
            took.append(timed(lambda: indexes[number].upsert(points)))  # noqa: B023  called at once
            call += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(indexes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    p50, p99 = (f"{milliseconds(took, share):.2f}" for share in (0.5, 0.99))
    return [f"{len(took) * batch / seconds:,.0f}", f"{len(took) / seconds:,.0f}", p50, p99]


UPSERT_TITLES = ("upserts/s", "calls/s", "p50, ms", "p99, ms")


# --- writes


def writes(given: argparse.Namespace, folder: Path) -> None:
    """Print the speed of writes, and the time until they are visible."""
    vectors_ND = random_vectors(20_000)
    store_at(folder, "writes", vectors_ND, **NEVER_SEALED)
    store, rows, singles = folder / "store", list[list[str]](), list[list[str]]()
    for size_bytes in (4096, BATCH * 512):
        took = [_synced(folder / "probe", size_bytes) for _ in range(200)]
        p50, p99 = (milliseconds(took, share) for share in (0.5, 0.99))
        rows.append([f"fsync of {size_bytes:,} bytes", "", f"{1000 / p50:,.0f}", f"{p50:.2f}", f"{p99:.2f}"])
    with scannery.connect(store, timeout_s=600) as client:  # it may compile kernels
        index = client.index("writes")
        singles.append(_single("embedded", index, vectors_ND, folder))
        rows.append([f"embedded, 1 thread, batches of {BATCH}", *upserts([index], vectors_ND, BATCH, 8)])
    with served(store, *TWO) as (_, address, _), ExitStack() as stack:
        indexes = [stack.enter_context(scannery.connect(address)).index("writes") for _ in range(4)]
        singles.append(_single("server", indexes[0], vectors_ND, folder))
        for count in (1, 4):
            written = upserts(indexes[:count], vectors_ND, BATCH, 8)
            rows.append([f"server, {count} clients, batches of {BATCH}", *written])
        singles.append(_single("server, all these rows in memory", indexes[0], vectors_ND, folder))
    print(table(["what", *UPSERT_TITLES], rows))
    titles = (
        "one upsert", "p50, ms", "p99, ms", "fsync, p50", "log alone, p50", "× fsync", "beyond the log, ms",
    )  # fmt: skip
    print(table(titles, singles))
    _visibility(store, vectors_ND)


def _synced(path: Path, size_bytes: int) -> float:
    """Return the seconds to append bytes to a file and sync it."""
    data = os.urandom(size_bytes)
    with path.open("ab", buffering=0) as file:

        def synced() -> None:
            file.write(data)
            os.fsync(file.fileno())

        return timed(synced)


def _single(name: str, index: Any, vectors_ND: np.ndarray, folder: Path, count: int = 500) -> list[str]:
    """Measure single upserts, each next to a bare fsync and a bare record of the log."""
    (folder / "bare" / "index").mkdir(parents=True, exist_ok=True)
    log, record = SqliteLog(folder / "bare" / "index" / "log", create=True), os.urandom(600)
    numbers = iter(range(count))
    ways: dict[str, Callable[[], float]] = {
        "fsync": lambda: _synced(folder / "probe", 4096),
        "log": lambda: timed(lambda: _append(log, record)),
        "upsert": lambda: timed(
            lambda: index.upsert([{"id": f"s-{(n := next(numbers))}", "vector": vectors_ND[n]}])
        ),
    }
    took = in_turns(ways, count)
    fsync, bare, whole = (milliseconds(each, 0.5) for each in took.values())
    cells = [whole, milliseconds(took["upsert"], 0.99), fsync, bare, whole / fsync, whole - bare]
    return [name, *(f"{cell:.2f}" for cell in cells)]


def _append(log: Any, record: bytes) -> None:
    with log.transaction(after=0) as transaction:
        transaction.append(record)


def _visibility(store: Path, vectors_ND: np.ndarray, count: int = 300) -> None:
    """Measure the time from a write's acknowledgement until another server of the same store shows it."""
    took, own = [], 0
    with ExitStack() as stack:
        addresses = [stack.enter_context(served(store))[1] for _ in range(2)]
        writer, reader = (stack.enter_context(scannery.connect(each)).index("writes") for each in addresses)
        for number in range(count):
            name = f"seen-{number}"
            writer.upsert([{"id": name, "vector": vectors_ND[number]}])
            started = time.perf_counter()
            while reader.get([name], fields=[]) == [None]:
                pass
            took.append(time.perf_counter() - started)
            own += writer.get([name], fields=[]) != [None]
            time.sleep(0.02)
    print(
        f"Visible in another process after p50 {milliseconds(took, 0.5):.1f} ms, p99 {milliseconds(took, 0.99):.1f} ms "
        f"({count} writes; one look costs about a millisecond); to the writer itself at once: {own} of {count}.\n"
    )


# --- queries


def queries(given: argparse.Namespace, folder: Path) -> None:
    """Print the latency of queries during writes, seals, merges and moves to new versions."""
    vectors_ND = random_vectors(70_000)
    live = {"seal_rows": 500_000, "max_rows": 1_000_000, "merge_segments": 2}
    places = folder / "one", folder / "other"
    store, _ = (store_at(place, "queries", vectors_ND[:50_000], **live) for place in places)
    path = places[0] / "store"
    with ExitStack() as stack:
        # Merges must happen only when they are measured.
        stack.enter_context(locked(path, "queries", "merge"))
        clients = []
        for place in places:
            address = stack.enter_context(served(place / "store", *TWO))[1]
            clients.append(stack.enter_context(scannery.connect(address)))
        index, other = (client.index("queries") for client in clients)

        def write(to: Any, seconds: float = 10, pause_s: float = 0.0) -> None:
            done, end = 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                rows = [(done * BATCH + i) % 20_000 for i in range(BATCH)]
                to.upsert([{"id": f"w{row}", "vector": vectors_ND[50_000 + row]} for row in rows])
                done += 1
                time.sleep(pause_s)

        def task(name: str) -> None:
            with locked(path, "queries", "seal"):
                maintain(name, "queries", path)
            time.sleep(3)

        def again() -> None:
            write(index, 3)
            task("seal")

        def back() -> None:
            rollback(store, "queries", list_versions(store, "queries")[-1])
            time.sleep(3)

        phases: dict[str, Callable[[], Any]] = {
            "quiet, first": lambda: time.sleep(6),
            "quiet": lambda: time.sleep(6),
            # The cost of sharing the cores with any other work.
            "upserts at full speed, at another server": lambda: write(other),
            "1,000 upserts/s": lambda: write(index, 10, 0.09),
            "upserts at full speed": lambda: write(index),
            "20,000 rows in memory, no writes": lambda: time.sleep(5),
            "seal and the move to its version": lambda: task("seal"),
            "more upserts and another seal": again,
            "merge and the move to its version": lambda: task("merge"),
            "a rollback": back,
            "quiet again": lambda: time.sleep(6),
        }
        results = {name: _asked_during(index, vectors_ND, action) for name, action in phases.items()}
    quiet = milliseconds(results["quiet"][0], 0.99)
    rows = []
    for name, (took, failures) in results.items():
        p50, p99 = (milliseconds(took, share) for share in (0.5, 0.99))
        rows.append([name, f"{len(took):,}", f"{p50:.2f}", f"{p99:.2f}", f"{p99 / quiet:.1f}", failures])
    print(table(["during", "queries", "p50, ms", "p99, ms", "p99 × quiet", "failures"], rows))


def _asked_during(index: Any, vectors_ND: np.ndarray, action: Callable[[], Any]) -> tuple[list[float], int]:
    """Send single queries in sequence while an action runs; return the seconds of each, and failures."""
    thread, generator = threading.Thread(target=action), np.random.default_rng(3)
    thread.start()
    took, failures = [], 0
    while thread.is_alive():
        query_D = vectors_ND[generator.integers(50_000)]
        started = time.perf_counter()
        try:
            index.search(query_D, K)
        except scannery.ScanneryError:
            failures += 1
        took.append(time.perf_counter() - started)
        time.sleep(0.002)
    thread.join()
    return took, failures


# --- fill

FILLED, QUERIES, WATCHED_S = "filled", 200, 5.0
SETTLED_S = 10.0
"""Seconds without a new version and without a task that is due, after which maintenance is taken to be done."""


def fill(given: argparse.Namespace, folder: Path) -> None:
    """Print the rate of writes, the times of searches, recall, and the time of a build of the same vectors."""
    rows, vectors_ND = given.points, random_vectors(given.points + QUERIES, given.dimensions)
    vectors_ND, queries_QD = vectors_ND[:rows], vectors_ND[rows:]
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    before_s, own_s = _children_s(), time.process_time()
    Store.open(folder / "store", create=True)
    with (
        served(folder / "store", *TWO) as (_, address, _),
        scannery.connect(address, timeout_s=120) as client,
    ):
        index = client.create_index(FILLED, dimensions=vectors_ND.shape[1], attributes={"n": "int"})
        probe = context.Process(target=_search, args=(address, queries_QD, stop, results))
        probe.start()
        watch = _Watch(index, queries_QD)
        watch.start()
        started = time.perf_counter()
        index.upsert_many(_points(vectors_ND), batch_size=500, in_flight=4)
        acknowledged_s = time.perf_counter() - started
        settled_s = _settled(index, folder / "store") - started
        stop.set()
        search_s, failures, searching_s = results.get(timeout=60)
        probe.join(60)
        watch.ended.set()
        watch.join()
        recall, info = _recall(index, queries_QD), index.stats()
        assert info.rows == rows, f"{info.rows} of {rows} rows"
        tasks_s, writing_s = _tasks_s(), time.process_time() - own_s
    worked = {
        "maintenance": tasks_s,
        "the server": _children_s() - before_s - tasks_s - searching_s,
        "the client that writes": writing_s,
        "the client that searches": searching_s,
    }
    before_s = _children_s()
    built_s = _build(folder, vectors_ND)
    print(
        f"{rows:,} rows of {given.dimensions} dimensions; `scannery build` of the same vectors: {built_s:.0f} s, "
        f"{_children_s() - before_s:.0f} s of processor time\n"
    )
    parts = {
        "the last row is durable and is found": acknowledged_s,
        "all rows are in segments, and these are merged": settled_s,
    }
    lines = [[name, f"{s:.0f}", f"{rows / s:,.0f}", f"{s / built_s:.2f}"] for name, s in parts.items()]
    print(table(["until", "seconds", "rows/s", "× the build"], lines))
    print("Processor time:", ", ".join(f"{part} {s:.0f} s" for part, s in worked.items()), "\n")
    sizes = ", ".join(f"{size:,}" for size in sorted(segment.rows for segment in info.segments))
    print(
        f"{len(search_s):,} searches meanwhile, {failures} failed: p50 {milliseconds(search_s, 0.5):.1f} ms, p99 "
        f"{milliseconds(search_s, 0.99):.1f} ms; recall@{K} at least {min(recall, *watch.recalls):.3f}, at the end "
        f"{recall:.3f}; at most {watch.most_segments} segments and {watch.most_in_memory:,} rows in memory; at the end "
        f"segments of {sizes} rows"
    )


class _Watch(threading.Thread):
    """Notes recall, segments and rows in memory while an index is filled."""

    def __init__(self, index: scannery.Index, queries_QD: np.ndarray) -> None:
        super().__init__()
        self._index, self._queries_QD = index, queries_QD[:100]
        self.ended = threading.Event()
        self.recalls: list[float] = [1.0]
        self.most_segments = self.most_in_memory = 0

    def run(self) -> None:
        while not self.ended.wait(WATCHED_S):
            info = self._index.stats()
            self.most_segments = max(self.most_segments, len(info.segments))
            self.most_in_memory = max(self.most_in_memory, info.memory_rows)
            self.recalls.append(_recall(self._index, self._queries_QD))


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
    for process in descendants(os.getpid()):
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[13]) + int(fields[14])
    return ticks / os.sysconf("SC_CLK_TCK")


def _points(vectors_ND: np.ndarray, first: int = 0) -> Iterator[Any]:
    for number, vector_D in enumerate(vectors_ND, first):
        yield {"id": f"p{number}", "vector": vector_D, "attributes": {"n": number}}


def _settled(index: scannery.Index, folder: Path) -> float:
    """Wait until nothing is due and no version has come for SETTLED_S; return when the last one came."""
    store, version, since = Store.open(folder), 0, time.perf_counter()
    while time.perf_counter() - since <= SETTLED_S:
        info, manifest = index.stats(), read_manifest(store, FILLED)
        log = log_status(store, manifest)
        is_due = info.memory_rows >= manifest.spec.live.seal_rows or (log is not None and log.merges)
        if manifest.version != version or is_due:
            version, since = manifest.version, time.perf_counter()
        time.sleep(0.5)
    return since


def _search(address: str, queries_QD: np.ndarray, stop: Event, results: Queue[Any]) -> None:
    """Search in sequence until told to stop, in a process of its own; give the seconds of each, failures, and work."""
    took, failures, number = [], 0, 0
    with scannery.connect(address) as client:
        index = client.index(FILLED)
        while not stop.is_set():
            started = time.perf_counter()
            try:
                index.search(queries_QD[number % len(queries_QD)], K)
            except scannery.ScanneryError:
                failures += 1
            took.append(time.perf_counter() - started)
            number += 1
            time.sleep(0.01)
    results.put((took, failures, time.process_time()))


def _build(folder: Path, vectors_ND: np.ndarray) -> float:
    """Return the seconds of `scannery build` of the same vectors."""
    spec = {"index": FILLED, "source": {"id": "id", "vector": "v"}, "attributes": {"n": "int"}}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    numbers = np.arange(len(vectors_ND))
    columns = {"id": [f"p{number}" for number in numbers], "v": embeddings(vectors_ND), "n": numbers}
    pq.write_table(pa.table(columns), folder / "input.parquet")
    command = [sys.executable, "-m", "scannery.cli.main", "build", str(folder / "spec.yaml")]
    command += ["--input", str(folder / "input.parquet"), "--store", str(folder / "built")]
    return timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


# --- maintenance


def maintenance(given: argparse.Namespace, folder: Path) -> None:
    """Print the processor time of all seals and merges, the builds of a row, and the segments at the end.

    Unlike the time of a fill, it hardly depends on what else the machine does.
    """
    rows, path = given.points, folder / "store"
    vectors_ND = random_vectors(rows, given.dimensions)
    with scannery.connect(path, create=True) as client:
        client.create_index(FILLED, dimensions=given.dimensions, attributes={"n": "int"})
    store = Store.open(path)
    worked_s, runs = Counter[str](), Counter[str]()
    trained: dict[str, int] = {}
    most = 0

    def run(task: str, *arguments: str) -> None:
        nonlocal most
        worked_s[task] += maintain(task, FILLED, path, *arguments)  # type: ignore[assignment]
        runs[task] += 1
        entries = read_manifest(store, FILLED).segments
        trained.update({entry.key: entry.rows for entry in entries if entry.kind == "scann"})
        most = max(most, len(entries))

    for start in range(0, rows, given.part):
        with ExitStack() as stack:
            for task in ("seal", "merge", "gc"):  # so that the client starts none
                stack.enter_context(locked(path, FILLED, task))
            index = stack.enter_context(scannery.connect(path)).index(FILLED)
            index.upsert_many(_points(vectors_ND[start : start + given.part], start), batch_size=500)
        run("seal", "--filling")
        while due(read_manifest(store, FILLED), filling=True):
            run("merge", "--filling")
    while due(read_manifest(store, FILLED)):
        run("merge")
    print(f"{rows:,} rows of {given.dimensions} dimensions, {given.part:,} of them between two seals\n")
    totals = [*((task, runs[task], worked_s[task]) for task in runs), ("all", runs.total(), worked_s.total())]
    lines = [[task, count, f"{s:.0f}", f"{s / rows * 1e6:.0f}"] for task, count, s in totals]
    print(table(["task", "runs", "processor time, s", "per row, µs"], lines))
    sizes = sorted(entry.rows for entry in read_manifest(store, FILLED).segments)
    print(
        f"A row was trained {sum(trained.values()) / rows:.2f} times; at most {most} segments, at the end "
        f"{', '.join(f'{size:,}' for size in sizes)} rows"
    )


# --- runbooks


def runbook(given: argparse.Namespace, folder: Path) -> None:
    """Print the recall under churn."""
    labels = gzip.decompress(shared_data("vec-fashion-mnist", "train-labels-idx1-ubyte.gz").read_bytes())
    vectors_ND = fashion_images()[np.argsort(np.frombuffer(labels, np.uint8, offset=8), kind="stable")]
    vectors_ND = vectors_ND[:: max(1, len(vectors_ND) // given.points)][: given.points]
    queries_QD = fashion_images("t10k")[:200]
    books = yaml.safe_load((shared_data("vec-bigann-streaming-runbooks") / given.name).read_text())
    title = given.dataset or next(iter(books))
    book = books[title]
    steps = [book[key] for key in sorted(key for key in book if isinstance(key, int))]
    most = book.get("max_pts") or max(step.get("end", 0) for step in steps)
    scale = len(vectors_ND) / max(most, *(step.get("ids_end", step.get("end", 0)) for step in steps))
    spec = spec_of("runbook", "squared_l2", seal_rows=5_000, max_rows=40_000)
    store = Store.open(folder / "store", create=True)
    # An index needs a row; this one is far from all others, and is deleted at once.
    publish(store, spec, np.full((1, vectors_ND.shape[1]), 1e4, np.float32), folder)
    recalls, where, searches, started = [], np.full(len(vectors_ND), -1), 0, time.perf_counter()
    with (
        served(folder / "store", *TWO) as (_, address, _),
        scannery.connect(address, timeout_s=120) as client,
    ):
        index = client.index("runbook")
        index.delete(["d0"])
        for step in steps:
            low, high = (int(step.get(key, 0) * scale) for key in ("start", "end"))
            kind, ids = step["operation"], np.arange(low, high)
            if kind == "search":
                searches += 1
                if searches % given.every == 0 and (where >= 0).any():
                    recalls.append(_recall_of(index, vectors_ND, queries_QD, where))
                continue
            if kind == "delete":
                _patiently(index.delete, [f"p{i}" for i in ids], 1000)
                where[ids] = -1
                continue
            rows = ids
            if kind == "replace":
                ids = np.arange(*(int(step[key] * scale) for key in ("tags_start", "tags_end")))
                rows = int(step["ids_start"] * scale) + np.arange(len(ids))
            rows = np.minimum(rows, len(vectors_ND) - 1)
            points = [{"id": f"p{i}", "vector": vectors_ND[row]} for i, row in zip(ids, rows, strict=True)]
            _patiently(index.upsert, points, BATCH)
            where[ids] = rows
        stats = index.stats()
    values, segments = np.array(recalls), read_manifest(store, "runbook").segments
    below, sealed = int((values < spec.target_recall).sum()), sum(entry.rows for entry in segments)
    print(
        f"{given.name}, {title}, scaled to {len(vectors_ND):,} points: {len(steps)} steps in "
        f"{time.perf_counter() - started:.0f} s, {len(recalls)} searches measured; recall@{K} mean "
        f"{values.mean():.3f}, least {values.min():.3f}, below {spec.target_recall}: {below}; at the end version "
        f"{stats.version}, {len(segments)} segments with {sealed:,} rows for {stats.rows:,} datapoints.\n"
    )


def _patiently(call: Callable[[Any], Any], items: Sequence[Any], batch: int) -> None:
    """Call with some items at a time, again while the server refuses."""
    for first in range(0, len(items), batch):
        while True:
            try:
                call(items[first : first + batch])
                break
            except scannery.ResourceExhaustedError as error:
                time.sleep(error.retry_after_s or 0.1)


def _recall_of(index: Any, vectors_ND: np.ndarray, queries_QD: np.ndarray, where: np.ndarray) -> float:
    ids = np.flatnonzero(where >= 0)
    live_ND = vectors_ND[where[ids]]
    distances_QN = (live_ND**2).sum(axis=1) - 2 * queries_QD @ live_ND.T
    k = min(K, len(ids))
    cut_Q = np.partition(distances_QN, k - 1, axis=1)[:, k - 1]
    place = {f"p{identifier}": position for position, identifier in enumerate(ids.tolist())}
    # Compared by distance, so that ties count; without the queries' own lengths, distances may be negative.
    allowed_Q = cut_Q + 1e-6 * np.abs(cut_Q)
    found = index.search_many(queries_QD, K, fields=[])
    right = [
        sum(distances_QN[q, place[hit.id]] <= allowed_Q[q] for hit in hits) / k
        for q, hits in enumerate(found)
    ]
    return float(np.mean(right))


# --- the log


def log(given: argparse.Namespace, folder: Path) -> None:
    """Print turns of both logs with one record, alternating, and upserts through a server with each."""
    from tests.live.log.postgres_server import postgres_or_skip

    with ExitStack() as stack:
        url = given.url
        if not url:
            server = postgres_or_skip(durable=True)
            stack.callback(server.stop)
            url = server.new_database()
        vectors_ND, urls = random_vectors(2000), {"SQLite": "", "PostgreSQL": url}
        logs = {}
        for name, each in urls.items():
            store = store_at(folder / name, "writes", vectors_ND, **NEVER_SEALED)
            home = log_home(store, "writes", DatabaseUrl(each) if each else None)
            logs[name] = home.claim(None, read_manifest(store, "writes"))
        rows = []
        for size_bytes in (600, 50_000):
            data = os.urandom(size_bytes)
            took = in_turns(
                {name: lambda one=one: timed(lambda: _append(one, data)) for name, one in logs.items()},  # type: ignore[misc]  # noqa: B023
                300,
            )
            for name, times in took.items():
                p50, p99 = (f"{milliseconds(times, share):.2f}" for share in (0.5, 0.99))
                rows.append([f"{name}, {size_bytes:,} bytes", f"{1 / median(times):,.0f}", p50, p99])
        print(table(["one writer", "turns/s", "p50, ms", "p99, ms"], rows), flush=True)
        rows = []
        for name, each in urls.items():
            place = folder / f"served-{name}"
            store_at(place, "writes", vectors_ND, **NEVER_SEALED)
            options = ("--log", each) if each else ()
            with served(place / "store", *TWO, *options) as (_, address, _), ExitStack() as callers:
                indexes = [callers.enter_context(scannery.connect(address)).index("writes") for _ in range(4)]
                for clients, batch in ((1, 1), (4, 1), (4, BATCH)):
                    written = upserts(indexes[:clients], vectors_ND, batch, 5)
                    rows.append([f"{name}, {clients} clients, batches of {batch}", *written])
        print(table(["server with 2 workers", *UPSERT_TITLES], rows), flush=True)


CASES = {
    "writes": writes, "queries": queries, "fill": fill, "maintenance": maintenance, "runbook": runbook, "log": log,
}  # fmt: skip


def main() -> None:
    run_cases(
        __doc__, CASES, "scann numpy pyarrow grpcio apsw", own_cache=True, name="final_runbook.yaml", points=60_000,
        dimensions=64, part=50_000, every=10, dataset=str, url="",
    )  # fmt: skip


if __name__ == "__main__":
    main()

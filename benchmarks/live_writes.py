"""Speed of writes, and the time until they are visible."""

from __future__ import annotations

import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from benchmarks.live_setup import BATCH, milliseconds, publish, random_vectors, serving, spec_of, timed
from benchmarks.report import table
from scannery.indexer import Store
from scannery.live.log.sqlite_log import SqliteLog

__all__ = ["measure_writes"]


def fsyncs(folder: Path, size_bytes: int, count: int = 200) -> list[float]:
    """Return the times in seconds to append `size_bytes` bytes to a file and sync it."""
    data = os.urandom(size_bytes)
    with (folder / "probe").open("wb", buffering=0) as file:

        def once(_: int) -> None:
            file.write(data)
            os.fsync(file.fileno())

        return timed(once, count)


def measure_writes(folder: Path) -> None:
    vectors_ND = random_vectors(20_000)
    spec = spec_of("writes", "cosine", seal_rows=1_000_000, max_rows=2_000_000, max_bytes=1 << 34)
    store = Store.open(folder / "store", create=True)
    publish(store, spec, vectors_ND, folder)
    rows = []
    single_fsync = fsyncs(folder, 4096)
    batch_fsync = fsyncs(folder, BATCH * 512)
    rows.append(["fsync of 4 KiB", "", f"{1 / statistics.median(single_fsync):,.0f}/s",
                 f"{milliseconds(single_fsync, 0.5):.2f}", f"{milliseconds(single_fsync, 0.99):.2f}"])  # fmt: skip
    rows.append(["fsync of 50 KiB", "", f"{1 / statistics.median(batch_fsync):,.0f}/s",
                 f"{milliseconds(batch_fsync, 0.5):.2f}", f"{milliseconds(batch_fsync, 0.99):.2f}"])  # fmt: skip
    single = _Singles(folder, vectors_ND)
    with scannery.connect(folder / "store") as client:
        single.measure("embedded", client.index("writes"))
        rows.append(_batches("embedded, 1 thread", client.index("writes"), vectors_ND, threads=1))
    with serving(folder / "store") as address:
        with scannery.connect(address) as client:
            single.measure("server, 2 workers", client.index("writes"))
        for threads in (1, 4):
            clients = [scannery.connect(address) for _ in range(threads)]
            name = f"server, 2 workers, {threads} clients"
            rows.append(_batches(name, [c.index("writes") for c in clients], vectors_ND, threads=threads))
            for client in clients:
                client.close()
        with scannery.connect(address) as client:
            single.measure("server, with the rows of all these batches in memory", client.index("writes"))
    print(table(["what", "upserts/s", "calls/s", "p50, ms", "p99, ms"], rows), "\n")
    columns = [
        "one upsert",
        "p50, ms",
        "p99, ms",
        "fsync, p50",
        "log alone, p50",
        "× fsync",
        "beyond the log",
    ]
    print(table(columns, single.rows), "\n")
    _visibility(folder, vectors_ND)


def _batches(name: str, index: Any, vectors_ND: np.ndarray, *, threads: int, seconds: float = 8) -> list[str]:
    indexes = index if isinstance(index, list) else [index]
    took: list[float] = []
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        batch = 0
        while time.perf_counter() < end:
            started = time.perf_counter()
            first = (batch * BATCH) % (len(vectors_ND) - BATCH)
            indexes[number].upsert(
                [
                    {
                        "id": f"{name}{number}-{batch}-{i}",
                        "vector": vectors_ND[first + i],
                        "attributes": {"n": i},
                    }
                    for i in range(BATCH)
                ]
            )
            took.append(time.perf_counter() - started)
            batch += 1

    started = time.perf_counter()
    pool = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    wall = time.perf_counter() - started
    return [f"{name}, batches of {BATCH}", f"{len(took) * BATCH / wall:,.0f}", f"{len(took) / wall:,.0f}/s",
            f"{milliseconds(took, 0.5):.2f}", f"{milliseconds(took, 0.99):.2f}"]  # fmt: skip


class _Singles:
    """Single upserts, each next to a bare fsync and a bare record, since the speed of a disk changes by the minute."""

    def __init__(self, folder: Path, vectors_ND: np.ndarray) -> None:
        self.rows: list[list[str]] = []
        self._vectors_ND = vectors_ND
        self._probe = (folder / "single").open("wb", buffering=0)
        (folder / "bare" / "index").mkdir(parents=True)
        self._log = SqliteLog(folder / "bare" / "index" / "log", create=True)

    def measure(self, name: str, index: Any, count: int = 500) -> None:
        page, record = os.urandom(4096), os.urandom(600)

        def sync(_: int) -> None:
            self._probe.write(page)
            os.fsync(self._probe.fileno())

        def append(_: int) -> None:
            with self._log.transaction(after=0) as transaction:
                transaction.append(record)

        def upsert(number: int) -> None:
            index.upsert([{"id": f"s-{number}", "vector": self._vectors_ND[number]}])

        took: list[list[float]] = [[], [], []]
        for number in range(count):
            for times, action in zip(took, (sync, append, upsert), strict=True):
                started = time.perf_counter()
                action(number)
                times.append(time.perf_counter() - started)
        fsync, log, whole = (milliseconds(times, 0.5) for times in took)
        self.rows.append([name, f"{whole:.2f}", f"{milliseconds(took[2], 0.99):.2f}", f"{fsync:.2f}",
                          f"{log:.2f}", f"{whole / fsync:.1f}", f"{whole - log:.2f}"])  # fmt: skip


def _visibility(folder: Path, vectors_ND: np.ndarray, count: int = 300) -> None:
    """Measure the time from a write's acknowledgement until another server of the same store shows it."""
    took, own = [], 0
    with (
        serving(folder / "store", 1) as one,
        serving(folder / "store", 1) as two,
        scannery.connect(one) as writer,
        scannery.connect(two) as reader,
    ):
        for number in range(count):
            name = f"seen-{number}"
            writer.index("writes").upsert([{"id": name, "vector": vectors_ND[number]}])
            started = time.perf_counter()
            while reader.index("writes").get([name], fields=[]) == [None]:
                pass
            took.append(time.perf_counter() - started)
            own += writer.index("writes").get([name], fields=[]) != [None]
            time.sleep(0.02)
    print(
        f"Visible in another process after p50 {milliseconds(took, 0.5):.1f} ms, p99 {milliseconds(took, 0.99):.1f} ms "
        f"({count} writes; one look costs about a millisecond); to the writer itself at once: {own} of {count}.\n"
    )

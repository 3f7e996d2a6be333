"""How fast writes are, and how soon they are seen."""

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
from scannery.serving.live.sqlite_log import SqliteLog

__all__ = ["measure_writes"]


def fsyncs(folder: Path, size_bytes: int, count: int = 200) -> list[float]:
    """Return how long it takes to append so many bytes to a file and sync it."""
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
    (folder / "bare" / "index").mkdir(parents=True)
    log = SqliteLog(folder / "bare" / "index" / "log", create=True)

    def append(_: int, data: bytes = os.urandom(600)) -> None:
        with log.turn(after=0) as turn:
            turn.append(data)

    took = timed(append, 500)
    rows.append(["log alone, one record of 600 B", "", f"{1 / statistics.median(took):,.0f}/s",
                 f"{milliseconds(took, 0.5):.2f}", f"{milliseconds(took, 0.99):.2f}"])  # fmt: skip
    with scannery.connect(folder / "store") as client:
        rows.append(_batches("embedded, 1 thread", client.index("writes"), vectors_ND, threads=1))
        rows.append(_singles("embedded", client.index("writes"), vectors_ND))
    with serving(folder / "store") as address:
        for threads in (1, 4):
            clients = [scannery.connect(address) for _ in range(threads)]
            name = f"server, 2 workers, {threads} clients"
            rows.append(_batches(name, [c.index("writes") for c in clients], vectors_ND, threads=threads))
            for client in clients:
                client.close()
        with scannery.connect(address) as client:
            rows.append(_singles("server", client.index("writes"), vectors_ND))
    print(table(["what", "upserts/s", "calls/s", "p50, ms", "p99, ms"], rows), "\n")
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


def _singles(name: str, index: Any, vectors_ND: np.ndarray) -> list[str]:
    took = timed(lambda i: index.upsert([{"id": f"s-{i}", "vector": vectors_ND[i]}]), 500)
    return [f"{name}, one by one", f"{len(took) / sum(took):,.0f}", f"{len(took) / sum(took):,.0f}/s",
            f"{milliseconds(took, 0.5):.2f}", f"{milliseconds(took, 0.99):.2f}"]  # fmt: skip


def _visibility(folder: Path, vectors_ND: np.ndarray, count: int = 300) -> None:
    """Measure from the acknowledgement of a write to its first sight through another server of the same store."""
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

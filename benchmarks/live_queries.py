"""Latency of queries during writes, seals, merges and moves to new versions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from benchmarks.live_setup import BATCH, K, milliseconds, publish, random_vectors, serving, spec_of
from benchmarks.report import table
from scannery.indexer import Store, list_versions, rollback
from scannery.live.maintenance.locks import locked
from scannery.live.maintenance.scheduler import PROGRAM, bounds

__all__ = ["measure_queries"]


def measure_queries(folder: Path) -> None:
    vectors_ND = random_vectors(70_000)
    spec = spec_of("queries", "cosine", seal_rows=500_000, max_rows=1_000_000, merge_segments=2)
    store = Store.open(folder / "store", create=True)
    publish(store, spec, vectors_ND[:50_000], folder)
    (folder / "other").mkdir()
    publish(Store.open(folder / "other" / "store", create=True), spec, vectors_ND[:50_000], folder / "other")
    rows: list[list[str]] = []
    with (
        # Merges must happen only when they are measured.
        locked(folder / "store", "queries", "merge"),
        serving(folder / "store") as address,
        serving(folder / "other" / "store") as other_address,
        scannery.connect(address) as client,
        scannery.connect(other_address) as other,
    ):
        index = client.index("queries")
        probe = _Probe(address, vectors_ND)
        for _ in range(2):  # the first one warms up
            quiet = probe.during(lambda: time.sleep(6))
        rows.append(_phase("quiet", quiet, quiet))

        def write(seconds: float = 10, pause_s: float = 0.0, index: Any = index) -> int:
            done, end = 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                first = (done * BATCH) % 20_000
                index.upsert(
                    [
                        {"id": f"w{first + i}", "vector": vectors_ND[50_000 + (first + i) % 20_000]}
                        for i in range(BATCH)
                    ]
                )
                done += 1
                time.sleep(pause_s)
            return done

        # The cost of sharing the cores with any other work.
        elsewhere = probe.during(lambda: write(10, index=other.index("queries")))
        rows.append(_phase("upserts at full speed, at another server", elsewhere, quiet))
        rows.append(_phase("1,000 upserts/s", probe.during(lambda: write(10, 0.09)), quiet))
        rows.append(_phase("upserts at full speed", probe.during(lambda: write(10)), quiet))
        rows.append(_phase("20,000 rows in memory, no writes", probe.during(lambda: time.sleep(5)), quiet))
        rows.append(
            _phase("seal and the move to its version", probe.during(lambda: _nicely("seal", folder)), quiet)
        )
        write(3)
        _nicely("seal", folder)
        rows.append(
            _phase("merge and the move to its version", probe.during(lambda: _nicely("merge", folder)), quiet)
        )
        rows.append(_phase("a rollback", probe.during(lambda: _back(store)), quiet))
        rows.append(_phase("quiet again", probe.during(lambda: time.sleep(6)), quiet))
        probe.close()
    print(table(["during", "queries", "p50, ms", "p99, ms", "p99 × quiet", "failures"], rows), "\n")


def _nicely(task: str, folder: Path) -> None:
    # The same process as a server starts.
    with locked(folder / "store", "queries", "seal"):
        command = ["-m", PROGRAM, task, "queries"]
        places = ["--store", str(folder / "store"), "--log", str(folder / "store"), "--lock", "0"]
        environment = (
            os.environ | bounds() | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        )
        subprocess.run([sys.executable, *command, *places], check=True, env=environment)
    time.sleep(3)


def _back(store: Store) -> None:
    rollback(store, "queries", list_versions(store, "queries")[-1])
    time.sleep(3)


class _Probe:
    """Sends single queries in sequence, and records the time of each."""

    def __init__(self, address: str, vectors_ND: np.ndarray) -> None:
        self._client = scannery.connect(address)
        self._vectors_ND = vectors_ND
        self._generator = np.random.default_rng(3)

    def during(self, action: Callable[[], Any]) -> tuple[list[float], int]:
        thread = threading.Thread(target=action)
        thread.start()
        took, failures = [], 0
        while thread.is_alive():
            query_D = self._vectors_ND[self._generator.integers(50_000)]
            started = time.perf_counter()
            try:
                self._client.index("queries").search(query_D, K)
            except scannery.ScanneryError:
                failures += 1
            took.append(time.perf_counter() - started)
            time.sleep(0.002)
        thread.join()
        return took, failures

    def close(self) -> None:
        self._client.close()


def _phase(name: str, result: tuple[list[float], int], quiet: tuple[list[float], int]) -> list[str]:
    took, failures = result
    ratio = milliseconds(took, 0.99) / milliseconds(quiet[0], 0.99)
    return [name, f"{len(took):,}", f"{milliseconds(took, 0.5):.2f}", f"{milliseconds(took, 0.99):.2f}",
            f"{ratio:.1f}", str(failures)]  # fmt: skip

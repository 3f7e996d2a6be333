"""Servers in separate processes, callers, and the processor time and memory of both."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from scannery.client import Index
from scannery.indexer import OpenIndex, unit_length

__all__ = [
    "CALLERS",
    "QUERIES",
    "ROUNDS",
    "K",
    "batched",
    "children",
    "cpu_s",
    "hundred",
    "private_mib",
    "queries_of",
    "served",
    "started",
    "throughput",
    "unary",
]

K = 10
CALLERS = 8
QUERIES = 500
ROUNDS = 5
"""Rounds of each measurement; compared ones take turns, and medians are reported."""


@contextmanager
def started(module: str, *arguments: str, python: str = sys.executable) -> Iterator[tuple[int, str, float]]:
    """Yield the process id of a server, run by some Python, its address, and its start time in seconds."""
    started_s = time.perf_counter()
    process = subprocess.Popen(
        [python, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        match = re.search(r"Serving on (\S+);", process.stdout.readline())
        if match is None:
            raise SystemExit(f"{module} did not start")
        yield process.pid, match[1], time.perf_counter() - started_s
    finally:
        process.terminate()
        process.wait()


def served(store: str, *options: str) -> AbstractContextManager[tuple[int, str, float]]:
    """Yield a server of a store, as `started` does."""
    arguments = ("--store", store, "--listen", "127.0.0.1:0", "--recall-share", "0", *options)
    return started("scannery.cli.main", "serve", *arguments)


def throughput(
    ask: Callable[[int], object], callers: int, seconds: float, *, pause_s: float = 0.0
) -> tuple[float, list[float]]:
    """Return calls per second of concurrent callers who pause before each, and the latencies in seconds."""
    numbers, latencies, done = itertools.count(), list[float](), threading.Event()

    def work() -> None:
        while not done.is_set():
            if pause_s:
                time.sleep(pause_s)
            started_s = time.perf_counter()
            ask(next(numbers))
            latencies.append(time.perf_counter() - started_s)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    started_s = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    done.set()
    for thread in threads:
        thread.join()
    return len(latencies) / (time.perf_counter() - started_s), latencies


def queries_of(index: OpenIndex) -> tuple[np.ndarray, np.ndarray]:
    """Return all vectors, and queries: stored vectors with a little noise; all of length 1."""
    vectors_ND = np.concatenate([segment.vectors(np.arange(segment.rows)) for segment in index.segments])
    generator = np.random.default_rng(0)
    picked_QD = vectors_ND[generator.choice(len(vectors_ND), QUERIES, replace=False)]
    noise_QD = generator.standard_normal(picked_QD.shape).astype(np.float32)
    noise_QD *= (
        0.3
        * np.linalg.norm(picked_QD, axis=1, keepdims=True)
        / np.linalg.norm(noise_QD, axis=1, keepdims=True)
    )
    return unit_length(vectors_ND), unit_length((picked_QD + noise_QD).astype(np.float32))


def unary(index: Index, queries_QD: np.ndarray, fields: Sequence[str] | None) -> Callable[[int], object]:
    """Return a function that sends the query of a number."""
    return lambda number: index.search(queries_QD[number % len(queries_QD)], K, fields=fields)


def batched(index: Index, queries_QD: np.ndarray) -> Callable[[int], object]:
    """Return a function that sends a hundred queries in one call, from a number on."""
    return lambda number: index.search_many(hundred(queries_QD, number), K, fields=[])


def hundred(queries_QD: np.ndarray, number: int) -> np.ndarray:
    """Return a hundred of the queries."""
    first = 100 * (number % (len(queries_QD) // 100))
    return queries_QD[first : first + 100]


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and its children, in seconds."""
    ticks = 0
    for each in (pid, *children(pid)):
        fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def private_mib(pid: int) -> float:
    """Return the private memory of a process in MiB."""
    sizes = dict(re.findall(r"(\w+): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text()))
    return (int(sizes["Private_Dirty"]) + int(sizes["Private_Clean"])) / 1024

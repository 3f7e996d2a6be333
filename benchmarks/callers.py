"""Callers of one server, in a process that `benchmarks.lone_caller` runs with the Python of any version.

Reads a line of JSON with the arguments of `measured` from stdin for each measurement, and writes a line of
JSON with its result. Imports nothing of this repository but `scannery`, which is that of the version.

    python benchmarks/callers.py HOST:PORT QUERIES.npy
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import scannery

K = 10


def measured(
    ask: Callable[[int], object], *, callers: int, seconds: float, warm_s: float = 0.2
) -> dict[str, Any]:
    """Return the queries per second of concurrent callers, latencies in ms, and own processor time in µs a query."""
    _latencies(ask, callers, warm_s)
    own_s, started_s = time.process_time(), time.perf_counter()
    latencies = _latencies(ask, callers, seconds)
    rate, own_s = len(latencies) / (time.perf_counter() - started_s), time.process_time() - own_s
    p50, p99 = np.quantile(latencies, (0.5, 0.99)) * 1000
    return {
        "queries": len(latencies),
        "rate": rate,
        "p50_ms": p50,
        "p99_ms": p99,
        "own_us": own_s / len(latencies) * 1e6,
    }


def _latencies(ask: Callable[[int], object], callers: int, seconds: float) -> list[float]:
    numbers, latencies, done = itertools.count(), list[float](), threading.Event()

    def work() -> None:
        while not done.is_set():
            started_s = time.perf_counter()
            ask(next(numbers))
            latencies.append(time.perf_counter() - started_s)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    done.set()
    for thread in threads:
        thread.join()
    return latencies


def main() -> None:
    """Answer lines of stdin until it ends."""
    address, queries = sys.argv[1:3]
    queries_QD = np.load(queries)
    with scannery.connect(address) as client:
        for line in sys.stdin:
            wanted = json.loads(line)
            index, options = client.index(wanted.pop("index")), wanted.pop("options")

            def ask(
                number: int, index: scannery.Index = index, options: dict[str, Any] = options
            ) -> list[str]:
                hits = index.search(queries_QD[number % len(queries_QD)], K, **options)
                return [hit.id for hit in hits]

            if wanted.pop("hits", False):
                print(json.dumps([ask(number) for number in range(len(queries_QD))]), flush=True)
            else:
                print(json.dumps(measured(ask, **wanted)), flush=True)


if __name__ == "__main__":
    main()

"""A process that asks a server in batches, with the SDK of the Python that runs it.

    python -P benchmarks/search_many_caller.py ADDRESS INDEX QUERIES.npy

Each line on its input is a measurement in JSON; each line on its output the rate or the latencies. It imports nothing
of the benchmarks, so that the SDK of another worktree can run it.
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

LOOKS: dict[str, Callable[[Any], object]] = {
    "nothing": lambda hits: None,
    "ids": lambda hits: [hit.id for hit in hits],
    "texts": lambda hits: [(hit.id, hit.score, hit.text) for hit in hits],
    "all": lambda hits: [(hit.id, hit.text, hit.attributes) for hit in hits],
}
"""What is read of the hits of each query."""


def batches(index: scannery.Index, queries_QD: np.ndarray, job: dict[str, Any]) -> dict[str, float]:
    """Return queries/s of concurrent callers, and the processor time of this process per query in µs."""
    size, numbers, done = job["size"], itertools.count(), threading.Event()
    look, counts = LOOKS[job["look"]], list[int]()

    def work() -> None:
        while not done.is_set():
            start = next(numbers) % (len(queries_QD) // size) * size
            found = index.search_many(queries_QD[start : start + size], 10, fields=job["fields"])
            for hits in found:
                look(hits)
            counts.append(len(found))

    threads = [threading.Thread(target=work) for _ in range(job["callers"])]
    started_s, worked_s = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    time.sleep(job["seconds"])
    done.set()
    for thread in threads:
        thread.join()
    took_s, worked_s = time.perf_counter() - started_s, time.process_time() - worked_s
    return {"rate": sum(counts) / took_s, "worked_us": worked_s / sum(counts) * 1e6}


def singles(index: scannery.Index, queries_QD: np.ndarray, job: dict[str, Any]) -> dict[str, float]:
    """Return p50 and p99 of single queries in ms, which are asked one after the other with pauses."""
    latencies_ms, until_s = [], time.perf_counter() + job["seconds"]
    for query_D in itertools.cycle(queries_QD):
        started_s = time.perf_counter()
        if started_s > until_s:
            break
        index.search(query_D, 10, fields=[])
        latencies_ms.append(1000 * (time.perf_counter() - started_s))
        time.sleep(job["pause_s"])
    p50, p99 = np.quantile(latencies_ms, (0.5, 0.99)).tolist()
    return {"p50_ms": p50, "p99_ms": p99}


def ids(index: scannery.Index, queries_QD: np.ndarray, job: dict[str, Any]) -> list[list[str]]:
    """Return the ids of the hits of each query."""
    parts = [queries_QD[start : start + 100] for start in range(0, len(queries_QD), 100)]
    return [[hit.id for hit in hits] for part in parts for hits in index.search_many(part, 10, fields=[])]


def main(address: str, name: str, queries: str) -> None:
    queries_QD = np.load(queries)
    with scannery.connect(address) as client:
        index = client.index(name)
        for line in sys.stdin:
            job = json.loads(line)
            measure = {"batches": batches, "singles": singles, "ids": ids}[job["measure"]]
            print(json.dumps(measure(index, queries_QD, job)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

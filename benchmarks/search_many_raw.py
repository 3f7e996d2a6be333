"""A process that asks ScaNN itself in batches of 100, with a thread per core.

    python benchmarks/search_many_raw.py QUERIES.npy FOLDER wheel|vector

`wheel` is ScaNN as its wheel runs, `vector` the same with the vector instructions that Scannery lets it use: they hold
for a whole process, so each has one of its own. Each line on its input is a measurement in JSON, each line on its
output the queries/s.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from typing import Any

import numpy as np
from scann.scann_ops.py import scann_ops_pybind

K = 10
SIZE = 100


def rate(searcher: Any, queries_QD: np.ndarray, leaves: int, rescored: int, seconds: float) -> float:
    """Return queries/s of a thread per core."""
    numbers, counts, done = itertools.count(), list[int](), threading.Event()

    def work() -> None:
        while not done.is_set():
            start = next(numbers) % (len(queries_QD) // SIZE) * SIZE
            searcher.search_batched(queries_QD[start : start + SIZE], K, rescored, leaves)
            counts.append(SIZE)

    threads = [threading.Thread(target=work) for _ in os.sched_getaffinity(0)]
    started_s = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    done.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started_s)


def main(queries: str, folder: str, instructions: str) -> None:
    if instructions == "vector":
        from scannery.indexer.scann.instructions import use_vector_instructions

        use_vector_instructions()
    queries_QD, searcher = np.load(queries), scann_ops_pybind.load_searcher(folder)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(rate(searcher, queries_QD, **job)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

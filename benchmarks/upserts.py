"""Upserts over gRPC and over HTTP in turns, to one server in a process of its own: latency, and processor time of both.

    PYTHONPATH=src python -m benchmarks.upserts [--turns N]

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import numpy as np

import scannery
from benchmarks.callers import processor_s
from benchmarks.harness import folder_of, free_port, options, served

DIMENSIONS = 384
CALLS = {1: 100, 100: 12, 1000: 4}
"""Upserts of a wire in a turn, by the datapoints of each."""
LIVE = {"seal_rows": 5_000_000, "seal_age_s": 86_400.0, "max_rows": 9_000_000}
"""No task of maintenance may start while something is measured."""


def main() -> None:
    """Print a line for each size and wire."""
    turns = options(__doc__, turns=12).turns
    with folder_of() as store:
        with scannery.connect(store, create=True) as client:
            client.create_index("written", dimensions=DIMENSIONS, live=LIVE)
        http = f"127.0.0.1:{free_port()}"
        with (
            served(store, "--http", http) as (_, grpc, _),
            scannery.connect(grpc, http=False, timeout_s=120) as over_grpc,
            scannery.connect(f"http://{http}", timeout_s=120) as over_http,
        ):
            _measure({"gRPC": over_grpc, "HTTP": over_http}, turns)


def _measure(clients: dict[str, scannery.Client], turns: int) -> None:
    print(
        "| datapoints | wire | ms: least | median | processor ms, client + server |\n| --- | --- | --- | --- | --- |"
    )
    for size, calls in CALLS.items():
        vectors_ND = np.random.default_rng(0).normal(size=(size, DIMENSIONS)).astype(np.float32)
        points: list[Any] = [
            {"id": str(number), "vector": vector, "text": f"passage {number} " * 20}
            for number, vector in enumerate(vectors_ND)
        ]
        took_s: dict[str, list[float]] = defaultdict(list)
        own_s: dict[str, float] = defaultdict(float)
        all_s: dict[str, float] = defaultdict(float)
        for turn in range(turns + 1):
            for wire, client in list(clients.items())[:: 1 if turn % 2 else -1]:
                index, own, both = client.index("written"), time.process_time(), processor_s()
                times = []
                for _ in range(calls):
                    began_s = time.perf_counter()
                    index.upsert(points)
                    times.append(time.perf_counter() - began_s)
                if turn:  # the first one warms
                    took_s[wire] += times
                    own_s[wire] += time.process_time() - own
                    all_s[wire] += processor_s() - both
        for wire, times in took_s.items():
            own_ms = 1000 * own_s[wire] / len(times)
            server_ms = 1000 * all_s[wire] / len(times) - own_ms
            least_ms, median_ms = 1000 * min(times), 1000 * float(np.median(times))
            print(f"| {size} | {wire} | {least_ms:.1f} | {median_ms:.1f} | {own_ms:.1f} + {server_ms:.1f} |")


if __name__ == "__main__":
    main()

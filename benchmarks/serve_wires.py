"""The wires of a search to a server, by number of callers: gRPC and HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

import scannery
from benchmarks.report import table
from benchmarks.serve_load import CALLERS, ROUNDS, cpu_s, queries_of, served, throughput, unary
from scannery.client.transport.credentials import ConnectOptions
from scannery.indexer import Store, open_index

__all__ = ["wires"]

HOW: dict[str, ConnectOptions] = {
    "gRPC": {"channels": CALLERS, "http": False},
    "HTTP": {},
}


def wires(store: str, name: str, seconds: float) -> None:
    """Single queries of 1 to 32 threads, over each wire; these take turns."""
    _, queries_QD = queries_of(open_index(Store.open(store), name))
    rows: list[Sequence[object]] = []
    for label, workers in (("one worker", "1"), ("a worker per core", "auto")):
        with served(store, "--workers", workers) as (pid, address, _):
            for callers in (1, 2, 4, 8, 16, 32):
                figures = _measured(pid, address, name, queries_QD, callers, seconds)
                rows += [(label, callers, how, *each) for how, each in figures.items()]
    titles = ("", "callers", "calls", "queries/s", "p50 ms", "p99 ms", "server CPU µs/query", "client CPU")
    print(table(titles, rows), flush=True)


def _measured(
    pid: int, address: str, name: str, queries_QD: np.ndarray, callers: int, seconds: float
) -> dict[str, list[str]]:
    """Return the medians of all rounds, by how calls are made."""
    figures: dict[str, list[list[float]]] = {how: [] for how in HOW}
    for _ in range(ROUNDS):
        for how, options in HOW.items():
            with scannery.connect(address, **options) as client:
                ask = unary(client.index(name), queries_QD, [])
                throughput(ask, callers, 0.2)
                before_s, own_s = cpu_s(pid), time.process_time()
                rate, latencies = throughput(ask, callers, seconds)
                spent = (cpu_s(pid) - before_s, time.process_time() - own_s)
            milliseconds = 1000 * np.quantile(latencies, (0.5, 0.99))
            figures[how].append([rate, *milliseconds, *(1e6 * each / len(latencies) for each in spent)])
    formats = ("{:.0f}", "{:.1f}", "{:.1f}", "{:.0f}", "{:.0f}")
    return {
        how: [form.format(value) for form, value in zip(formats, np.median(rounds, axis=0), strict=True)]
        for how, rounds in figures.items()
    }

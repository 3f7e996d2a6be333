"""The server, through the SDK and over loopback: throughput and latency beside the segments themselves.

    python -m benchmarks.serve STORE INDEX [vectors] [texts] [workers] [start] [--seconds 4]

STORE is a copy of a real store.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np

import scannery
from benchmarks.report import environment, table
from scannery.client import Index
from scannery.indexer import OpenIndex, Store, exact_search, open_index, unit_length

K = 10
CALLERS = 8
QUERIES = 500
ROUNDS = 3


@contextmanager
def served(store: str, *options: str) -> Iterator[tuple[int, str, float]]:
    """Give the process of a server, its address, and how long it took until it was ready, in seconds."""
    started_s = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "scannery.cli.main",
        "serve",
        "--store",
        store,
        "--listen",
        "127.0.0.1:0",
    ]
    process = subprocess.Popen(
        [*command, "--recall-share", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        match = re.search(r"Serving on (\S+);", process.stdout.readline())
        if match is None:
            raise SystemExit("the server did not start")
        yield process.pid, match[1], time.perf_counter() - started_s
    finally:
        process.terminate()
        process.wait()


def throughput(ask: Callable[[int], object], callers: int, seconds: float) -> tuple[float, list[float]]:
    """Return calls per second of concurrent callers, and the latencies in seconds."""
    numbers, latencies, done = itertools.count(), [], threading.Event()

    def work() -> None:
        while not done.is_set():
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
    """Return all vectors, and queries like them: real ones with a little noise."""
    vectors_ND = np.concatenate([segment.vectors(np.arange(segment.rows)) for segment in index.segments])
    generator = np.random.default_rng(0)
    picked_QD = vectors_ND[generator.choice(len(vectors_ND), QUERIES, replace=False)]
    noise_QD = generator.standard_normal(picked_QD.shape).astype(np.float32)
    noise_QD *= (
        0.3
        * np.linalg.norm(picked_QD, axis=1, keepdims=True)
        / np.linalg.norm(noise_QD, axis=1, keepdims=True)
    )
    return vectors_ND, (picked_QD + noise_QD).astype(np.float32)


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and its children, in seconds."""
    own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ticks = 0
    for each in (pid, *own):
        fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


def vectors(store: str, name: str, seconds: float) -> None:
    """Vector search: unary, in batches, and beside the segments themselves."""
    opened = open_index(Store.open(store), name)
    vectors_ND, queries_QD = queries_of(opened)
    # Noise changed their lengths, and exact search wants length 1.
    vectors_ND, queries_QD = unit_length(vectors_ND), unit_length(queries_QD)
    true = exact_search(vectors_ND, queries_QD, K, "cosine")[1]
    rows: list[Sequence[object]] = []
    with served(store) as (pid, address, _), scannery.connect(address) as client:
        index = client.index(name)
        found = index.search_many(queries_QD, K, fields=[])
        recall = np.mean([
            sum(hit.score >= scores[-1] - 1e-5 for hit in hits) / K for hits, scores in zip(found, true, strict=True)
        ])  # fmt: skip
        print(f"{len(vectors_ND):,} × {vectors_ND.shape[1]}, recall@{K} {recall:.3f}\n")
        for label, fields in (("with all fields", None), ("ids and scores", [])):
            rates, spent, lasts = [], [], []
            for _ in range(ROUNDS):
                before_s = cpu_s(pid)
                rate, latencies = throughput(_unary(index, queries_QD, fields), CALLERS, seconds)
                rates.append(rate)
                spent.append((cpu_s(pid) - before_s) / len(latencies) * 1e6)
                lasts.append(np.quantile(latencies, [0.5, 0.99]) * 1000)
            p50, p99 = np.median(lasts, axis=0)
            rows.append(
                (
                    f"SDK, {CALLERS} callers, {label}",
                    f"{median(rates):.0f}",
                    f"{p50:.1f}",
                    f"{p99:.1f}",
                    f"{median(spent):.0f}",
                )
            )
        batches, raws = [], []
        for _ in range(ROUNDS):
            raws.append(_raw_scann(opened, queries_QD, seconds))
            rate, _ = throughput(_batched(index, queries_QD), 2, seconds)
            batches.append(100 * rate)
        rows.append(
            ("SDK, SearchMany of 100, 2 callers, ids and scores", f"{median(batches):.0f}", "", "", "")
        )
        rows.append(("segments in process, batches of 100", f"{median(raws):.0f}", "", "", ""))
    print(table(("", "queries/s", "p50 ms", "p99 ms", "server CPU µs/query"), rows), flush=True)


def _unary(index: Index, queries_QD: np.ndarray, fields: list[str] | None) -> Callable[[int], object]:
    return lambda number: index.search(queries_QD[number % QUERIES], K, fields=fields)


def _batched(index: Index, queries_QD: np.ndarray) -> Callable[[int], object]:
    return lambda number: index.search_many(
        queries_QD[100 * (number % 5) : 100 * (number % 5) + 100], K, fields=[]
    )


def _raw_scann(opened: OpenIndex, queries_QD: np.ndarray, seconds: float) -> float:
    """Return queries per second of the segments themselves, merged by nobody."""
    settings = opened.settings_for(None)

    def ask(number: int) -> None:
        batch_QD = queries_QD[100 * (number % 5) : 100 * (number % 5) + 100]
        for segment, knobs in zip(opened.segments, settings, strict=True):
            segment.search(batch_QD, K, settings=knobs)

    return 100 * throughput(ask, 1, seconds)[0]


def texts(store: str, name: str, seconds: float) -> None:
    """Text queries: one alone, many at once, and those that were asked before."""
    from scannery.embed import Encoder

    opened = open_index(Store.open(store), name)
    assert opened.spec.encoder is not None
    encoder = Encoder.load(opened.spec.encoder.model, device="cpu")
    words = [f"what did they say about topic {number} in the last episode" for number in range(200_000)]
    fresh = iter(words)
    rows: list[Sequence[object]] = []
    encoder.encode_queries(["warm"])
    _, alone = throughput(lambda number: encoder.encode_queries([next(fresh)]), 1, seconds)
    with served(store) as (_, address, _), scannery.connect(address) as client:
        index = client.index(name)
        lock = threading.Lock()

        def ask(number: int) -> None:
            with lock:
                text = next(fresh)
            index.search(text, K, fields=[])

        index.search("warm", K)
        one, single = throughput(ask, 1, seconds)
        many, _ = throughput(ask, 32, seconds)
        cached, _ = throughput(lambda number: index.search("warm", K, fields=[]), CALLERS, seconds)
    rows.append(("encoding one query in process", "", f"{1000 * median(alone):.2f}"))
    rows.append(("text search, 1 caller", f"{one:.0f}", f"{1000 * median(single):.2f}"))
    rows.append(("text search, 32 callers", f"{many:.0f}", ""))
    rows.append((f"text search from the cache, {CALLERS} callers", f"{cached:.0f}", ""))
    print(table(("", "queries/s", "p50 ms"), rows), flush=True)


def workers(store: str, name: str, seconds: float) -> None:
    """Memory of each process, and throughput of one worker and two."""
    _, queries_QD = queries_of(open_index(Store.open(store), name))
    rows = []
    for count in ("1", "2"):
        with (
            served(store, "--workers", count) as (pid, address, _),
            scannery.connect(address, channels=8) as client,
        ):
            rate, _ = throughput(_unary(client.index(name), queries_QD, []), CALLERS, seconds)
            private = [_private_mib(int(child)) for child in _children(pid)]
            rows.append((count, f"{rate:.0f}", ", ".join(f"{size:.0f}" for size in private)))
    size = open_index(Store.open(store), name).manifest.size_bytes / (1 << 20)
    print(f"segments: {size:.0f} MiB\n")
    print(table(("workers", "queries/s", "private MiB of each"), rows), flush=True)


def start(store: str, name: str, seconds: float) -> None:
    """From the start of the command until it answers, with a warm page cache."""
    times = []
    for _ in range(ROUNDS):
        with served(store) as (pid, _, ready_s):
            times.append((ready_s, cpu_s(pid)))
    print(
        f"ready after {median(t for t, _ in times):.1f} s (CPU {median(c for _, c in times):.1f} s)",
        flush=True,
    )


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _private_mib(pid: int) -> float:
    sizes = dict(re.findall(r"(\w+): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text()))
    return (int(sizes["Private_Dirty"]) + int(sizes["Private_Clean"])) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("index")
    parser.add_argument("parts", nargs="*", default=["vectors", "texts", "workers", "start"])
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    print(environment("scann", "grpcio", "torch", "numpy"), "\n", flush=True)
    parts = {"vectors": vectors, "texts": texts, "workers": workers, "start": start}
    for part in arguments.parts:
        print(f"\n## {part}\n", flush=True)
        parts[part](arguments.store, arguments.index, arguments.seconds)


if __name__ == "__main__":
    main()

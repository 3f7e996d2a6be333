"""The server, through the SDK and over loopback: throughput and latency compared with searches of its segments.

    python -m benchmarks.serve STORE INDEX [vectors] [wires] [texts] [workers] [start] [overload] [--seconds 2]

STORE is a copy of a real store. `benchmarks.serve_peers` measures other engines with the same queries.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

import scannery
from benchmarks.report import environment, table
from benchmarks.serve_load import (
    CALLERS,
    ROUNDS,
    K,
    batched,
    children,
    cpu_s,
    hundred,
    private_mib,
    queries_of,
    served,
    started,
    throughput,
    unary,
)
from benchmarks.serve_overload import overload
from benchmarks.serve_wires import wires
from scannery.client import Index, Mode
from scannery.indexer import OpenIndex, Store, exact_search, open_index
from scannery.v1.search_pb2 import SearchResponse
from scannery.v1.types_pb2 import Datapoint


def vectors(store: str, name: str, seconds: float) -> None:
    """Vector search: single queries, batches, and searches of the segments in process."""
    opened = open_index(Store.open(store), name)
    vectors_ND, queries_QD = queries_of(opened)
    with (
        served(store, "--workers", "auto") as (pid, address, _),
        served(store) as (single_pid, single_address, _),
        scannery.connect(address) as client,
        scannery.connect(single_address) as single,
        scannery.connect(address, channels=CALLERS, http=False) as over_grpc,
    ):
        index = client.index(name)
        recall = recall_of(index, vectors_ND, queries_QD)
        print(f"{len(vectors_ND):,} × {vectors_ND.shape[1]}, recall@{K} {recall:.3f}\n")
        servers = {"a worker per core": (pid, index), "one worker": (single_pid, single.index(name))}
        calls = {**servers, "a worker per core, over gRPC": (pid, over_grpc.index(name))}
        print(_calls(calls, opened, queries_QD, seconds), flush=True)
        print(
            "\n"
            + _batches({label: asked for label, (_, asked) in servers.items()}, opened, queries_QD, seconds)
        )


def _batches(servers: dict[str, Index], opened: OpenIndex, queries_QD: np.ndarray, seconds: float) -> str:
    """Return a table of SearchMany, and of the same batches in this process, measured in turns."""
    raws: dict[str, list[float]] = {"segments in process, two threads": [], "ScaNN alone, in parallel": []}
    rates: dict[str, list[float]] = {label: [] for label in servers}
    for _ in range(ROUNDS):
        for raw, ask, threads in zip(raws.values(), (_segments, _scann), (2, 1), strict=True):
            raw.append(100 * throughput(ask(opened, queries_QD), threads, seconds)[0])
        for label, index in servers.items():
            rates[label].append(100 * throughput(batched(index, queries_QD), 4, seconds)[0])
    rows: list[Sequence[object]] = [(label, f"{median(each):.0f}") for label, each in raws.items()]
    for label, each in rates.items():
        shares = [median(np.divide(each, raw)) for raw in raws.values()]
        rows.append((f"{label}, 4 callers", f"{median(each):.0f}", *(f"{share:.2f}" for share in shares)))
    return table(("SearchMany of 100, ids and scores", "queries/s", "of the segments", "of ScaNN"), rows)


def recall_of(index: Index, vectors_ND: np.ndarray, queries_QD: np.ndarray) -> float:
    """Return the recall; a hit counts if its score reaches that of the last true hit."""
    found = index.search_many(queries_QD, K, fields=[])
    true_QK = exact_search(vectors_ND, queries_QD, K, "cosine")[1]
    shares = [
        sum(hit.score >= scores_K[-1] - 1e-5 for hit in hits) / K
        for hits, scores_K in zip(found, true_QK, strict=True)
    ]
    return float(np.mean(shares))


def _calls(
    servers: dict[str, tuple[int, Index]],
    opened: OpenIndex,
    queries_QD: np.ndarray,
    seconds: float,
) -> str:
    """Return a table of single calls, of an empty handler, and of the search alone, measured in turns."""
    pid, index = servers["a worker per core"]
    with (
        tempfile.NamedTemporaryFile() as answer,
        _empty(index, queries_QD, Path(answer.name)) as (empty_pid, address, _),
        scannery.connect(address, channels=CALLERS, http=False) as client,
    ):
        empty = client.index(index.name)
        cases: dict[str, tuple[int, Index, list[str] | None, int]] = {
            f"an empty handler, {callers} callers": (empty_pid, empty, [], callers)
            for callers in (CALLERS, 1)
        }
        for label, (process, asked) in servers.items():
            for callers in (CALLERS, 1):
                cases[f"{label}, {callers} callers"] = (process, asked, [], callers)
        cases[f"a worker per core, {CALLERS} callers, all fields"] = (pid, index, None, CALLERS)
        cases[f"a worker per core, {4 * CALLERS} callers"] = (pid, index, [], 4 * CALLERS)
        spent: dict[str, list[float]] = {label: [] for label in (*cases, "search alone")}
        own: dict[str, list[float]] = {label: [] for label in cases}
        figures: dict[str, list[Sequence[float]]] = {label: [] for label in cases}
        for _ in range(ROUNDS):
            spent["search alone"].append(_alone_us(opened, queries_QD))
            for label, (process, asked, fields, callers) in cases.items():
                ask = unary(asked, queries_QD, fields)
                throughput(ask, callers, 0.2)
                before_s, own_s = cpu_s(process), time.process_time()
                rate, latencies = throughput(ask, callers, seconds)
                spent[label].append((cpu_s(process) - before_s) / len(latencies) * 1e6)
                own[label].append((time.process_time() - own_s) / len(latencies) * 1e6)
                figures[label].append((rate, *(np.quantile(latencies, (0.5, 0.99)) * 1000)))
    rows: list[Sequence[object]] = []
    for label, values in figures.items():
        rate, p50, p99 = np.median(values, axis=0)
        cpu = (f"{median(spent[label]):.0f}", f"{median(own[label]):.0f}")
        rows.append((label, f"{rate:.0f}", f"{p50:.1f}", f"{p99:.1f}", *cpu))
    rows.append(("one search in process, one thread", "", "", "", f"{median(spent['search alone']):.0f}", ""))
    shown = table(("", "queries/s", "p50 ms", "p99 ms", "server CPU µs/query", "client CPU"), rows)
    for label in servers:
        for callers in (CALLERS, 1):
            rounds = zip(
                spent[f"{label}, {callers} callers"],
                spent[f"an empty handler, {callers} callers"],
                spent["search alone"],
                strict=True,
            )
            ratio = median(one / (handler + search) for one, handler, search in rounds)
            shown += f"\n\n{label}, {callers} callers: {ratio:.2f} × (empty handler + search alone)"
    return shown


def _empty(
    index: Index, queries_QD: np.ndarray, place: Path
) -> AbstractContextManager[tuple[int, str, float]]:
    """Yield a server that answers every search with the same prepared hits."""
    hits = index.search(queries_QD[0], K, fields=[])
    answer = SearchResponse()
    for hit in hits:
        answer.hits.add(datapoint=Datapoint(id=hit.id, document_id=hit.document_id or ""), score=hit.score)
    place.write_bytes(answer.SerializeToString())
    return started("benchmarks.empty_server", str(place))


def _alone_us(opened: OpenIndex, queries_QD: np.ndarray) -> float:
    """Return the processor time of a search of the segments, one query at a time, in µs."""
    settings = opened.settings_for(None)
    before_s = time.process_time()
    for query_D in queries_QD:
        for segment, knobs in zip(opened.segments, settings, strict=True):
            segment.search(query_D[None], K, settings=knobs)
    return (time.process_time() - before_s) / len(queries_QD) * 1e6


def _segments(opened: OpenIndex, queries_QD: np.ndarray) -> Callable[[int], object]:
    """Return a function that searches the segments for a hundred queries, without merging."""
    settings = opened.settings_for(None)

    def ask(number: int) -> None:
        for segment, knobs in zip(opened.segments, settings, strict=True):
            segment.search(hundred(queries_QD, number), K, settings=knobs)

    return ask


def _scann(opened: OpenIndex, queries_QD: np.ndarray) -> Callable[[int], object]:
    """Return a function that finds a hundred queries' candidates with ScaNN on all cores, without rescoring."""
    settings = opened.settings_for(None)

    def ask(number: int) -> None:
        for segment, knobs in zip(opened.segments, settings, strict=True):
            assert knobs is not None
            assert segment._searcher is not None
            count = knobs.rescored_for(K)
            # As `search_batched_parallel` in ScaNN's Python.
            segment._searcher._native.search_batched(
                hundred(queries_QD, number), count, count, knobs.leaves, True, 50
            )

    return ask


def texts(store: str, name: str, seconds: float) -> None:
    """Text queries: single (dense, and in the mode of the index), concurrent, and repeated."""
    from scannery.embed import Encoder

    opened = open_index(Store.open(store), name)
    assert opened.spec.encoder is not None
    encoder = Encoder.load(opened.spec.encoder.model, device="cpu")
    fresh = iter([f"what did they say about topic {number} in the last episode" for number in range(200_000)])
    encoder.encode_queries(["warm"])
    lock = threading.Lock()
    _, queries_QD = queries_of(opened)
    # Texts go over the wire one by one, and so do the vectors that they are compared with.
    with served(store) as (_, address, _), scannery.connect(address) as client:
        index = client.index(name)

        def ask(number: int, mode: Mode = "dense") -> None:
            with lock:
                text = next(fresh)
            index.search(text, K, fields=[], mode=mode)

        calls: dict[str, tuple[Callable[[int], object], int]] = {
            ALONE: (lambda number: encoder.encode_queries([next(fresh)]), 1),
            PAUSED: (lambda number: encoder.encode_queries([next(fresh)]), 1),
            "dense text search, 1 caller": (ask, 1),
            "vector search, 1 caller": (unary(index, queries_QD, []), 1),
            "dense text search, 32 callers": (ask, 32),
            f"text search from the cache, {CALLERS} callers": (
                lambda number: index.search("warm", K, fields=[], mode="dense"), CALLERS,
            ),
            f"vector search, {CALLERS} callers": (unary(index, queries_QD, []), CALLERS),
        }  # fmt: skip
        if opened.spec.lexical:
            calls["hybrid text search, 1 caller"] = (partial(ask, mode="hybrid"), 1)
        rates: dict[str, list[float]] = {label: [] for label in calls}
        halves: dict[str, list[float]] = {label: [] for label in calls}
        for call, _ in calls.values():
            call(0)
        for _ in range(ROUNDS):
            for label, (call, callers) in calls.items():
                pause_s = PAUSE_S if label == PAUSED else 0.0
                rate, latencies = throughput(call, callers, seconds, pause_s=pause_s)
                rates[label].append(rate)
                halves[label].append(1000 * median(latencies))
    rows = [
        (label, f"{median(rates[label]):.0f}", f"{median(halves[label]):.2f}", spread(halves[label]))
        for label in calls
    ]
    print(table(("", "queries/s", "p50 ms", "least and most of the rounds"), rows))
    one = halves["dense text search, 1 caller"]
    for label in (ALONE, PAUSED):
        ratios = [mine / other for mine, other in zip(one, halves[label], strict=True)]
        print(f"\ndense text search, 1 caller / {label}: {median(ratios):.2f} ({spread(ratios)})")
    many = rates["dense text search, 32 callers"], rates["dense text search, 1 caller"]
    print(f"\n32 callers / 1 caller: {median(np.divide(*many)):.2f}", flush=True)


ALONE, PAUSED = "encoding in process", "encoding in process, after a pause"
PAUSE_S = 0.001
"""For about as long a server and its caller do other things between two texts."""


def spread(values: Sequence[float]) -> str:
    """Return the least and the largest value."""
    return f"{min(values):.2f} to {max(values):.2f}"


def workers(store: str, name: str, seconds: float) -> None:
    """Memory of each process, and throughput of one worker and two."""
    _, queries_QD = queries_of(open_index(Store.open(store), name))
    rows = []
    size_mib = open_index(Store.open(store), name).manifest.size_bytes / (1 << 20)
    for count in ("1", "2"):
        with (
            served(store, "--workers", count) as (pid, address, _),
            scannery.connect(address, channels=8) as client,
        ):
            ask = unary(client.index(name), queries_QD, [])
            rate = median(throughput(ask, CALLERS, seconds)[0] for _ in range(ROUNDS))
            private = [private_mib(child) for child in children(pid)]
            shares = ", ".join(f"{size:.0f} ({100 * size / size_mib:.0f} %)" for size in private)
            rows.append((count, f"{rate:.0f}", shares))
    print(f"segments: {size_mib:.0f} MiB\n")
    print(table(("workers", "queries/s", "private MiB of each (of the segments)"), rows), flush=True)


def start(store: str, name: str, seconds: float) -> None:
    """Measure the time from the start of the command to its first answer, with a warm page cache."""
    times = []
    for _ in range(ROUNDS):
        with served(store) as (pid, _, ready_s):
            times.append((ready_s, cpu_s(pid)))
    print(
        f"ready after {median(t for t, _ in times):.1f} s (CPU {median(c for _, c in times):.1f} s)",
        flush=True,
    )


PARTS = {
    "vectors": vectors,
    "wires": wires,
    "texts": texts,
    "workers": workers,
    "start": start,
    "overload": overload,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("index")
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    print(environment("scann", "grpcio", "torch", "numpy"), "\n", flush=True)
    for part in arguments.parts:
        print(f"\n## {part}\n", flush=True)
        PARTS[part](arguments.store, arguments.index, arguments.seconds)


if __name__ == "__main__":
    main()

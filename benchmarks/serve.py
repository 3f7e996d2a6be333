"""The server, through the SDK and over loopback: throughput and latency compared with searches of its segments.

    python -m benchmarks.serve STORE INDEX [vectors] [batches] [wires] [texts] [workers] [start] [overload]
        [--seconds 2] [--busy 0]

STORE is a copy of a real store. Compared ones take turns, medians of five rounds are reported. `--busy` processes
compute beside the text searches. `benchmarks.serve_peers` measures other engines with the same queries.

Shapes: N rows, Q queries, D dimensions.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import scannery
from benchmarks.data import queries_of
from benchmarks.harness import (
    CALLERS,
    ROUNDS,
    K,
    children,
    cpu_s,
    environment,
    in_turns,
    load_of,
    milliseconds,
    options,
    served,
    started,
    table,
    throughput,
)
from scannery.cli.commands.bench import Step, run_step
from scannery.client import Index, Mode
from scannery.client.transport.credentials import ConnectOptions
from scannery.indexer import OpenIndex, Store, exact_search, open_index
from scannery.v1.search_pb2 import SearchResponse
from scannery.v1.types_pb2 import Datapoint

Ask = Callable[[int], object]
Figures = Sequence[float]
TITLES = ("queries/s", "p50 ms", "p99 ms", "server CPU µs/query", "client CPU")
WIRES: dict[str, ConnectOptions] = {"gRPC": {"channels": CALLERS, "http": False}, "HTTP": {}}


def unary(index: Index, queries_QD: np.ndarray, fields: Sequence[str] | None = ()) -> Ask:
    """Return a function that sends the query of a number."""
    wanted = None if fields is None else list(fields)
    return lambda number: index.search(queries_QD[number % len(queries_QD)], K, fields=wanted)


def hundred(queries_QD: np.ndarray, number: int) -> np.ndarray:
    """Return a hundred of the queries."""
    first = 100 * (number % (len(queries_QD) // 100))
    return queries_QD[first : first + 100]


def shown(rounds: Sequence[Figures]) -> list[str]:
    """Return the medians of what `load_of` gave in some rounds."""
    formats = ("{:.0f}", "{:.2f}", "{:.2f}", "{:.0f}", "{:.0f}")
    return [form.format(each) for form, each in zip(formats, np.median(rounds, axis=0), strict=True)]


# --- single queries


def vectors(opened: OpenIndex, store: str, seconds: float) -> None:
    """Single calls, those of an empty gRPC handler, and the search alone, measured in turns."""
    vectors_ND, queries_QD = queries_of(opened)
    name = opened.spec.index
    with ExitStack() as stack:
        pid, address, _ = stack.enter_context(served(store, "--workers", "auto"))
        single_pid, single_address, _ = stack.enter_context(served(store))
        index = stack.enter_context(scannery.connect(address)).index(name)
        single = stack.enter_context(scannery.connect(single_address)).index(name)
        over_grpc = stack.enter_context(scannery.connect(address, **WIRES["gRPC"])).index(name)
        print(
            f"{len(vectors_ND):,} × {vectors_ND.shape[1]}, recall@{K} {recall_of(index, vectors_ND, queries_QD):.3f}\n"
        )
        answer = stack.enter_context(tempfile.NamedTemporaryFile())
        answer.write(_answer(index, queries_QD))
        answer.flush()
        empty_pid, empty_address, _ = stack.enter_context(
            started("-m", "benchmarks.serve", "--empty", answer.name)
        )
        empty = stack.enter_context(scannery.connect(empty_address, **WIRES["gRPC"])).index(name)
        servers = {
            "an empty gRPC handler": (empty_pid, empty),
            "a worker per core": (pid, index),
            "one worker": (single_pid, single),
            "a worker per core, over gRPC": (pid, over_grpc),
        }
        cases = {
            f"{label}, {callers} callers": (each, unary(asked, queries_QD), callers)
            for label, (each, asked) in servers.items()
            for callers in (CALLERS, 1)
        }
        all_fields = unary(index, queries_QD, None)
        cases[f"a worker per core, {CALLERS} callers, all fields"] = (pid, all_fields, CALLERS)
        cases[f"a worker per core, {4 * CALLERS} callers"] = (pid, unary(index, queries_QD), 4 * CALLERS)
        ways: dict[str, Callable[[], Figures]] = {
            label: partial(load_of, each, ask, callers, seconds)
            for label, (each, ask, callers) in cases.items()
        }
        turns = in_turns({"the search alone, one thread": lambda: [_alone_us(opened, queries_QD)], **ways})
    alone = [us for [us] in turns.pop("the search alone, one thread")]
    print(table(("", *TITLES), [(label, *shown(rounds)) for label, rounds in turns.items()]))
    print(f"one search in process, one thread: {median(alone):.0f} µs\n")
    for label in [*servers][1:]:
        for callers in (CALLERS, 1):
            pair = (turns[f"{each}, {callers} callers"] for each in (label, "an empty gRPC handler"))
            rounds = zip(*pair, alone, strict=True)
            ratio = median(one[3] / (handler[3] + search) for one, handler, search in rounds)
            print(f"{label}, {callers} callers: {ratio:.2f} × (empty handler + search alone)")


def recall_of(index: Index, vectors_ND: np.ndarray, queries_QD: np.ndarray) -> float:
    """Return the recall; a hit counts if its score reaches that of the last true hit."""
    true_QK = exact_search(vectors_ND, queries_QD, K, "cosine")[1]
    found = index.search_many(queries_QD, K, fields=[])
    scores_QK = np.array([[hit.score for hit in hits] for hits in found])
    return float(np.mean(scores_QK >= true_QK[:, -1:] - 1e-5))


def _answer(index: Index, queries_QD: np.ndarray) -> bytes:
    answer = SearchResponse()
    for hit in index.search(queries_QD[0], K, fields=[]):
        answer.hits.add(datapoint=Datapoint(id=hit.id, document_id=hit.document_id or ""), score=hit.score)
    return answer.SerializeToString()


def empty_server(answer: bytes) -> None:
    """Serve an empty gRPC handler, which answers every call with the same bytes: the baseline of a Python server."""
    import grpc

    handler: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: answer)
    every: Any = type("Every", (), {"service": lambda self, details: handler})()
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((every,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"Serving on 127.0.0.1:{port};", flush=True)
    server.wait_for_termination()


def _alone_us(opened: OpenIndex, queries_QD: np.ndarray) -> float:
    """Return the processor time of a search of the segments, one query at a time, in µs."""
    settings = opened.settings_for(None)
    before_s = time.process_time()
    for query_D in queries_QD:
        for segment, knobs in zip(opened.segments, settings, strict=True):
            segment.search(query_D[None], K, settings=knobs)
    return (time.process_time() - before_s) / len(queries_QD) * 1e6


# --- batches


def batches(opened: OpenIndex, store: str, seconds: float) -> None:
    """SearchMany of 100, and the same batches in this process."""
    _, queries_QD = queries_of(opened)
    with ExitStack() as stack:
        ways: dict[str, Callable[[], float]] = {
            "the segments in process, two threads": lambda: throughput(
                _segments(opened, queries_QD), 2, seconds
            )[0],
            "ScaNN alone, in parallel": lambda: throughput(_scann(opened, queries_QD), 1, seconds)[0],
        }
        for workers in ("auto", "1"):
            address = stack.enter_context(served(store, "--workers", workers))[1]
            index = stack.enter_context(scannery.connect(address)).index(opened.spec.index)
            for callers, (what, fields) in itertools.product((1, 4), _FIELDS.items()):
                label = (
                    f"{'a worker per core' if workers == 'auto' else 'one worker'}, {callers} callers, {what}"
                )
                ways[label] = partial(_batch_rate, index, queries_QD, fields, callers, seconds)
        turns = in_turns(ways, warm=1)
    raws = [turns[label] for label in [*turns][:2]]
    rows = [
        (label, f"{100 * median(each):.0f}", *(f"{median(np.divide(each, raw)):.2f}" for raw in raws))
        for label, each in turns.items()
    ]
    print(table(("search_many of 100", "queries/s", "of the segments", "of ScaNN"), rows))


_FIELDS: dict[str, list[str] | None] = {"ids and scores": [], "all fields": None}


def _batch_rate(
    index: Index, queries_QD: np.ndarray, fields: list[str] | None, callers: int, seconds: float
) -> float:
    def ask(number: int) -> object:
        lists = index.search_many(hundred(queries_QD, number), K, fields=fields)
        return [hit.id for hits in lists for hit in hits]

    return throughput(ask, callers, seconds)[0]


def _segments(opened: OpenIndex, queries_QD: np.ndarray) -> Ask:
    """Return a function that searches the segments for a hundred queries, without merging."""
    settings = opened.settings_for(None)

    def ask(number: int) -> None:
        for segment, knobs in zip(opened.segments, settings, strict=True):
            segment.search(hundred(queries_QD, number), K, settings=knobs)

    return ask


def _scann(opened: OpenIndex, queries_QD: np.ndarray) -> Ask:
    """Return a function that finds a hundred queries' candidates with ScaNN on all cores, without rescoring."""
    settings = opened.settings_for(None)

    def ask(number: int) -> None:
        for segment, knobs in zip(opened.segments, settings, strict=True):
            assert knobs is not None
            assert segment._searcher is not None
            count, batch_QD = knobs.rescored_for(K), hundred(queries_QD, number)
            # As `search_batched_parallel` in ScaNN's Python.
            segment._searcher._native.search_batched(batch_QD, count, count, knobs.leaves, True, 50)

    return ask


# --- ways to the server


def wires(opened: OpenIndex, store: str, seconds: float) -> None:
    """Single queries of 1 to 32 threads, over each wire."""
    _, queries_QD = queries_of(opened)
    rows: list[Sequence[object]] = []
    for label, workers in (("one worker", "1"), ("a worker per core", "auto")):
        with served(store, "--workers", workers) as (pid, address, _), ExitStack() as stack:
            clients = {
                how: stack.enter_context(scannery.connect(address, **each)) for how, each in WIRES.items()
            }
            for callers in (1, 2, 4, 8, 16, 32):
                turns = in_turns({
                    how: partial(load_of, pid, unary(client.index(opened.spec.index), queries_QD), callers, seconds)
                    for how, client in clients.items()
                })  # fmt: skip
                rows += [(label, callers, how, *shown(rounds)) for how, rounds in turns.items()]
    print(table(("", "callers", "calls", *TITLES), rows), flush=True)


# --- texts


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run processes of normal priority that compute all the time."""
    started = [
        multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(processes)
    ]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        sum(range(10_000))


def texts(opened: OpenIndex, store: str, seconds: float, neighbours: int = 0) -> None:
    """Text queries: single (dense, and in the mode of the index), concurrent, and repeated."""
    from scannery.embed import Encoder

    assert opened.spec.encoder is not None
    encoder = Encoder.load(opened.spec.encoder.model, device="cpu")
    fresh = (f"what did they say about topic {number} in the last episode" for number in itertools.count())
    lock = threading.Lock()
    _, queries_QD = queries_of(opened)

    def new_text() -> str:
        with lock:
            return next(fresh)

    with (
        served(store, "--workers", "auto") as (_, address, _),
        scannery.connect(address) as client,
        busy(neighbours),
    ):
        index = client.index(opened.spec.index)
        by_vector = unary(index, queries_QD)

        def encoded(number: int) -> object:
            return encoder.encode_queries([new_text()])

        def ask(number: int, mode: Mode = "dense") -> object:
            return index.search(new_text(), K, fields=[], mode=mode)

        def cached(number: int) -> object:
            return index.search("warm", K, fields=[], mode="dense")

        calls: dict[str, tuple[Ask, int, float]] = {
            ALONE: (encoded, 1, 0.0),
            # For about as long a server and its caller do other things between two texts.
            f"{ALONE}, after a pause of 1 ms": (encoded, 1, 0.001),
            **{f"dense text search, {callers} callers": (ask, callers, 0.0) for callers in (1, CALLERS, 32)},
            **{f"vector search, {callers} callers": (by_vector, callers, 0.0) for callers in (1, CALLERS)},
            "text search from the cache, 8 callers": (cached, CALLERS, 0.0),
        }
        if opened.spec.lexical:
            calls["hybrid text search, 1 callers"] = (partial(ask, mode="hybrid"), 1, 0.0)

        def measured(call: Ask, callers: int, pause_s: float) -> tuple[float, float]:
            rate, latencies = throughput(call, callers, seconds, pause_s=pause_s)
            return rate, 1000 * median(latencies)

        turns = in_turns({label: partial(measured, *each) for label, each in calls.items()}, warm=1)
    rows = []
    for label, rounds in turns.items():
        rates, halves = zip(*rounds, strict=True)
        rows.append((label, f"{median(rates):.0f}", f"{median(halves):.2f}", spread(halves)))
    print(f"{neighbours} busy processes beside\n")
    print(table(("", "queries/s", "p50 ms", "least and most of the rounds"), rows))
    one, many = turns["dense text search, 1 callers"], turns["dense text search, 32 callers"]
    for label in [*calls][:2]:
        ratios = [mine[1] / other[1] for mine, other in zip(one, turns[label], strict=True)]
        print(f"dense text search, 1 caller / {label}: {median(ratios):.2f} ({spread(ratios)})")
    print(
        f"32 callers / 1 caller: {median(a[0] / b[0] for a, b in zip(many, one, strict=True)):.2f}",
        flush=True,
    )


ALONE = "encoding in process"


def spread(values: Sequence[float]) -> str:
    """Return the least and the largest value."""
    return f"{min(values):.2f} to {max(values):.2f}"


# --- processes


def workers(opened: OpenIndex, store: str, seconds: float) -> None:
    """Memory of each process, and throughput of one worker and two."""
    _, queries_QD = queries_of(opened)
    rows, size_mib = [], opened.manifest.size_bytes / (1 << 20)
    for count in ("1", "2"):
        with served(store, "--workers", count) as (pid, address, _), scannery.connect(address) as client:
            ask = unary(client.index(opened.spec.index), queries_QD)
            rate = median(throughput(ask, CALLERS, seconds)[0] for _ in range(ROUNDS))
            private = [private_mib(child) for child in children(pid)]
            shares = ", ".join(f"{size:.0f} ({100 * size / size_mib:.0f} %)" for size in private)
            rows.append((count, f"{rate:.0f}", shares))
    print(f"segments: {size_mib:.0f} MiB\n")
    print(table(("workers", "queries/s", "private MiB of each (of the segments)"), rows), flush=True)


def private_mib(pid: int) -> float:
    """Return the private memory of a process in MiB."""
    sizes = dict(re.findall(r"(\w+): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text()))
    return (int(sizes["Private_Dirty"]) + int(sizes["Private_Clean"])) / 1024


def start(opened: OpenIndex, store: str, seconds: float) -> None:
    """Measure the time from the start of the command to its first answer, with a warm page cache."""
    times = []
    for _ in range(ROUNDS):
        with served(store) as (pid, _, ready_s):
            times.append((ready_s, cpu_s(pid)))
    ready_s, used_s = np.median(times, axis=0)
    print(f"ready after {ready_s:.1f} s (CPU {used_s:.1f} s)", flush=True)


# --- overload, deaths and reloads

UNLOADED = 0.2
"""Share of the capacity at which a server is idle most of the time."""
KEPT = 0.95


def overload(opened: OpenIndex, store: str, seconds: float) -> None:
    """Measure three times the capacity, open loop, then a low rate at once; and deaths and reloads under load."""
    seconds = max(3.0, seconds)
    # New texts, which must be encoded: callers on the same cores could not send three times the capacity in vectors.
    numbers = itertools.count()
    with served(store, "--workers", "auto") as (_, address, _):

        def step(rate: float) -> Step:
            # Each process draws from them at random; the list is long, so repeated texts are rare.
            topics = (next(numbers) for _ in range(20 * int(rate * seconds)))
            asked = [f"what did they say about topic {topic} in the last episode" for topic in topics]
            return run_step(address, opened.spec.index, asked, rate, seconds, processes=2)

        step(20)
        capacity = _capacity(step)
        little, much, after = step(UNLOADED * capacity), step(3 * capacity), step(UNLOADED * capacity)
    steps = {"little": little, "three times the capacity": much, "little, right after": after}
    print(f"capacity: {capacity:.0f} text queries/s\n")
    titles = ("", "due/s", "answered/s", "p50 ms", "p99 ms", "refused", "refused after, p50 ms")
    print(table(titles, [(label, *_figures(each)) for label, each in steps.items()]))
    ratio = much.latencies.quantile(0.99) / little.latencies.quantile(0.99)
    print(f"p99 of the accepted / of an unloaded server: {ratio:.1f}\n", flush=True)
    _failures(opened, store, seconds)


def _capacity(step: Callable[[float], Step]) -> float:
    """Return the highest number of answers per second, at rates that grow until the server falls behind."""
    rate, most = 60.0, 0.0
    while True:
        answered = step(rate).answered_per_s
        most = max(most, answered)
        if answered < KEPT * rate:
            return most
        rate *= 1.5


def _figures(step: Step) -> tuple[str, ...]:
    p50, p99 = (f"{1000 * step.latencies.quantile(share):.1f}" for share in (0.5, 0.99))
    refused = sum(step.failed.values())
    after = f"{1000 * step.failures.quantile(0.5):.1f}" if refused else ""
    return f"{step.rate:.0f}", f"{step.answered_per_s:.0f}", p50, p99, f"{refused}", after


def _failures(opened: OpenIndex, store: str, seconds: float) -> None:
    """Kill a worker, and reload, while callers search through the SDK; report their errors and latencies."""
    _, queries_QD = queries_of(opened)
    for label, number in (("kill -9 of a worker", signal.SIGKILL), ("reload (SIGHUP)", signal.SIGHUP)):
        with served(store, "--workers", "2") as (pid, address, _), scannery.connect(address) as client:
            target = children(pid)[0] if number == signal.SIGKILL else pid
            threading.Timer(seconds / 3, os.kill, (target, number)).start()
            ask, failures = unary(client.index(opened.spec.index), queries_QD), list[Exception]()

            def asked(number: int, ask: Ask = ask, failures: list[Exception] = failures) -> None:
                try:
                    ask(number)
                except scannery.ScanneryError as error:
                    failures.append(error)

            latencies = throughput(asked, CALLERS, seconds)[1]
        longest_ms = milliseconds(latencies, 1)
        print(
            f"{label}: {len(latencies)} calls, {len(failures)} failed, the longest took {longest_ms:.0f} ms",
            flush=True,
        )


CASES: dict[str, Callable[[OpenIndex, str, float], None]] = {
    "vectors": vectors, "batches": batches, "wires": wires, "texts": texts, "workers": workers, "start": start,
    "overload": overload,
}  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--empty"]:
        empty_server(Path(sys.argv[2]).read_bytes())
        return
    given = options(__doc__, "store", "index", cases=CASES, seconds=2.0, busy=0)
    print(environment("scann", "grpcio", "torch", "numpy"), flush=True)
    opened = open_index(Store.open(given.store), given.index)
    for name in given.cases:
        print(f"\n## {name}\n", flush=True)
        case = partial(texts, neighbours=given.busy) if name == "texts" else CASES[name]
        case(opened, given.store, given.seconds)


if __name__ == "__main__":
    main()

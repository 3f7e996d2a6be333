"""Roots and leaves: what they cost beside one server, what they find, and how large they must be.

    python -m benchmarks.cluster cost [--rows 100000] [--dimensions 64] [--groups 1,2,4,8] [--rounds 3] [--seconds 1]
                                      [--wires auto,off]
    python -m benchmarks.cluster recall [--rows 60000] [--kind fashion] [--queries 300] [--distance cosine]
                                        [--written 0]
    python -m benchmarks.cluster sizes [--rows 300000] [--dimensions 384] [--json FILE]
    python -m benchmarks.cluster large [--rows 5000000] [--dimensions 128] [--queries 500]
    python -m benchmarks.cluster tails [--groups 4,8,32] [--calls 1500] [--median-ms 3] [--pauses 0.02]

`--store FOLDER` keeps the index for the next run. Server, root, leaves and caller share the cores of this machine.

`cost`: random vectors around 1,000 centres, with words and three attributes, in eight shards. One caller asks one query
after the other, through the SDK; one server and all roots run at once, and take turns in each round. Processor time is
that of the process which answers the caller. With `--wires auto,off` there are two roots for each number of groups: one
calls its leaves over HTTP, the other, whose leaves have `--http off`, over gRPC.

`recall`: whether a root over four groups finds what one server finds where ScaNN searches, against exact search. Kinds
are those of `benchmarks.recall`. Each query is asked alone, of both servers. `--written` datapoints are written
again before the questions: their new rows are in memory. Ends with 1 if the root finds less.

`sizes`: what a leaf needs for its rows. Leaves of 0/4, 0/2 and 0/1 of four shards, so that the slope between the first
and the last is what a row costs without what a process costs. Memory is PSS; `searched` is after 500 searches.

`large`: one leaf of many vectors, asked through a root. Five million rows of 128 dimensions take about 12 GB to build.

`tails`: a root's calls to leaves that pause now and then: one row of leaves beside two, whose second is a hedge. The
root's code is the real one, in this process; leaves are scripted: each answers over HTTP after a lognormal time, and in
a share of the calls 10 to 60 ms later. The latency of a call is that of its slowest group.

Shapes: N rows, Q queries, D dimensions.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from benchmarks.harness import (
    K,
    cpu_s,
    environment,
    folder_of,
    in_turns,
    load_of,
    milliseconds,
    options,
    pss_bytes,
    publish,
    served,
    table,
)
from scannery.client import Words
from scannery.indexer import Store, parse_spec, read_manifest

INDEX, QUERIES = "clustered", 500
SPEC = parse_spec({
    "index": INDEX, "source": {"id": "id", "vector": "v", "text": "text"}, "lexical": True, "shards": 8,
    "attributes": {"show": "string", "year": "int", "rating": "float"},
})  # fmt: skip
WORDS = [first + last for first in "bcdfghklmnprst" for last in ("ar", "en", "il", "or", "un", "ath", "est")]
Ask = Callable[[int], object]


@contextmanager
def root(store: object, count: int, http: str = "auto") -> Iterator[tuple[int, str]]:
    """Give the process id and the address of a root over a leaf of each of `count` groups, with their `--http`."""
    with ExitStack() as stack:
        leaves = [
            stack.enter_context(
                served(store, "--role", "leaf", "--group", f"{group}/{count}", "--http", http)
            )[1]
            for group in range(count)
        ]
        pid, address, _ = stack.enter_context(served(store, "--role", "root", "--leaves", ",".join(leaves)))
        yield pid, address


def vectors_of(rows: int, dimensions: int, centres: int = 1_000) -> np.ndarray:
    """Return vectors around centres, float32 (N, D)."""
    generator = np.random.default_rng(3)
    centres_CD = generator.standard_normal((centres, dimensions), np.float32)
    vectors_ND = 0.5 * generator.standard_normal((rows, dimensions), np.float32)
    for first in range(0, rows, 1 << 18):  # a copy of all would double the memory
        part = vectors_ND[first : first + (1 << 18)]
        part += centres_CD[generator.integers(0, centres, len(part))]
    return vectors_ND


def store_of(folder: Path, vectors_ND: np.ndarray, shards: int = 8) -> Path:
    """Return a store with the index of these vectors, with words and attributes, built now if it is not there."""
    if not (folder / "store").exists():
        words, rows = random.Random(4), range(len(vectors_ND))
        columns: dict[str, Sequence[Any]] = {
            "text": [" ".join(words.choices(WORDS, k=40)) for _ in rows],
            "show": [f"show{row % 50}" for row in rows],
            "year": [2000 + row % 25 for row in rows],
            "rating": [row % 50 / 10 for row in rows],
        }
        spec = SPEC.model_copy(update={"shards": shards})
        publish(Store.open(folder / "store", create=True), spec, vectors_ND, folder, columns=columns)
    return folder / "store"


def near(vectors_ND: np.ndarray, count: int, noise: float) -> np.ndarray:
    """Return queries: some of the vectors with noise."""
    chosen = np.random.default_rng(5)
    noise_QD = chosen.standard_normal((count, vectors_ND.shape[1])).astype(np.float32)
    return vectors_ND[chosen.integers(0, len(vectors_ND), count)] + noise * noise_QD


# --- cost

BESIDE = "dense beside upserts"
KINDS = {"dense": 1, "hybrid": 1, "batch of 100": 100, "upsert of 10": 1, "update of 1": 1, BESIDE: 1}
"""Queries of a call, by kind. Writes come last; all processes follow the same log, which is in the store."""
WRITES_PER_S = 20


def cost(given: argparse.Namespace, folder: Path) -> None:
    """Print one table for each kind of call, with the medians of all rounds."""
    vectors_ND = vectors_of(given.rows or 100_000, given.dimensions or 64)
    store = store_of(folder, vectors_ND)
    with ExitStack() as stack:
        pid, address, _ = stack.enter_context(served(store))
        targets = {"one server": (pid, address)}
        for count, wire in itertools.product(given.groups or (1, 2, 4, 8), given.wires.split(",")):
            name = f"root, {count} leaves" + (" over gRPC" if wire == "off" else "")
            targets[name] = stack.enter_context(root(store, count, wire))
        asks = {
            name: _asks(stack.enter_context(scannery.connect(address)).index(INDEX), vectors_ND)
            for name, (_, address) in targets.items()
        }
        for kind, queries in KINDS.items():

            def measured(name: str, kind: str = kind) -> tuple[float, ...]:
                pid, address = targets[name]
                with _writing(address, vectors_ND) if kind == BESIDE else nullcontext():
                    return load_of(pid, asks[name][kind], 1, given.seconds, warm_s=0)

            # The first round fills caches.
            turns = in_turns({name: partial(measured, name) for name in targets}, given.rounds, warm=1)
            rows = []
            for name, each in turns.items():
                rate, p50, p99, own_us, _ = np.median(each, axis=0)
                rows.append(
                    (name, f"{own_us / queries:.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{rate * queries:.0f}")
                )
            print(table((kind, "CPU µs/query", "p50 ms", "p99 ms", "queries/s"), rows), flush=True)


def _asks(index: scannery.Index, vectors_ND: np.ndarray) -> dict[str, Ask]:
    """Return what is asked, by kind."""
    queries_QD, words = near(vectors_ND, QUERIES, 0.1), random.Random(6)
    texts = [" ".join(words.choices(WORDS, k=3)) for _ in range(QUERIES)]

    def update(n: int) -> object:
        return index.update([{"id": f"d{n % 1000}", "attributes": {"year": 1900 + n % 100}}])

    return {
        "dense": lambda n: index.search(queries_QD[n % QUERIES], K),
        "hybrid": lambda n: index.search(
            Words(texts[n % QUERIES], queries_QD[n % QUERIES]), K, mode="hybrid"
        ),
        "batch of 100": lambda n: index.search_many(queries_QD[100 * (n % 5) : 100 * (n % 5) + 100], K),
        "upsert of 10": lambda n: index.upsert(_ten(vectors_ND, n)),
        "update of 1": update,
        BESIDE: lambda n: index.search(queries_QD[n % QUERIES], K),
    }


def _ten(vectors_ND: np.ndarray, number: int) -> list[Any]:
    """Return datapoints that replace those of some numbers."""
    rows = range(10 * (number % 100), 10 * (number % 100) + 10)
    shared = {"attributes": {"year": 2026}}
    return [
        {"id": f"d{row}", "vector": vectors_ND[row], "text": WORDS[row % len(WORDS)], **shared}
        for row in rows
    ]


@contextmanager
def _writing(address: str, vectors_ND: np.ndarray) -> Iterator[None]:
    """Upsert ten datapoints WRITES_PER_S times a second, in a thread, until the end of the block."""
    ended = threading.Event()

    def write() -> None:
        with scannery.connect(address) as client:
            for number in itertools.count():
                if ended.wait(1 / WRITES_PER_S):
                    return
                client.index(INDEX).upsert(_ten(vectors_ND, number))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# --- recall

MARGIN = 0.005
"""Least recall of a root: that of one server less this."""


def recall(given: argparse.Namespace, folder: Path) -> None:
    """Print a table with a row for each kind of search."""
    from benchmarks.recall import KINDS as DATA

    sample = DATA[given.kind].draw(given.rows or 60_000, given.queries or 300, np.random.default_rng(1))
    rows = range(len(sample.vectors_ND))
    mixed = [row * 2_654_435_761 % (1 << 32) for row in rows]
    columns = {"percent": [each % 100 for each in mixed], "label": [each // 100 % 2000 for each in mixed]}
    if not (folder / "store").exists():
        keys = {"distance": given.distance, "shards": 8, "scann": {"exact_below_rows": 2000}}
        types = {"percent": "int", "label": "int"}
        spec = parse_spec(
            {"index": "recall", "source": {"id": "id", "vector": "v"}, "attributes": types, **keys}
        )
        store = Store.open(folder / "store", create=True)
        publish(store, spec, sample.vectors_ND, folder, columns=columns)
    lines, fails = [], False
    with ExitStack() as stack:
        one = stack.enter_context(served(folder / "store"))[1]
        addresses = one, stack.enter_context(root(folder / "store", 4))[1]
        alone, cluster = (stack.enter_context(scannery.connect(each)).index("recall") for each in addresses)
        sequence = 0
        for start in range(0, given.written, 500):
            sequence = alone.upsert([
                {"id": f"d{row}", "vector": sample.vectors_ND[row],
                 "attributes": {name: values[row] for name, values in columns.items()}}
                for row in rows[start : min(start + 500, given.written)]
            ]).sequence  # fmt: skip
        shares = [(share, False) for share in (None, 0.5, 0.1, 0.01)] + [(None, True), (0.1, True)]
        for k, (share, crowded) in itertools.product((10, 100), shares):
            chosen: dict[str, Any] = {"fields": [], "min_sequence": sequence}
            chosen |= {"where": {"percent": {"$lt": round(100 * share)}}} if share else {}
            chosen |= {"max_per_group": 1, "group_by": "label"} if crowded else {}
            found = [_recalls(index, alone, sample.queries_QD, k, chosen) for index in (alone, cluster)]
            difference_Q = found[1] - found[0]
            mean, error = difference_Q.mean(), difference_Q.std() / np.sqrt(len(difference_Q))
            fails |= bool(mean + error < -MARGIN)
            shown = [k, f"{share:.0%}" if share else "all", "yes" if crowded else "no"]
            lines.append([*shown, *(f"{each.mean():.4f}" for each in found), f"{mean:+.4f}", f"{error:.4f}"])
    titles = ("k", "rows allowed", "crowded", "one server", "root", "difference", "error")
    print(table(titles, lines), flush=True)
    if fails:
        raise SystemExit("a root finds less than one server")


def _recalls(
    index: scannery.Index, exact: scannery.Index, queries_QD: np.ndarray, k: int, chosen: dict[str, Any]
) -> np.ndarray:
    """Return the recall of each query, float64 (Q,); ties with the last true hit count."""
    found = []
    for query_D in queries_QD:
        true = [hit.score for hit in exact.search(query_D, k, exact=True, **chosen)]
        scores = np.array([hit.score for hit in index.search(query_D, k, **chosen)])
        least = true[-1] - 1e-5 * abs(true[-1])
        found.append(min(1.0, float((scores >= least).sum()) / len(true)))
    return np.array(found)


# --- sizes of leaves


def sizes(given: argparse.Namespace, folder: Path) -> None:
    """Print what leaves of different sizes need, and what a row needs by the slope between them."""
    vectors_ND = vectors_of(given.rows or 300_000, given.dimensions or 384)
    store, lines = store_of(folder, vectors_ND, shards=4), []
    segments = read_manifest(Store.open(store), INDEX, 1).segments
    for groups in (4, 2, 1):
        leaf = ("--role", "leaf", "--group", f"0/{groups}")
        own = [segment for segment in segments if segment.shard % groups == 0]
        with served(store, *leaf) as (_, _, first_s):  # it also times plans
            pass
        with served(store, *leaf) as (pid, address, later_s):
            opened = pss_bytes(pid)
            if groups == 1:
                _ask_through_root(store, address, INDEX, near(vectors_ND, QUERIES, 0.1))
            searched = pss_bytes(pid)
        stored = sum(segment.size_bytes for segment in own)
        rows = sum(each.rows for each in own)
        lines.append((rows, stored / 1e6, opened / 1e6, searched / 1e6, first_s, later_s))
    titles = ("rows", "MB in the store", "MB of memory", "MB searched", "first start s", "later start s")
    print(table(titles, [[f"{value:,.1f}" for value in line] for line in lines]))
    (few, *small), (many, *large_leaf) = lines[0], lines[-1]
    stored_mb, memory_mb, _, first, later = (
        (b - a) / (many - few) for a, b in zip(small, large_leaf, strict=True)
    )
    memory_mb += (large_leaf[2] - large_leaf[1]) / many
    row = {"disk_bytes": round(1e6 * stored_mb), "memory_bytes": round(1e6 * memory_mb)}
    row |= {"first_rows_per_s": round(1 / first), "later_rows_per_s": round(1 / later)}
    print(json.dumps(row))
    if given.json:
        given.json.write_text(json.dumps(row) + "\n")


def _ask_through_root(
    store: Path, leaf: str, index: str, queries_QD: np.ndarray
) -> tuple[list[list[str]], list[float]]:
    """Return the ids that a root of one leaf finds, and the seconds of each query."""
    found, took_s = [], []
    with (
        served(store, "--role", "root", "--leaves", leaf) as (_, address, _),
        scannery.connect(address) as client,
    ):
        for query_D in queries_QD:
            began_s = time.perf_counter()
            found.append([hit.id for hit in client.index(index).search(query_D, K)])
            took_s.append(time.perf_counter() - began_s)
    return found, took_s


def large(given: argparse.Namespace, folder: Path) -> None:
    """Print the time to start, the memory, the processor time of a query, and the recall of one leaf."""
    vectors_ND = vectors_of(given.rows or 5_000_000, given.dimensions or 128, centres=10_000)
    spec = parse_spec({"index": "large", "source": {"id": "id", "vector": "v"}, "shards": 4})
    store, began_s = folder / "store", time.monotonic()
    if not store.exists():
        publish(Store.open(store, create=True), spec, vectors_ND, folder, columns={})
        print(f"built in {time.monotonic() - began_s:.0f} s\n", flush=True)
    queries_QD = near(vectors_ND, given.queries or 500, 0.3)
    with served(store, "--role", "leaf", "--group", "0/1") as (pid, address, start_s):
        opened = pss_bytes(pid)
        _ask_through_root(store, address, "large", queries_QD)  # fills caches
        before_s = cpu_s(pid)
        found, took_s = _ask_through_root(store, address, "large", queries_QD)
        leaf_us, searched = 1e6 * (cpu_s(pid) - before_s) / len(queries_QD), pss_bytes(pid)
    hits = []
    for query_D, ids in zip(queries_QD[:100], found[:100], strict=True):
        scores_N = vectors_ND @ query_D / np.linalg.norm(vectors_ND, axis=1)
        hits.append(len({f"d{row}" for row in np.argpartition(-scores_N, K)[:K]} & set(ids)))
    gigabytes = [f"{each / 1e9:.2f}" for each in (opened, searched)]
    figures = [f"{leaf_us:.0f}", f"{milliseconds(took_s, 0.5):.1f}", f"{np.mean(hits) / K:.3f}"]
    titles = (
        "rows", "first start s", "GB of memory", "GB searched", "leaf CPU µs/query", "p50 ms", "recall@10",
    )  # fmt: skip
    print(table(titles, [[f"{len(vectors_ND):,}", f"{start_s:.0f}", *gigabytes, *figures]]))


# --- tails

LEAVES_A_PROCESS = 16
SPREAD = 0.2
"""Standard deviation of the logarithm of a leaf's time."""
PAUSE_S = (0.010, 0.060)
WARM_UP = 300
"""Calls before those that count: roots learn what is slow."""
_ANSWER = b"HTTP/1.1 200 OK\r\nscannery-worker: w/1\r\nscannery-server: bench\r\ncontent-length: 0\r\n\r\n"


class _Answers(asyncio.Protocol):
    """A connection to a leaf: what arrives at once is one request."""

    def __init__(self, median_s: float, pauses: float, chosen: random.Random) -> None:
        self._median_s, self._pauses, self._chosen = median_s, pauses, chosen

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self._transport.write(_ANSWER)
            return
        wait_s = self._median_s * math.exp(self._chosen.gauss(0, SPREAD))
        if self._chosen.random() < self._pauses:
            wait_s += self._chosen.uniform(*PAUSE_S)
        asyncio.get_running_loop().call_later(wait_s, self._answer)

    def _answer(self) -> None:
        if not self._transport.is_closing():  # the other leaf was sooner
            self._transport.write(_ANSWER)


async def scripted(leaves: Sequence[int], groups: int, median_s: float, pauses: float) -> None:
    """Serve leaves of these groups, and print their addresses; their status is told over gRPC."""
    import grpc

    from scannery.serving.contract import HTTP_KEY, SERVER_KEY
    from scannery.v1.leaf_pb2 import At, LeafIndex, LeafStatus

    loop, servers = asyncio.get_running_loop(), []
    for number, group in enumerate(leaves):
        chosen = random.Random(1000 * group + number)
        http = await loop.create_server(partial(_Answers, median_s, pauses, chosen), "127.0.0.1", 0)
        at, http_port = At(index="bench", index_id="a", version=1), str(http.sockets[0].getsockname()[1])
        status = LeafStatus(group=group, groups=groups, indexes=[LeafIndex(at=at)]).SerializeToString()

        async def answer(
            request: bytes, context: Any, status: bytes = status, port: str = http_port
        ) -> bytes:
            context.set_trailing_metadata(((HTTP_KEY, port), (SERVER_KEY, "bench")))
            return status

        handler: Any = grpc.unary_unary_rpc_method_handler(answer)
        every: Any = type("Every", (), {"service": lambda self, details, handler=handler: handler})()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((every,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append((http, server))
        print(f"127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


def tails(given: argparse.Namespace, folder: Path) -> None:
    """Print the table."""
    titles = ("groups", "rows", "p50 ms", "p99 ms", "p99.9 ms", "second calls", "root CPU µs/call")
    groups = given.groups or (4, 8, 32)
    print(table(titles, [_tail(count, rows, given) for count in groups for rows in (1, 2)]))


def _tail(groups: int, rows: int, given: argparse.Namespace) -> list[str]:
    from scannery.runtime.retry import Deadline
    from scannery.serving.config import LeavesConfig
    from scannery.serving.contract import LEAF_SEARCH
    from scannery.serving.leaves.groups import LeafGroups
    from scannery.serving.telemetry.metrics import ServerMetrics
    from scannery.v1.leaf_pb2 import At, LeafSearchRequest, LeafSearchResponse

    metrics, at = ServerMetrics(), At(index="bench", index_id="a", version=1)
    with ExitStack() as stack:
        leaves = LeafGroups(LeavesConfig(target=_started(stack, groups, rows, given)), metrics)
        stack.callback(leaves.close)
        leaves.start(30)
        latencies_s = []
        for number in range(given.calls + WARM_UP):
            if number == WARM_UP:
                before_s, hedged = time.process_time(), sum(metrics.leaf_hedges.dump().values())
            began_s = time.monotonic()
            leaves.call(LEAF_SEARCH, LeafSearchRequest(at=at), LeafSearchResponse, Deadline.after(10), at=at)
            latencies_s.append(time.monotonic() - began_s)
        cpu_us = 1e6 * (time.process_time() - before_s) / given.calls
        second = (sum(metrics.leaf_hedges.dump().values()) - hedged) / given.calls / groups
    quantiles = [f"{milliseconds(latencies_s[WARM_UP:], share):.1f}" for share in (0.5, 0.99, 0.999)]
    return [str(groups), str(rows), *quantiles, f"{100 * second:.1f} %", f"{cpu_us:.0f}"]


def _started(stack: ExitStack, groups: int, rows: int, given: argparse.Namespace) -> str:
    """Start the leaves, and return their addresses."""
    leaves = [str(group) for group in range(groups) for _ in range(rows)]
    addresses = []
    for first in range(0, len(leaves), LEAVES_A_PROCESS):
        part = leaves[first : first + LEAVES_A_PROCESS]
        words = [",".join(part), str(groups), str(given.median_ms / 1e3), str(given.pauses)]
        command = [sys.executable, "-m", "benchmarks.cluster", "--scripted", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(process.wait)
        stack.callback(process.kill)
        assert process.stdout is not None
        addresses += [process.stdout.readline().strip() for _ in part]
    return ",".join(addresses)


CASES = {"cost": cost, "recall": recall, "sizes": sizes, "large": large, "tails": tails}


def main() -> None:
    if sys.argv[1:2] == ["--scripted"]:
        import uvloop

        leaves, groups, median_s, pauses = sys.argv[2:]
        numbers = [int(group) for group in leaves.split(",")]
        uvloop.run(scripted(numbers, int(groups), float(median_s), float(pauses)))
        return
    given = options(
        __doc__, cases=CASES, rows=0, dimensions=0, queries=0, groups=list[int](), rounds=3, seconds=1.0, wires="auto",
        kind="fashion", distance="cosine", written=0, calls=1500, median_ms=3.0, pauses=0.02, store=Path, json=Path,
    )  # fmt: skip
    print(environment("scann", "grpcio"), flush=True)
    for name in given.cases:
        print(f"## {name}\n", flush=True)
        with folder_of(given.store and given.store / name) as folder, folder_of() as cache:
            os.environ["SCANNERY_CACHE_DIR"] = str(cache)
            CASES[name](given, folder)


if __name__ == "__main__":
    main()

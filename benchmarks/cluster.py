"""What a root costs: one server of an index beside roots over its groups of leaves, on this machine.

    python -m benchmarks.cluster [--rows 100000] [--dimensions 64] [--groups 1,2,4,8] [--rounds 3] [--seconds 1]
                                 [--store FOLDER] [--wires auto,off]

Random vectors around 1,000 centres, with words and three attributes, in eight shards. One caller asks one query after
the other, through the SDK; server, root, leaves and caller share the cores. All of them run at once, and take turns in
each round. Processor time is that of the process which answers the caller, with its threads. Writes come last: upserts
of ten datapoints, changes of an attribute of one, and dense queries while another caller upserts ten datapoints
twenty times a second. All processes follow the same log, which is in the store. With `--wires auto,off` there are two
roots for each number of groups: one calls its leaves over HTTP, the other, whose leaves have `--http off`, over gRPC.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from benchmarks.report import environment, table
from benchmarks.serve_load import cpu_s, served, throughput
from scannery.client import Words
from scannery.indexer import Store, parse_spec
from tests.data import datapoints
from tests.data import publish as published

INDEX, SHARDS, K = "clustered", 8, 10
CENTRES, QUERIES = 1_000, 500
SPEC = parse_spec(
    {
        "index": INDEX,
        "source": {"id": "id", "vector": "v", "text": "text"},
        "attributes": {"show": "string", "year": "int", "rating": "float"},
        "lexical": True,
        "shards": SHARDS,
    }
)
WORDS = [
    f"{first}{last}" for first in "bcdfghklmnprst" for last in ("ar", "en", "il", "or", "un", "ath", "est")
]
Ask = Callable[[int], object]
BESIDE = "dense beside upserts"
KINDS = (
    ("dense", 1),
    ("hybrid", 1),
    ("batch of 100", 100),
    ("upsert of 10", 1),
    ("update of 1", 1),
    (BESIDE, 1),
)
WRITES_PER_S = 20


def main() -> None:
    """Print one table for each kind of call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=64)
    parser.add_argument("--groups", default="1,2,4,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--wires", default="auto", help="values of --http of the leaves")
    parser.add_argument("--store", help="folder that keeps the index for the next run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = given.store or folder
        if not (Path(store) / "store").exists():
            publish(Path(store), given.rows, given.dimensions)
        vectors_ND, _ = rows_of(given.rows, given.dimensions)
        print(f"{given.rows} x {given.dimensions}; {environment('scann', 'grpcio')}\n", flush=True)
        measure(
            str(Path(store) / "store"), vectors_ND, [int(each) for each in given.groups.split(",")],
            given.rounds, given.seconds, given.wires.split(","),
        )  # fmt: skip


def measure(
    store: str,
    vectors_ND: np.ndarray,
    groups: Sequence[int],
    rounds: int,
    seconds: float,
    wires: Sequence[str],
) -> None:
    """Print the medians of all rounds, in which one server and all roots take turns."""
    with ExitStack() as stack:
        targets = {"one server": stack.enter_context(served(store))[:2]}
        for count, wire in itertools.product(groups, wires):
            name = f"root, {count} leaves" + (" over gRPC" if wire == "off" else "")
            targets[name] = stack.enter_context(root(store, count, wire))
        asks = {
            name: asked(stack.enter_context(scannery.connect(address)), vectors_ND)
            for name, (_, address) in targets.items()
        }
        for kind, queries in KINDS:
            figures: dict[str, list[tuple[float, ...]]] = {name: [] for name in targets}
            for turn in range(rounds + 1):
                for name, (pid, address) in targets.items():
                    with writing(address, vectors_ND) if kind == BESIDE else nullcontext():
                        found = spent(pid, asks[name][kind], seconds, queries)
                    if turn:  # the first round fills caches
                        figures[name].append(found)
            rows = [(name, *shown(np.median(each, axis=0).tolist())) for name, each in figures.items()]
            titles = (kind, "CPU µs/query", "p50 ms", "p99 ms", "queries/s")
            print(table(titles, rows), end="\n\n", flush=True)


@contextmanager
def root(store: str, count: int, http: str = "auto") -> Iterator[tuple[int, str]]:
    """Give the process id and the address of a root over a leaf of each of `count` groups, with their `--http`."""
    with ExitStack() as stack:
        leaves = [
            stack.enter_context(
                served(store, "--role", "leaf", "--group", f"{group}/{count}", "--http", http)
            )[1]
            for group in range(count)
        ]
        yield stack.enter_context(served(store, "--role", "root", "--leaves", ",".join(leaves)))[:2]


def asked(client: scannery.Client, vectors_ND: np.ndarray) -> dict[str, Ask]:
    """Return what is asked, by kind."""
    index = client.index(INDEX)
    chosen = np.random.default_rng(5)
    noise_QD = chosen.standard_normal((QUERIES, vectors_ND.shape[1])).astype(np.float32)
    queries_QD = vectors_ND[chosen.integers(0, len(vectors_ND), QUERIES)] + 0.1 * noise_QD
    words = random.Random(6)
    texts = [" ".join(words.choices(WORDS, k=3)) for _ in range(QUERIES)]
    return {
        "dense": lambda n: index.search(queries_QD[n % QUERIES], K),
        "hybrid": lambda n: index.search(
            Words(texts[n % QUERIES], queries_QD[n % QUERIES]), K, mode="hybrid"
        ),
        "batch of 100": lambda n: index.search_many(queries_QD[100 * (n % 5) : 100 * (n % 5) + 100], K),
        "upsert of 10": lambda n: index.upsert(ten(vectors_ND, n)),
        "update of 1": lambda n: index.update(
            [{"id": f"d{n % 1000}", "attributes": {"year": 1900 + n % 100}}]
        ),
        BESIDE: lambda n: index.search(queries_QD[n % QUERIES], K),
    }


def ten(vectors_ND: np.ndarray, number: int) -> list[Any]:
    """Return datapoints that replace those of some numbers."""
    first = 10 * (number % 100)
    return [
        {
            "id": f"d{row}",
            "vector": vectors_ND[row],
            "text": WORDS[row % len(WORDS)],
            "attributes": {"year": 2026},
        }
        for row in range(first, first + 10)
    ]


@contextmanager
def writing(address: str, vectors_ND: np.ndarray) -> Iterator[None]:
    """Upsert ten datapoints WRITES_PER_S times a second, in a thread, until the end of the block."""
    ended = threading.Event()

    def write() -> None:
        number = 0
        with scannery.connect(address) as client:
            while not ended.wait(1 / WRITES_PER_S):
                client.index(INDEX).upsert(ten(vectors_ND, number))
                number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def spent(pid: int, ask: Ask, seconds: float, queries: int) -> tuple[float, ...]:
    """Return µs of processor time a query, p50 and p99 in ms, and queries per second, of one caller."""
    before_s = cpu_s(pid)
    rate, latencies = throughput(ask, 1, seconds)
    own_us = 1e6 * (cpu_s(pid) - before_s) / len(latencies) / queries
    p50, p99 = 1e3 * np.quantile(latencies, (0.5, 0.99))
    return own_us, float(p50), float(p99), rate * queries


def shown(figures: Sequence[float]) -> list[str]:
    """Return figures as texts."""
    own_us, p50, p99, rate = figures
    return [f"{own_us:.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{rate:.0f}"]


def rows_of(rows: int, dimensions: int) -> tuple[np.ndarray, dict[str, list[Any]]]:
    """Return vectors around centres, float32 (N, D), and columns."""
    generator = np.random.default_rng(3)
    centres_CD = generator.standard_normal((CENTRES, dimensions)).astype(np.float32)
    noise_ND = generator.standard_normal((rows, dimensions)).astype(np.float32)
    vectors_ND = centres_CD[generator.integers(0, CENTRES, rows)] + 0.5 * noise_ND
    words = random.Random(4)
    return vectors_ND, {
        "id": [f"d{row}" for row in range(rows)],
        "document_id": [f"d{row}" for row in range(rows)],
        "text": [" ".join(words.choices(WORDS, k=40)) for _ in range(rows)],
        "show": [f"show{row % 50}" for row in range(rows)],
        "year": [2000 + row % 25 for row in range(rows)],
        "rating": [row % 50 / 10 for row in range(rows)],
    }


def publish(folder: Path, rows: int, dimensions: int, shards: int = SHARDS) -> None:
    """Commit the index to the store in a folder."""
    spec = SPEC.model_copy(update={"shards": shards})
    vectors_ND, columns = rows_of(rows, dimensions)
    store = Store.open(folder / "store", create=True)
    ids = columns.pop("id")
    published(store, spec, datapoints(spec, vectors_ND, ids=ids, columns=columns), folder, shards=shards)


if __name__ == "__main__":
    main()

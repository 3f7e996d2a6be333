"""The managed service's client, google-cloud-aiplatform, against a server of ours.

    pip install google-cloud-aiplatform
    mkdir -p store
    scannery serve --store ./store --vertex &
    python examples/frameworks/with_vertex.py [HOST:PORT]

HOST:PORT is the address of the server, by default `localhost:7077`.
"""

from __future__ import annotations

import sys

from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform
from google.cloud.aiplatform.matching_engine.matching_engine_index_endpoint import Namespace

import scannery.vertex

COLOURS = {"red": (1.0, 0.0, 0.0), "orange": (1.0, 0.5, 0.0), "green": (0.0, 1.0, 0.0)}


def datapoint(name: str, vector: tuple[float, ...]) -> dict[str, object]:
    """Return a datapoint as the client takes it."""
    kind = "warm" if vector[0] else "cold"
    restricts = [{"namespace": "kind", "allow_list": [kind]}]
    return {"datapoint_id": name, "feature_vector": [*vector], "restricts": restricts}


def main(address: str) -> None:
    """Create, fill, deploy and query an index, and remove all of it."""
    scannery.vertex.insecure()  # without TLS; docs/vertex.md has the lines for a server with a certificate
    # Without `api_transport` the client may change to REST, which is not served.
    aiplatform.init(
        project="any",
        location="us-central1",
        api_transport="grpc",
        api_endpoint=address,
        credentials=AnonymousCredentials(),
    )
    index = aiplatform.MatchingEngineIndex.create_tree_ah_index(
        "colours", dimensions=3, approximate_neighbors_count=10, index_update_method="STREAM_UPDATE"
    )
    index.upsert_datapoints([datapoint(name, vector) for name, vector in COLOURS.items()])
    endpoint = aiplatform.MatchingEngineIndexEndpoint.create("colours", public_endpoint_enabled=True)
    endpoint.deploy_index(index, deployed_index_id="colours")

    query = {"deployed_index_id": "colours", "queries": [[0.9, 0.2, 0.0]], "num_neighbors": 2}
    [found] = endpoint.find_neighbors(**query)
    print("nearest:", [(neighbor.id, round(neighbor.distance, 3)) for neighbor in found])
    [found] = endpoint.find_neighbors(**query, filter=[Namespace("kind", ["cold"], [])])
    print("cold:", [neighbor.id for neighbor in found])

    endpoint.delete(force=True)  # with its deployments
    index.delete()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:7077")

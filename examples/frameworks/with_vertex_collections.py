"""The managed service's client of API v2, google-cloud-vectorsearch, against a server of ours.

    pip install google-cloud-vectorsearch
    mkdir -p store
    scannery serve --store ./store --vertex --vertex-model text-embedding-005=sentence-transformers/all-MiniLM-L6-v2 &
    python examples/frameworks/with_vertex_collections.py [HOST:PORT]

HOST:PORT is the address of the server, by default `localhost:7077`.
"""

from __future__ import annotations

import sys

from google.auth.credentials import AnonymousCredentials
from google.cloud import vectorsearch_v1 as api

import scannery.vertex

HOME = "projects/any/locations/us-central1"
SONGS = f"{HOME}/collections/songs"
TEXTS = {
    "bees": "Bees dance to tell each other where the flowers are.",
    "lava": "Lava is molten rock that reaches the surface.",
}
MODEL = {
    "model_id": "text-embedding-005",  # the server's --vertex-model says which encoder that is
    "text_template": "{title}",
    "task_type": "RETRIEVAL_DOCUMENT",
}
SCHEMA = {
    "data_schema": {"type": "object", "properties": {"title": {"type": "string"}}},
    "vector_schema": {"meaning": {"dense_vector": {"vertex_embedding_config": MODEL}}},
}


def main(address: str) -> None:
    """Create, fill and search a collection, and remove it."""
    scannery.vertex.insecure()  # without TLS; docs/vertex.md has the lines for a server with a certificate
    options = {"client_options": {"api_endpoint": address}, "credentials": AnonymousCredentials()}
    collections = api.VectorSearchServiceClient(**options)
    collections.create_collection(parent=HOME, collection_id="songs", collection=SCHEMA).result()

    objects = api.DataObjectServiceClient(**options)
    new = [{"data_object_id": id, "data_object": {"data": {"title": text}}} for id, text in TEXTS.items()]
    objects.batch_create_data_objects({"parent": SONGS, "requests": new})

    wanted = {"search_text": "how do insects communicate", "search_field": "meaning", "top_k": 1}
    wanted |= {"task_type": "RETRIEVAL_QUERY", "output_fields": {"data_fields": ["*"]}}
    [best] = api.DataObjectSearchServiceClient(**options).search_data_objects(
        {"parent": SONGS, "semantic_search": wanted}
    )
    print("nearest:", best.data_object.data["title"])
    old = [{"name": f"{SONGS}/dataObjects/{id}"} for id in TEXTS]
    objects.batch_delete_data_objects({"parent": SONGS, "requests": old})
    collections.delete_collection(name=SONGS).result()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:7077")

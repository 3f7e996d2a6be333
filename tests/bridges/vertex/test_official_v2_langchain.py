"""LangChain's store of API v2, unchanged, over TLS: only the environment names this server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scannery.indexer import Store
from scannery.serving import SecurityConfig
from scannery.serving.config import VertexConfig
from scannery.serving.security.development_certificate import made_certificate
from tests.served import serving

PROGRAM = """
from google.auth.credentials import AnonymousCredentials
from google.cloud import vectorsearch_v1beta as api
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_google_vertexai import VectorSearchVectorStore

home = "projects/p/locations/us-central1"
client = api.VectorSearchServiceClient(credentials=AnonymousCredentials())
client.create_collection({
    "parent": home,
    "collection_id": "docs",
    "collection": {"vector_schema": {"embedding": {"dense_vector": {"dimensions": 16}}}},
}).result(timeout=60)
store = VectorSearchVectorStore.from_components(
    project_id="p", region="us-central1", collection_id="docs", api_version="v2",
    embedding=DeterministicFakeEmbedding(size=16), credentials=AnonymousCredentials(),
)
texts = ["bees make honey", "trains run on rails", "a hive in winter"]
store.add_texts(texts, metadatas=[{"n": n} for n in range(3)], ids=["a", "b", "c"])
assert store.similarity_search("trains run on rails", k=1)[0].page_content == texts[1]
assert store.similarity_search(texts[0], k=3, filter={"n": {"$gte": 2}})[0].page_content == texts[2]
store.delete(metadata={"n": 1})
assert len(store.similarity_search(texts[0], k=3)) == 2
print("done")
"""


def test_its_store_works_unchanged(tmp_path: Path) -> None:
    Store.open(tmp_path / "store", create=True)
    certificate, key = made_certificate(tmp_path / "tls")
    security = SecurityConfig(tls_cert=str(certificate), tls_key=str(key))
    with serving(tmp_path / "store", device="cpu", security=security, vertex=VertexConfig()) as server:
        environment = {
            **os.environ,
            "GOOGLE_CLOUD_UNIVERSE_DOMAIN": f"localhost:{server.address.rpartition(':')[2]}",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "tls" / "ca.pem"),
        }
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.stdout.strip() == "done", ended.stderr[-3000:]

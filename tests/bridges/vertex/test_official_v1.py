"""The managed service's own Python clients against a server: the life of an index, compared with brute force."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform, aiplatform_v1
from google.cloud.aiplatform.matching_engine.matching_engine_index_endpoint import (
    HybridQuery,
    Namespace,
    NumericNamespace,
)

import scannery.vertex
from scannery.indexer import Store
from scannery.pipelines.sources.managed.managed_contents import read_contents
from scannery.serving.config import VertexConfig
from tests.bridges.vertex.facade_client import PARENT, facade, write_lines

VECTORS_ND = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32)
scannery.vertex.insecure()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("official")
    records = [{"id": f"d{row:02}", "embedding": VECTORS_ND[row].tolist()} for row in range(50)]
    write_lines(folder / "contents" / "batch" / "a.json", records)
    # Clients of private endpoints know no other port.
    vertex = VertexConfig(
        contents=(str(folder / "contents"),), reader=read_contents, private="127.0.0.77:10000"
    )
    with facade(folder, vertex=vertex) as server:
        os.environ["SCANNERY_TEST_CONTENTS"] = str(folder / "contents" / "batch")
        yield server.address


@pytest.fixture
def sdk(address: str) -> Any:
    aiplatform.init(
        project="p", location="us-central1", api_endpoint=address, credentials=AnonymousCredentials()
    )
    return aiplatform


def nearest(vector_D: np.ndarray, rows: Any = range(50)) -> list[str]:
    return [f"d{row:02}" for row in sorted(rows, key=lambda row: -float(VECTORS_ND[row] @ vector_D))]


def points() -> list[dict[str, Any]]:
    return [
        {
            "datapoint_id": f"d{row:02}",
            "feature_vector": VECTORS_ND[row].tolist(),
            "restricts": [{"namespace": "color", "allow_list": ["red" if row % 2 else "blue"]}],
            "numeric_restricts": [{"namespace": "year", "value_int": 2000 + row}],
            "crowding_tag": {"crowding_attribute": str(row % 5)},
            "sparse_embedding": {"values": [1.0 + row], "dimensions": [row % 7]},
            "embedding_metadata": {"title": f"row {row}"},
        }
        for row in range(50)
    ]


def test_the_whole_life_of_an_index_by_the_sdk(sdk: Any):
    index = sdk.MatchingEngineIndex.create_tree_ah_index(
        display_name="songs",
        dimensions=8,
        approximate_neighbors_count=20,
        leaf_node_embedding_count=500,
        leaf_nodes_to_search_percent=7,
        distance_measure_type="DOT_PRODUCT_DISTANCE",
        index_update_method="STREAM_UPDATE",
        description="all",
        labels={"team": "a"},
    )
    index.upsert_datapoints(datapoints=points())
    endpoint = sdk.MatchingEngineIndexEndpoint.create(display_name="e", public_endpoint_enabled=True)
    endpoint.deploy_index(index, deployed_index_id="songs_1", min_replica_count=1, max_replica_count=1)
    assert [deployed.index for deployed in endpoint.deployed_indexes] == [index.resource_name]

    [found] = endpoint.find_neighbors(
        deployed_index_id="songs_1", queries=[VECTORS_ND[3].tolist()], num_neighbors=10
    )
    assert [neighbor.id for neighbor in found] == nearest(VECTORS_ND[3])[:10]
    assert found[0].distance == pytest.approx(max(float(v @ VECTORS_ND[3]) for v in VECTORS_ND), rel=1e-5)
    [found] = endpoint.find_neighbors(
        deployed_index_id="songs_1",
        queries=[VECTORS_ND[3].tolist()],
        num_neighbors=50,
        filter=[Namespace("color", ["red"], [])],
        numeric_filter=[NumericNamespace("year", value_int=2030, op="LESS")],
        return_full_datapoint=True,
        fraction_leaf_nodes_to_search_override=1.0,
        approx_num_neighbors=50,
    )
    assert [n.id for n in found] == nearest(VECTORS_ND[3], range(1, 30, 2))
    assert found[0].restricts[0].allow_tokens == ["red"]
    assert found[0].embedding_metadata["title"] == f"row {int(found[0].id[1:])}"
    hybrid = HybridQuery(
        dense_embedding=VECTORS_ND[3].tolist(),
        sparse_embedding_values=[1.0],
        sparse_embedding_dimensions=[3],
        rrf_ranking_alpha=0.5,
    )
    [found] = endpoint.find_neighbors(deployed_index_id="songs_1", queries=[hybrid], num_neighbors=5)
    assert any(n.sparse_distance for n in found)
    [found] = endpoint.find_neighbors(deployed_index_id="songs_1", embedding_ids=["d03"], num_neighbors=5)
    assert [n.id for n in found] == nearest(VECTORS_ND[3])[:5]
    [found] = endpoint.find_neighbors(
        deployed_index_id="songs_1", queries=[VECTORS_ND[3].tolist()], num_neighbors=5,
        per_crowding_attribute_neighbor_count=1,
    )  # fmt: skip
    assert len({int(n.id[1:]) % 5 for n in found}) == 5
    read = endpoint.read_index_datapoints(deployed_index_id="songs_1", ids=["d02", "none"])
    assert [point.datapoint_id for point in read] == ["d02"]

    index.update_metadata(display_name="tunes", labels={"team": "b"})
    assert [i.resource_name for i in sdk.MatchingEngineIndex.list(filter='display_name="tunes"')] == [
        index.resource_name
    ]
    again = sdk.MatchingEngineIndex(index_name=index.resource_name)
    assert again.gca_resource.index_stats.vectors_count == 50
    index.remove_datapoints(["d00"])
    index.update_embeddings(os.environ["SCANNERY_TEST_CONTENTS"], is_complete_overwrite=True)
    [point] = endpoint.read_index_datapoints(deployed_index_id="songs_1", ids=["d00"])
    assert not point.restricts
    endpoint.mutate_deployed_index(deployed_index_id="songs_1", min_replica_count=2, max_replica_count=2)
    with pytest.raises(exceptions.FailedPrecondition):
        index.delete()
    endpoint.undeploy_all()
    endpoint.delete()
    index.delete()
    with pytest.raises(exceptions.NotFound):
        sdk.MatchingEngineIndex(index_name=index.resource_name)


def test_private_endpoints_by_the_sdk(sdk: Any):
    index = sdk.MatchingEngineIndex.create_brute_force_index(
        display_name="b",
        dimensions=8,
        index_update_method="STREAM_UPDATE",
        distance_measure_type="SQUARED_L2_DISTANCE",
    )
    index.upsert_datapoints(datapoints=points())
    endpoint = sdk.MatchingEngineIndexEndpoint.create(
        display_name="p", network="projects/1/global/networks/n"
    )
    endpoint.deploy_index(index, deployed_index_id="private_1")
    [found] = endpoint.match(
        deployed_index_id="private_1",
        queries=[VECTORS_ND[7].tolist()],
        num_neighbors=5,
        filter=[Namespace("color", ["blue"], [])],
        signed_jwt="a.b.c",
    )
    right = sorted(range(0, 50, 2), key=lambda row: float(((VECTORS_ND[row] - VECTORS_ND[7]) ** 2).sum()))
    assert [n.id for n in found] == [f"d{row:02}" for row in right[:5]]
    endpoint.delete(force=True)
    index.delete()


def test_raw_clients(address: str):
    services = aiplatform_v1.services

    def transport(module: Any, name: str) -> Any:
        return getattr(module.transports, name)(host=address, credentials=AnonymousCredentials())

    indexes = aiplatform_v1.IndexServiceClient(
        transport=transport(services.index_service, "IndexServiceGrpcTransport")
    )
    request = {
        "display_name": "raw",
        "metadata": {"config": {"dimensions": 8,
         "algorithmConfig": {"treeAhConfig": {"fractionLeafNodesToSearch": 0.05}}}},
        "index_update_method": "STREAM_UPDATE",
    }  # fmt: skip
    created = indexes.create_index(parent=PARENT, index=request).result(timeout=60)
    config = dict(created.metadata)["config"]
    assert config["dimensions"] == 8.0
    indexes.upsert_datapoints(
        request=aiplatform_v1.UpsertDatapointsRequest(index=created.name, datapoints=points())
    )
    assert indexes.get_index(name=created.name).index_stats.sparse_vectors_count == 50
    with pytest.raises(exceptions.InvalidArgument, match=r"datapoints\[0\].feature_vector"):
        indexes.upsert_datapoints(
            request=aiplatform_v1.UpsertDatapointsRequest(
                index=created.name, datapoints=[{"datapoint_id": "x", "feature_vector": [1.0]}]
            )
        )
    with pytest.raises(exceptions.NotFound):
        indexes.get_operation({"name": f"{created.name}/operations/none"})
    indexes.delete_index(name=created.name).result(timeout=60)
    with pytest.raises(exceptions.NotFound):
        indexes.get_index(name=created.name)


async def test_asyncio_clients(address: str):
    services = aiplatform_v1.services
    options = {"host": address, "credentials": AnonymousCredentials()}
    indexes = aiplatform_v1.IndexServiceAsyncClient(
        transport=services.index_service.transports.IndexServiceGrpcAsyncIOTransport(**options)
    )
    endpoints = aiplatform_v1.IndexEndpointServiceAsyncClient(
        transport=services.index_endpoint_service.transports.IndexEndpointServiceGrpcAsyncIOTransport(
            **options
        )
    )
    matches = aiplatform_v1.MatchServiceAsyncClient(
        transport=services.match_service.transports.MatchServiceGrpcAsyncIOTransport(**options)
    )
    index = {
        "display_name": "asyncio",
        "metadata": {"config": {"dimensions": 8.0}},
        "index_update_method": "STREAM_UPDATE",
    }
    created = await (await indexes.create_index(parent=PARENT, index=index)).result()
    endpoint = await (
        await endpoints.create_index_endpoint(
            parent=PARENT, index_endpoint={"display_name": "e", "public_endpoint_enabled": True}
        )
    ).result()
    deployed = {"id": "asyncio_1", "index": created.name}
    await (await endpoints.deploy_index(index_endpoint=endpoint.name, deployed_index=deployed)).result()
    await indexes.upsert_datapoints(
        request=aiplatform_v1.UpsertDatapointsRequest(index=created.name, datapoints=points())
    )
    assert endpoint.public_endpoint_domain_name == address
    answer = await matches.find_neighbors(
        request=aiplatform_v1.FindNeighborsRequest(
            index_endpoint=endpoint.name,
            deployed_index_id="asyncio_1",
            queries=[{"datapoint": {"feature_vector": VECTORS_ND[5].tolist()}, "neighbor_count": 3}],
        )
    )
    found = answer.nearest_neighbors[0].neighbors
    assert [n.datapoint.datapoint_id for n in found] == nearest(VECTORS_ND[5])[:3]
    await (
        await endpoints.undeploy_index(index_endpoint=endpoint.name, deployed_index_id="asyncio_1")
    ).result()
    await (await endpoints.delete_index_endpoint(name=endpoint.name)).result()
    await (await indexes.delete_index(name=created.name)).result()


def test_the_store_of_langchain(sdk: Any):
    from langchain_core.embeddings import Embeddings
    from langchain_core.stores import InMemoryStore
    from langchain_google_vertexai import VectorSearchVectorStore
    from langchain_google_vertexai.vectorstores._searcher import VectorSearchSearcher
    from langchain_google_vertexai.vectorstores.document_storage import DocumentStorage

    class Documents(DocumentStorage):
        def __init__(self) -> None:
            self.kept = InMemoryStore()

        def mset(self, pairs: Any) -> None:
            self.kept.mset(pairs)

        def mget(self, keys: Any) -> Any:
            return self.kept.mget(keys)

        def mdelete(self, keys: Any) -> None:
            self.kept.mdelete(keys)

        def yield_keys(self, *, prefix: str | None = None) -> Any:
            return self.kept.yield_keys(prefix=prefix)

    class Lengths(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [self.embed_query(text) for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return VECTORS_ND[len(text) % 50].tolist()

    index = sdk.MatchingEngineIndex.create_tree_ah_index(
        display_name="l", dimensions=8, approximate_neighbors_count=5, index_update_method="STREAM_UPDATE"
    )
    endpoint = sdk.MatchingEngineIndexEndpoint.create(display_name="l", public_endpoint_enabled=True)
    endpoint.deploy_index(index, deployed_index_id="langchain_1")
    store = VectorSearchVectorStore(
        searcher=VectorSearchSearcher(endpoint=endpoint, index=index, stream_update=True),
        document_storage=Documents(),
        embeddings=Lengths(),
    )
    texts = ["a" * size for size in range(1, 30)]
    ids = store.add_texts(texts, [{"even": str(len(text) % 2 == 0)} for text in texts])
    best = max(range(1, 30), key=lambda row: float(VECTORS_ND[row] @ VECTORS_ND[7]))
    [found] = store.similarity_search("b" * 7, k=1)
    assert found.page_content == "a" * best
    found = store.similarity_search("b" * 7, k=30, filter=[Namespace("even", ["True"], [])])
    assert {len(document.page_content) for document in found} == {*range(2, 30, 2)}
    store.delete(ids=ids)
    assert store.similarity_search("b" * 7, k=1) == []
    endpoint.delete(force=True)
    index.delete()


@contextmanager
def command(*options: str) -> Iterator[str]:
    """Run `scannery serve`, and yield its address."""
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "scannery.cli.main",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--http",
            "off",
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield line.split()[2].rstrip(";")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


WITH_TLS = """
    import sys
    import time
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import aiplatform
    aiplatform.init(project="p", location="us-central1", api_endpoint=sys.argv[1], credentials=AnonymousCredentials())
    index = aiplatform.MatchingEngineIndex.create_tree_ah_index(
        display_name="tls", dimensions=2, approximate_neighbors_count=5, index_update_method="STREAM_UPDATE")
    endpoint = aiplatform.MatchingEngineIndexEndpoint.create(display_name="e", public_endpoint_enabled=True)
    endpoint.deploy_index(index, deployed_index_id="tls_1")
    index.upsert_datapoints(datapoints=[{"datapoint_id": "a", "feature_vector": [1.0, 0.0]}])
    for _ in range(100):  # the other worker follows within a second
        if endpoint.find_neighbors(deployed_index_id="tls_1", queries=[[1.0, 0.0]], num_neighbors=3)[0]:
            break
        time.sleep(0.1)
    for _ in range(20):
        [found] = endpoint.find_neighbors(deployed_index_id="tls_1", queries=[[1.0, 0.0]], num_neighbors=3)
        assert [neighbor.id for neighbor in found] == ["a"]
    print(index.resource_name)
"""


def test_tls_with_a_development_certificate_and_two_workers(tmp_path: Path):
    Store.open(tmp_path / "store", create=True)
    options = (
        "--store", str(tmp_path / "store"), "--vertex", "--tls-dev", str(tmp_path / "tls"), "--workers", "2",
    )  # fmt: skip
    environment = {**os.environ, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "tls" / "ca.pem")}
    with command(*options) as address:
        assert (tmp_path / "tls" / "key.pem").stat().st_mode & 0o077 == 0
        port = address.rpartition(":")[2]
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(WITH_TLS), f"localhost:{port}"],
            env=environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.strip().splitlines()[-1].startswith("projects/p/locations/us-central1/indexes/")

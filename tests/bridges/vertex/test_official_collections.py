"""API v2 with the vendor's client: the life of a collection, and answers against brute force."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
from google.api_core import exceptions
from google.cloud import vectorsearch_v1, vectorsearch_v1beta

from scannery.indexer import Store
from scannery.serving import Server
from scannery.serving.config import VertexConfig
from scannery.vertex.v2 import collections_pb2, data_objects_pb2, search_pb2
from tests.bridges.vertex.collection_client import collections_served
from tests.served import MINILM, serving

HOME = "projects/team/locations/here"
RANDOM = np.random.default_rng(5)
ROWS, SIZE = 60, 8
VECTORS = RANDOM.normal(size=(ROWS, SIZE)).astype(np.float32) * RANDOM.uniform(0.5, 2, size=(ROWS, 1)).astype(
    "f4"
)
SPARSE = [{int(i): float(w) for i, w in zip(RANDOM.choice(20, 4, False), RANDOM.uniform(0.1, 1, 4), strict=True)}
          for _ in range(ROWS)]  # fmt: skip
GENRES = ["drama", "comedy", "sci-fi"]
DATA = [
    {
        "title": f"Film number {i}",
        "genre": GENRES[i % 3],
        "year": 1960 + i,
        "tags": [f"t{i % 4}", f"t{i % 5}"],
        **({"rating": i / 7} if i % 2 else {}),
    }
    for i in range(ROWS)
]


class Clients:
    """The three clients of one version of the API."""

    def __init__(self, api: ModuleType, address: str) -> None:
        self.api = api
        channel = grpc.insecure_channel(address)
        self.collections = api.VectorSearchServiceClient(
            transport=_transport(api, "vector_search_service", channel)
        )
        self.objects = api.DataObjectServiceClient(transport=_transport(api, "data_object_service", channel))
        self.searches = api.DataObjectSearchServiceClient(
            transport=_transport(api, "data_object_search_service", channel)
        )

    def create(self, name: str, **fields: Any) -> Any:
        request = {"parent": HOME, "collection_id": name, "collection": fields}
        return self.collections.create_collection(request).result(timeout=60)

    def search(self, name: str, **search: Any) -> list[tuple[str, float]]:
        request = {"parent": f"{HOME}/collections/{name}", **search}
        found = self.searches.search_data_objects(request)
        return [(each.data_object.name.rpartition("/")[2], each.distance) for each in found]


def _transport(api: ModuleType, service: str, channel: grpc.Channel) -> Any:
    module = __import__(f"{api.__name__}.services.{service}.transports", fromlist=["x"])
    [kind] = [each for name, each in vars(module).items() if name.endswith("ServiceGrpcTransport")]
    return kind(channel=channel)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("v2") / "store"
    Store.open(folder, create=True)
    with serving(folder, device="cpu", vertex=VertexConfig(models={"text-embedding": MINILM})) as server:
        yield server


@pytest.fixture(scope="module", params=[vectorsearch_v1, vectorsearch_v1beta], ids=["v1", "v1beta"])
def clients(request: pytest.FixtureRequest, server: Server) -> Clients:
    return Clients(request.param, server.address)


@pytest.fixture(scope="module")
def films(clients: Clients) -> str:
    name = f"films-{clients.api.__name__.rpartition('_')[2]}"
    clients.create(
        name,
        vector_schema={"plot": {"dense_vector": {"dimensions": SIZE}}, "words": {"sparse_vector": {}}},
        data_schema={
            "type": "object",
            "properties": {"title": {"type": "string"}, "year": {"type": "number"}},
            "required": ["title"],
        },
        labels={"team": "a"},
    )
    clients.objects.batch_create_data_objects(
        {
            "parent": f"{HOME}/collections/{name}",
            "requests": [{"data_object_id": f"f{i}", "data_object": film(i)} for i in range(ROWS)],
        }
    )
    return name


def film(i: int) -> dict[str, Any]:
    return {
        "data": DATA[i],
        "vectors": {
            "plot": {"dense": {"values": VECTORS[i].tolist()}},
            "words": {"sparse": {"indices": list(SPARSE[i]), "values": list(SPARSE[i].values())}},
        },
    }


def best(scores: Any, allowed: Any, k: int) -> list[str]:
    return [f"f{i}" for i in np.argsort(-np.asarray(scores), kind="stable") if allowed(DATA[i])][:k]


def test_our_messages_have_the_fields_of_the_vendor() -> None:
    own = {
        **collections_pb2.DESCRIPTOR.message_types_by_name,
        **data_objects_pb2.DESCRIPTOR.message_types_by_name,
        **search_pb2.DESCRIPTOR.message_types_by_name,
    }
    refused = {"CombinedQuery", "QueryEnhancement", "StructuredQuery", "TextQuery", "UnaryQuery"}
    compared = 0
    for api in (vectorsearch_v1, vectorsearch_v1beta):
        for name in sorted({*api.types.__all__} - refused):
            kind = getattr(api.types, name)
            if hasattr(kind, "pb"):
                compared += same_fields(kind.pb(kind()).DESCRIPTOR, own[name])
    assert compared > 200


def same_fields(theirs: Any, ours: Any) -> int:
    def shown(field: Any) -> tuple[Any, ...]:
        oneof = field.containing_oneof.name if field.containing_oneof else ""
        return field.number, field.name.rstrip("_"), field.type, field.is_repeated, oneof

    assert {*map(shown, theirs.fields)} <= {*map(shown, ours.fields)}, theirs.full_name
    nested = [same_fields(each, ours.nested_types_by_name[each.name]) for each in theirs.nested_types]
    return len(theirs.fields) + sum(nested)


@pytest.mark.parametrize("metric", ["DOT_PRODUCT", "COSINE_DISTANCE"])
def test_exact_searches_find_what_brute_force_finds(clients: Clients, films: str, metric: str) -> None:
    query = RANDOM.normal(size=SIZE).astype(np.float32)
    products = VECTORS @ query
    lengths = np.linalg.norm(VECTORS, axis=1) * np.linalg.norm(query)
    scores = products if metric == "DOT_PRODUCT" else products / lengths
    search = {
        "search_field": "plot",
        "vector": {"values": query.tolist()},
        "top_k": 7,
        "distance_metric": metric,
        "filter": {"genre": {"$ne": "drama"}},
    }
    found = clients.search(films, vector_search=search)
    assert [name for name, _ in found] == best(scores, lambda data: data["genre"] != "drama", 7)
    shown = {name: distance if metric == "DOT_PRODUCT" else 1 - distance for name, distance in found}
    for name, score in shown.items():
        assert score == pytest.approx(scores[int(name[1:])], rel=1e-4, abs=1e-5)


def test_sparse_searches_have_positive_products(clients: Clients, films: str) -> None:
    query = {3: 0.5, 7: 1.0, 11: 0.25}
    scores = [sum(weight * row.get(index, 0) for index, weight in query.items()) for row in SPARSE]
    search = {
        "search_field": "words",
        "sparse_vector": {"indices": list(query), "values": list(query.values())},
        "top_k": 5,
    }
    found = clients.search(films, vector_search=search)
    assert [name for name, _ in found] == best(scores, lambda data: True, 5)
    assert [distance for _, distance in found] == pytest.approx(sorted(scores, reverse=True)[:5], rel=1e-5)


@pytest.mark.parametrize(
    ("where", "allowed"),
    [
        ({"year": {"$gte": 1990, "$lt": 2000}}, lambda data: 1990 <= data["year"] < 2000),
        ({"genre": {"$in": ["drama", "comedy"]}}, lambda data: data["genre"] != "sci-fi"),
        ({"genre": {"$nin": ["drama"]}}, lambda data: data["genre"] != "drama"),
        ({"tags": {"$all": ["t1", "t3"]}}, lambda data: {"t1", "t3"} <= {*data["tags"]}),
        ({"$or": [{"year": {"$eq": 1961}}, {"rating": {"$gt": 7.5}}]},
         lambda data: data["year"] == 1961 or data.get("rating", 0) > 7.5),
        ({"$and": [{"genre": "drama"}, {"year": {"$lte": 1966}}]},
         lambda data: data["genre"] == "drama" and data["year"] <= 1966),
        ({"nothing": {"$eq": 1}}, lambda data: False),
        ({}, lambda data: True),
    ],
)  # fmt: skip
def test_queries_and_counts_by_filter(clients: Clients, films: str, where: Any, allowed: Any) -> None:
    parent = f"{HOME}/collections/{films}"
    expected = {f"f{i}" for i in range(ROWS) if allowed(DATA[i])}
    pages = clients.searches.query_data_objects({"parent": parent, "filter": where, "page_size": 7})
    found = [each.name.rpartition("/")[2] for each in pages]
    assert sorted(found) == sorted(expected)
    counted = clients.searches.aggregate_data_objects(
        {"parent": parent, "filter": where, "aggregate": "COUNT"}
    )
    assert [dict(each) for each in counted.aggregate_results] == [{"count": float(len(expected))}]


def test_output_fields(clients: Clients, films: str) -> None:
    parent = f"{HOME}/collections/{films}"
    where = {"year": {"$eq": 1961}}

    def only(**fields: list[str]) -> Any:
        request = {"parent": parent, "filter": where, "output_fields": fields}
        [found] = clients.searches.query_data_objects(request)
        return found

    assert not only().data
    named = only(data_fields=["title"], vector_fields=["words"], metadata_fields=["etag"])
    assert dict(named.data) == {"title": "Film number 1"}
    assert [*named.vectors] == ["words"]
    assert dict(
        zip(named.vectors["words"].sparse.indices, named.vectors["words"].sparse.values, strict=True)
    ) == (pytest.approx(SPARSE[1], rel=1e-6))
    assert named.etag
    assert named.create_time is None
    whole = only(data_fields=["*"], vector_fields=["*"], metadata_fields=["*"])
    assert dict(whole.data)["year"] == 1961.0
    assert [*whole.data["tags"]] == DATA[1]["tags"]
    assert list(whole.vectors["plot"].dense.values) == pytest.approx(VECTORS[1].tolist())
    assert whole.create_time == whole.update_time


def test_the_life_of_a_data_object(clients: Clients, films: str) -> None:
    parent, objects = f"{HOME}/collections/{films}", clients.objects
    name = f"{parent}/dataObjects/new one"
    request = {"parent": parent, "data_object_id": "new one", "data_object": film(3)}
    try:
        created = objects.create_data_object(request)
        assert created.name == name
        with pytest.raises(exceptions.AlreadyExists, match="data_object_id"):
            objects.create_data_object(request)
        read = objects.get_data_object({"name": name})
        assert (read.etag, dict(read.data)["id"] if "id" in read.data else None) == (created.etag, None)
        changed = objects.update_data_object(
            {
                "data_object": {"name": name, "data": {"id": "x", "genre": "other"}, "etag": read.etag},
                "update_mask": "data.genre,data.id,data.tags",
            }
        )
        assert changed.etag != read.etag
        again = objects.get_data_object({"name": name})
        assert dict(again.data) == {
            "id": "x", "genre": "other", "title": "Film number 3", "year": 1963.0, "rating": 3 / 7,
        }  # fmt: skip
        assert again.etag == changed.etag
        assert list(again.vectors["plot"].dense.values) == pytest.approx(VECTORS[3].tolist())
        stale = {"data_object": {"name": name, "data": {"title": "b"}, "etag": read.etag}}
        with pytest.raises(exceptions.Aborted, match="etag"):
            objects.update_data_object(stale)
        with pytest.raises(exceptions.Aborted, match="etag"):
            objects.delete_data_object({"name": name, "etag": read.etag})
        objects.batch_update_data_objects(
            {
                "parent": parent,
                "requests": [
                    {"data_object": {"name": name, "vectors": {"plot": {"dense": {"values": [1.0] * SIZE}}}}}
                ],
            }
        )
        assert [*objects.get_data_object({"name": name}).vectors] == ["plot"]
    finally:
        objects.delete_data_object({"name": name})
    with pytest.raises(exceptions.NotFound):
        objects.get_data_object({"name": name})
    with pytest.raises(exceptions.NotFound):
        objects.batch_delete_data_objects({"parent": parent, "requests": [{"name": name}]})


def test_batches_are_all_or_nothing_and_name_the_field(clients: Clients, films: str) -> None:
    parent = f"{HOME}/collections/{films}"
    for wrong, match in (
        ({"data": {"title": 5}}, r"requests\[1\].data_object.data.title: must be string"),
        ({"data": {"year": 5}}, r"requests\[1\].data_object.data.title: is required"),
        ({"data": {"title": "a"}, "vectors": {"plot": {"dense": {"values": [1.0]}}}},
         r"requests\[1\].*plot: must have 8"),
        ({"data": {"title": "a"}, "vectors": {"other": {"dense": {"values": [1.0]}}}}, "must be a dense field"),
        ({"data": {"title": "a"}, "vectors": {"plot": {"dense": {"values": [float("nan")] * 8}}}}, r"requests\[1\]"),
    ):  # fmt: skip
        with pytest.raises(exceptions.InvalidArgument, match=match):
            clients.objects.batch_create_data_objects(
                {
                    "parent": parent,
                    "requests": [
                        {"data_object_id": "good", "data_object": {"data": {"title": "good"}}},
                        {"data_object_id": "bad", "data_object": wrong},
                    ],
                }
            )
    with pytest.raises(exceptions.NotFound):
        clients.objects.get_data_object({"name": f"{parent}/dataObjects/good"})


def test_batch_searches_and_fusion(clients: Clients, films: str) -> None:
    parent = f"{HOME}/collections/{films}"
    query = RANDOM.normal(size=SIZE).astype(np.float32)
    searches = [
        {"vector_search": {"search_field": "plot", "vector": {"values": query.tolist()}, "top_k": 8}},
        {"text_search": {"search_text": "number 7", "data_field_names": ["title"], "top_k": 8}},
    ]
    each = clients.searches.batch_search_data_objects({"parent": parent, "searches": searches}).results
    lists = [[result.data_object.name for result in one.results] for one in each]
    assert lists[0] == [
        f"{parent}/dataObjects/{name}" for name in best(VECTORS @ query, lambda data: True, 8)
    ]
    assert lists[1][0] == f"{parent}/dataObjects/f7"
    combine = {
        "ranker": {"rrf": {"weights": [1.0, 2.0]}},
        "top_k": 5,
        "output_fields": {"data_fields": ["title"]},
    }
    [one] = clients.searches.batch_search_data_objects(
        {"parent": parent, "searches": searches, "combine": combine}
    ).results
    scores: dict[str, float] = {}
    for names, weight in zip(lists, (1.0, 2.0), strict=True):
        for rank, name in enumerate(names, start=1):
            scores[name] = scores.get(name, 0) + weight / (60 + rank)
    expected = sorted(scores, key=lambda name: (-scores[name], name))[:5]
    assert [result.data_object.name for result in one.results] == expected
    assert [result.distance for result in one.results] == pytest.approx([scores[name] for name in expected])
    assert all(result.data_object.data["title"] for result in one.results)
    ranker = {
        "vertex_ranker": {"model": "m", "text_record_spec": {"query": "a", "title_template": "{title}"}}
    }
    with pytest.raises(exceptions.FailedPrecondition, match="reranker"):
        clients.searches.batch_search_data_objects(
            {"parent": parent, "searches": searches, "combine": {"ranker": ranker}}
        )


def test_text_is_found_in_the_named_fields_only(clients: Clients, films: str) -> None:
    def named(*fields: str) -> set[str]:
        search = {"search_text": "drama", "data_field_names": list(fields), "top_k": 50}
        return {name for name, _ in clients.search(films, text_search=search)}

    assert named("title") == set()
    assert named("title", "genre") == {f"f{i}" for i in range(0, ROWS, 3)}


def test_indexes_are_names(clients: Clients, films: str) -> None:
    parent = f"{HOME}/collections/{films}"
    request = {
        "parent": parent,
        "index_id": "by-plot",
        "index": {"index_field": "plot", "distance_metric": "COSINE_DISTANCE", "dense_scann": {}},
    }
    made = clients.collections.create_index(request).result(timeout=60)
    try:
        assert [each.name for each in clients.collections.list_indexes({"parent": parent})] == [made.name]
        query = RANDOM.normal(size=SIZE).astype(np.float32)
        hint = {"index_hint": {"name": made.name, "dense_scann_params": {"target_recall": 0.99}}}
        vector = {
            "search_field": "plot",
            "vector": {"values": query.tolist()},
            "top_k": 5,
            "search_hint": hint,
        }
        cosines = (VECTORS @ query) / np.linalg.norm(VECTORS, axis=1)
        found = clients.search(films, vector_search=vector)
        assert [name for name, _ in found] == best(cosines, lambda data: True, 5)
        wrong = {**vector, "search_hint": {"index_hint": {"name": f"{parent}/indexes/none"}}}
        with pytest.raises(exceptions.NotFound):
            clients.search(films, vector_search=wrong)
    finally:
        clients.collections.delete_index({"name": made.name}).result(timeout=60)
    with pytest.raises(exceptions.NotFound):
        clients.collections.get_index({"name": made.name})


def test_pages_of_a_search(clients: Clients, films: str) -> None:
    search = {"search_field": "plot", "vector": {"values": VECTORS[0].tolist()}, "top_k": 23}
    whole = clients.search(films, vector_search=search)
    assert len(whole) == 23
    assert clients.search(films, vector_search=search, page_size=5) == whole
    with pytest.raises(exceptions.InvalidArgument, match="page_token"):
        clients.search(films, vector_search=search, page_token="abcd")


def test_the_server_makes_vectors(clients: Clients) -> None:
    name = f"made-{clients.api.__name__.rpartition('_')[2]}"
    config = {
        "model_id": "text-embedding",
        "text_template": "{title}: {plot}",
        "task_type": "RETRIEVAL_DOCUMENT",
    }
    with pytest.raises(exceptions.InvalidArgument, match="must be 384"):
        clients.create(
            name, vector_schema={"v": {"dense_vector": {"dimensions": 5, "vertex_embedding_config": config}}}
        )
    with pytest.raises(exceptions.InvalidArgument, match="--vertex-model"):
        other = {**config, "model_id": MINILM}
        clients.create(name, vector_schema={"v": {"dense_vector": {"vertex_embedding_config": other}}})
    made = clients.create(
        name, vector_schema={"v": {"dense_vector": {"dimensions": 384, "vertex_embedding_config": config}}}
    )
    texts = {"bees": "Bees collect nectar and make honey.", "trains": "Express trains run on rails."}
    for key, text in texts.items():
        clients.objects.create_data_object(
            {
                "parent": made.name,
                "data_object_id": key,
                "data_object": {"data": {"title": key, "plot": text}},
            }
        )
    search = {
        "search_text": "insects in a hive",
        "search_field": "v",
        "task_type": "QUESTION_ANSWERING",
        "top_k": 1,
    }
    assert [each for each, _ in clients.search(name, semantic_search=search)] == ["bees"]
    target = f"{made.name}/dataObjects/trains"
    before = clients.objects.get_data_object({"name": target}).vectors["v"].dense.values
    assert np.linalg.norm(before) == pytest.approx(1, abs=1e-3)
    clients.objects.update_data_object(
        {"data_object": {"name": target, "data": {"plot": "A hive of insects."}}, "update_mask": "data.plot"}
    )
    assert [each for each, _ in clients.search(name, semantic_search=search)] == ["trains"]
    operation = clients.collections.delete_collection(
        {"name": made.name, **({"force": True} if clients.api is vectorsearch_v1beta else {})}
    ) if clients.api is vectorsearch_v1beta else None  # fmt: skip
    if operation is not None:
        operation.result(timeout=60)
        with pytest.raises(exceptions.NotFound):
            clients.collections.get_collection({"name": made.name})


def test_collections_are_listed_changed_and_kept_apart(clients: Clients, films: str) -> None:
    parent = f"{HOME}/collections/{films}"
    shown = clients.collections.get_collection({"name": parent})
    assert shown.vector_schema["plot"].dense_vector.dimensions == SIZE
    assert shown.labels == {"team": "a"}
    assert parent in [
        each.name for each in clients.collections.list_collections({"parent": HOME, "page_size": 1})
    ]
    changed = clients.collections.update_collection(
        {
            "collection": {
                "name": parent,
                "display_name": "Films",
                "vector_schema": {"extra": {"dense_vector": {"dimensions": 3}}},
            },
            "update_mask": {"paths": ["display_name", "vector_schema.extra"]},
        }
    ).result(timeout=60)
    assert (changed.display_name, {*changed.vector_schema}) == ("Films", {"plot", "words", "extra"})
    with pytest.raises(exceptions.FailedPrecondition, match="data objects"):
        clients.collections.delete_collection({"name": parent})
    with pytest.raises(exceptions.AlreadyExists):
        clients.create(films, vector_schema={"a": {"dense_vector": {"dimensions": 2}}})
    with pytest.raises(exceptions.NotFound):
        clients.collections.get_collection({"name": f"projects/other/locations/here/collections/{films}"})


def test_asyncio_clients(server: Server, films: str) -> None:
    async def found() -> list[str]:
        api = vectorsearch_v1
        from google.cloud.vectorsearch_v1.services.data_object_search_service.transports import (
            DataObjectSearchServiceGrpcAsyncIOTransport,
        )

        channel = grpc.aio.insecure_channel(server.address)
        client = api.DataObjectSearchServiceAsyncClient(
            transport=DataObjectSearchServiceGrpcAsyncIOTransport(channel=channel)
        )
        pages = await client.query_data_objects({"parent": f"{HOME}/collections/{films}", "page_size": 25})
        names = [each.name async for each in pages]
        await channel.close(None)
        return names

    assert len(asyncio.run(found())) == ROWS


def test_collections_survive_a_restart(tmp_path: Path) -> None:
    Store.open(tmp_path, create=True)
    with serving(tmp_path, device="cpu", vertex=VertexConfig()) as server:
        clients = Clients(vectorsearch_v1, server.address)
        made = clients.create("kept", vector_schema={"v": {"dense_vector": {"dimensions": 2}}})
        request = {"name": "", "parent": made.name, "data_object_id": "a", "data_object": {"data": {"n": 1}}}
        request.pop("name")
        created = clients.objects.create_data_object(request)
    with serving(tmp_path, device="cpu", vertex=VertexConfig()) as server:
        clients = Clients(vectorsearch_v1, server.address)
        assert clients.collections.get_collection({"name": made.name}) == made
        assert clients.objects.get_data_object({"name": created.name}) == created


def test_hostile_requests_are_refused(clients: Clients, films: str) -> None:
    parent = f"{HOME}/collections/{films}"
    for name in (
        "projects/../locations/x/collections/a",
        f"{HOME}/collections/../x",
        f"{HOME}/collections/A b",
        "",
    ):
        with pytest.raises((exceptions.InvalidArgument, exceptions.NotFound)):
            clients.collections.get_collection({"name": name})
    filters: list[dict[str, Any]] = [
        {"$where": 1},
        {"a": {"$regex": "x"}},
        {"a": {"$in": 3}},
        {"$or": []},
        {"a": {}},
        {"a": {"$eq": [1]}},
    ]
    for where in filters:
        with pytest.raises(exceptions.InvalidArgument, match="filter"):
            list(clients.searches.query_data_objects({"parent": parent, "filter": where}))
    requests = [{"data_object_id": f"x{i}", "data_object": {"data": {"title": "t"}}} for i in range(1001)]
    with pytest.raises(exceptions.InvalidArgument, match="1 to 1000"):
        clients.objects.batch_create_data_objects({"parent": parent, "requests": requests})


def test_data_objects_are_exported_and_imported(tmp_path: Path) -> None:
    with collections_served(tmp_path) as server:
        for api in (vectorsearch_v1, vectorsearch_v1beta):
            clients = Clients(api, server.address)
            version = api.__name__.rpartition("_")[2]
            schema = {"plot": {"dense_vector": {"dimensions": SIZE}}, "words": {"sparse_vector": {}}}
            made, copy = (
                clients.create(f"{name}-{version}", vector_schema=schema) for name in ("made", "copy")
            )
            requests = [{"data_object_id": f"f{i}", "data_object": film(i)} for i in range(10)]
            clients.objects.batch_create_data_objects({"parent": made.name, "requests": requests})
            place = str(tmp_path / "contents" / version)
            destination = {"export_uri": place, "format_": "JSONL"}
            exporting = clients.collections.export_data_objects(
                {"name": made.name, "gcs_destination": destination}
            )
            assert exporting.result(timeout=60) == api.ExportDataObjectsResponse()
            assert exporting.metadata.finish_time
            importing = clients.collections.import_data_objects(
                {"name": copy.name, "gcs_import": {"contents_uri": place, "error_uri": f"{place}-errors"}}
            )
            assert importing.result(timeout=60).status.code == 0
            assert (importing.metadata.success_count, importing.metadata.failure_count) == (10, 0)
            before, after = (
                clients.objects.get_data_object({"name": f"{each.name}/dataObjects/f3"})
                for each in (made, copy)
            )
            assert (after.data, after.vectors) == (before.data, before.vectors)

"""Requests and files of the service's own pages and notebooks, with what the pages say of the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from scannery.vertex.v2 import collections_pb2, search_pb2
from tests.bridges.vertex.collection_client import (
    CollectionCaller,
    collection_name,
    collections_served,
    dimensions,
)
from tests.bridges.vertex.facade_client import INVALID, NOT_FOUND, ids_of, refused, write_lines

PRODUCTS = {
    "p1": {"name": "Blue Denim Jacket", "description": "Warm and light", "brand": "Acme"},
    "p2": {"name": "Blue Shirt", "description": "Fits under any jacket", "brand": "Acme"},
    "p3": {"name": "Red Jacket", "description": "For blue days", "brand": "Blue Mountain"},
    "p4": {"name": "Jackets, jackets", "description": "A red jacket", "brand": "Peak"},
    "p5": {"name": "Scarf", "description": "Blue jackets need one", "brand": "Peak"},
    "p6": {"name": "Jacket", "description": "The jacket", "tags": ["blue jacket", "green"]},
}
DENSE, SPARSE = [0.1, 0.7, 0.2], {"values": [1.5, 0.5], "indices": [7, 9]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def caller(folder: Path) -> Iterator[CollectionCaller]:
    with collections_served(folder) as server, CollectionCaller(server.address) as caller:
        caller.create("products", vector_schema={**dimensions(v=2)})
        vector = {"v": {"dense": {"values": [1, 0]}}}
        caller.write("products", {key: {"data": data, "vectors": vector} for key, data in PRODUCTS.items()})
        caller.create("movies", vector_schema={**dimensions(plot=3), "words": {"sparse_vector": {}}})
        yield caller


def words(text: str, *fields: str, **more: Any) -> dict[str, Any]:
    return {"search_text": text, "data_field_names": list(fields), **more}


@pytest.mark.system
@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("Blue Jacket", ["name"], {"p1"}),
        ("blue jackets", ["name"], {"p1"}),
        ("jacket", ["name"], {"p1", "p3", "p4", "p6"}),
        # All words in one of the fields: p2 has one of them in each.
        ("Blue Jacket", ["name", "description"], {"p1", "p5"}),
        ("Blue Jacket", ["tags"], {"p6"}),
        ("blue green", ["tags"], {"p6"}),
        ("Blue Jacket warm", ["name", "description"], set()),
        ("Blue Jacket nonsense", ["name"], set()),
        ("!", ["name"], set()),
        # Operators are for `structured_query`; here they are words, or no words.
        ('"Blue Jacket"', ["name"], {"p1"}),
        ("blue OR red", ["name"], set()),
    ],
)
def test_a_text_search_is_for_all_words(
    caller: CollectionCaller, text: str, fields: list[str], expected: set[str]
):
    found = caller.search("products", text_search=words(text, *fields, top_k=10))
    assert {name for name, _ in found} == expected
    paged = caller.search("products", text_search=words(text, *fields, top_k=1))
    assert [name for name, _ in paged] == [name for name, _ in found[:1]]


def test_hybrid_searches_are_for_all_words_too(caller: CollectionCaller):
    vector = {"search_field": "v", "vector": {"values": [1, 0]}, "filter": {"brand": {"$eq": "Peak"}}}
    request = {
        "parent": collection_name("products"),
        "searches": [{"vector_search": vector}, {"text_search": words("Blue Jacket", "name")}],
        "combine": {"ranker": {"rrf": {"weights": [1.0, 1.0]}}},
    }
    answer = caller.ask(search_pb2.BatchSearchDataObjectsRequest, request)
    found = {each.data_object.name.rpartition("/")[2] for each in answer.results[0].results}
    assert found == {"p1", "p4", "p5"}


@pytest.mark.system
@pytest.mark.parametrize(
    "vectors",
    [
        {"plot": DENSE, "words": SPARSE},
        {"plot": {"values": DENSE}, "words": {"sparse": SPARSE}},
        {"plot": {"dense": DENSE}, "words": SPARSE},
        {"plot": {"dense": {"values": DENSE}}, "words": {"sparse": SPARSE}},
    ],
)
@pytest.mark.parametrize("ids", [("a", "b"), (1, 2)])
@pytest.mark.parametrize("of_file", [True, False])
def test_lines_of_each_form_are_imported(
    caller: CollectionCaller, folder: Path, vectors: dict[str, Any], ids: tuple[Any, Any], of_file: bool
):
    file = folder / "contents" / "movies" / "data.jsonl"
    write_lines(file, [{"id": id, "data": {"title": "x"}, "vectors": vectors} for id in ids])
    done = caller.import_from("movies", file if of_file else file.parent, folder / "contents" / "errors")
    assert not done.HasField("error"), done.error
    assert collections_pb2.ImportDataObjectsMetadata.FromString(done.metadata.value).success_count == 2
    for id in ids:
        read = caller.read("movies", str(id)).vectors
        assert list(read["plot"].dense.values) == pytest.approx(DENSE)
        assert list(read["words"].sparse.indices) == SPARSE["indices"]


@pytest.mark.parametrize("vectors", [
    {"plot": "0.1,0.7"},
    {"plot": [0.1, "a", 0.2]},
    {"plot": [[0.1, 0.7, 0.2]]},
    {"plot": {"vals": DENSE}},
    {"plot": [0.1]},
    {"plot": SPARSE},
    {"words": DENSE},
    {"plot": None},
], ids=str)  # fmt: skip
def test_lines_of_no_form_are_listed(caller: CollectionCaller, folder: Path, vectors: dict[str, Any]):
    source, errors = folder / "contents" / "wrong", folder / "contents" / "wrong-errors"
    for old in errors.glob("*"):
        old.unlink()
    write_lines(source / "a.json", [{"id": "wrong", "vectors": vectors}])
    caller.import_from("movies", source, errors)
    [line] = [json.loads(line) for file in errors.glob("*") for line in file.read_text().splitlines()]
    assert f"vectors.{next(iter(vectors))}" in line["status"]["message"]


@pytest.mark.system
def test_a_sparse_field_has_an_index(caller: CollectionCaller):
    parent = collection_name("movies")
    caller.write("movies", {"s": {"vectors": {"words": {"sparse": SPARSE}}}})

    def create(id: str, field: str, **index: Any) -> None:
        request = {"parent": parent, "index_id": id, "index": {"index_field": field, **index}}
        caller.operate(collections_pb2.CreateIndexRequest, request)

    def metadata(**search: Any) -> search_pb2.SearchResponseMetadata:
        vector = {"search_field": "words", "sparse_vector": {"values": [2.0], "indices": [7]}, **search}
        answer = caller.ask(search_pb2.SearchDataObjectsRequest, {"parent": parent, "vector_search": vector})
        assert answer.results[0].distance == pytest.approx(3.0)
        return answer.search_response_metadata

    assert metadata().used_knn
    create("sparse-index", "words", distance_metric="DOT_PRODUCT", filter_fields=["genre"])
    create("bare", "words")
    create("dense-index", "plot", dense_scann={})
    name = f"{parent}/indexes/sparse-index"
    assert metadata(search_hint={"index_hint": {"name": name}}).used_index.name == name
    assert metadata().used_index.name.startswith(f"{parent}/indexes/")
    assert metadata(search_hint={"use_knn": True}).used_knn
    for field, index, match in (
        ("words", {"distance_metric": "COSINE_DISTANCE"}, "must be DOT_PRODUCT"),
        ("none", {}, r"must be a vector field of the collection \(plot, words\)"),
        ("", {}, "must be a vector field"),
    ):
        with pytest.raises(grpc.RpcError, match=match) as caught:
            create("wrong", field, **index)
        assert caught.value.code() is INVALID
    for hint, code in ((f"{parent}/indexes/none", NOT_FOUND), (f"{parent}/indexes/dense-index", INVALID)):
        refused(code, metadata, search_hint={"index_hint": {"name": hint}})
    for id in ("sparse-index", "bare", "dense-index"):
        request = {"name": f"{parent}/indexes/{id}"}
        caller.operate(collections_pb2.DeleteIndexRequest, request)


LINES = {
    "integers": [json.dumps({"id": number, "embedding": [number, 1.0]}) for number in range(3)],
    "dictionaries": [
        str({
            "id": str(number),
            "embedding": [float(number), 1.0],
            "sparse_embedding": {"values": [0.5], "dimensions": [number]},
            "restricts": [{"namespace": "title", "allow": [f"It's \"{number}\" 'or' \\ True None ünï"]}],
            "embedding_metadata": {"none": None, "yes": True, "no": False, "deep": [{"a": 'b"c'}]},
        })
        for number in range(3)
    ],
    "both": [str({"id": number, "embedding": [number, 1.0]}) for number in range(3)],
}  # fmt: skip


@pytest.mark.system
@pytest.mark.parametrize("kind", LINES)
def test_contents_as_notebooks_write_them(caller: CollectionCaller, folder: Path, kind: str):
    contents = folder / "contents" / f"v1-{kind}"
    contents.mkdir()
    (contents / "data.json").write_text("\n".join(LINES[kind]), encoding="utf-8")
    index = caller.create_index(2, contents=contents)
    endpoint = caller.deploy(index.name, id=f"d_{kind}")
    points = super(CollectionCaller, caller).read(endpoint, ["0", "1", "2"], id=f"d_{kind}")
    assert [point.datapoint_id for point in points] == ["0", "1", "2"]
    assert list(points[2].feature_vector) == [2.0, 1.0]
    if kind == "dictionaries":
        assert list(points[2].restricts[0].allow_list) == ["It's \"2\" 'or' \\ True None ünï"]
        metadata = MessageToDict(points[2].embedding_metadata)
        assert (metadata["none"], metadata["yes"], metadata["no"]) == (None, True, False)
        assert metadata["deep"][0]["a"] == 'b"c'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'id': '1', 'embedding': [1.0, 2.0}", "not JSON"),
        ("{'id': '1', 'embedding': __import__('os').getcwd()}", "not JSON"),
        ("{'id': '1', 'embedding': (1.0, 2.0)}", "not JSON"),
        ("{'id': '1', 'embedding': [1.0, 2.0", "not JSON"),
        ("{'id': '1", "not JSON"),
        ("{'id': True, 'embedding': [1.0, 2.0]}", "id: must be a string"),
        ("{'id': 1.0, 'embedding': [1.0, 2.0]}", "id: must be a string"),
        ('{"id": "", "embedding": [1.0, 2.0]}', "id: must be a string"),
        ('{"embedding": [1.0, 2.0]}', "id: must be a string"),
        ('{"id": 1, "embedding": [1.0, 2.0]}\n{"id": "1", "embedding": [1.0, 2.0]}', "id: occurs twice"),
    ],
)
def test_contents_that_are_neither_are_refused(
    caller: CollectionCaller, folder: Path, line: str, message: str
):
    contents = folder / "contents" / "neither"
    contents.mkdir(exist_ok=True)
    (contents / "data.json").write_text(line)
    index = caller.create_index(2)
    operation = caller.update_contents(index.name, contents)
    assert message in operation.error.message


@pytest.mark.system
@pytest.mark.parametrize(
    ("measure", "norm", "distance"),
    [
        ("COSINE_DISTANCE", "NONE", 1.0),
        ("DOT_PRODUCT_DISTANCE", "UNIT_L2_NORM", 0.0),
        ("DOT_PRODUCT_DISTANCE", "NONE", 0.0),
    ],
)
@pytest.mark.parametrize("brute", [True, False])
def test_a_query_of_zeros_lists_what_its_filter_allows(
    caller: CollectionCaller, measure: str, norm: str, distance: float, brute: bool
):
    index = caller.create_index(
        3,
        distanceMeasureType=measure,
        featureNormType=norm,
        algorithmConfig={"bruteForceConfig": {}} if brute else {"treeAhConfig": {}},
    )
    id = f"z_{measure}_{norm}_{brute}"
    caller.upsert(
        index.name,
        [
            {
                "datapoint_id": f"n{row}",
                "feature_vector": [1.0, row, -row],
                "restricts": [{"namespace": "ref_doc_id", "allow_list": [f"doc{row % 2}"]}],
            }
            for row in range(9)
        ],
    )
    endpoint = caller.deploy(index.name, id=id)
    zeros = {"feature_vector": [0.0, 0.0, 0.0]}
    one = {**zeros, "restricts": [{"namespace": "ref_doc_id", "allow_list": ["doc1"]}]}
    found, everything, first = caller.find(
        endpoint,
        {"neighbor_count": 100, "datapoint": one},
        {"neighbor_count": 100, "datapoint": zeros},
        {"neighbor_count": 2, "datapoint": one},
        full=True,
        id=id,
    )
    assert {*ids_of(found)} == {"n1", "n3", "n5", "n7"} and len(everything) == 9 and len(first) == 2
    assert all(each.distance == distance for each in (*found, *everything))
    caller.remove(index.name, ids_of(found))
    assert caller.find(endpoint, {"datapoint": one}, id=id) == [[]]

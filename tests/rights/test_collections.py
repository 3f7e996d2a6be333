"""Every method of the managed service's API v2, called with a key that opens a part of a collection.

Answers must be those of a collection that holds the visible data objects alone. A method that is added, and says that
it answers such callers, fails here until it has requests to compare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from scannery.bridges.vertex.v2.collection_methods import PACKAGES
from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from scannery.vertex.v2 import collections_pb2, data_objects_pb2, search_pb2
from tests.bridges.vertex.collection_client import (
    CollectionCaller,
    collection_name,
    collections_served,
    dense,
    dimensions,
)
from tests.bridges.vertex.facade_client import DENIED, PARENT, SERVICES, method_of, refused
from tests.http1 import Http

pytestmark = pytest.mark.system

PART, TWIN = "shop", "twin"
"""A collection of two customers, and one that holds only what the first of them sees."""
FOREIGN = "xenon"
"""In each name, text and value of the data objects that must not be seen."""
SIZE = 4
ALL = {"data_fields": ["*"], "vector_fields": ["*"], "metadata_fields": ["*"]}
Request = tuple[type[Message], dict[str, Any]]

# Their stubs do not know the messages by name.
C: Any = collections_pb2
D: Any = data_objects_pb2
S: Any = search_pb2


def objects() -> dict[str, dict[str, Any]]:
    random, words = np.random.default_rng(4), ["tea", "bread", "wheel", "river", "light", "stone"]
    made: dict[str, dict[str, Any]] = {}
    for number in range(60):
        foreign = number % 3 != 0
        text = " ".join(random.choice(words, 5))
        made[f"{FOREIGN}-{number}" if foreign else f"own-{number}"] = {
            "data": {
                "tenant": "b" if foreign else "a",
                "title": f"{text} {FOREIGN}" if foreign else text,
                "kind": FOREIGN if foreign else f"kind{number % 2}",
                "price": 7_000_000 + number if foreign else number,
                "secret": f"{FOREIGN} tea" if foreign else f"hidden{number}",
            },
            "vectors": {
                "v": dense(*random.normal(size=SIZE).tolist()),
                "w": dense(*random.normal(size=SIZE).tolist()),
                "words": {"sparse": {"indices": [1, 7 + number % 5], "values": [1.0, 0.5 + number]}},
            },
        }
    return made


OWN = {name for name in objects() if name.startswith("own")}


class World(NamedTuple):
    server: Server
    keys: Mapping[str, str]

    def caller(self, key: str) -> CollectionCaller:
        return CollectionCaller(
            self.server.address, metadata=(("authorization", f"Bearer {self.keys[key]}"),)
        )

    def ask(self, key: str, request: Request) -> tuple[str, Any]:
        """Return the code, and the answer as JSON, or the message of the error."""
        kind, fields = request
        with self.caller(key) as caller:
            try:
                return "OK", MessageToDict(caller.ask(kind, fields), preserving_proto_field_name=True)
            except grpc.RpcError as error:
                status: Any = error
                return status.code().name, status.details()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("collections")
    file, scopes = KeyFile(folder / "keys.json"), ["read", "write", "admin"]
    where = {"index": PART, "where": {"tenant": "a"}}
    opened: dict[str, list[dict[str, Any]]] = {
        "part": [where],
        "fields": [{**where, "fields": ["title", "price", "words"]}],
        "get": [{**where, "methods": ["GetDataObject"]}],
        "each": [{**where, "methods": ["GetDataObject"]}, {"index": TWIN, "methods": ["QueryDataObjects"]}],
    }
    keys = {"all": file.create("all", scopes=scopes)[1]}
    for name, access in opened.items():
        scopes_of = ["read"] if name == "fields" else scopes  # such keys cannot write
        keys[name] = file.create(name, scopes=scopes_of, access=access)[1]
    schema: Any = {"type": "object", "properties": {name: {} for name in ("title", "price", "secret")}}
    vectors = {**dimensions(v=SIZE, w=SIZE), "words": {"sparse_vector": {}}}
    security = SecurityConfig(keys_file=str(file.path))
    with collections_served(folder, security=security, http="127.0.0.1:0") as server:
        world = World(server, keys)
        with world.caller("all") as caller:
            for name, kept in ((PART, objects().keys()), (TWIN, OWN)):
                caller.create(name, vector_schema=vectors, data_schema=schema, description="films")
                caller.write(name, {key: each for key, each in objects().items() if key in kept})
                index = {"index_field": "v", "distance_metric": "COSINE_DISTANCE", "dense_scann": {}}
                caller.operate(
                    C.CreateIndexRequest,
                    {"parent": collection_name(name), "index_id": "by-v", "index": index},
                )
        yield world


def one(collection: str, identifier: str) -> str:
    return f"{collection_name(collection)}/dataObjects/{identifier}"


def searches() -> Iterator[dict[str, Any]]:
    """Searches of API v2, without their collection."""
    vector = {"values": [1.0, 0.5, -0.2, 0.1]}
    by_vector = {"vector": vector, "top_k": 50, "output_fields": ALL}
    yield {"vector_search": {**by_vector, "search_field": "v"}}
    yield {"vector_search": {**by_vector, "search_field": "w", "search_hint": {"knn_hint": {}}}}
    for where in FILTERS:
        yield {"vector_search": {**by_vector, "search_field": "v", "filter": where}}
    sparse = {"indices": [1, 9], "values": [1.0, 2.0]}
    yield {"vector_search": {"sparse_vector": sparse, "search_field": "words", "output_fields": ALL}}
    for text, fields in (("tea bread", ["title"]), (FOREIGN, ["title", "kind"]), ("tea", ["secret"])):
        yield {"text_search": {"search_text": text, "data_field_names": fields, "top_k": 50}}


FILTERS: list[dict[str, Any]] = [
    {"tenant": "b"},
    {"kind": FOREIGN},
    {"kind": {"$ne": "kind0"}},
    {"$or": [{"price": {"$gte": 40}}, {"tenant": {"$in": ["a", "b"]}}]},
]
NAMES = ["own-0", f"{FOREIGN}-1", "absent"]


def _search(collection: str) -> Iterator[Request]:
    for each in searches():
        yield S.SearchDataObjectsRequest, {"parent": collection_name(collection), **each}
        yield S.SearchDataObjectsRequest, {"parent": collection_name(collection), **each, "page_size": 3}


def _batches(collection: str) -> Iterator[Request]:
    fields = {
        "parent": collection_name(collection),
        "searches": [*searches()],
        "metadata_options": {"search_signals_enabled": True},
    }
    yield S.BatchSearchDataObjectsRequest, fields
    ranker = {"rrf": {"weights": [1.0] * len([*searches()])}}
    yield S.BatchSearchDataObjectsRequest, {**fields, "combine": {"ranker": ranker, "top_k": 30}}


def _queries(collection: str) -> Iterator[Request]:
    for where in ({}, *FILTERS):
        fields = {"parent": collection_name(collection), "filter": where, "output_fields": ALL}
        yield S.QueryDataObjectsRequest, fields
        yield S.QueryDataObjectsRequest, {**fields, "page_size": 7}


def _counts(collection: str) -> Iterator[Request]:
    for where in ({}, *FILTERS):
        fields = {"parent": collection_name(collection), "filter": where, "aggregate": "COUNT"}
        yield S.AggregateDataObjectsRequest, fields


def _gets(collection: str) -> Iterator[Request]:
    for name in NAMES:
        yield D.GetDataObjectRequest, {"name": one(collection, name)}


def _creations(collection: str) -> Iterator[Request]:
    """Requests that write nothing, as all of these: they fail."""
    wrong: list[dict[str, Any]] = [{"vectors": {"v": dense(1)}}, {"vectors": {"x": dense(1)}}]
    for name in ("own-0", "absent"):
        for each in ({}, *wrong) if name == "own-0" else wrong:
            fields = {"parent": collection_name(collection), "data_object_id": name, "data_object": each}
            yield D.CreateDataObjectRequest, fields
            parent = collection_name(collection)
            yield D.BatchCreateDataObjectsRequest, {"parent": parent, "requests": [fields]}


def _changes(collection: str) -> Iterator[Request]:
    for name in NAMES:
        fields = {"data_object": {"name": one(collection, name), "data": {"kind": "new"}, "etag": "stale"}}
        yield D.UpdateDataObjectRequest, fields
        parent = collection_name(collection)
        yield D.BatchUpdateDataObjectsRequest, {"parent": parent, "requests": [fields]}


def _deletions(collection: str) -> Iterator[Request]:
    parent = collection_name(collection)
    for name in NAMES:
        yield D.DeleteDataObjectRequest, {"name": one(collection, name), "etag": "stale"}
        fields = [{"name": one(collection, each)} for each in ("own-3", name)]
        if name != "own-0":
            yield D.BatchDeleteDataObjectsRequest, {"parent": parent, "requests": fields}


def _descriptions(collection: str) -> Iterator[Request]:
    parent = collection_name(collection)
    yield C.GetCollectionRequest, {"name": parent}
    yield C.GetIndexRequest, {"name": f"{parent}/indexes/by-v"}
    yield C.ListIndexesRequest, {"parent": parent}


def _lists(collection: str) -> Iterator[Request]:
    yield C.ListCollectionsRequest, {"parent": PARENT}


Check = Callable[[World, str], None]


def same(make: Callable[[str], Iterator[Request]]) -> Check:
    """Return the check that requests are answered as a collection of the visible data objects alone answers them."""

    def check(world: World, method: str) -> None:
        pairs = [
            pair
            for pair in zip(make(PART), make(TWIN), strict=True)
            if pair[0][0].__name__ == f"{method}Request"
        ]
        assert pairs
        for of_part, of_twin in pairs:
            assert comparable(world.ask("part", of_part)) == comparable(world.ask("all", of_twin)), of_part

    return check


def nothing_foreign(make: Callable[[str], Iterator[Request]]) -> Check:
    """Return the check that answers have no mark of data objects that must not be seen, and are some."""

    def check(world: World, method: str) -> None:
        for request in make(PART):
            code, answer = world.ask("part", request)
            assert (code, FOREIGN in str(answer)) == ("OK", False), request

    return check


_TOKENS = ("next_page_token", "etag", "create_time", "update_time")
"""Of the collection as a whole, and of the moment of a write."""


def comparable(value: Any) -> Any:
    """Return an answer without what is of the collection, not of its data objects."""
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items() if key not in _TOKENS}
    if isinstance(value, list | tuple):
        return [comparable(each) for each in value]
    if isinstance(value, float):
        return round(value, 5)
    if not isinstance(value, str):
        return value
    value = value.replace(f"collections/{PART}", f"collections/{TWIN}")
    return re.sub(r"its etag is '\w+'", "", value)


CELLS: Mapping[str, Sequence[Check]] = {
    "SearchDataObjects": [same(_search)],
    "BatchSearchDataObjects": [same(_batches), nothing_foreign(_batches)],
    "QueryDataObjects": [same(_queries)],
    "AggregateDataObjects": [same(_counts)],
    "GetDataObject": [same(_gets)],
    "CreateDataObject": [same(_creations)],
    "BatchCreateDataObjects": [same(_creations)],
    "UpdateDataObject": [same(_changes)],
    "BatchUpdateDataObjects": [same(_changes)],
    "DeleteDataObject": [same(_deletions)],
    "BatchDeleteDataObjects": [same(_deletions)],
    "GetCollection": [same(_descriptions)],
    "ListCollections": [nothing_foreign(_lists)],
    "GetIndex": [same(_descriptions)],
    "ListIndexes": [same(_descriptions)],
}
"""Of each method that answers such callers: what is compared."""
METHODS = sorted(
    name.removesuffix("Request")
    for module in (C, D, S)
    for name in module.DESCRIPTOR.message_types_by_name
    if name.endswith("Request")
)


@pytest.mark.parametrize("method", METHODS)
def test_a_caller_of_a_part_learns_nothing_of_other_data_objects(world: World, method: str) -> None:
    [kind] = [kind for module in (C, D, S) if (kind := getattr(module, f"{method}Request", None))]
    path, _ = method_of(kind)
    registered = world.server._lifecycle.methods.methods
    for package in PACKAGES:
        answers = registered[path.replace(PACKAGES[0], package)].narrowed
        assert answers == (method in CELLS), "says whether it serves callers of a part, and has requests here"
    for check in CELLS.get(method, ()):
        check(world, method)
    if method not in CELLS:
        assert world.ask("part", (kind, {}))[0] == "PERMISSION_DENIED"
    # The service's own clients speak gRPC, or another path of REST: neither is served over HTTP.
    with Http(world.server.http_port) as http:
        headers = [("authorization", f"Bearer {world.keys['part']}")]
        assert http.post(path, b"{}", headers, kind="application/json").status == 501


def test_all_services_are_in_the_table(world: World) -> None:
    paths = {path for path in world.server._lifecycle.methods.methods if path.startswith(f"/{PACKAGES[0]}.")}
    assert {path.rpartition("/")[2] for path in paths} == {*METHODS}
    assert {path.rpartition("/")[0][1:] for path in paths} == {SERVICES[module] for module in (C, D, S)}


def test_what_a_key_writes_is_of_its_part(world: World) -> None:
    with world.caller("part") as part, world.caller("all") as operator:
        before = operator.all_objects(PART)
        [created] = part.write(PART, {"new": {"data": {"title": "a rose", "price": 5}}})
        assert created.data["tenant"] == "a"
        stored = operator.read(PART, "new")
        assert (stored.data["tenant"], stored.data["title"]) == ("a", "a rose")
        text = {"search_text": "rose", "data_field_names": ["title"]}
        assert [name for name, _ in part.search(PART, text_search=text)] == ["new"]
        # An update of all data keeps what all of its data objects have, as a creation does.
        assert part.update(PART, "new", data={"title": "a tulip"}).data["tenant"] == "a"
        for data in ({"tenant": "b"}, {"tenant": None}):
            told = refused(DENIED, part.update, PART, "new", data=data)
            assert told == "data_object: 'new' does not pass the filter of these credentials"
            refused(DENIED, part.write, PART, {"newer": {"data": data}, "newest": {}})
        # That an id is taken is what such a caller learns: ids are unique in a collection.
        told = refused(DENIED, part.write, PART, {"newer": {}, f"{FOREIGN}-1": {}})
        assert told == f"data_object: '{FOREIGN}-1' cannot be written with these credentials"
        etag = operator.read(PART, f"{FOREIGN}-1").etag
        with pytest.raises(grpc.RpcError):
            part.delete_objects(PART, {"new": "", f"{FOREIGN}-1": etag})
        part.delete_objects(PART, {"new": ""})
        assert operator.all_objects(PART) == before


def test_fields_that_a_key_does_not_open_do_not_exist(world: World) -> None:
    with world.caller("fields") as caller:
        point = caller.read(PART, "own-3")
        assert {*point.data} == {"title", "price"}
        assert not point.vectors
        assert not point.HasField("create_time")
        query = {"parent": collection_name(PART), "output_fields": ALL}
        listed = caller.ask(S.QueryDataObjectsRequest, query).data_objects
        assert {each.data_object_id for each in listed} == OWN
        vector = {"vector": {"values": [1.0, 0, 0, 0]}, "search_field": "v", "output_fields": ALL}
        answer = caller.ask(
            S.SearchDataObjectsRequest, {"parent": collection_name(PART), "vector_search": vector}
        )
        for each in (*listed, *(result.data_object for result in answer.results)):
            assert {*each.data} == {"title", "price"}
            assert not each.vectors
        for where, count in (({"price": {"$gte": 30}}, 10), ({"secret": "hidden3"}, 0), ({"tenant": "a"}, 0)):
            request = {"parent": collection_name(PART), "aggregate": "COUNT", "filter": where}
            counted = caller.ask(S.AggregateDataObjectsRequest, request).aggregate_results[0]
            assert counted["count"] == count
        # Words are searched in all strings, and only what may be read says that they are there.
        secret = {"search_text": "hidden3", "data_field_names": ["secret", "title"]}
        assert caller.search(PART, text_search=secret) == []
        title = {"search_text": point.data["title"], "data_field_names": ["title"]}
        assert "own-3" in dict(caller.search(PART, text_search=title))
        for kind, request in ((C.GetCollectionRequest, {"name": collection_name(PART)}), *_lists(PART)):
            described = str(caller.ask(kind, request))
            assert "price" in described
            assert "secret" not in described
        refused(DENIED, caller.write, PART, {"new": {}})
        refused(DENIED, caller.update, PART, "own-3", data={"title": "x"})
        refused(DENIED, caller.delete_objects, PART, {"own-3": ""})


def test_methods_that_a_key_does_not_open_are_refused(world: World) -> None:
    get, query = next(_gets(PART)), next(_queries(PART))
    assert world.ask("get", get)[0] == "OK"
    assert world.ask("get", query)[0] == "PERMISSION_DENIED"
    of_twin = next(_gets(TWIN)), next(_queries(TWIN))
    # Of each collection, the methods of its own entry.
    codes = [world.ask("each", request)[0] for request in (get, query, *of_twin)]
    assert codes == ["OK", "PERMISSION_DENIED", "PERMISSION_DENIED", "OK"]

"""A root answers each method that reads as one server does, also with the same errors."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import ParseDict

import scannery
from scannery.serving.services import projecting
from scannery.v1 import embedding_pb2, index_pb2, search_pb2
from scannery.v1.embedding_pb2_grpc import EmbeddingServiceStub
from scannery.v1.index_pb2_grpc import IndexServiceStub
from scannery.v1.search_pb2_grpc import SearchServiceStub
from tests.cluster.servers import started_cluster
from tests.cluster.talks import DELETED, TALKS, make_talks
from tests.served import serving

GROUPS = 3
TIMEOUT_S = 60
TEXT = "How does a volcano erupt?"
Fields = dict[str, Any]


class Pair:
    """One server of all shards, and a root over leaves with the same store."""

    def __init__(self, alone: scannery.serving.Server, root: scannery.serving.Server) -> None:
        self.servers = (alone, root)
        self.channels = [grpc.insecure_channel(server.address) for server in self.servers]

    def close(self) -> None:
        for channel in self.channels:
            channel.close()

    def answers(self, service: str, method: str, request: Any) -> Sequence[Any]:
        """Return what both answer: a message, or the status and the text of an error."""
        return [_answer(channel, service, method, request) for channel in self.channels]

    def same(self, method: str, fields: Fields, *, service: str = "Search") -> Any:
        """Return the answer of both; fail if they differ in more than the details of the plan."""
        kind = getattr(_MESSAGES[service], f"{method}Request")
        alone, root = self.answers(service, method, ParseDict(fields, kind()))
        assert _comparable(alone) == _comparable(root)
        return alone


def _answer(channel: grpc.Channel, service: str, method: str, request: Any) -> Any:
    stub = _STUBS[service](channel)
    try:
        return getattr(stub, method)(request, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return error.code(), error.details()


def _comparable(answer: Any) -> Any:
    """Return an answer without what a root does not know of its plan: the segments are on leaves."""
    if isinstance(answer, tuple):
        return answer
    found = type(answer)()
    found.CopyFrom(answer)
    for holder in (found, *getattr(found, "results", ())):
        for field in ("explanation", "search"):
            if field in holder.DESCRIPTOR.fields_by_name and holder.HasField(field):
                for name in ("segments", "stages", "expected_recall"):
                    getattr(holder, field).ClearField(name)
    return found.SerializeToString(deterministic=True)


_MESSAGES: dict[str, Any] = {"Search": search_pb2, "Index": index_pb2, "Embedding": embedding_pb2}
_STUBS: dict[str, Any] = {
    "Search": SearchServiceStub,
    "Index": IndexServiceStub,
    "Embedding": EmbeddingServiceStub,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_talks(tmp_path_factory.mktemp("talks"))


@pytest.fixture(scope="module")
def pair(store: Path) -> Iterator[Pair]:
    with serving(store, device="cpu") as alone, started_cluster(store, GROUPS, device="cpu") as (root, _):
        found = Pair(alone, root)
        yield found
        found.close()


SEARCHES: dict[str, Fields] = {
    "default mode": {},
    "dense": {"mode": "MODE_DENSE"},
    "lexical": {"mode": "MODE_LEXICAL"},
    "hybrid, weighted": {"mode": "MODE_HYBRID", "fusion": {"method": 2, "alpha": 0.3}},
    "highlight": {"highlight": {}},
    "highlight by words": {"highlight": {"byEncoder": False}, "mode": "MODE_LEXICAL"},
    "highlight by encoder": {"highlight": {"byEncoder": True}, "returnFields": ["show"]},
    "rerank": {"rerank": {"candidates": 20}, "k": 30},
    "rerank, crowded": {"rerank": {}, "crowding": {"maxPerGroup": 2, "groupBy": "show"}, "offset": 2},
    "explain": {"explain": True, "k": 3},
    "explain a filter": {"explain": True, "where": {"condition": {"field": "show", "values": "gotime"}}},
    "declared filter": {"where": {"condition": {"field": "year", "operator": 5, "values": [2003]}}},
    "dynamic filter": {"where": {"condition": {"field": "level", "operator": 1, "values": ["low"]}}},
    "nested filter": {"where": {"condition": {"field": "nested.speaker", "operator": 1, "values": ["s1"]}}},
    "dynamic fields": {"returnFields": ["level", "nested"], "returnVector": True},
    "unknown field": {"returnFields": ["none"]},
    "unknown group": {"crowding": {"maxPerGroup": 1, "groupBy": "none"}},
    "k too large": {"k": 100_000},
    "partial": {"allowPartial": True},
}


def _options(fields: Fields) -> Fields:
    """Return options with the values of conditions as messages."""
    made = {"exact": True, **fields}
    if "where" in made:
        condition = dict(made["where"]["condition"])
        condition.setdefault("operator", 1)
        kinds = {str: "stringValue", int: "intValue"}
        values = condition["values"] if isinstance(condition["values"], list) else [condition["values"]]
        condition["values"] = [{kinds[type(value)]: value} for value in values]
        made["where"] = {"condition": condition}
    return made


@pytest.mark.system
@pytest.mark.parametrize("name", SEARCHES)
def test_texts_with_an_encoder(pair: Pair, name: str) -> None:
    options = _options(SEARCHES[name])
    if name == "partial":
        alone, root = pair.answers("Search", "Search", ParseDict(
            {"index": "talks", "query": {"text": TEXT}, "options": options}, search_pb2.SearchRequest()
        ))  # fmt: skip
        assert alone.hits
        assert list(alone.hits) == list(root.hits)
        assert (root.coverage.shards, root.coverage.shards_answered) == (5, 5)
        assert root.coverage.rows == root.coverage.rows_answered == TALKS - len(DELETED)
        return
    pair.same("Search", {"index": "talks", "query": {"text": TEXT}, "options": options})
    queries = [{"text": TEXT}, {"text": "bread"}, {"text": TEXT}]
    pair.same("SearchMany", {"index": "talks", "queries": queries, "options": options})
    explained = {"index": "talks", "query": {"text": TEXT}, "options": options}
    for identifier in ("t3", "t27", DELETED[0]):
        pair.same("Explain", {**explained, "id": identifier})


QUERIES: dict[str, Fields] = {
    "id": {"id": "t3"},
    "deleted id": {"id": DELETED[0]},
    "unknown id": {"id": "none"},
    "blend": {"group": {"queries": [{"text": "crust"}, {"id": "t4"}], "weights": [1, -0.5]}},
    "blend of an unknown id": {"group": {"queries": [{"text": "crust"}, {"id": "none"}]}},
    "words of its own": {"text": TEXT, "words": "conductor"},
    "sparse vector": {"sparseVector": {"indices": [1, 3], "values": [1.0, 0.5]}},
    "text and sparse vector": {"text": TEXT, "sparseVector": {"indices": [2], "values": [2.0]}},
    "nothing": {},
    "too few dimensions": {"vector": {"values": [1.0, 2.0]}},
}


@pytest.mark.system
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("name", QUERIES)
def test_queries(pair: Pair, name: str, mode: int) -> None:
    options = {"exact": True, "mode": mode, "k": 20}
    pair.same("Search", {"index": "talks", "query": QUERIES[name], "options": options})
    pair.same("SearchMany", {"index": "talks", "queries": [{"text": "x"}, QUERIES[name]], "options": options})
    pair.same("Explain", {"index": "talks", "query": QUERIES[name], "options": options, "id": "t3"})


@pytest.mark.system
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_an_index_without_vectors_and_one_with_fewer_shards_than_groups(pair: Pair, mode: int) -> None:
    options = {"exact": True, "mode": mode}
    pair.same("Search", {"index": "notes", "query": {"text": "crust king"}, "options": options})
    pair.same("Search", {"index": "notes", "query": {"id": "chess"}, "options": options})
    pair.same("Search", {"index": "few", "query": {"id": "f3"}, "options": options})
    pair.same("Search", {"index": "few", "query": {"vector": {"values": [1, 0, 0]}}, "options": options})
    pair.same("Search", {"index": "few", "query": {"text": "words"}, "options": options})


GETS: dict[str, Fields] = {
    "some": {"ids": ["t3", "t1", "t30"]},
    "missing and repeated": {"ids": ["t3", "none", "t3", DELETED[0], "none"], "returnVector": True},
    "fields": {"ids": ["t3"], "returnFields": ["level", "show"]},
    "none": {},
    "unknown field": {"ids": ["t3"], "returnFields": ["nothing"]},
    "an empty id": {"ids": [""]},
}


@pytest.mark.parametrize("name", GETS)
def test_get(pair: Pair, name: str) -> None:
    pair.same("Get", {"index": "talks", **GETS[name]})
    pair.same("Get", {"index": "few", "ids": ["f1", "none"], "returnVector": True})
    pair.same("Get", {"index": "none", **GETS[name]})


ATTRIBUTES = ["show", "year", "at", "rating", "level", "nested.speaker", "document_id", "none"]


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_counts_and_values(pair: Pair, attribute: str) -> None:
    where = _options({"where": {"condition": {"field": "year", "operator": 5, "values": [2003]}}})["where"]
    for fields in ({}, {"where": where}):
        pair.same("Count", {"index": "talks", **fields})
        facets = {"index": "talks", "attribute": attribute, "limit": 3, **fields}
        pair.same("Facets", facets)
        stats = {"index": "talks", "attribute": attribute, "quantiles": [0, 0.25, 0.5, 1], **fields}
        pair.same("AttributeStats", stats)
    pair.same("Facets", {"index": "few", "attribute": "n"})
    pair.same("AttributeStats", {"index": "few", "attribute": "n", "quantiles": [1.5]})


@pytest.mark.parametrize("least", [1, 100_000])
def test_maps(pair: Pair, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setattr(projecting, "LEAST_ROWS", least)  # a map of the version, and of live updates, too
    clients = [scannery.connect(server.address) for server in pair.servers]
    for name, attribute in (("talks", "show"), ("talks", "level"), ("few", "n")):
        alone, root = (_by_id(client.index(name).project(attributes=[attribute])) for client in clients)
        assert alone.keys() == root.keys()
        for each, (x, y, value) in alone.items():
            assert root[each][2] == value
            # A root reads the groups one after the other, so that sums are rounded otherwise.
            assert max(abs(root[each][0] - x), abs(root[each][1] - y)) <= 2
        some = _by_id(clients[1].index(name).project(attributes=[attribute], limit=5, seed=2))
        assert len(some) == 5
        assert some.items() <= root.items()
    pair.same("Project", {"index": "notes"})
    pair.same("Project", {"index": "none"})
    for client in clients:
        client.close()


def _by_id(projection: scannery.client.Projection) -> dict[str, tuple[int, int, Any]]:
    [values] = projection.attributes.values()
    rows = zip(projection.ids, projection.positions.tolist(), values, strict=True)
    return {identifier: (x, y, value) for identifier, (x, y), value in rows}


def test_descriptions_of_indexes(pair: Pair) -> None:
    for name in ("talks", "notes", "few", "none", ""):
        pair.same("GetIndex", {"index": name}, service="Index")
    alone, root = pair.answers("Index", "ListIndexes", index_pb2.ListIndexesRequest())
    assert list(alone.indexes) == list(root.indexes)
    assert [info.name for info in root.indexes] == ["few", "notes", "talks"]


def test_embeddings(pair: Pair) -> None:
    pair.same("Embed", {"index": "talks", "texts": [TEXT, "bread"]}, service="Embedding")
    pair.same("Embed", {"index": "few", "texts": [TEXT]}, service="Embedding")
    pair.same("ListEncoders", {}, service="Embedding")


def test_a_stream_of_searches(pair: Pair) -> None:
    searches = [
        {"tag": 1, "search": {"index": "talks", "query": {"text": TEXT}, "options": {"exact": True}}},
        {"tag": 2, "searchMany": {"index": "few", "queries": [{"id": "f1"}, {"id": "f2"}]}},
        {"tag": 3, "search": {"index": "talks", "query": {"id": "none"}}},
    ]
    found = []
    for channel in pair.channels:
        requests = [ParseDict(each, search_pb2.SearchStreamRequest()) for each in searches]
        answers = SearchServiceStub(channel).SearchStream(iter(requests), timeout=TIMEOUT_S)
        found.append({answer.tag: answer.SerializeToString(deterministic=True) for answer in answers})
    assert found[0] == found[1]
    assert set(found[1]) == {1, 2, 3}


def test_http(pair: Pair) -> None:
    bodies: list[tuple[str, Fields]] = [
        ("Search", {"index": "talks", "query": {"text": TEXT}, "options": {"exact": True}}),
        ("Search", {"index": "talks", "query": {"id": "none"}}),
        ("Search", {"index": "none", "query": {"text": TEXT}}),
        ("Search", {"index": "few", "query": {"vector": {"values": [1, 2, 3]}}, "options": {"exact": True}}),
        ("Get", {"index": "talks", "ids": ["t1", "none"]}),
        ("Count", {"index": "talks"}),
    ]
    for method, body in bodies:
        alone, root = (_posted(server.http_port, method, body) for server in pair.servers)
        assert alone == root


def _posted(port: int | None, method: str, body: Fields) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/scannery.v1.SearchService/{method}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_aliases(pair: Pair) -> None:
    root = pair.channels[1]
    IndexServiceStub(root).SetAlias(index_pb2.SetAliasRequest(alias="spoken", index="talks"))
    try:
        query = {"query": {"text": TEXT}, "options": {"exact": True}}
        request = ParseDict({"index": "spoken", **query}, search_pb2.SearchRequest())
        by_alias = SearchServiceStub(root).Search(request, timeout=TIMEOUT_S)
        request.index = "talks"
        assert by_alias == SearchServiceStub(root).Search(request, timeout=TIMEOUT_S)
        listed = _answer(root, "Index", "ListAliases", index_pb2.ListAliasesRequest())
        assert dict(listed.aliases) == {"spoken": "talks"}
    finally:
        IndexServiceStub(root).DeleteAlias(index_pb2.DeleteAliasRequest(alias="spoken"))


def test_what_a_root_explains(pair: Pair) -> None:
    request: Fields = {"index": "talks", "query": {"text": TEXT}, "options": {"explain": True}}
    told = pair.same("Search", request).explanation
    root = _answer(pair.channels[1], "Search", "Search", ParseDict(request, search_pb2.SearchRequest()))
    assert told.segments
    assert not root.explanation.segments, "they are on leaves"
    assert root.explanation.target_recall == told.target_recall > 0
    assert root.explanation.mode == told.mode
    assert root.explanation.expected_recall == 0, "it is not known"
    for changed in ({"exact": True}, {"mode": "MODE_LEXICAL"}):
        fields = {**request, "options": {"explain": True, **changed}}
        asked = ParseDict(fields, search_pb2.SearchRequest())
        assert _answer(pair.channels[1], "Search", "Search", asked).explanation.expected_recall == 1
    queries = {"index": "talks", "queries": [{"text": TEXT}], "options": {"explain": True}}
    batch = ParseDict(queries, search_pb2.SearchManyRequest())
    [many] = _answer(pair.channels[1], "Search", "SearchMany", batch).results
    assert many.explanation.expected_recall == 0
    assert {"encode", "hydrate"} <= {stage.stage for stage in root.explanation.stages}


def test_the_sdk_by_a_root(pair: Pair) -> None:
    found = []
    for server in pair.servers:
        with scannery.connect(server.address) as client:
            assert client.whoami().server_role == ("all" if server is pair.servers[0] else "root")
            index = client.index("talks")
            vector = index.embed([TEXT])[0]
            hits = index.search(np.asarray(vector), k=5, exact=True, where={"year": {"$gte": 2002}})
            found.append([(hit.id, hit.score) for hit in hits])
    assert found[0] == found[1]
    assert len(found[0]) == 5

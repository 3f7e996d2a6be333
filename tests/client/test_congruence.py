"""The same lambda on an index embedded, over gRPC and over HTTP, sync and async, gives the same answer or error."""

from __future__ import annotations

import asyncio
import inspect
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import Blend, Like, ScanneryError, Sparse
from scannery.indexer import Store
from tests.served import DIMENSIONS, commit_relevance, make_text_store, serving

pytestmark = pytest.mark.system

RNG = np.random.default_rng(0)
VECTOR = RNG.normal(size=DIMENSIONS).astype(np.float32)
VECTORS = RNG.normal(size=(5, DIMENSIONS))
NUMBER: Any = 3
FLOAT: Any = 3.0
LIST: Any = [1]
FRACTION: Any = {1: 1.0, 2.5: 1.0}
NAN = np.where(np.arange(DIMENSIONS) == 3, np.nan, VECTOR)

Target = tuple[str, Any]


@pytest.fixture(scope="module")
def targets(library: Path) -> Iterator[list[Target]]:
    with serving(library) as server:
        http = f"http://127.0.0.1:{server.http_port}"
        clients = {
            "embedded": scannery.connect(library),
            "gRPC": scannery.connect(server.address, http=False),
            "HTTP": scannery.connect(http),
        }
        loop = asyncio.new_event_loop()
        async_clients = {
            "async embedded": scannery.aio.connect(library),
            "async gRPC": scannery.aio.connect(server.address, http=False),
            "async HTTP": scannery.aio.connect(http),
        }
        yield [
            *((name, Runner(client)) for name, client in clients.items()),
            *((name, Runner(client, loop)) for name, client in async_clients.items()),
        ]
        for client in clients.values():
            client.close()
        for async_client in async_clients.values():
            loop.run_until_complete(async_client.close())
        loop.close()


class Runner:
    """Runs a lambda over a client, and awaits what it returns if that is awaitable."""

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.client = client
        self.loop = loop

    def __call__(self, ask: Callable[[Any], Any]) -> Any:
        try:
            answer = ask(self.client)
            if inspect.isawaitable(answer):
                assert self.loop is not None
                answer = self.loop.run_until_complete(_awaited(answer))
        except ScanneryError as error:
            return type(error), error.message, error.field
        return answer


async def _awaited(answer: Any) -> Any:
    return await answer


def same_everywhere(targets: list[Target], ask: Callable[[Any], Any]) -> Any:
    answers = {name: run(ask) for name, run in targets}
    first, *rest = answers.values()
    for other in rest:
        assert other == first, answers
    return first


@pytest.mark.system
@pytest.mark.parametrize("ask", [
    lambda i: i.search(VECTOR),
    lambda i: i.search(VECTOR.tolist(), 3),
    lambda i: i.search(VECTOR.astype(np.float64), k=600),
    lambda i: i.search(Like("d42"), 5),
    lambda i: i.search(VECTOR, where={"show": "gotime", "year": {"$gte": 2010}}),
    lambda i: i.search(VECTOR, where={"tags": {"$in": ["a"]}}, max_per_group=1),
    lambda i: i.search(VECTOR, max_per_group=2, group_by="show", offset=1),
    lambda i: i.search(VECTOR, min_score=0.5),
    lambda i: i.search(VECTOR, exact=True, target_recall=0.99),
    lambda i: i.search(VECTOR, leaves=5, rescore=100),
    lambda i: i.explain(VECTOR, "d42", 3, where={"show": "gotime"}),
    lambda i: i.explain(VECTOR, "nobody", max_per_group=1),
    lambda i: i.search(VECTOR, where={"year": 1}),
    lambda i: i.search(Blend([VECTOR, Like("d1")], [1, -0.5]), 7),
    lambda i: i.search(VECTOR, fields=["title", "year"]),
    lambda i: i.search(VECTOR, fields=[]),
    lambda i: i.search_many(VECTORS, 3),
    lambda i: i.search_many(list(VECTORS), 3, where={"live": True}),
    lambda i: i.search_many([VECTOR, Like("d1")], 3, max_per_group=1),
    lambda i: i.get(["d1", "nobody", "d2", "d1"]),
    lambda i: i.get(["d1"], fields=["text"]),
    lambda i: i.scan(order_by="-year", page_size=250).to_arrow(),
    lambda i: i.scan(where={"show": "gotime"}, fields=["title"], sample=20, seed=3).to_arrow(),
    lambda i: i.stats(),
    lambda i: i.count({"year": {"$gte": 2010}}),
    lambda i: i.facets("tags", {"live": True}, limit=3),
    lambda i: i.attribute_stats("rating", quantiles=[0.1, 0.9]),
    lambda i: i.delete(where={"year": {"$gte": 2010}}, dry_run=True),
    lambda i: i.update(where={}, attributes={"year": 1}, dry_run=True),
], ids=lambda ask: inspect.getsource(ask).strip().removeprefix("lambda i: ").rstrip(","))  # fmt: skip
def test_answers_are_the_same(targets: list[Target], ask: Callable[[Any], Any]) -> None:
    answer = same_everywhere(targets, lambda client: ask(client.index("library")))
    assert not isinstance(answer, tuple), f"an error: {answer}"


def test_lists_of_indexes_are_the_same(targets: list[Target]) -> None:
    names = [info.name for info in same_everywhere(targets, lambda client: client.indexes())]
    assert names == ["flat", "library"]


def test_vectors_come_back_as_they_were_given(targets: list[Target]) -> None:
    from tests.served import library_table

    given = np.array(library_table().column("embedding")[42].as_py(), np.float32)
    for _, run in targets:
        [point] = run(lambda client: client.index("library").get(["d42"], vectors=True))
        np.testing.assert_array_equal(point.vector, given)
        assert not point.vector.flags.writeable
        hit = run(lambda client: client.index("library").search(given, 1, vectors=True))[0]
        np.testing.assert_array_equal(hit.vector, given)


INVALID = scannery.InvalidArgumentError
FAILED = scannery.FailedPreconditionError


@pytest.mark.parametrize(("ask", "kind", "field", "message"), [
    (lambda i: i.search(VECTOR, 0), INVALID, "k", "must be 1 to 10000, got 0"),
    (lambda i: i.search(VECTOR, -1), INVALID, "k", "must be 1 to 10000, got -1"),
    (lambda i: i.search(VECTOR, 10_001), INVALID, "k", "must be 1 to 10000"),
    (lambda i: i.search(VECTOR, 2**40), INVALID, "k", "must be an integer"),
    (lambda i: i.search(VECTOR, 2.5), INVALID, "k", "must be an integer, got 2.5"),
    (lambda i: i.search(VECTOR, True), INVALID, "k", "must be an integer"),
    (lambda i: i.search(NAN), INVALID, "query", "must be finite"),
    (lambda i: i.search(VECTOR * np.inf), INVALID, "query", "must be finite"),
    (lambda i: i.search(VECTOR * 1e20), INVALID, "query", "must be finite and within"),
    (lambda i: i.search(VECTOR * 0), INVALID, "query", "must not be all zeros"),
    (lambda i: i.search(VECTOR[:5]), INVALID, "query", "must have 16 dimensions, got 5"),
    (lambda i: i.search([]), INVALID, "query", "an array of shape (0,)"),
    (lambda i: i.search(VECTORS), INVALID, "query", "an array of shape (5, 16)"),
    (lambda i: i.search(["a", "b"]), INVALID, "query", "must be a text or a vector"),
    (lambda i: i.search(None), INVALID, "query", "an array of shape ()"),
    (lambda i: i.search({"a": 1}), INVALID, "query", "must be a text or a vector, got dict"),
    (lambda i: i.search(""), INVALID, "query", "the text must not be empty"),
    (lambda i: i.search("  \n"), INVALID, "query", "the text must not be empty"),
    (lambda i: i.search("x" * 40_000), INVALID, "query", "at most 32768 bytes, got 40000"),
    (lambda i: i.search("\ud800"), INVALID, "query", "not valid Unicode"),
    (lambda i: i.search("words"), scannery.FailedPreconditionError, "query", "has no encoder"),
    (lambda i: i.search(Like("")), INVALID, "query", "must be 1 to 512 bytes"),
    (lambda i: i.search(Like(FLOAT)), INVALID, "query", "must be a string or an integer"),
    (lambda i: i.search(Like(NUMBER)), scannery.NotFoundError, "query", "no datapoint '3'"),
    (lambda i: i.search(Like("nobody")), scannery.NotFoundError, "query", "no datapoint 'nobody'"),
    (lambda i: i.search(VECTOR, where={"yaer": 1}), INVALID, "where.yaer", "did you mean year?"),
    (lambda i: i.search(VECTOR, where={"year": "x"}), INVALID, "where.year", "64-bit integer"),
    (lambda i: i.search(VECTOR, where={"year": {"$gte": "x"}}), INVALID, "where.year.$gte", "64-bit"),
    (lambda i: i.search(VECTOR, where={"year": {"$in": []}}), INVALID, "where.year.$in", "not be empty"),
    (lambda i: i.search(VECTOR, where=[1]), INVALID, "where", "must be a dictionary"),
    (lambda i: i.search(VECTOR, offset=-1), INVALID, "offset", "must be 0 to 10000"),
    (lambda i: i.search(VECTOR, offset=10_001), INVALID, "offset", "must be 0 to 10000"),
    (lambda i: i.search(VECTOR, min_score=np.nan), INVALID, "min_score", "must be finite"),
    (lambda i: i.search(VECTOR, min_score="x"), INVALID, "min_score", "must be a number"),
    (lambda i: i.search(VECTOR, min_score=1e300), INVALID, "min_score", "must be finite"),
    (lambda i: i.search(VECTOR, min_relevance=0.5), INVALID, "min_relevance", "a build of at least 200"),
    (lambda i: i.search_many(VECTORS, min_relevance=0), INVALID, "min_relevance", "has no relevance"),
    (lambda i: i.search(VECTOR, min_relevance=1.5), INVALID, "min_relevance", "must be 0 to 1, got 1.5"),
    (lambda i: i.search(VECTOR, min_relevance="x"), INVALID, "min_relevance", "must be a number"),
    (lambda i: i.search(VECTOR, target_recall=0.2), INVALID, "target_recall", "0.5 to 0.999"),
    (lambda i: i.search(VECTOR, target_recall=1.0), INVALID, "target_recall", "0.5 to 0.999"),
    (lambda i: i.search(VECTOR, leaves=0), INVALID, "knobs.leaves", "must be 1 to"),
    (lambda i: i.search(VECTOR, rescore=5), INVALID, "knobs.rescore", "at least k"),
    (lambda i: i.search(VECTOR, leaves=5, target_recall=0.9), INVALID, "knobs", "together"),
    (lambda i: i.search(VECTOR, leaves=1_000_001), INVALID, "knobs.leaves", "must be 1 to 1000000"),
    (lambda i: i.search(VECTOR, rescore=100_001), INVALID, "knobs.rescore", "must be 1 to 100000"),
    (lambda i: i.search(VECTOR, max_per_group=10_001), INVALID, "max_per_group", "1 to 10000"),
    (lambda i: i.search(VECTOR, fields=["title"] * 257), INVALID, "fields", "more than 256 names"),
    (lambda i: i.search(VECTOR, rerank=2.5), INVALID, "rerank", "must be an integer"),
    (lambda i: i.search(VECTOR, rerank=1001), INVALID, "rerank", "must be 1 to 1000, got 1001"),
    (lambda i: i.search("words", rerank=5), FAILED, "rerank", "index 'library' has no reranker"),
    (lambda i: i.search_many(["a"] * 101, rerank=1000), INVALID, "queries", "with 1000 hits each exceed"),
    (lambda i: i.search(Sparse({1: 1.0}), mode="lexical"), FAILED, "query.sparse_vector", "no sparse"),
    (lambda i: i.search(Sparse(LIST)), INVALID, "query.sparse_vector", "must be a mapping"),
    (lambda i: i.search(Sparse(FRACTION)), INVALID, "query.sparse_vector", "must have dimensions"),
    (lambda i: i.search(Blend("words")), INVALID, "query.group.queries", "must be a list of queries"),
    (lambda i: i.search_many([VECTOR, Blend([])]), INVALID, "queries[1].group.queries", "got 0"),
    (lambda i: i.search(VECTOR, max_per_group=0), INVALID, "max_per_group", "must be 1 to 10000"),
    (lambda i: i.search(VECTOR, group_by="show"), INVALID, "group_by", "needs max_per_group"),
    (lambda i: i.search(VECTOR, max_per_group=1, group_by="sho"), INVALID, "group_by", "did you mean show?"),
    (lambda i: i.search(VECTOR, max_per_group=1, group_by="tags"), INVALID, "group_by", "string_list"),
    (lambda i: i.search(VECTOR, fields=["titel"]), INVALID, "fields", "did you mean title?"),
    (lambda i: i.search(VECTOR, fields="title"), INVALID, "fields", "must be a list of names"),
    (lambda i: i.search(VECTOR, mode="fuzzy"), INVALID, "mode", "must be one of dense"),
    (lambda i: i.search("words", mode="hybrid"), FAILED, "mode", "no words for hybrid search"),
    (lambda i: i.search("words", mode="lexical"), FAILED, "mode", "no words for lexical search"),
    (lambda i: i.search("words", mode="lexical", alpha=0.5), INVALID, "alpha", "is for hybrid search"),
    (lambda i: i.search("words", mode="hybrid", alpha=2), INVALID, "alpha", "must be 0 to 1, got 2"),
    (lambda i: i.search("words", mode="hybrid", fusion="sum"), INVALID, "fusion", "must be one of"),
    (lambda i: i.search(VECTOR, timeout_s=0), INVALID, "timeout_s", "above 0"),
    (lambda i: i.search_many([]), INVALID, "queries", "must have 1 to 1000 items, got 0"),
    (lambda i: i.search_many(np.empty((0, 16))), INVALID, "queries", "must have 1 to 1000 items, got 0"),
    (lambda i: i.search_many("words"), INVALID, "queries", "must be a list of queries, got one"),
    (lambda i: i.search_many(VECTOR), INVALID, "queries", "must have the shape (queries, dimensions)"),
    (lambda i: i.search_many(VECTORS[:, :3]), INVALID, "queries", "must have 16 dimensions, got 3"),
    (lambda i: i.search_many([VECTOR, NAN]), INVALID, "queries[1]", "must be finite"),
    (lambda i: i.search_many(np.stack([VECTOR, NAN])), INVALID, "queries[1]", "must be finite"),
    (lambda i: i.search_many([VECTOR] * 1001), INVALID, "queries", "must have 1 to 1000 items"),
    (lambda i: i.search_many([VECTOR] * 11, 10_000), INVALID, "queries", "exceed 100000 hits"),
    (lambda i: i.search_many([Like("d1"), Like("x")]), scannery.NotFoundError, "queries[1]", "'x'"),
    (lambda i: i.get([]), INVALID, "ids", "must have 1 to 1000 items"),
    (lambda i: i.get(["x"] * 1001), INVALID, "ids", "must have 1 to 1000 items"),
    (lambda i: i.get("d1"), INVALID, "ids", "must be a list of strings"),
    (lambda i: i.get([True]), INVALID, "ids[0]", "must be a string or an integer"),
    (lambda i: i.get(["d1", "x" * 600]), INVALID, "ids[1]", "1 to 512 bytes"),
    (lambda i: i.get(["d1"], fields=["x"]), INVALID, "fields", "no such field"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_bad_input_is_the_same_clear_error(
    targets: list[Target], ask: Callable[[Any], Any], kind: type[Exception], field: str, message: str
) -> None:
    answer = same_everywhere(targets, lambda client: ask(client.index("library")))
    assert isinstance(answer, tuple), f"no error: {answer}"
    assert answer[0] is kind
    assert answer[2] == field
    assert message in answer[1]


@pytest.mark.parametrize("name", ["nobody", "", "../library", "library/versions"])
def test_an_unknown_index_is_the_same_clear_error(targets: list[Target], name: str) -> None:
    asks: list[Callable[[Any], Any]] = [
        lambda client: client.index(name).search(VECTOR),
        lambda client: client.index(name).get(["d1"]),
        lambda client: client.index(name).stats(),
    ]
    for ask in asks:
        kind, message, field = same_everywhere(targets, ask)
        assert field == "index"
        assert kind is (scannery.NotFoundError if name else INVALID)
        assert ("there are: flat, library" in message) == bool(name)


def test_texts_get_the_same_hits_everywhere(texts: Path) -> None:
    with serving(texts, device="cpu") as server:
        remote, embedded = scannery.connect(server.address), scannery.connect(texts)
        for query in ("how do eruptions happen", "Ünïcödé 🎻", "x"):
            hits = remote.index("texts").search(query, 3, where={"letters": {"$gt": 10}})
            assert hits == embedded.index("texts").search(query, 3, where={"letters": {"$gt": 10}})
            assert len(hits) == 3
        assert remote.index("texts").stats() == embedded.index("texts").stats()
        remote.close()


@pytest.mark.system
def test_every_mode_gets_the_same_hits_everywhere(tmp_path: Path) -> None:
    texts = make_text_store(tmp_path, lexical=True)
    asks: list[dict[str, Any]] = [
        {"mode": "lexical"},
        {"mode": "lexical", "where": {"letters": {"$gt": 60}}, "max_per_group": 1, "offset": 1},
        {"mode": "hybrid"},
        {"mode": "hybrid", "alpha": 0.2, "fusion": "weighted_score", "where": {"letters": {"$gt": 60}}},
        {"mode": "hybrid", "min_score": 0.01},
    ]
    with serving(texts, device="cpu") as server:
        remote, embedded = (scannery.connect(place).index("texts") for place in (server.address, texts))
        for ask in asks:
            for query in ("the crust of the planet", Like("bread")):
                hits = remote.search(query, 4, **ask)
                assert hits == embedded.search(query, 4, **ask)
                assert hits == remote.search_many([query], 4, **ask)[0]
                assert hits
        found = remote.search("crusts", 1, mode="lexical")[0]
        assert (found.id, found.dense_score, found.lexical_score) == ("volcano", None, None)
        both = remote.search("crusts", 1, mode="hybrid")[0]
        assert both.dense_score is not None
        assert both.lexical_score == found.score


@pytest.mark.system
def test_relevance_is_the_same_everywhere(tmp_path: Path) -> None:
    texts = make_text_store(tmp_path, lexical=True)
    commit_relevance(Store.open(texts), "texts")
    query = "the crust of the planet"
    asks: list[dict[str, Any]] = [
        *(
            {"mode": mode, "min_relevance": least}
            for mode in ("dense", "lexical", "hybrid")
            for least in (0, 0.6, 1)
        ),
        {"min_relevance": 0.2, "where": {"letters": {"$gt": 60}}, "max_per_group": 1},
        {"min_relevance": 1, "offset": 1},
    ]
    with serving(texts, device="cpu") as server:
        embedded = scannery.connect(texts).index("texts")
        targets = (server.address, f"http://127.0.0.1:{server.http_port}")
        clients = [
            scannery.connect(target, http=http) for target, http in zip(targets, (False, True), strict=True)
        ]
        for ask in asks:
            hits = embedded.search(query, 4, **ask)
            assert {hit.relevance is None for hit in hits} <= {False}
            assert hits.nothing_relevant == (not hits and "offset" not in ask)
            for client in clients:
                index = client.index("texts")
                for remote in (index.search(query, 4, **ask), *index.search_many([query, query], 4, **ask)):
                    assert remote == hits
                    assert (remote.mode, remote.nothing_relevant) == (hits.mode, hits.nothing_relevant)
        body = {"index": "texts", "query": {"text": query}, "options": {"k": 1, "minRelevance": 0.1}}
        [hit] = posted(targets[1], body)["hits"]
        assert hit["relevance"] == pytest.approx(embedded.search(query, 1)[0].relevance)
        body["options"] = {"minRelevance": 1}
        answer = posted(targets[1], body)
        assert (answer["hits"], answer["nothingRelevant"]) == ([], True)
        for client in clients:
            client.close()


def posted(address: str, body: dict[str, Any]) -> Any:
    """Return the answer to a search in JSON."""
    request = urllib.request.Request(
        f"{address}/scannery.v1.SearchService/Search",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_unknown_arguments_are_type_errors(targets: list[Target]) -> None:
    for _, run in targets:
        with pytest.raises(TypeError, match="limit"):
            run(lambda client: client.index("library").search(VECTOR, limit=3))


@pytest.mark.system
def test_zero_vectors_have_a_place_where_the_distance_is_not_cosine(targets: list[Target]) -> None:
    hits = same_everywhere(targets, lambda client: client.index("flat").search([0, 0, 0, 0], 3))
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(hit.score < 0 for hit in hits)

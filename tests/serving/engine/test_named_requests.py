"""Requests that choose named vectors: what each kind of query may ask for, what answers carry, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scannery
from scannery.client.request.calls import search, search_many
from scannery.runtime.errors import ServingError
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.engine import hydrator
from scannery.serving.services.search import Service
from scannery.v1 import index_pb2, search_pb2_grpc
from scannery.v1 import search_pb2 as pb
from tests.served import MINILM, SENTENCES, serving
from tests.serving.named_index import PICTURES, TITLES, make_told_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_told_store(tmp_path_factory.mktemp("told"))


Call = Callable[[str, Any], Any]


@pytest.fixture(scope="module", params=["embedded", "gRPC"])
def call(request: pytest.FixtureRequest, store: Path) -> Iterator[Call]:
    if request.param == "embedded":
        service = Service(open_embedded_catalog(store))
        methods: dict[str, Callable[..., Any]] = {
            "Search": service.search,
            "SearchMany": service.search_many,
            "Get": service.get,
        }
        yield lambda method, message: methods[method](message, Deadline.after(120))
        service.close()
        return
    with serving(store, device="cpu") as server, grpc.insecure_channel(server.address) as channel:
        stub = search_pb2_grpc.SearchServiceStub(channel)
        yield lambda method, message: getattr(stub, method)(message, timeout=120)


def asked(query: Any, names: list[str] | None = None, **options: Any) -> pb.SearchRequest:
    made: pb.SearchRequest = search("told", query, **{"k": 10, **options}).request
    for name in names or ():
        made.options.vectors.add(name=name)
    return made


def found(call: Call, *arguments: Any, **options: Any) -> list[pb.Hit]:
    return list(call("Search", asked(*arguments, **options)).hits)


def ids(hits: list[pb.Hit]) -> list[str]:
    return [hit.datapoint.id for hit in hits]


HOT = "lava from a volcano"


@pytest.mark.system
def test_a_text_is_searched_by_all_names_that_have_an_encoder(call: Call) -> None:
    answer = call("Search", asked(HOT, mode="dense"))
    assert answer.mode == pb.MODE_DENSE
    assert answer.hits[0].datapoint.id == "volcano"
    assert set(answer.hits[0].vector_scores) == {"title", "body"}
    assert ids(list(answer.hits)) == ids(found(call, HOT, ["title", "body"], mode="dense"))
    assert {len(hit.vector_scores) for hit in answer.hits} == {1, 2}  # most have no title
    assert len(answer.hits) == len(SENTENCES)


@pytest.mark.system
def test_a_text_without_a_mode_is_hybrid_and_alpha_is_the_share_of_the_vectors(call: Call) -> None:
    answer = call("Search", asked(HOT))
    assert answer.mode == pb.MODE_HYBRID
    first = answer.hits[0]
    assert first.datapoint.id == "volcano"
    assert first.HasField("dense_score")
    dense = {hit.datapoint.id: hit for hit in found(call, HOT, mode="dense")}
    for hit in answer.hits:
        assert hit.dense_score == pytest.approx(dense[hit.datapoint.id].score, abs=1e-5)
        assert dict(hit.vector_scores) == pytest.approx(dict(dense[hit.datapoint.id].vector_scores))
    whole = asked(HOT, ["title", "body"], mode="hybrid", alpha=1.0)
    assert ids(list(call("Search", whole).hits)) == list(dense)
    words = asked("crust", ["body"], mode="hybrid", alpha=0.0)
    lexical = found(call, "crust", mode="lexical")
    assert ids(list(call("Search", words).hits))[: len(lexical)] == ids(lexical)
    assert not any(hit.vector_scores for hit in lexical)


def test_one_name_in_a_hybrid_search_has_its_plain_scores(call: Call) -> None:
    plain = {hit.datapoint.id: hit.score for hit in found(call, HOT, ["body"], mode="dense")}
    for hit in found(call, HOT, ["body"]):
        assert hit.dense_score == pytest.approx(plain[hit.datapoint.id], abs=1e-6)
        assert hit.vector_scores["body"] == hit.dense_score


def test_a_vector_is_searched_by_the_names_whose_dimensions_it_has(call: Call) -> None:
    picture_D = np.array([0.0, 1.0, 0.0], np.float32)
    hits = found(call, picture_D)
    assert all(set(hit.vector_scores) == {"picture"} for hit in hits)
    expected = {name: -float(np.square(vector - picture_D).sum()) for name, vector in PICTURES.items()}
    assert ids(hits) == sorted(expected, key=lambda name: (-expected[name], name))
    assert [hit.score for hit in hits] == pytest.approx([expected[name] for name in ids(hits)])
    [first] = found(call, np.ones(384, np.float32), k=1)
    assert set(first.vector_scores) <= {"title", "body"}


def test_like_takes_the_vectors_that_the_datapoint_has(call: Call) -> None:
    hits = found(call, scannery.Like("bread"))  # has no picture
    assert "bread" not in ids(hits)
    assert {name for hit in hits for name in hit.vector_scores} == {"title", "body"}
    assert {name for hit in found(call, scannery.Like("volcano")) for name in hit.vector_scores} == {
        "title",
        "body",
        "picture",
    }


def test_groups_are_blended_for_each_name_that_all_members_have(call: Call) -> None:
    blend = scannery.Blend([HOT, scannery.Like("bread")], weights=[1.0, -0.3])
    hits = found(call, blend, mode="dense")
    assert hits[0].datapoint.id == "volcano"
    assert {name for hit in hits for name in hit.vector_scores} == {"title", "body"}
    only = found(call, blend, ["body"], mode="dense")
    assert {name for hit in only for name in hit.vector_scores} == {"body"}
    mixed = scannery.Blend([HOT, np.array([0.0, 1.0, 0.0])])
    with pytest.raises((ServingError, grpc.RpcError), match="a group a vector that all of its queries have"):
        found(call, mixed, mode="dense")


@pytest.mark.system
def test_many_queries_of_several_kinds_have_the_answers_of_each_alone(call: Call) -> None:
    queries: list[Any] = [
        HOT,
        np.array([0.0, 1.0, 0.0], np.float32),
        scannery.Like("bread"),
        "bake the dough",
    ]
    each: list[dict[str, Any]] = [{}, {"mode": "dense"}, {"mode": "dense", "where": {"letters": {"$lt": 85}}}]
    for options in each:
        many = call("SearchMany", search_many("told", queries, k=5, **options).request)
        for query, hits in zip(queries, many.results, strict=True):
            alone = call("Search", asked(query, k=5, **options))
            assert ids(list(hits.hits)) == ids(list(alone.hits))
            for one, other in zip(hits.hits, alone.hits, strict=True):
                assert one.score == pytest.approx(other.score, abs=1e-5)
                assert dict(one.vector_scores) == pytest.approx(dict(other.vector_scores), abs=1e-5)


def test_a_matrix_of_vectors_is_searched_by_the_names_that_fit(call: Call) -> None:
    queries_QD = np.eye(3, dtype=np.float32)[:2]
    many = call("SearchMany", search_many("told", queries_QD, k=3).request)
    for query_D, hits in zip(queries_QD, many.results, strict=True):
        assert list(hits.hits) == found(call, query_D, k=3)
    named = search_many("told", queries_QD, k=3).request
    named.options.vectors.add(name="picture")
    assert call("SearchMany", named).results == many.results


@pytest.mark.system
def test_options_of_every_search_apply(call: Call) -> None:
    every = found(call, HOT, ["title", "body"], mode="dense")
    few = found(call, HOT, ["title", "body"], mode="dense", min_score=every[2].score)
    assert ids(few) == ids(every)[:3]
    crowded = found(call, HOT, ["title", "body"], mode="dense", max_per_group=1, group_by="letters")
    letters = [hit.group.int_value for hit in crowded]
    assert len(letters) == len(set(letters))
    assert crowded[0].datapoint.id == "volcano"
    [snippet] = {hit.snippet.start for hit in found(call, HOT, ["body"], highlight=True, k=1)}
    assert snippet == 0


def test_an_explanation_names_the_files_of_each_name(call: Call) -> None:
    answer = call("Search", asked(HOT, ["title", "body"], mode="dense", explain=True))
    plans = answer.explanation.segments
    assert [plan.rows for plan in plans] == [len(TITLES), len(SENTENCES)]
    assert {plan.plan for plan in plans} == {"exact"}
    assert len({plan.segment for plan in plans}) == 2
    assert answer.explanation.fusion.method == pb.FUSION_METHOD_WEIGHTED_SCORE


def test_vectors_are_returned_as_they_were_given(call: Call, store: Path) -> None:
    [hit] = found(call, HOT, ["body"], k=1, vectors=True)
    assert set(hit.datapoint.vectors) == {"title", "body", "picture"}
    assert not hit.datapoint.HasField("vector")
    read = call("Get", pb.GetRequest(index="told", ids=["bread", "volcano"], return_vector=True)).datapoints
    assert set(read[0].vectors) == {"title", "body"}
    for point in (hit.datapoint, read[1]):
        picture = np.frombuffer(point.vectors["picture"].packed, np.float32)
        assert np.array_equal(picture, PICTURES["volcano"])
    without = call("Get", pb.GetRequest(index="told", ids=["bread"])).datapoints
    assert not without[0].vectors
    with scannery.connect(store) as client:
        points = {point.id: point for point in client.index("told").scan(vectors=True)}
    assert set(points) == set(SENTENCES)
    assert np.array_equal(points["volcano"].vectors["picture"], PICTURES["volcano"])
    assert set(points["bread"].vectors) == {"title", "body"}


def test_an_index_is_described_with_its_names(store: Path) -> None:
    service = Service(open_embedded_catalog(store))
    info = service.call(
        "/scannery.v1.IndexService/GetIndex", index_pb2.GetIndexRequest(index="told"), Deadline.after(60)
    )
    assert isinstance(info, index_pb2.GetIndexResponse)
    named = info.index.named_vectors
    assert (named["title"].dimensions, named["title"].rows, getattr(named["title"], "from")) == (
        384,
        2,
        "title",
    )
    assert (named["body"].encoder.model, getattr(named["body"], "from")) == (MINILM, "text")
    assert (named["picture"].dimensions, named["picture"].rows) == (3, len(PICTURES))
    assert not named["picture"].HasField("encoder")
    service.close()


def test_an_answer_with_too_many_bytes_of_vectors_is_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(open_embedded_catalog(store))
    monkeypatch.setattr(hydrator, "MAX_ANSWER_BYTES", 4000)
    assert service.search(asked(THREE_D, ["picture"], k=1), Deadline.after(60)).hits
    with pytest.raises(ServingError, match="the answer would have more than"):
        service.search(asked(THREE_D, ["picture"], k=2, vectors=True), Deadline.after(60))
    service.close()


def chosen(*choices: tuple[str, float | None]) -> Callable[[pb.SearchRequest], object]:
    def change(message: pb.SearchRequest) -> None:
        for name, weight in choices:
            message.options.vectors.add(name=name, weight=weight)

    return change


def dense_fused(fusion: pb.Fusion, *names: str) -> Callable[[pb.SearchRequest], object]:
    def change(message: pb.SearchRequest) -> None:
        message.options.mode = pb.MODE_DENSE
        message.options.fusion.CopyFrom(fusion)
        chosen(*((name, None) for name in names))(message)

    return change


THREE_D = np.ones(3, np.float32)
WRONG: list[tuple[str, Any, dict[str, Any], Callable[[pb.SearchRequest], object], str, str]] = [
    ("unknown", HOT, {}, chosen(("titel", None)), "vectors[0].name", "its named vectors are: title, body, picture"),
    ("unnamed", HOT, {}, chosen(("body", None), ("", 1.0)), "vectors[1].name", "has no unnamed vector"),
    ("twice", HOT, {}, chosen(("body", None), ("body", 2.0)), "vectors[1].name", "is given twice"),
    ("zero", HOT, {}, chosen(("body", 0.0)), "vectors[0].weight", "must be above 0 and finite, got 0"),
    ("nan", HOT, {}, chosen(("body", float("nan"))), "vectors[0].weight", "must be above 0"),
    ("infinite", HOT, {}, chosen(("body", float("inf"))), "vectors[0].weight", "must be above 0"),
    ("many", HOT, {}, chosen(*[("body", 1.0)] * 18), "vectors", "at most 17 items, got 18"),
    ("words", HOT, {"mode": "lexical"}, chosen(("body", None)), "vectors", "the mode is lexical"),
    ("no encoder", HOT, {}, chosen(("picture", None)), "query", "vectors 'picture' of index 'told' have no encoder"),
    ("one without", HOT, {}, chosen(("body", None), ("picture", None)), "query", "'picture' .* no encoder"),
    ("size", THREE_D, {}, chosen(("body", None)), "query", "must have 384"),
    ("sizes", THREE_D, {}, chosen(("body", 1.0), ("picture", 1.0)), "query", r"body: 384, picture: 3\), got 3"),
    ("no size", np.ones(4), {}, chosen(), "query", r"one of .*title: 384, body: 384, picture: 3\), got 4"),
    ("alpha", HOT, {}, dense_fused(pb.Fusion(alpha=0.5), "body", "title"), "fusion.alpha", "for hybrid"),
    ("fusion", HOT, {}, dense_fused(pb.Fusion(), "body"), "fusion", "for hybrid"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "options", "change", "field", "problem"),
    [each[1:] for each in WRONG],
    ids=[each[0] for each in WRONG],
)
def test_wrong_requests_are_refused_by_field(
    store: Path, query: Any, options: dict[str, Any], change: Any, field: str, problem: str
) -> None:
    service = Service(open_embedded_catalog(store))
    message = asked(query, **options)
    change(message)
    with pytest.raises(ServingError, match=problem) as caught:
        service.search(message, Deadline.after(60))
    assert caught.value.field == field
    service.close()


@pytest.mark.system
def test_a_zero_vector_is_refused_for_cosine_only(store: Path) -> None:
    service = Service(open_embedded_catalog(store))
    assert service.search(asked(np.zeros(3), ["picture"]), Deadline.after(60)).hits
    with pytest.raises(ServingError, match="zero"):
        service.search(asked(np.zeros(384), ["title"]), Deadline.after(60))
    service.close()

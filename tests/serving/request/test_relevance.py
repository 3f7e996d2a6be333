"""Which searches have a curve for the relevance of their hits, and what is refused of those that need one."""

from __future__ import annotations

from typing import Any

import pytest

from scannery.indexer import Manifest, parse_spec
from scannery.indexer.manifest import RERANK, ModelCurve, VectorsInfo
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.request.options import Options, parse_options
from scannery.serving.request.query import ByText, ByVector, WithWords
from scannery.v1 import search_pb2 as pb
from tests.served import FUSION, RELEVANCE

SPEC: dict[str, Any] = {
    "index": "a",
    "source": {"id": "id", "text": "text"},
    "encoder": {"model": "m"},
    "named_vectors": {"title": {"dimensions": 4}, "topic": {"dimensions": 4}},
    "lexical": True,
}
RANKS = pb.Fusion(method=pb.FUSION_METHOD_RECIPROCAL_RANK)
UNNAMED, TITLE, TOPIC = pb.VectorChoice(), pb.VectorChoice(name="title"), pb.VectorChoice(name="topic")
BUILD = (
    "version 7 of index 'a' has no relevance: a build of at least 200 passages with this release measures it"
)
LEXICAL = RELEVANCE.model_copy(update={"curves": {"lexical": RELEVANCE.curves["lexical"]}})


def manifest(**changes: Any) -> Manifest:
    named = {"title": VectorsInfo(dimensions=4), "topic": VectorsInfo(dimensions=4)}
    fields = {
        "named_vectors": named,
        "fusion": FUSION,
        "relevance": RELEVANCE,
        "spec": parse_spec(SPEC),
        **changes,
    }
    return Manifest(
        index="a", version=7, created_at="2026-01-01T00:00:00Z", dimensions=4, shards=1, segments=(), **fields
    )


def parsed(made: Manifest, **options: Any) -> Options:
    return parse_options(pb.SearchOptions(**options), made)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"mode": pb.MODE_DENSE}, "dense"),
        ({"mode": pb.MODE_DENSE, "vectors": [UNNAMED]}, "dense"),
        ({"mode": pb.MODE_DENSE, "vectors": [TOPIC]}, "vectors.topic"),
        ({"mode": pb.MODE_LEXICAL}, "lexical"),
        ({"mode": pb.MODE_HYBRID}, "hybrid"),
        ({"mode": pb.MODE_HYBRID, "fusion": pb.Fusion(alpha=FUSION.alpha)}, "hybrid"),
        ({"fusion": pb.Fusion(alpha=FUSION.alpha)}, "hybrid"),
    ],
)
def test_searches_of_the_measured_kind_have_a_curve(options: dict[str, Any], key: str) -> None:
    assert parsed(manifest(), **options).curve == RELEVANCE.all_curves[key]
    assert parsed(manifest(), min_relevance=0.5, **options).min_relevance == 0.5


def test_each_query_has_the_curve_of_its_mode() -> None:
    options = parsed(manifest(), min_relevance=0.25)
    queries = (ByVector.__new__(ByVector), ByText("words"), WithWords(None, "words"))
    curves = [options.of(query).curve for query in queries]
    assert curves == [RELEVANCE.curves["dense"], RELEVANCE.curves["hybrid"], RELEVANCE.curves["lexical"]]
    assert parsed(manifest(), min_relevance=0.25).of(ByText("words")).mode == "hybrid", (
        "as without a least relevance"
    )


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"relevance": None}, {}, BUILD),
        ({"relevance": None}, {"mode": pb.MODE_LEXICAL}, BUILD),
        (
            {"relevance": LEXICAL},
            {"mode": pb.MODE_DENSE},
            "no relevance for mode dense: the build measures it where",
        ),
        ({"relevance": LEXICAL}, {"mode": pb.MODE_HYBRID}, "no relevance for mode hybrid"),
        ({}, {"mode": pb.MODE_DENSE, "vectors": [TITLE]}, "no relevance for vectors 'title'"),
        ({}, {"mode": pb.MODE_HYBRID, "vectors": [TOPIC]}, "hybrid hits of named vectors have no relevance"),
        (
            {},
            {"mode": pb.MODE_DENSE, "vectors": [UNNAMED, TOPIC]},
            "hits of several vectors have no relevance",
        ),
        (
            {},
            {"mode": pb.MODE_DENSE, "vectors": [TOPIC], "inner_product": True},
            "hits by inner_product have no",
        ),
        ({}, {"mode": pb.MODE_DENSE, "inner_product": True}, "hits by inner_product have no relevance"),
        ({}, {"fusion": RANKS}, "hits fused by reciprocal_rank have no relevance"),
        ({}, {"fusion": pb.Fusion(alpha=0.5)}, "an alpha of 0.5 have no relevance: it is measured of 0.625"),
        (
            {"spec": parse_spec({**SPEC, "search": {"alpha": 0.5}})},
            {"mode": pb.MODE_HYBRID},
            "an alpha of 0.5 have",
        ),
        ({"fusion": None}, {"mode": pb.MODE_HYBRID}, "measures it where the spec has no `search.alpha`"),
        (
            {"fusion": FUSION.model_copy(update={"scales": None})},
            {"mode": pb.MODE_HYBRID},
            "a build with this release",
        ),
    ],
)
def test_a_least_relevance_is_refused_of_other_searches(
    changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    made = manifest(**changes)
    assert parsed(made, **options).curve is None
    with pytest.raises(InvalidRequestError, match="^min_relevance: ") as caught:
        parsed(made, min_relevance=0.5, **options)
    assert message in caught.value.message


def test_a_reranked_search_may_have_a_relevance_that_its_first_ranking_has_not() -> None:
    reranked: dict[str, Any] = {"mode": pb.MODE_LEXICAL, "rerank": pb.Rerank(), "min_relevance": 0.5}
    scores = ModelCurve(model="one", curve=RELEVANCE.curves["dense"])
    only = RELEVANCE.model_copy(update={"curves": {}, "models": {RERANK: scores}})
    options = parsed(manifest(relevance=only), **reranked)
    assert (options.curve, options.before_rerank.min_relevance) == (None, 0.5)
    assert options.rerank is not None
    assert options.rerank.curve_of("one") == scores.curve
    assert options.rerank.curve_of("another") is None
    for none in (RELEVANCE.model_copy(update={"curves": {}}), None):
        with pytest.raises(InvalidRequestError, match="^min_relevance: "):
            parsed(manifest(relevance=none), **reranked)


@pytest.mark.parametrize("least", [-0.01, 1.01, float("nan")])
def test_a_least_relevance_is_a_probability(least: float) -> None:
    with pytest.raises(InvalidRequestError, match="min_relevance: must be 0 to 1"):
        parsed(manifest(), min_relevance=least)
    assert parsed(manifest(), min_relevance=1).min_relevance == 1

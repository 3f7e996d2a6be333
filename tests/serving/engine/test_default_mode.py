"""The mode of a search that names none, and the scale of fused scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import Blend, Like, testing
from scannery.indexer import parse_spec
from scannery.indexer.errors import InvalidSpecError
from scannery.indexer.manifest import FusionWeight, Manifest
from scannery.indexer.tuning.score_fusion import FUSED_ROWS, Scale, ScaleOf, dense_scale, lexical_scale
from scannery.serving.request.options import Options, parse_options
from scannery.serving.request.query import ByText, ByVector, WithSparse
from scannery.v1 import search_pb2 as pb

WORDS = ["lava", "cat", "car", "bank", "river", "cloud"]
DOCUMENTS = [
    {
        "id": f"d{row}",
        "text": f"{WORDS[row % 6]} {WORDS[row % 5]} w{row % 7}",
        "attributes": {"n": row, "m": row % 29},
    }
    for row in range(300)
]
SPEC: dict[str, Any] = {
    "index": "a",
    "source": {"id": "id", "text": "text", "vector": "vector"},
    "encoder": {"model": "m"},
    "lexical": True,
}
VECTOR = np.ones(4, np.float32)


@pytest.fixture(scope="module")
def index() -> Iterator[scannery.Index]:
    with testing.client(DOCUMENTS) as client:
        yield client.index("test")


def manifest(fusion: FusionWeight | None = None, **changes: Any) -> Manifest:
    spec = parse_spec({**SPEC, **changes})
    return Manifest(
        index="a", version=1, created_at="2026-01-01T00:00:00Z", spec=spec, dimensions=4, shards=1, segments=(),
        fusion=fusion,
    )  # fmt: skip


def parsed(made: Manifest, *, has_words: bool = True, **options: Any) -> Options:
    return parse_options(pb.SearchOptions(**options), made, has_words=has_words)


@pytest.mark.system
def test_texts_are_hybrid_and_all_else_is_dense(index: scannery.Index) -> None:
    [point] = index.get(["d3"], vectors=True)
    assert point is not None
    assert point.vector is not None
    vector = point.vector
    queries: list[Any] = ["lava river", vector, Like("d3"), Blend(["lava", "car"], weights=[1, -0.5])]
    assert [index.search(query, 3).mode for query in queries] == ["hybrid", "dense", "dense", "dense"]
    many = index.search_many(queries, 3, explain=True)
    assert [hits.mode for hits in many] == ["hybrid", "dense", "dense", "dense"]
    for query, hits in zip(queries, many, strict=True):
        assert hits == index.search(query, 3)
        assert hits.explanation is not None
        assert hits.explanation.mode == hits.mode
    assert [hits.mode for hits in index.search_many(["lava", "car"], 3)] == ["hybrid", "hybrid"]
    assert [hits.mode for hits in index.search_many(np.stack([vector, vector]), 3)] == ["dense", "dense"]


def test_a_mode_that_is_named_is_used(index: scannery.Index) -> None:
    for mode in ("dense", "lexical", "hybrid"):
        assert index.search("lava", 3, mode=mode).mode == mode
    assert index.search("lava", 3) == index.search("lava", 3, mode="hybrid")
    assert index.search("lava", 3, alpha=0.9).mode == "hybrid"


def test_a_least_score_keeps_its_meaning(index: scannery.Index) -> None:
    hits = index.search("lava river", 5, min_score=0.2)
    assert hits.mode == "dense"
    assert hits == index.search("lava river", 5, mode="dense", min_score=0.2)


def test_modes_by_spec_and_query() -> None:
    text, vector = ByText("words"), ByVector(VECTOR)
    sparse = WithSparse(None, np.array([1], np.uint32), VECTOR[:1])
    both = WithSparse(text, sparse.indices_T, sparse.values_T)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "hybrid"),
        ({"encoder": None}, "lexical"),
        ({"lexical": False}, "dense"),
        ({"search": {"mode": "dense"}}, "dense"),
        ({"search": {"mode": "lexical"}}, "lexical"),
    ]
    for changes, mode in cases:
        options = parsed(manifest(**changes))
        assert (options.of(text).mode, options.by_text.mode, options.of(vector).mode) == (mode, mode, "dense")
        assert (options.of(sparse).mode, options.of(both).mode) == ("lexical", "hybrid")
    assert parsed(manifest(), has_words=False).of(text).mode == "dense"
    assert parsed(manifest(), min_score=0.5).of(text).mode == "dense"
    assert parsed(manifest(search={"mode": "hybrid"}), min_score=0.5).of(text).mode == "hybrid"
    assert parsed(manifest(), mode=pb.MODE_DENSE).of(both).mode == "dense"


def test_the_fusion_of_the_request_the_spec_and_the_build() -> None:
    weight = FusionWeight(alpha=0.3, questions=100, rows=500, dense=0.4, lexical=0.5, hybrid=0.6)

    def fusion(made: Manifest, **given: Any) -> tuple[str, float]:
        message = pb.SearchOptions(mode=pb.MODE_HYBRID)
        if given:
            message.fusion.CopyFrom(pb.Fusion(**given))
        options = parse_options(message, made)
        return options.fusion.method, options.fusion.alpha

    rank = pb.FUSION_METHOD_RECIPROCAL_RANK
    assert fusion(manifest()) == ("weighted_score", 0.5)
    assert fusion(manifest(weight)) == ("weighted_score", 0.3)
    assert fusion(manifest(weight), alpha=0.8) == ("weighted_score", 0.8)
    assert fusion(manifest(weight), method=rank) == ("reciprocal_rank", 0.5)  # 0.3 is the weight of scores
    assert fusion(manifest(weight, search={"fusion": "reciprocal_rank"})) == ("reciprocal_rank", 0.5)
    assert fusion(manifest(weight, search={"alpha": 0.7}), method=rank) == ("reciprocal_rank", 0.7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lexical": False, "search": {"mode": "hybrid"}}, "needs `lexical: true`"),
        ({"encoder": None, "search": {"mode": "dense"}}, "needs `encoder`"),
        ({"search": {"alpha": 2}}, "search.alpha"),
        ({"search": {"alfa": 0.2}}, "did you mean `alpha`"),
    ],
)
def test_wrong_defaults_in_a_spec_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        parse_spec({**SPEC, **changes})


def test_the_scale_of_few_equal_and_negative_scores() -> None:
    def values(scale_of: ScaleOf, *scores: float) -> list[float]:
        scores_H = np.array(scores, np.float32)
        return [round(value, 6) for value in scale_of(scores_H).values(scores_H).tolist()]

    assert values(dense_scale, 0.7) == values(lexical_scale, 0.7) == [1]
    assert values(dense_scale, 0.5, 0.5) == values(lexical_scale, 0.5, 0.5) == [1, 1]
    assert values(dense_scale, 4, 3, 2) == [1, 0.5, 0]
    assert values(dense_scale, -1, -3) == [1, 0]
    assert values(dense_scale, 0.5, 0.4999999, 0.499999) == [1, 1, 1]  # the same, but for the last bits
    assert values(lexical_scale, 4, 3, 2) == [1, 0.75, 0.5]
    assert values(lexical_scale, 3, -1) == [1, 0]
    assert values(lexical_scale, -1, -3) == [1, 0]
    assert values(lambda _: Scale(0.2, 0.7), 1.2, 0.45, 0.2, 0) == [2, 0.5, 0, -0.4]
    assert values(lambda _: Scale(0.5, 0.5), 0.6, 0.5, 0.4) == [1, 1, 0]


def test_a_scale_of_a_query_is_only_widened_by_the_whole_index() -> None:
    scores = np.array([0.8, 0.79], np.float32)
    np.testing.assert_allclose(dense_scale(scores, 0.1).values(scores), [1, 0.9], atol=1e-6)
    np.testing.assert_allclose(dense_scale(scores, 0.001).values(scores), [1, 0], atol=1e-6)
    np.testing.assert_allclose(dense_scale(scores[:1], 0.1).values(scores[:1]), [1])
    np.testing.assert_allclose(lexical_scale(20 * scores, 8).values(20 * scores), [1, 0.9875], atol=1e-6)
    np.testing.assert_allclose(lexical_scale(scores, 8).values(scores), [0.1, 0.09875], atol=1e-6)


def test_the_scale_does_not_change_when_more_rows_are_fused() -> None:
    scores = np.sort(np.random.default_rng(0).random(800).astype(np.float32))[::-1]
    assert dense_scale(scores) == dense_scale(scores[:FUSED_ROWS])
    assert dense_scale(scores).values(scores)[FUSED_ROWS] < 0
    assert lexical_scale(scores) == lexical_scale(scores[:FUSED_ROWS])
    equal = np.concatenate([np.ones(FUSED_ROWS, np.float32), np.zeros(5, np.float32)])
    assert dense_scale(equal).values(equal).tolist() == [1.0] * FUSED_ROWS + [0.0] * 5


@pytest.mark.system
def test_pages_of_a_default_search_agree(index: scannery.Index) -> None:
    whole = [hit.id for hit in index.search("lava river", 200)]
    pages = [hit.id for at in range(0, 200, 50) for hit in index.search("lava river", 50, offset=at)]
    assert pages == whole
    for options in ({}, {"max_per_group": 20, "group_by": "m"}, {"fusion": "reciprocal_rank"}):
        longest = index.search("lava river", 300, **options)
        for size in (70, 110):
            many = [index.search("lava river", size, offset=at, **options) for at in range(0, 300, size)]
            assert [(hit.id, hit.score) for hits in many for hit in hits] == [
                (hit.id, hit.score) for hit in longest
            ]
    filtered = index.search("lava river", 300, where={"n": {"$lt": 3}})
    assert sorted(hit.id for hit in filtered) == ["d0", "d1", "d2"]


def test_a_weight_of_0_orders_what_words_leave_equal_by_vector(index: scannery.Index) -> None:
    dense = [hit.id for hit in index.search("no such words", 20, mode="dense")]
    assert [hit.id for hit in index.search("no such words", 20, alpha=0)] == dense
    assert {hit.lexical_score for hit in index.search("cloud", 20, alpha=0)} != {None}

"""Lexical and hybrid search: order, filters, crowding, paging, and independence of the sharding."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import Like
from scannery.indexer import Store, parse_spec
from tests.data import clustered, datapoints
from tests.served import MINILM, TEXTS, publish_version

ROWS = 400
VOCABULARY = [f"w{number}" for number in range(60)]
SEEDS = range(30)


def corpus(seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(VOCABULARY))]
    return [" ".join(rng.choices(VOCABULARY, weights, k=rng.randrange(1, 9))) for _ in range(ROWS)]


TEXTS_OF = corpus()
COLUMNS: dict[str, list[Any]] = {
    "text": TEXTS_OF,
    "document_id": [f"doc{row // 4}" for row in range(ROWS)],
    "even": [row % 2 == 0 for row in range(ROWS)],
    "third": [f"t{row % 3}" if row % 5 else None for row in range(ROWS)],
}
IDS = [f"d{row}" for row in range(ROWS)]


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, scannery.Index]:
    """The same datapoints in one shard and in eight; the encoder of `texts` serves queries in words."""
    from scannery.embed import Encoder

    fingerprint = Encoder.load(MINILM, device="cpu").fingerprint.to_dict()
    folder = tmp_path_factory.mktemp("lexical")
    store = Store.open(folder / "store", create=True)
    for shards in (1, 8):
        spec = parse_spec(
            {
                **TEXTS.model_dump(),
                "index": f"words{shards}",
                "lexical": {"language": "none"},
                "attributes": {"even": "bool", "third": "string"},
            }
        )
        table = datapoints(spec, clustered(ROWS, 384), ids=IDS, columns=COLUMNS)
        publish_version(store, spec, table, folder, shards=shards, encoder=fingerprint)
    client = scannery.connect(folder / "store")
    return {shards: client.index(f"words{shards}") for shards in (1, 8)}


def facts(hits: scannery.Hits) -> list[tuple[Any, ...]]:
    return [(hit.id, hit.score, hit.dense_score, hit.lexical_score) for hit in hits]


def query_of(seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choices(VOCABULARY, k=rng.randrange(1, 5)))


@pytest.mark.system
@pytest.mark.parametrize("seed", SEEDS)
def test_lexical_hits_do_not_depend_on_the_shards(indexes: dict[int, scannery.Index], seed: int) -> None:
    query = query_of(seed)
    options: list[dict[str, Any]] = [
        {"k": 10}, {"k": 7, "offset": 3}, {"k": ROWS}, {"k": 10, "where": {"even": True}},
        {"k": 5, "max_per_group": 1}, {"k": 9, "max_per_group": 2, "group_by": "third", "where": {"even": False}},
    ]  # fmt: skip
    for option in options:
        one, eight = (facts(index.search(query, mode="lexical", **option)) for index in indexes.values())
        assert one == eight, option


@pytest.mark.system
@pytest.mark.parametrize("seed", SEEDS)
def test_lexical_hits_are_those_of_a_filtered_and_crowded_full_ranking(
    indexes: dict[int, scannery.Index], seed: int
) -> None:
    rng = random.Random(seed)
    index, query = indexes[8], query_of(seed)
    ranking = index.search(query, ROWS, mode="lexical")
    words = set(query.split())
    assert {hit.id for hit in ranking} == {
        IDS[row] for row in range(ROWS) if words & set(TEXTS_OF[row].split())
    }
    assert [(-hit.score, hit.id) for hit in ranking] == sorted((-hit.score, hit.id) for hit in ranking)
    even, most, offset, k = rng.random() < 0.5, rng.randrange(1, 4), rng.randrange(4), rng.randrange(1, 30)
    floor = rng.choice([None, ranking[len(ranking) // 2].score])
    expected, seen = [], Counter[str]()
    for hit in ranking:
        if hit.attributes["even"] == even and (floor is None or hit.score >= floor):
            seen[hit.document_id] += 1
            if seen[hit.document_id] <= most:
                expected.append(hit.id)
    hits = index.search(
        query, k, mode="lexical", where={"even": even}, max_per_group=most, offset=offset, min_score=floor
    )
    assert [hit.id for hit in hits] == expected[offset : offset + k]


@pytest.mark.system
@pytest.mark.parametrize("fusion", ["reciprocal_rank", "weighted_score"])
@pytest.mark.parametrize("where", [None, {"even": True}, {"third": "t1"}])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_hybrid_is_the_fusion_of_both_rankings(
    indexes: dict[int, scannery.Index], fusion: Any, where: Any, alpha: float
) -> None:
    query = query_of(3)
    answers = []
    for index in indexes.values():
        dense = index.search(query, 200, where=where, mode="dense")
        lexical = index.search(query, 200, where=where, mode="lexical")
        # A filter neither narrows the dense scale nor raises lexical scores.
        whole = index.search(query, 200, mode="dense")
        width = whole[0].score - whole[-1].score if len(dense) < 200 else 0.0
        scales = [
            (min(dense[-1].score, dense[0].score - width), dense[0].score),
            (0.0, index.search(query, 1, mode="lexical")[0].score),
        ]
        expected: dict[str, float] = {}
        for weight, side, (low, high) in zip((alpha, 1 - alpha), (dense, lexical), scales, strict=True):
            for rank, hit in enumerate(side, 1):
                gain = 1 / (60 + rank) if fusion == "reciprocal_rank" else (hit.score - low) / (high - low)
                expected[hit.id] = expected.get(hit.id, 0.0) + weight * gain
        hits = index.search(query, 150, mode="hybrid", fusion=fusion, alpha=alpha, where=where)
        assert len(hits) == min(150, len(expected))
        dense_of, lexical_of = ({hit.id: hit.score for hit in side} for side in (dense, lexical))
        for hit in hits:
            assert hit.score == pytest.approx(expected[hit.id], rel=1e-5, abs=1e-7)
            assert hit.dense_score == pytest.approx(dense_of.get(hit.id), abs=1e-6)
            assert hit.lexical_score == lexical_of.get(hit.id)
        best = sorted(expected.values(), reverse=True)[: len(hits)]
        assert [hit.score for hit in hits] == pytest.approx(best, rel=1e-5, abs=1e-7)
        answers.append([hit.id for hit in hits])
    assert answers[0] == answers[1]


def test_hybrid_gives_k_hits_where_no_word_matches(indexes: dict[int, scannery.Index]) -> None:
    for index in indexes.values():
        assert len(index.search("nothing like it", 25, mode="lexical")) == 0
        hits = index.search("nothing like it", 25, mode="hybrid")
        assert len(hits) == 25
        assert {hit.lexical_score for hit in hits} == {None}


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_crowding_holds_in_every_mode(indexes: dict[int, scannery.Index], mode: Any) -> None:
    for index in indexes.values():
        hits = index.search("w0 w1 w2", 90, mode=mode, max_per_group=1)
        assert len({hit.document_id for hit in hits}) == len(hits) == 90
        everything = index.search("w0 w1 w2", ROWS, mode=mode, max_per_group=4)
        assert len(everything) == (
            ROWS if mode == "hybrid" else len(index.search("w0 w1 w2", ROWS, mode=mode))
        )


def test_pages_of_a_hybrid_search_fit_together(indexes: dict[int, scannery.Index]) -> None:
    whole = facts(indexes[8].search("w0 w5", 60, mode="hybrid"))
    pages = [facts(indexes[8].search("w0 w5", 20, offset=at, mode="hybrid")) for at in (0, 20, 40)]
    assert [hit for page in pages for hit in page] == whole


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_more_like_this_leaves_itself_out(indexes: dict[int, scannery.Index], mode: Any) -> None:
    for index in indexes.values():
        hits = index.search(Like("d7"), 20, mode=mode)
        assert "d7" not in [hit.id for hit in hits]
        shared = set(TEXTS_OF[7].split()) & set((hits[0].text or "").split())
        assert shared


def test_many_queries_get_what_each_one_gets(indexes: dict[int, scannery.Index]) -> None:
    queries = [query_of(seed) for seed in range(5)]
    for mode in ("lexical", "hybrid"):
        many = indexes[8].search_many(queries, 8, mode=mode)
        for query, hits in zip(queries, many, strict=True):
            single = indexes[8].search(query, 8, mode=mode)
            assert [hit.id for hit in hits] == [hit.id for hit in single]


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"query": np.ones(384), "mode": "lexical"}, "query", "lexical search needs a text"),
        ({"query": np.ones(384), "mode": "hybrid"}, "query", "hybrid search needs a text"),
        ({"alpha": 0.5, "mode": "dense"}, "alpha", "is for hybrid search, the mode is dense"),
        ({"query": np.ones(384), "alpha": 0.5}, "query", "hybrid search needs a text"),
        ({"fusion": "weighted_score", "mode": "lexical"}, "fusion", "the mode is lexical"),
        ({"fusion": "average", "mode": "hybrid"}, "fusion", "must be one of weighted_score, reciprocal_rank"),
        ({"alpha": 1.5, "mode": "hybrid"}, "alpha", "must be 0 to 1, got 1.5"),
        ({"alpha": float("nan"), "mode": "hybrid"}, "alpha", "must be finite"),
    ],
)
def test_wrong_options_are_clear_errors(
    indexes: dict[int, scannery.Index], options: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match=message) as caught:
        indexes[8].search(**{"query": "words", **options})
    assert caught.value.field == field


def test_an_index_without_words_says_what_to_do(texts: Path) -> None:
    index = scannery.connect(texts).index("texts")
    assert index.stats().lexical is False
    for mode in ("lexical", "hybrid"):
        with pytest.raises(scannery.FailedPreconditionError, match="build it with `lexical: true`") as caught:
            index.search("words", mode=mode)
        assert caught.value.field == "mode"


def test_an_index_with_words_says_so(indexes: dict[int, scannery.Index]) -> None:
    assert indexes[1].stats().lexical is True

"""Hybrid search where a filter leaves one row or a few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import testing

QUERY = "lava from the volcano"
TEXTS = [
    "volcano eruptions and lava flows",
    "lava lamp in the shop",
    "river bank",
    "the cat sat on the mat",
    "bank of clouds",
    *(f"filler number w{row} cloud river" for row in range(300)),
]


@pytest.fixture(scope="module")
def index() -> Iterator[scannery.Index]:
    documents = [{"id": f"d{row}", "text": text, "attributes": {"n": row}} for row, text in enumerate(TEXTS)]
    with testing.client(documents) as client:
        yield client.index("test")


def scores(index: scannery.Index, rows: list[int], **options: Any) -> dict[str, float]:
    hits = index.search(QUERY, 10, where={"n": {"$in": rows}}, **options)
    found = [hit.score for hit in hits]
    assert found == sorted(found, reverse=True)
    return {hit.id: hit.score for hit in hits}


@pytest.mark.system
def test_a_poor_match_alone_has_no_full_score(index: scannery.Index) -> None:
    everything = index.search(QUERY, 1, alpha=0.5)[0].lexical_score
    [hit] = index.search(QUERY, 1, alpha=0.5, where={"n": 3})  # has only "the"
    assert everything is not None
    assert hit.lexical_score is not None
    assert hit.score == pytest.approx(0.5 + 0.5 * hit.lexical_score / best_lexical(index), abs=1e-6)
    assert hit.score < 0.9


def best_lexical(index: scannery.Index) -> float:
    return index.search(QUERY, 1, mode="lexical")[0].score


def test_small_differences_of_two_rows_stay_small(index: scannery.Index) -> None:
    """Without a filter the range from place 1 to 200 has the width 1; it has it for two rows too."""
    dense = [hit.score for hit in index.search(QUERY, 200, mode="dense")]
    pair = index.search(QUERY, 2, mode="dense", where={"n": {"$in": [100, 101]}})
    fused = scores(index, [100, 101], alpha=0.5)
    wanted = 0.5 * (pair[0].score - pair[1].score) / (dense[0] - dense[199])
    assert wanted < 0.4
    assert fused[pair[0].id] - fused[pair[1].id] == pytest.approx(wanted, abs=1e-5)


def test_few_rows_keep_the_order_that_they_have_without_a_filter(index: scannery.Index) -> None:
    order = [hit.id for hit in index.search(QUERY, len(TEXTS), alpha=0.5)]
    for rows in ([0], [0, 3], [1, 2, 3], [0, 1, 2, 3, 4], [7, 8, 9]):
        wanted = [name for name in order if int(name[1:]) in rows]
        assert list(scores(index, rows, alpha=0.5)) == wanted


@pytest.mark.system
def test_a_scale_is_the_same_for_each_page_and_in_a_batch(index: scannery.Index) -> None:
    where = {"n": {"$lt": 150}}
    whole = [(hit.id, hit.score) for hit in index.search(QUERY, 150, where=where)]
    pages = [
        (hit.id, hit.score)
        for offset in range(0, 150, 50)
        for hit in index.search(QUERY, 50, offset=offset, where=where)
    ]
    assert pages == whole
    [first, second] = index.search_many([QUERY, "river bank"], 5, where=where)
    assert [(hit.id, hit.score) for hit in first] == whole[:5]
    alone = index.search("river bank", 5, where=where)
    assert [(hit.id, hit.score) for hit in second] == [(hit.id, hit.score) for hit in alone]


def test_filters_that_leave_nothing_or_everything(index: scannery.Index) -> None:
    assert scores(index, [-1]) == {}
    unfiltered = [(hit.id, hit.score) for hit in index.search(QUERY, 20)]
    assert [(hit.id, hit.score) for hit in index.search(QUERY, 20, where={"n": {"$gte": 0}})] == unfiltered


@pytest.mark.system
def test_deleted_rows_set_no_scale() -> None:
    documents = [
        {"id": f"d{row}", "text": text, "attributes": {"n": row}} for row, text in enumerate(TEXTS[:5])
    ]
    with testing.client(documents) as client:
        index = client.index("test")
        before = index.search(QUERY, 1, where={"n": 3}, alpha=0.5)[0].score
        index.delete(["d0", "d1"])
        after = index.search(QUERY, 1, where={"n": 3}, alpha=0.5)[0].score
    assert before < 0.95
    assert np.isclose(after, 1.0)


@pytest.fixture(scope="module")
def many_matches() -> Iterator[scannery.Index]:
    texts = [
        "apple " * (1 + row % 4) + f"pear w{row % 9}" if row % 2 else f"stone w{row % 9} cloud x{row}"
        for row in range(1500)
    ]
    with testing.client([{"id": f"d{row}", "text": text} for row, text in enumerate(texts)]) as client:
        yield client.index("test")


@pytest.mark.system
@pytest.mark.parametrize("fusion", ["weighted_score", "reciprocal_rank"])
@pytest.mark.parametrize(("alpha", "mode"), [(0, "lexical"), (1, "dense")])
def test_all_rows_of_the_ranking_with_all_the_weight_come_first(
    many_matches: scannery.Index, alpha: float, mode: Any, fusion: Any
) -> None:
    """Also after the first 200 rows, which are fused apart from those that follow."""
    alone = {hit.id: hit.score for hit in many_matches.search("apple w3", 900, mode=mode)}
    whole = list(many_matches.search("apple w3", 900, mode="hybrid", alpha=alpha, fusion=fusion))
    assert {hit.id for hit in whole[: len(alone)]} == set(alone)
    scores = [alone[hit.id] for hit in whole[: len(alone)]]
    assert scores == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
    fused = [hit.score for hit in whole]
    assert fused == sorted(fused, reverse=True)
    pages = [
        hit.id
        for offset in range(0, 900, 300)
        for hit in many_matches.search(
            "apple w3", 300, offset=offset, mode="hybrid", alpha=alpha, fusion=fusion
        )
    ]
    assert pages == [hit.id for hit in whole]

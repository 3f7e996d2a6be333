"""Searches with a ranking expression find the best rows by its value, however far down these are by score."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.serving.engine import local_signals, signal_ranking

pytestmark = pytest.mark.system

ROWS, DIMENSIONS = 3000, 16
NOW = dt.datetime.now(dt.UTC)
WORDS = ["river", "volcano", "island", "harbour", "forest"]


def rows() -> list[Any]:
    rng = np.random.default_rng(3)
    vectors_ND = rng.normal(size=(ROWS, DIMENSIONS)).astype(np.float32)
    plays_N = np.exp(rng.normal(4, 2, ROWS)).astype(int)
    points = []
    for row in range(ROWS):
        attributes: dict[str, Any] = {"show": f"s{row % 7}", "live": row % 3 == 0}
        if row % 5:
            attributes["plays"] = int(plays_N[row])
        if row % 4:
            attributes["published"] = NOW - dt.timedelta(days=float(rng.exponential(200)))
        text = " ".join(rng.choice(WORDS, 1 + row % 6)) + f" w{row % 11}"
        points.append({"id": f"d{row:05}", "vector": vectors_ND[row], "text": text, "attributes": attributes})
    return points


POINTS: list[Any] = rows()
QUERY = np.random.default_rng(4).normal(size=DIMENSIONS).astype(np.float32)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[scannery.Index]:
    store: Path = tmp_path_factory.mktemp("ranking")
    with scannery.connect(store, create=True) as client:
        created = client.create_index(
            "ranked",
            dimensions=DIMENSIONS,
            lexical=True,
            attributes={"plays": "int", "published": "timestamp", "show": "string", "live": "bool"},
            search={"ranking": {"fresh": [{"attribute": "published", "decay": "90d", "weight": 0.5}]}},
        )
        created.upsert_many(POINTS)
        created.delete(["d00003", "d00013"])
        yield created


def signal(point: dict[str, Any], name: str) -> float:
    attributes = point["attributes"]
    if name == "plays":
        return math.log(1 + attributes.get("plays", 0))
    if name == "published":
        if "published" not in attributes:
            return 0.0
        return 0.5 ** ((NOW - attributes["published"]).total_seconds() / (90 * 86400))
    return float(attributes["show"] == "s1")


CASES: list[tuple[str, Any]] = [
    ("score", lambda s, p: s),
    ("score + 0.05 * log(1 + plays)", lambda s, p: s + 0.05 * signal(p, "plays")),
    ("score + 0.9 * log(1 + plays)", lambda s, p: s + 0.9 * signal(p, "plays")),
    (
        "score * (1 + 0.3 * log(1 + plays)) + 0.2 * decay(published, '90d')",
        lambda s, p: s * (1 + 0.3 * signal(p, "plays")) + 0.2 * signal(p, "published"),
    ),
    ("score + 0.3 * (show == 's1')", lambda s, p: s + 0.3 * signal(p, "show")),
    ("log(1 + plays)", lambda s, p: signal(p, "plays")),
    ("-score", lambda s, p: -s),
    ("0 if live else score", lambda s, p: 0 if p["attributes"]["live"] else s),
    ("abs(score - 0.2) - 0.1 * log(1 + plays)", lambda s, p: abs(s - 0.2) - 0.1 * signal(p, "plays")),
]
WHERES: list[Any] = [None, {"show": "s2"}, {"plays": {"$gt": 2000}}, {"published": {"$exists": False}}]


@pytest.mark.parametrize("where", WHERES, ids=str)
@pytest.mark.parametrize(("expression", "function"), CASES, ids=[text for text, _ in CASES])
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_hits_are_the_best_by_value(
    index: scannery.Index, mode: Any, expression: str, function: Any, where: Any
) -> None:
    query = scannery.Words("volcano harbour w3", QUERY if mode != "lexical" else None)
    options: dict[str, Any] = {"mode": mode, "where": where, "fusion": "weighted_score"}
    if mode != "hybrid":
        del options["fusion"]
    everything = index.search(query, ROWS, **options)
    points = {point["id"]: point for point in POINTS}
    values = {hit.id: function(hit.score, points[hit.id]) for hit in everything}
    expected = sorted(values, key=lambda name: (-np.float32(values[name]), name))
    assert not {"d00003", "d00013"} & set(expected)
    hits = index.search(query, 20, ranking=expression, explain=True, **options)
    assert hits.unseen_bound is None
    got = [values[hit.id] for hit in hits]
    assert got == pytest.approx([values[name] for name in expected[:20]], abs=2e-3)
    scores = {hit.id: hit.score for hit in everything}
    for hit in hits:
        assert hit.score == pytest.approx(values[hit.id], abs=2e-3)
        assert hit.base_score == pytest.approx(scores[hit.id], abs=1e-5)
    assert hits.explanation is not None
    assert hits.explanation.ranking is not None
    assert hits.explanation.ranking.expression == expression


@pytest.mark.parametrize(
    "ranking", ["0.1 if score > -9 else 0", "0.1 * (score > -9 and plays >= 0)", "min(score + 9, 0.1)"]
)
def test_equal_values_are_in_the_order_of_ids(index: scannery.Index, ranking: str) -> None:
    # 0.1 is less than the nearest float32: as float64, no bound would reach the value of a hit.
    hits = index.search(QUERY, 20, ranking=ranking)
    names = [point["id"] for point in POINTS if point["id"] not in {"d00003", "d00013"}]
    assert [hit.id for hit in hits] == names[:20]


@pytest.mark.parametrize(
    "ranking",
    [
        "score * exp(plays)",
        "min(score, 0) * exp(plays)",
        "score + price",
        "score - price * 1e30 + price * 1e30",
    ],
)
def test_values_are_finite_for_the_largest_numbers(tmp_path: Path, ranking: str) -> None:
    prices = [1.7e308, -1.7e308, math.inf, -math.inf, 5e-324, 0.0, 1.0]
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index(
            "large", dimensions=DIMENSIONS, attributes={"plays": "int", "price": "float"}
        )
        index.upsert_many(
            {"id": f"d{row}", "vector": POINTS[row]["vector"], "attributes": {"plays": plays, "price": price}}
            for row, (price, plays) in enumerate(
                zip(prices, [2**62, -(2**62), 0, 9, 99, 999, 9999], strict=True)
            )
        )
        hits = index.search(QUERY, 10, ranking=ranking)
    assert len(hits) == len(prices)
    assert all(math.isfinite(hit.score) for hit in hits)


def test_pages_batches_groups_and_least_scores_follow_the_order(index: scannery.Index) -> None:
    ranking = "score + 0.2 * log(1 + plays)"
    whole = [hit.id for hit in index.search(QUERY, 60, ranking=ranking)]
    pages = [hit.id for at in range(0, 60, 20) for hit in index.search(QUERY, 20, offset=at, ranking=ranking)]
    assert pages == whole
    [first, second] = index.search_many([QUERY, -QUERY], 60, ranking=ranking)
    assert [hit.id for hit in first] == whole
    assert second[0].base_score != first[0].base_score
    grouped = index.search(QUERY, 14, ranking=ranking, max_per_group=2, group_by="show")
    shows = [hit.attributes["show"] for hit in grouped]
    assert all(shows.count(show) == 2 for show in shows)
    least = first[9].score
    assert [hit.id for hit in index.search(QUERY, 60, ranking=ranking, min_score=least)] == whole[:10]
    like = index.search(scannery.Like("d00001"), 60, ranking=ranking)
    assert "d00001" not in [hit.id for hit in like]


def test_names_of_the_spec_and_boosts_are_the_same_as_expressions(index: scannery.Index) -> None:
    fresh = index.search(QUERY, 20, ranking="fresh")
    for same in (
        {"boost": [{"attribute": "published", "decay": "90d", "weight": 0.5}]},
        {"ranking": "score + 0.5 * decay(published, '90d')"},
    ):
        hits = index.search(QUERY, 20, **same)
        assert [hit.id for hit in hits] == [hit.id for hit in fresh]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in fresh], abs=1e-6)
    with pytest.raises(scannery.InvalidArgumentError, match="the index has the rankings fresh"):
        index.search(QUERY, 20, ranking="frsh")
    with pytest.raises(scannery.InvalidArgumentError, match="give one of both"):
        index.search(QUERY, 20, ranking="fresh", boost=[{"attribute": "plays", "weight": 1}])
    with pytest.raises(scannery.InvalidArgumentError, match="boost: .*no key"):
        index.search(QUERY, 20, boost=[{"attribute": "plays", "wait": 1}])


def test_texts_that_are_no_times_are_refused_before_anything_is_searched(index: scannery.Index) -> None:
    for where in (None, {"show": "nowhere"}):
        with pytest.raises(scannery.InvalidArgumentError, match=r"ranking.*must be a timestamp"):
            index.search(QUERY, 20, where=where, ranking="score + (published > 'yesterday')")


@pytest.mark.parametrize("name", ["score", "now", "plays"])
def test_a_ranking_has_no_name_that_means_something_else(index: scannery.Index, name: str) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="take another name"):
        index.alter(search={"ranking": {name: "score + 1"}})


def test_a_search_that_stops_says_what_it_has_not_read(
    index: scannery.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal_ranking, "MAX_ROWS", 64)
    monkeypatch.setattr(local_signals, "FEW_ROWS", 100)
    hits = index.search(QUERY, 20, ranking="-score", explain=True)
    assert hits.unseen_bound is not None
    assert hits.unseen_bound >= hits[-1].score
    assert hits.explanation is not None
    assert hits.explanation.ranking is not None
    assert hits.explanation.ranking.unseen_bound == hits.unseen_bound
    [one, other] = index.search_many([QUERY, -QUERY], 20, ranking="-score")
    assert one.unseen_bound == pytest.approx(hits.unseen_bound)
    assert other.unseen_bound is not None

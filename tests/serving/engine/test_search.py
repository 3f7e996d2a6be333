"""The engine against brute force: filters, crowding, offset, min_score, ties, queries by id."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.client.request.calls import search, search_many
from scannery.indexer import Store, parse_spec, unit_length, vectors_of
from scannery.runtime.retry import Deadline
from scannery.serving import DeadlineError, InvalidRequestError, UnknownDatapointError
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.services.search import Service
from scannery.v1 import search_pb2 as pb
from tests.data import clustered, datapoints, first_quick, repeated
from tests.served import DIMENSIONS, library_table, publish_version
from tests.serving.snapshot.test_filter_cache import RECORDS, matches

TABLE = library_table()
VECTORS_ND = unit_length(vectors_of(TABLE))
ROW_OF = {record["id"]: row for row, record in enumerate(RECORDS)}


@pytest.fixture(scope="module")
def service(library: Path) -> Service:
    return Service(open_embedded_catalog(library))


def ask(
    service: Service, query: Any, k: int = 10, *, index: str = "library", **options: Any
) -> pb.SearchResponse:
    return service.search(search(index, query, k, **options).request, Deadline.after(60))


def found(response: pb.SearchResponse | pb.HitList) -> list[tuple[str, float]]:
    return [(hit.datapoint.id, hit.score) for hit in response.hits]


def oracle(
    query_D: np.ndarray,
    k: int,
    *,
    where: dict[str, Any] | None = None,
    offset: int = 0,
    min_score: float | None = None,
    max_per_group: int | None = None,
    group_by: str | None = None,
    without: str | None = None,
) -> list[str]:
    """Return the right ids, by score and then by id, as a few lines of Python find them."""
    scores_N = (unit_length(query_D[None]) @ VECTORS_ND.T)[0]
    ids = sorted(
        (r["id"] for r in RECORDS), key=lambda name: (-round(float(scores_N[ROW_OF[name]]), 5), name)
    )
    ids = [name for name in ids if matches(RECORDS[ROW_OF[name]], where or {}) and name != without]
    if min_score is not None:
        ids = [name for name in ids if scores_N[ROW_OF[name]] >= min_score]
    if max_per_group is not None:
        seen: Counter[Any] = Counter()
        crowded = []
        for name in ids:
            group = RECORDS[ROW_OF[name]][group_by or "document_id"]
            group = name if group is None else ("group", group)
            seen[group] += 1
            if seen[group] <= max_per_group:
                crowded.append(name)
        ids = crowded
    return ids[offset : offset + k]


def same_up_to_rounding(actual: list[tuple[str, float]], expected: list[str], query_D: np.ndarray) -> None:
    """Compare by score: rounding may swap neighbours that are equal within 1e-5."""
    scores_N = (unit_length(query_D[None]) @ VECTORS_ND.T)[0]
    assert len(actual) == len(expected)
    assert len({name for name, _ in actual}) == len(actual)
    for (name, score), right in zip(actual, expected, strict=True):
        assert score == pytest.approx(float(scores_N[ROW_OF[name]]), abs=2e-6)
        assert score == pytest.approx(float(scores_N[ROW_OF[right]]), abs=1e-5)


def random_options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if rng.random() < 0.6:
        options["where"] = rng.choice(
            [
                {"show": "gotime"},
                {"year": {"$gte": 2023}},
                {"tags": {"$in": ["a", "b"]}},
                {"$not": {"live": True}},
                {"id": {"$in": ["d1", "d2", "d3", "d10", "nothing"]}},
                {"document_id": "doc7"},
                {"year": 1},
            ]
        )
    if rng.random() < 0.5:
        options["max_per_group"] = rng.choice([1, 2, 5])
        options["group_by"] = rng.choice([None, "show", "year", "live", "published"])
    if rng.random() < 0.4:
        options["offset"] = rng.choice([1, 7, 100, 590, 5000])
    if rng.random() < 0.3:
        options["min_score"] = rng.choice([-1.0, 0.0, 0.3, 0.7, 1.5])
    return options


@pytest.mark.parametrize("seed", first_quick(range(50 + repeated(150)), 50))
def test_answers_equal_brute_force(service: Service, seed: int) -> None:
    rng = random.Random(seed)
    query_D = np.random.default_rng(seed).normal(size=DIMENSIONS).astype(np.float32)
    k = rng.choice([1, 3, 10, 100, 599, 600, 10_000])
    options = random_options(rng)
    response = ask(service, query_D, k, exact=rng.random() < 0.3, **options)
    same_up_to_rounding(found(response), oracle(query_D, k, **options), query_D)


def test_equal_scores_come_by_id(service: Service) -> None:
    twins = sorted(f"d{row}" for row in [3, *range(7, 600, 50)])
    hits = found(ask(service, VECTORS_ND[3], len(twins)))
    assert len({score for _, score in hits}) == 1
    assert [name for name, _ in hits] == twins


def test_a_query_by_id_leaves_the_datapoint_itself_out(service: Service) -> None:
    from scannery import Like

    query_D = VECTORS_ND[ROW_OF["d42"]]
    for options in ({}, {"max_per_group": 1}, {"where": {"document_id": "doc8"}}, {"offset": 3}):
        hits = found(ask(service, Like("d42"), 4, **options))
        same_up_to_rounding(hits, oracle(query_D, 4, without="d42", **options), query_D)
    with pytest.raises(UnknownDatapointError, match="query: index 'library' has no datapoint 'nobody'"):
        ask(service, Like("nobody"))


def test_many_queries_get_the_answers_of_each(service: Service) -> None:
    queries_QD = np.random.default_rng(1).normal(size=(20, DIMENSIONS)).astype(np.float32)
    options: dict[str, Any] = {"where": {"live": True}, "max_per_group": 1}
    many = service.search_many(search_many("library", queries_QD, 5, **options).request, Deadline.after(60))
    for query_D, result in zip(queries_QD, many.results, strict=True):
        same_up_to_rounding(found(result), oracle(query_D, 5, **options), query_D)


def test_each_query_may_have_a_filter_of_its_own(service: Service) -> None:
    from scannery.client.request.filters import build_filter

    queries_QD = np.random.default_rng(2).normal(size=(6, DIMENSIONS)).astype(np.float32)
    own: list[dict[str, Any]] = [
        {},
        {"show": "gotime"},
        {"show": "jsparty"},
        {},
        {"show": "gotime"},
        {"year": 1},
    ]
    request = search_many("library", queries_QD, 5, where={"live": True}).request
    request.where_each.extend(build_filter(where) for where in own)
    many = service.search_many(request, Deadline.after(60))
    for query_D, where, result in zip(queries_QD, own, many.results, strict=True):
        expected = oracle(query_D, 5, where={"live": True, **where})
        same_up_to_rounding(found(result), expected, query_D)
    del request.where_each[0]
    with pytest.raises(
        InvalidRequestError, match="where_each: must have one filter for each of 6 queries, got 5"
    ):
        service.search_many(request, Deadline.after(60))


def test_hits_say_what_they_were_grouped_by(service: Service) -> None:
    query_D = VECTORS_ND[0]
    for hit in ask(service, query_D, 50, max_per_group=3, group_by="year").hits:
        year = RECORDS[ROW_OF[hit.datapoint.id]]["year"]
        assert hit.HasField("group") == (year is not None)
        assert hit.group.int_value == (year or 0)
    assert ask(service, query_D, 1, max_per_group=1).hits[0].group.string_value == "doc0"
    assert not ask(service, query_D, 1).hits[0].HasField("group")


def test_an_expired_deadline_stops_the_work(service: Service) -> None:
    with pytest.raises(DeadlineError):
        service.search(search("library", VECTORS_ND[0], 1).request, Deadline.after(0))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Service, np.ndarray]:
    """A segment large enough for ScaNN, whose rows have a rare attribute."""
    folder = tmp_path_factory.mktemp("large")
    spec = parse_spec(
        {
            "index": "large",
            "source": {"id": "id", "vector": "v"},
            "attributes": {"part": "int"},
            "distance": "dot",
        }
    )
    vectors_ND = clustered(21_000, DIMENSIONS, seed=3)
    columns: dict[str, list[Any]] = {
        "part": [row % 1000 for row in range(21_000)],
        "document_id": ["one"] * 20_990 + list("abcdefghij"),
    }
    store = Store.open(folder / "store", create=True)
    manifest = publish_version(store, spec, datapoints(spec, vectors_ND, columns=columns), folder)
    assert manifest.segments[0].kind == "scann"
    return Service(open_embedded_catalog(folder / "store")), vectors_ND


@pytest.mark.system
def test_scann_recalls_what_it_promises(large: tuple[Service, np.ndarray]) -> None:
    service, vectors_ND = large
    rng = np.random.default_rng(4)
    queries_QD = vectors_ND[rng.integers(0, len(vectors_ND), 200)] + rng.normal(0, 0.3, (200, DIMENSIONS))
    many = service.search_many(search_many("large", queries_QD, 10).request, Deadline.after(60))
    true_QK = np.argsort(-(queries_QD.astype(np.float32) @ vectors_ND.T), axis=1)[:, :10]
    right = [
        len({name for name, _ in found(result)} & {f"d{row}" for row in true_K})
        for result, true_K in zip(many.results, true_QK.tolist(), strict=True)
    ]
    assert np.mean(right) / 10 >= 0.93


@pytest.mark.system
@pytest.mark.parametrize("k", [1, 21, 22, 3000])
def test_a_rare_filter_gets_every_hit_there_is(large: tuple[Service, np.ndarray], k: int) -> None:
    service, vectors_ND = large
    query_D = -vectors_ND[7]  # far away from all of them, where no leaf that is searched has them
    hits = found(ask(service, query_D, k, index="large", where={"part": 7}))
    allowed = np.arange(7, 21_000, 1000)
    scores = np.sort(vectors_ND[allowed] @ query_D)[::-1][:k]
    assert len(hits) == min(k, 21)
    assert [score for _, score in hits] == pytest.approx(scores.tolist(), rel=1e-4, abs=1e-4)


def test_crowding_finds_the_small_groups_behind_a_huge_one(large: tuple[Service, np.ndarray]) -> None:
    service, _ = large
    hits = ask(service, clustered(1, DIMENSIONS, seed=8)[0], 11, index="large", max_per_group=1).hits
    assert sorted(hit.group.string_value for hit in hits) == [*"abcdefghij", "one"]


def test_exact_is_exact(large: tuple[Service, np.ndarray]) -> None:
    service, vectors_ND = large
    query_D = clustered(1, DIMENSIONS, seed=11)[0]
    hits = found(ask(service, query_D, 50, index="large", exact=True))
    assert [score for _, score in hits] == pytest.approx(
        np.sort(vectors_ND @ query_D)[::-1][:50].tolist(), rel=1e-5
    )


def test_many_hits_are_as_many_as_asked_for(large: tuple[Service, np.ndarray]) -> None:
    service, _ = large
    assert len(ask(service, clustered(1, DIMENSIONS)[0], 10_000, index="large").hits) == 10_000
    last = ask(service, clustered(1, DIMENSIONS)[0], 10_000, index="large", offset=10_000)
    assert len(last.hits) == 10_000

"""Batches in parts: the answers of one thread, deadlines between parts, and errors of one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.client.request.calls import search_many
from scannery.client.request.filters import build_filter
from scannery.indexer import Segment, Store, parse_spec
from scannery.runtime.retry import Deadline
from scannery.serving import DeadlineError
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.engine import search as engine
from scannery.serving.engine.segment_search import QueryPaths
from scannery.serving.scheduling import idle_cores
from scannery.serving.scheduling.permits import CallerGoneError, Permit
from scannery.serving.services import batches
from scannery.serving.services.batches import Batches
from scannery.serving.services.search import Service
from scannery.v1 import search_pb2 as pb
from tests.data import clustered, datapoints
from tests.served import DIMENSIONS, publish_version

QUERIES = clustered(100, DIMENSIONS, seed=9)


@pytest.fixture(autouse=True)
def machine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_cores, "LOST_S", 1000.0)


@contextmanager
def served(store: Path, cores: int) -> Iterator[Service]:
    service = Service(open_embedded_catalog(store))
    service._batches.close()
    service._batches = Batches(cores)
    yield service
    service.close()


@pytest.fixture(scope="module")
def alone(library: Path) -> Iterator[Service]:
    """A service whose batches are searched in one thread."""
    with served(library, 1) as service:
        yield service


@pytest.fixture(scope="module")
def spread(library: Path) -> Iterator[Service]:
    """A service whose batches have three helpers."""
    with served(library, 4) as service:
        yield service


def ask(service: Service, queries: Any = QUERIES, k: int = 10, **options: Any) -> pb.SearchManyResponse:
    return service.search_many(search_many("library", queries, k, **options).request, Deadline.after(60))


@pytest.mark.system
@pytest.mark.parametrize(
    "options",
    [
        {"exact": True},
        {"exact": True, "fields": []},
        {"exact": True, "return_vectors": True},
        {"exact": True, "where": {"live": True}},
        {"exact": True, "where": {"live": True}, "max_per_group": 1, "offset": 2},
        {"exact": True, "min_score": 0.5},
        {"exact": True, "where": {"show": "no such show"}},
    ],
)
def test_many_threads_answer_what_one_does(
    alone: Service, spread: Service, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(batches, "ALONE", 1000)
        context.setattr(batches, "LARGER_PARTS", 1000)
        whole = ask(alone, **options)
    parts = ask(spread, **options)
    # Rounding of sums depends on how many queries are multiplied together.
    for one, other in zip(whole.results, parts.results, strict=True):
        assert [hit.datapoint.id for hit in one.hits] == [hit.datapoint.id for hit in other.hits]
        np.testing.assert_allclose(
            [hit.score for hit in one.hits], [hit.score for hit in other.hits], atol=1e-5
        )
        assert [hit.datapoint for hit in one.hits] == [hit.datapoint for hit in other.hits]
    assert (whole.version, whole.sequence, whole.modes) == (parts.version, parts.sequence, parts.modes)


def test_queries_with_filters_of_their_own_are_searched_in_parts(
    alone: Service, spread: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: list[dict[str, Any]] = [
        {},
        {"show": "gotime"},
        {"show": "no such show"},
        {"live": True},
        {"show": "gotime"},
    ] * 20
    request = search_many("library", QUERIES, 5, exact=True, where={"live": True}).request
    request.where_each.extend(build_filter(where) for where in own)
    parts: list[int] = []
    searched = engine.search

    def search(prepared: Any, batch: Any, filters: Any) -> Any:
        parts.append(len(filters))
        return searched(prepared, batch, filters)

    monkeypatch.setattr(batches, "search", search)
    answer = spread.search_many(request, Deadline.after(60))
    assert parts == [25, 25, 25, 25]
    monkeypatch.setattr(batches, "ALONE", 1000)
    monkeypatch.setattr(batches, "LARGER_PARTS", 1000)
    whole = alone.search_many(request, Deadline.after(60))
    assert parts[4:] == [100]
    assert [[hit.datapoint.id for hit in hits.hits] for hits in answer.results] == [
        [hit.datapoint.id for hit in hits.hits] for hits in whole.results
    ]
    assert [len(hits.hits) for hits in answer.results[:4]] == [5, 5, 0, 5]


@pytest.mark.system
@pytest.mark.parametrize("count", [1, 2, 24, 25, 37, 38, 51, 99])
def test_every_query_has_an_answer_in_its_place(spread: Service, count: int) -> None:
    answer = ask(spread, QUERIES[:count], exact=True, fields=[])
    singles = [ask(spread, query_D[None], exact=True, fields=[]).results[0] for query_D in QUERIES[:count]]
    assert [hits.hits[0].datapoint.id for hits in answer.results] == [
        hits.hits[0].datapoint.id for hits in singles
    ]


def test_parts_are_searched_in_several_threads(spread: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, gate = set[int](), threading.Barrier(4)
    search = Segment.find

    def find(*arguments: Any, **named: Any) -> Any:
        if len(threads) < 4:
            threads.add(threading.get_ident())
            gate.wait(60)
        return search(*arguments, **named)

    monkeypatch.setattr(batches, "LARGER_PARTS", 10)
    monkeypatch.setattr(Segment, "find", find)
    ask(spread, where={"live": True})
    assert len(threads) == 4


@pytest.mark.system
def test_texts_are_encoded_together_and_searched_in_parts(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(open_embedded_catalog(texts))
    parts: list[int] = []
    searched = engine.search

    def search(prepared: Any, batch: Any, *filters: Any) -> Any:
        parts.append(len(batch.queries))
        return searched(prepared, batch, *filters)

    monkeypatch.setattr(batches, "search", search)
    monkeypatch.setattr(batches, "ALONE", 10)
    monkeypatch.setattr(batches, "PART_QUERIES", 10)
    asked = [f"text number {number}" for number in range(30)]
    answer = service.search_many(search_many("texts", asked, 3, mode="dense").request, Deadline.after(60))
    assert sum(parts) == len(answer.results) == 30
    assert len(parts) > 1
    assert answer.modes == [pb.MODE_DENSE]
    service.close()


def test_the_deadline_is_checked_between_parts(spread: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, lock = 0.0, threading.Lock()
    searched = engine.search

    def search(*arguments: Any) -> Any:
        nonlocal now_s
        with lock:
            now_s += 1
        return searched(*arguments)

    monkeypatch.setattr(batches, "search", search)
    request = search_many("library", QUERIES, 10).request
    with pytest.raises(DeadlineError):
        spread.search_many(request, Deadline(2.5, lambda: now_s))
    assert now_s < 8  # the part of each of four threads that was begun, and no more


def test_parts_are_not_begun_for_a_caller_that_hung_up(
    spread: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched, begun = engine.search, list[int]()

    def search(*arguments: Any) -> Any:
        begun.append(1)
        return searched(*arguments)

    monkeypatch.setattr(batches, "search", search)
    permit = Permit(threading.Semaphore(1), Deadline.after(60), lambda: not begun)
    with permit, pytest.raises(CallerGoneError):
        ask(spread)
    assert len(begun) <= 4


def test_an_error_in_one_part_is_the_error_of_the_batch(
    spread: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = engine.search

    def search(prepared: Any, batch: Any, *filters: Any) -> Any:
        if "queries[40]" in batch.paths:
            raise DeadlineError("part of query 40")
        return searched(prepared, batch, *filters)

    monkeypatch.setattr(batches, "search", search)
    with pytest.raises(DeadlineError, match="query 40"):
        ask(spread)
    monkeypatch.undo()
    assert len(ask(spread).results) == len(QUERIES)


@pytest.mark.system
def test_recall_of_parts_is_that_of_the_index(tmp_path: Path) -> None:
    """ScaNN's hits depend on the batch; their recall does not."""
    spec = parse_spec(
        {
            "index": "library",
            "source": {"id": "id", "vector": "v"},
            "distance": "squared_l2",
            "scann": {"exact_below_rows": 1000},
        }
    )
    vectors_ND = clustered(2000, DIMENSIONS)
    publish_version(Store.open(tmp_path / "store", create=True), spec, datapoints(spec, vectors_ND), tmp_path)
    recalls = []
    for cores in (1, 4):
        with served(tmp_path / "store", cores) as service:
            found, true = ask(service, fields=[]), ask(service, fields=[], exact=True)
        shares = [
            len({hit.datapoint.id for hit in one.hits} & {hit.datapoint.id for hit in other.hits}) / 10
            for one, other in zip(found.results, true.results, strict=True)
        ]
        recalls.append(np.mean(shares))
    assert recalls[1] > recalls[0] - 0.03


def test_the_names_of_queries_are_those_of_the_request() -> None:
    paths = QueryPaths(range(100))
    assert list(paths) == [f"queries[{number}]" for number in range(100)]
    assert (len(paths), paths[7], paths[-1]) == (100, "queries[7]", "queries[99]")
    part = paths[25:50]
    assert (len(part), part[0], part[3:5][1]) == (25, "queries[25]", "queries[29]")
    with pytest.raises(IndexError):
        part[25]

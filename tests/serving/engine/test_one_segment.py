"""The early return of searches of one segment against the general search, which `explain` asks for."""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scannery.client.request.calls import search, search_many
from scannery.indexer import Store, parse_spec
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.engine import search as engine
from scannery.serving.engine.segment_search import PreparedSearch, SearchPlan
from scannery.serving.request.query import parse_query
from scannery.serving.services.search import Service
from scannery.serving.snapshot.filter_cache import FilterCache
from scannery.serving.snapshot.search_times import QUICK_S
from scannery.serving.snapshot.snapshot import MAX_PARSED
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import search_pb2 as pb
from tests.data import clustered, datapoints
from tests.served import publish_version

SEARCH = "/scannery.v1.SearchService/Search"
ROWS, DIMENSIONS = 3000, 16
SPEC = {
    "index": "one",
    "source": {"vector": "v"},
    "attributes": {"part": "float"},
    "shards": 1,
    "scann": {"exact_below_rows": 1000},
}
QUERIES_QD = clustered(ROWS, DIMENSIONS, seed=1)[:7]
NOTHING = {"part": {"$lt": 0.0}}
CASES: list[dict[str, Any]] = [
    {},
    {"k": 3, "offset": 2},
    {"k": 3, "offset": 5000},
    {"k": 5000},
    {"exact": True},
    {"target_recall": 0.6},
    {"leaves": 1, "rescore": 10},
    {"vectors": True},
    {"where": {"part": {"$lt": 0.9}}},
    {"where": {"part": {"$lt": 0.5}}, "offset": 4},
    {"where": {"part": {"$lt": 0.002}}, "offset": 4},
    {"where": NOTHING},
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    folder = tmp_path_factory.mktemp("one")
    vectors_ND = clustered(ROWS, DIMENSIONS, seed=1)
    vectors_ND[::50] = vectors_ND[0]  # equal scores
    part = np.random.default_rng(0).permutation(ROWS) / ROWS
    table = datapoints(parse_spec(SPEC), vectors_ND, columns={"part": part.tolist()})
    publish_version(Store.open(folder / "store", create=True), parse_spec(SPEC), table, folder, shards=1)
    return Service(open_embedded_catalog(folder / "store"))


def answer(service: Service, query: Any, options: dict[str, Any], **more: Any) -> pb.SearchResponse:
    return service.search(search("one", query, **{"k": 10, **options}, **more).request, Deadline.after(60))


@pytest.mark.system
@pytest.mark.parametrize("options", CASES, ids=str)
def test_the_early_return_gives_the_answers_of_the_general_search(
    service: Service, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    early: list[bool] = []
    search_one_segment = engine._search_one_segment

    def counted(*arguments: Any) -> Any:
        written = search_one_segment(*arguments)
        early.append(written is not None)
        return written

    monkeypatch.setattr(engine, "_search_one_segment", counted)
    others = [answer(service, query_D, options, explain=True) for query_D in QUERIES_QD]
    assert not early, "a search that is explained takes all stages"
    matches = options.get("where") != NOTHING
    for query_D, other in zip(QUERIES_QD, others, strict=True):
        response = answer(service, query_D, options)
        assert list(response.hits) == list(other.hits)
        assert (response.version, response.sequence) == (other.version, other.sequence)
    # Where nothing is allowed, there is no segment to search.
    assert sum(early) == (len(QUERIES_QD) if matches else 0)
    request = search_many("one", QUERIES_QD, **{"k": 10, **options}).request
    many = service.search_many(request, Deadline.after(60))
    assert many.version == others[0].version
    # A batch is planned by other costs; what is searched in the same way is the same.
    for result, other in zip(many.results, others, strict=True):
        assert len(result.hits) == len(other.hits)
        if options.get("exact"):
            assert list(result.hits) == list(other.hits)


@pytest.mark.system
def test_equal_scores_come_by_id_with_the_early_return(service: Service) -> None:
    twins = sorted(f"d{row}" for row in range(0, ROWS, 50))
    hits = answer(service, QUERIES_QD[0], {"k": len(twins), "exact": True}).hits
    assert len({hit.score for hit in hits}) == 1
    assert [hit.datapoint.id for hit in hits] == twins


def test_what_a_snapshot_keeps_does_not_keep_the_snapshot(service: Service) -> None:
    request = search("one", QUERIES_QD[0], 10).request
    snapshot = replace(service._catalog.snapshot("one"), _parsed={}, _options={}, _plans={})
    prepared = weakref.ref(snapshot.plan(snapshot.parsed(request.options).options, SearchPlan))
    assert prepared() is not None
    gc.disable()
    try:
        del snapshot
        assert prepared() is None, "it would wait for the collector, with all rows that were written"
    finally:
        gc.enable()


def test_filters_share_what_the_options_decide(service: Service) -> None:
    snapshot = replace(
        service._catalog.snapshot("one"), masks=FilterCache(), _parsed={}, _options={}, _plans={}
    )
    found = []
    for bound in range(3 * MAX_PARSED):
        request = search("one", QUERIES_QD[0], 10, where={"part": {"$lt": bound / 1000}}).request
        parsed = snapshot.parsed(request.options)
        found.append((parsed, PreparedSearch.of(snapshot, parsed.options, parsed.where)))
    assert len({id(parsed.options) for parsed, _ in found}) == len({id(each.plan) for _, each in found}) == 1
    assert len({each.where for _, each in found}) == len(found)
    assert len(snapshot._parsed) <= MAX_PARSED
    # A filter that is asked again keeps how quick it was; another one does not.
    parsed, _ = found[-1]
    assert snapshot.parsed(request.options) is parsed
    prepared = snapshot.derived(parsed, parsed.options, PreparedSearch.of)
    assert not prepared.is_quick, "it may need a scan"
    prepared.took(0.0)
    assert snapshot.derived(parsed, parsed.options, PreparedSearch.of).is_quick
    assert not found[0][1].is_quick


def test_a_new_filter_is_expected_to_be_as_quick_as_others_of_its_form(service: Service) -> None:
    snapshot = replace(
        service._catalog.snapshot("one"), masks=FilterCache(), _parsed={}, _options={}, _plans={}
    )

    def prepared(where: Any, k: int = 10) -> PreparedSearch:
        parsed = snapshot.parsed(search("one", QUERIES_QD[0], k, where=where).request.options)
        return PreparedSearch.of(snapshot, parsed.options, parsed.where)

    prepared({"part": {"$lt": 0.1}}).took(0.0)
    assert prepared({"part": {"$lt": 0.2}}).is_quick
    assert not prepared({"part": {"$gt": 0.2}}).is_quick, "it may allow far more"
    assert not prepared({"part": {"$lt": 0.2}}, 100).is_quick
    prepared({"part": {"$lt": 0.3}}).took(2 * QUICK_S)
    assert prepared({"part": {"$lt": 0.4}}).is_quick, "the mean is"
    slow = prepared({"part": {"$lt": 0.5}})
    slow.took(2 * QUICK_S)
    assert not prepared({"part": {"$lt": 0.6}}).is_quick
    slow.took(0.0)
    assert slow.is_quick, "it was asked again"
    substring = {"id": {"$substring": "7"}}
    prepared(substring).took(0.0)
    assert not prepared(substring).is_quick, "all values are read for it"


def test_other_options_have_other_plans_and_are_bounded(service: Service) -> None:
    snapshot = replace(service._catalog.snapshot("one"), _parsed={}, _options={}, _plans={})
    for k in range(1, 2 * MAX_PARSED):
        parsed = snapshot.parsed(search("one", QUERIES_QD[0], k, where=NOTHING).request.options)
        assert PreparedSearch.of(snapshot, parsed.options, parsed.where).options.k == k
        assert max(len(snapshot._parsed), len(snapshot._options)) <= MAX_PARSED
        assert len(snapshot._plans) <= 3 * MAX_PARSED


def test_a_deadline_that_passed_ends_it(service: Service) -> None:
    request = search("one", QUERIES_QD[0], 10, where={"part": {"$lt": 0.5}}).request
    with pytest.raises(DeadlineError):
        service.search(request, Deadline(time.monotonic() - 1))


def test_each_query_of_a_batch_of_callers_has_its_answer_and_its_plan(service: Service) -> None:
    # ScaNN approximates a batch by other kernels than a single query, so that the last candidates can differ: here all
    # rows are scored exactly.
    requests = [search("one", query_D, 10, leaves=ROWS, rescore=ROWS).request for query_D in QUERIES_QD]
    snapshot = service._catalog.snapshot("one")
    of_all = snapshot.parsed(requests[0].options)
    options = of_all.options
    prepared = snapshot.derived(of_all, options, PreparedSearch.of)
    parsed = [parse_query(request.query, snapshot.manifest, options.vectors) for request in requests]
    queries = [engine.PreparedQuery(snapshot, prepared, query, QueryStats()) for query in parsed]
    answers = engine.answers_of(queries, Deadline.after(60))
    alone = [service.call_on_wire(SEARCH, request, Deadline.after(60)) for request in requests]
    assert answers == alone
    assert {query.stats.plan for query in queries} == {"scann"}

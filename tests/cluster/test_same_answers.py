"""A cluster answers as one server with all shards does: ids, scores and fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from scannery.client.request.filters import Where, build_filter
from scannery.runtime.errors import ServingError
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.leaves.groups import LeafGroups
from scannery.serving.services.search import Service
from scannery.serving.status import status_for_callers
from scannery.v1.leaf_pb2 import LeafSearchRequest
from scannery.v1.search_pb2 import (
    ExplainRequest,
    ExplainResponse,
    Mode,
    Query,
    SearchManyRequest,
    SearchManyResponse,
    SearchOptions,
    SearchResponse,
)
from scannery.v1.search_pb2_grpc import SearchServiceStub
from tests.cluster.questions import INDEX, any_batch, any_search, make_store
from tests.cluster.servers import started_cluster
from tests.data import first_quick, repeated
from tests.serving.request.test_filter import nested

pytestmark = pytest.mark.system

QUESTIONS = 60
LONG_QUESTIONS = range(QUESTIONS, QUESTIONS + repeated(2000))
LONG_BATCHES = range(QUESTIONS // 6, QUESTIONS // 6 + repeated(300))
"""By `make test-long`."""
TIMEOUT_S = 60


class Both:
    """One server of the whole index, in this process, and a cluster over the same store."""

    def __init__(self, store: Path, address: str) -> None:
        self.alone = Service(open_embedded_catalog(store))
        self.channel = grpc.insecure_channel(address)
        self.cluster = SearchServiceStub(self.channel)

    def answers(self, call: Callable[[Any, Any], Any], method: str, request: Any) -> tuple[Any, Any]:
        """Return what both answer: a response, or the status and the message of an error."""
        try:
            alone = call(request, Deadline.after(TIMEOUT_S))
        except ServingError as error:
            status, _, detail = status_for_callers(error)
            alone = status, detail.message
        try:
            cluster = getattr(self.cluster, method)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            cluster = error.code(), error.details()
        return alone, cluster


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module", params=first_quick([1, 3, 4], 2))
def both(store: Path, request: pytest.FixtureRequest) -> Iterator[Both]:
    with started_cluster(store, request.param) as (root, _):
        found = Both(store, root.address)
        yield found
        found.channel.close()
        found.alone.close()


def test_searches(both: Both) -> None:
    check_searches(both, range(QUESTIONS))


def test_batches(both: Both) -> None:
    check_batches(both, range(QUESTIONS // 6))


def test_batches_of_more_rows_than_a_leaf_returns_at_once(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LEAF_ROWS", 200)
    check_batches(both, range(QUESTIONS // 6))


def test_batches_that_are_larger_than_a_leaf_accepts_at_once(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = sent_queries(monkeypatch)
    monkeypatch.setattr(limits, "MAX_LEAF_REQUEST_BYTES", 250)
    check_batches(both, range(QUESTIONS // 6))
    assert max(sent) == 2, "of 24 dimensions, in 192 bytes"


def test_explanations_of_ranks(both: Both) -> None:
    for number in range(QUESTIONS // 3):
        search = any_search(number)
        request = ExplainRequest(index=INDEX, query=search.query, options=search.options, id=f"d{7 * number}")
        call = partial(both.alone.call, "/scannery.v1.SearchService/Explain")
        answers = both.answers(call, "Explain", request)
        for answer in answers:
            if isinstance(answer, ExplainResponse):
                for field in ("segments", "stages", "expected_recall"):
                    answer.search.ClearField(field)
        alone, cluster = map(comparable, answers)
        assert alone == cluster, f"question {number}: {request}"


@pytest.mark.parametrize(
    "where",
    [
        {"$or": [{"year": year} for year in range(1900, 1900 + limits.MAX_FILTER_CONDITIONS)]},
        {"year": {"$in": list(range(limits.MAX_FILTER_VALUES))}},
        nested(limits.MAX_FILTER_DEPTH - 1),
    ],
    ids=["conditions", "values", "depth"],
)
def test_filters_of_a_batch_and_of_its_queries_are_as_large_as_any(both: Both, where: Where) -> None:
    message = build_filter(where)
    queries = [Query(words="deep river"), Query(words='"deep river" search')]
    request = SearchManyRequest(
        index=INDEX, queries=queries, where_each=[message] * 2, options=SearchOptions(mode=Mode.MODE_LEXICAL)
    )
    request.options.where.CopyFrom(message)
    alone, cluster = both.answers(both.alone.search_many, "SearchMany", request)
    assert comparable(alone) == comparable(cluster)
    assert all(hits.hits for hits in alone.results)


def sent_queries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of queries of each call to leaves."""
    sent: list[int] = []
    send = LeafGroups.call

    def call(self: LeafGroups, path: str, request: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(request, LeafSearchRequest) and request.options.mode == Mode.MODE_DENSE:
            sent.append(request.queries)
        return send(self, path, request, *arguments, **options)

    monkeypatch.setattr(LeafGroups, "call", call)
    return sent


@pytest.mark.long
def test_two_thousand_searches(both: Both) -> None:
    check_searches(both, LONG_QUESTIONS)
    check_batches(both, LONG_BATCHES)


def check_searches(both: Both, numbers: range) -> None:
    """Fail if a random search has another answer than that of one server."""
    answered = 0
    for number in numbers:
        request = any_search(number)
        alone, cluster = both.answers(both.alone.search, "Search", request)
        assert comparable(alone) == comparable(cluster), f"question {number}: {request}"
        answered += isinstance(alone, SearchResponse) and len(alone.hits) > 0
    assert answered > 0.7 * len(numbers), "most questions have hits"


def check_batches(both: Both, numbers: range) -> None:
    """Fail if a random batch has another answer than that of one server."""
    for number in numbers:
        request = any_batch(number)
        alone, cluster = both.answers(both.alone.search_many, "SearchMany", request)
        assert comparable(alone) == comparable(cluster), f"question {number}: {request}"


def comparable(answer: Any) -> Any:
    """Return an answer without what may differ: the order of the entries of maps."""
    if isinstance(answer, (ExplainResponse, SearchResponse, SearchManyResponse)):
        return answer.SerializeToString(deterministic=True)
    return answer

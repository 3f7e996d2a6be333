"""Which queries are sampled, and what the estimate counts as recall."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from scannery.client.request.calls import search, search_many
from scannery.indexer import Distance
from scannery.runtime.errors import UnknownIndexError
from scannery.runtime.retry import Deadline
from scannery.serving.observation import query_sample, recall_estimate
from scannery.serving.observation.query_observer import QueryObserver
from scannery.serving.observation.recall_estimate import RecallEstimate
from scannery.serving.scheduling.spare_time import SpareTime
from scannery.serving.security.access import parse_access
from scannery.serving.security.principal import CURRENT, Principal
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1 import search_pb2

VECTORS = np.eye(4, dtype=np.float32)


def observer(*keys: float, share: float = 0.3) -> QueryObserver:
    """Return an observer whose queries have these random keys."""
    return QueryObserver([], SpareTime(lambda: 0), share=share, random=iter(keys).__next__)


@pytest.mark.parametrize("kind", ["single", "matrix", "list"])
def test_queries_with_keys_below_the_share_are_sampled(kind: str) -> None:
    single = search("i", VECTORS[2], 3, where={"a": 1}).request
    if kind == "single":
        observing = observer(0.4, 0.2)
        observing.observe("i", 1, lambda: pytest.fail("it was parsed"))
        observing.observe("i", 1, lambda: single)
    else:
        observing = observer(0.4, 0.5, 0.2, 0.9)
        queries = VECTORS if kind == "matrix" else list(VECTORS)
        observing.observe("i", 4, lambda: search_many("i", queries, 3, where={"a": 1}).request)
    [sampled] = observing.samples["i"].waiting
    assert (sampled.request.index, sampled.request.options.k) == ("i", 3)
    assert sampled.request.options.where == single.options.where
    assert sampled.request.query.vector.packed == VECTORS[2].tobytes()


def test_a_sampled_query_needs_no_relevance() -> None:
    observing = observer(0.0)
    observing.observe("i", 1, lambda: search("i", VECTORS[2], 3, mode="hybrid", min_relevance=0.5).request)
    [sampled] = observing.samples["i"].waiting
    assert sampled.request.options.mode == search_pb2.MODE_DENSE, "which may have no curve"
    assert not sampled.request.options.HasField("min_relevance")


@pytest.mark.parametrize("change", ["where_each", "vectors"])
def test_queries_with_a_filter_each_or_named_vectors_are_left_alone(change: str) -> None:
    observing = observer(0.0, 0.0, 0.0, share=1.0)
    request = search_many("i", VECTORS, 3).request
    if change == "vectors":
        request.options.vectors.add(name="title")
    else:
        request.where_each.add()
    observing.observe("i", 3, lambda: request)
    assert not observing.samples


def test_no_more_queries_wait_than_may() -> None:
    observing = QueryObserver([], SpareTime(lambda: 0), share=1.0)
    vectors_QD = np.zeros((1000, 4), np.float32)
    vectors_QD[:, 0] = np.arange(1000)
    for _ in range(3):
        observing.observe("i", 1000, lambda: search_many("i", vectors_QD, 3).request)
    waiting = observing.samples["i"].waiting
    assert len(waiting) == query_sample.WAITING
    firsts = [np.frombuffer(each.request.query.vector.packed, np.float32)[0] for each in waiting]
    assert max(firsts) > 500, "from all of an ordered batch"


class Answers:
    """Answers requests with fixed scores: approximate and exact ones."""

    def __init__(self, scores: Sequence[float], true: Sequence[float], row: np.ndarray = VECTORS[0]) -> None:
        self.options: list[search_pb2.SearchOptions] = []
        self.callers: list[Principal | None] = []
        self._scores, self._row = {False: scores, True: true}, row

    def search(self, request: search_pb2.SearchRequest, deadline: Deadline) -> search_pb2.SearchResponse:
        return search_pb2.SearchResponse(hits=self._hits(request.options))

    def search_many(
        self, request: search_pb2.SearchManyRequest, deadline: Deadline
    ) -> search_pb2.SearchManyResponse:
        response = search_pb2.SearchManyResponse()
        hits = self._hits(request.options)
        for _ in request.queries:
            response.results.add().hits.extend(hits)
        return response

    def pinned(self, index: str) -> AbstractContextManager[None]:
        return nullcontext()

    def _hits(self, options: search_pb2.SearchOptions) -> list[search_pb2.Hit]:
        self.options.append(options)
        self.callers.append(CURRENT.get())
        hits = [search_pb2.Hit(score=score) for score in self._scores[options.exact]]
        for hit in hits if options.return_vector else ():
            hit.datapoint.vector.packed = self._row.tobytes()
        return hits

    def estimate(self, distance: Distance, **options: Any) -> float:
        """Return the recall that is counted for one query."""
        metrics, observing = ServerMetrics(), observer(0.0, share=1.0)
        request = search("i", VECTORS[2], len(self._scores[True]), **options).request
        observing.observe("i", 1, lambda: request)
        self.repeat(observing, metrics, distance)
        return float(metrics.recall_hits.dump()["i"] / metrics.recall_wanted.dump()["i"])

    def repeat(self, observing: QueryObserver, metrics: ServerMetrics, distance: Distance) -> None:
        """Do one unit of work."""
        snapshot = SimpleNamespace(manifest=SimpleNamespace(spec=SimpleNamespace(distance=distance)))
        estimate = RecallEstimate(cast(Any, self), lambda index: cast(Any, snapshot), metrics)
        spare = SpareTime(lambda: 0)
        spare._saved_s = 100.0
        estimate.run(observing.samples, spare)


def test_what_a_cross_encoder_orders_again_is_not_asked_to_do_it() -> None:
    answers = Answers([4, 3, 2, 1], [4, 3, 2, 1])
    assert answers.estimate("cosine", rerank=40) == 1
    assert [options.HasField("rerank") for options in answers.options] == [False, False]
    assert [options.k for options in answers.options] == [40, 40], "as many as it looks at"


@pytest.mark.parametrize("scale", [1e-14, 1.0, 1e10])
def test_the_estimate_does_not_depend_on_the_scale_of_scores(scale: float) -> None:
    true, scores = np.array([-1.0, -2.0, -3.0, -4.0]) * scale, np.array([-1.0, -3.0, -5.0, -6.0]) * scale
    row = VECTORS[0] * np.float32(scale)
    assert Answers(scores.tolist(), true.tolist(), row).estimate("dot") == 0.5


def test_rounding_of_long_vectors_is_no_miss() -> None:
    row = VECTORS[0] * np.float32(1e4)
    assert Answers([5.0, 0.499], [5.0, 0.5], row).estimate("dot") == 1
    assert Answers([5.0, 0.4], [5.0, 0.5], row).estimate("dot") == 0.5


def test_hits_that_an_offset_skips_count_too() -> None:
    answers = Answers([4, 3, 2, 1], [4, 3, 2, 1])
    answers.estimate("cosine", offset=20)
    assert [(options.k, options.offset) for options in answers.options] == [(24, 0), (24, 0)]


@pytest.mark.parametrize("kind", ["text", "group", "vector"])
def test_a_text_is_repeated_for_its_caller_alone(kind: str) -> None:
    by_text = kind != "vector"
    answers, observing = Answers([2, 1], [2, 1]), observer(0.0, 0.0, share=1.0)
    callers = [Principal(name, frozenset({"read"})) for name in ("one", "other")]
    for caller in callers:
        token = CURRENT.set(caller)
        query = VECTORS[0] if kind == "vector" else "a text"
        request = search("i", query, 2, mode="dense").request
        if kind == "group":
            request.query.group.queries.add(text="a text")
        observing.observe("i", 1, lambda request=request: request)  # type: ignore[misc]
        CURRENT.reset(token)
    for _ in range(2 if by_text else 1):
        answers.repeat(observing, ServerMetrics(), "cosine")
    exact = [
        caller for caller, options in zip(answers.callers, answers.options, strict=True) if options.exact
    ]
    assert exact == (callers if by_text else callers[:1])
    assert not observing.samples["i"].waiting
    assert [caller for caller in answers.callers if caller not in callers] == []


def test_the_true_hits_of_a_caller_are_among_the_rows_that_it_sees() -> None:
    answers, observing = Answers([2, 1], [2, 1]), observer(0.0, 0.0, 0.0, share=1.0)
    callers = [
        Principal(
            name, frozenset({"read"}), access=parse_access([{"index": "*", "where": {"tenant": tenant}}])
        )
        for name, tenant in (("one", "acme"), ("two", "acme"), ("three", "beta"))
    ]
    for caller in callers:
        token = CURRENT.set(caller)
        observing.observe("i", 1, lambda: search("i", VECTORS[0], 2).request)
        CURRENT.reset(token)
    for _ in range(2):
        answers.repeat(observing, ServerMetrics(), "cosine")
    pairs = zip(answers.callers, answers.options, strict=True)
    assert [caller for caller, options in pairs if options.exact] == [callers[0], callers[2]]
    assert not observing.samples["i"].waiting


def test_a_large_filter_is_not_copied_for_each_query_of_a_batch() -> None:
    observing = QueryObserver([], SpareTime(lambda: 0), share=1.0)
    where = {"a": {"$in": [f"{number:020}" for number in range(5000)]}}
    observing.observe("i", 4, lambda: search_many("i", VECTORS, 3, where=where).request)
    assert not observing.samples


def test_a_large_query_is_not_remembered() -> None:
    observing, request = (
        QueryObserver([], SpareTime(lambda: 0), share=1.0),
        search("i", VECTORS[0], 3).request,
    )
    for _ in range(20):
        request.query.group.queries.add(text="x" * 10_000)
    observing.observe("i", 1, lambda: request)
    assert not observing.samples["i"].waiting


@pytest.mark.parametrize("is_there", [True, False])
def test_nothing_is_remembered_of_an_index_that_was_dropped_since_it_answered(is_there: bool) -> None:
    observing = QueryObserver([], SpareTime(lambda: 0), share=1.0, serves=lambda index: is_there)
    observing.observe("i", 1, lambda: search("i", VECTORS[0], 3).request)
    assert ("i" in observing.samples) == is_there


def test_a_query_that_cannot_be_repeated_is_tried_once() -> None:
    class Gone(Answers):
        def pinned(self, index: str) -> AbstractContextManager[None]:
            raise UnknownIndexError(index)

    observing = observer(0.0, share=1.0)
    observing.observe("i", 1, lambda: search("i", VECTORS[0], 3).request)
    Gone([1], [1]).repeat(observing, ServerMetrics(), "cosine")
    assert not observing.samples["i"].waiting


def test_an_index_in_doubt_does_not_keep_others_waiting() -> None:
    answers, observing = Answers([1], [1]), QueryObserver([], SpareTime(lambda: 0), share=1.0)
    snapshot = SimpleNamespace(manifest=SimpleNamespace(spec=SimpleNamespace(distance="cosine")))
    doubtful = SimpleNamespace(
        word=1, is_undecided=True, step_below=None, target=0.9, record=lambda *_, **__: None, decide=lambda: 0
    )
    controller = SimpleNamespace(control=lambda name: doubtful if name == "doubtful" else None)
    estimate = RecallEstimate(
        cast(Any, answers), lambda index: cast(Any, snapshot), ServerMetrics(), cast(Any, controller)
    )
    spare = SpareTime(lambda: 0)
    spare._saved_s = 100.0
    observing.observe("certain", 1, lambda: search("certain", VECTORS[0], 1).request)
    for _ in range(2 * recall_estimate.CERTAIN_EVERY):
        observing.observe("doubtful", 1, lambda: search("doubtful", VECTORS[0], 1).request)
        estimate.run(observing.samples, spare)
        assert spare.is_urgent
    assert not observing.samples["certain"].waiting

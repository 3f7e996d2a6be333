"""Which queries the running estimate of recall is drawn from."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from scannery.client.request.calls import search, search_many
from scannery.indexer import Distance
from scannery.runtime.retry import Deadline
from scannery.serving.services.recall_sampler import RecallSampler
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1 import search_pb2
from tests.serving.process.test_supervisor import wait_until

VECTORS = np.eye(4, dtype=np.float32)


@pytest.mark.system
@pytest.mark.parametrize("asked", ["single", "matrix", "list"])
def test_it_looks_at_one_of_the_queries_of_a_call(asked: str) -> None:
    looked: queue.Queue[search_pb2.SearchRequest] = queue.Queue()

    def look(request: search_pb2.SearchRequest, deadline: Deadline) -> search_pb2.SearchResponse:
        copy = search_pb2.SearchRequest()
        copy.CopyFrom(request)
        looked.put(copy)
        return search_pb2.SearchResponse()

    sampler = RecallSampler(
        look,
        ServerMetrics(),
        share=0.3,
        busy=lambda: False,
        distance_of=lambda _: "cosine",
        random=lambda: 0.5,
        pause_s=0.001,
    )
    single = search("i", VECTORS[2], 3, where={"a": 1}).request
    if asked == "single":
        sampler.offer("i", 1, lambda: single)
    else:
        queries = VECTORS if asked == "matrix" else list(VECTORS)
        many = search_many("i", queries, 3, where={"a": 1}).request
        sampler.offer("i", len(VECTORS), lambda: many)
    if asked == "single":
        # 0.5 is not below a share of 0.3; of four queries, one is drawn four times as often.
        with pytest.raises(queue.Empty):
            looked.get(timeout=0.2)
    else:
        found = looked.get(timeout=10)
        assert (found.index, found.options.k) == ("i", 3)
        assert found.options.where == single.options.where
        assert found.query.vector.packed == VECTORS[2].tobytes()
    sampler.stop()


@pytest.mark.parametrize("change", ["where_each", "vectors"])
def test_queries_with_a_filter_each_or_named_vectors_are_left_alone(change: str) -> None:
    sampler = RecallSampler(
        lambda request, deadline: search_pb2.SearchResponse(),
        ServerMetrics(),
        share=1.0,
        busy=lambda: True,
        distance_of=lambda _: "cosine",
        random=lambda: 0.0,
    )
    request = search_many("i", VECTORS, 3).request
    if change == "vectors":
        request.options.vectors.add(name="title")
    else:
        request.where_each.add()
    sampler.offer("i", 3, lambda: request)
    assert not sampler._waiting
    sampler.stop()


class Answers:
    """Answers requests with given scores: approximate and exact ones."""

    def __init__(self, found: Sequence[float], true: Sequence[float], row: np.ndarray = VECTORS[0]) -> None:
        self.asked: list[search_pb2.SearchRequest] = []
        self._scores, self._row = {False: found, True: true}, row

    def __call__(self, request: search_pb2.SearchRequest, deadline: Deadline) -> search_pb2.SearchResponse:
        copy = search_pb2.SearchRequest()
        copy.CopyFrom(request)
        self.asked.append(copy)
        response = search_pb2.SearchResponse()
        for score in self._scores[request.options.exact]:
            hit = response.hits.add(score=score)
            if request.options.return_vector:
                hit.datapoint.vector.packed = self._row.tobytes()
        return response

    def estimate(self, distance: Distance, **options: Any) -> float:
        """Return the recall that the sampler counts for one query."""
        metrics = ServerMetrics()
        sampler = RecallSampler(
            self, metrics, share=1.0, busy=lambda: False, distance_of=lambda _: distance, pause_s=0.01
        )
        request = search("i", VECTORS[2], len(self._scores[True]), **options).request
        sampler.offer("i", 1, lambda: request)
        wait_until(lambda: "i" in metrics.recall_wanted.dump())
        sampler.stop()
        return float(metrics.recall_hits.dump()["i"] / metrics.recall_wanted.dump()["i"])


def test_what_a_cross_encoder_orders_again_is_not_asked_to_do_it() -> None:
    answers = Answers([4, 3, 2, 1], [4, 3, 2, 1])
    assert answers.estimate("cosine", rerank=40) == 1
    assert [request.options.HasField("rerank") for request in answers.asked] == [False, False]
    assert [request.options.k for request in answers.asked] == [40, 40], "as many as it looks at"


@pytest.mark.system
@pytest.mark.parametrize("scale", [1e-14, 1.0, 1e10])
def test_the_estimate_does_not_depend_on_the_scale_of_scores(scale: float) -> None:
    true, found = np.array([-1.0, -2.0, -3.0, -4.0]) * scale, np.array([-1.0, -3.0, -5.0, -6.0]) * scale
    row = VECTORS[0] * np.float32(scale)
    assert Answers(found.tolist(), true.tolist(), row).estimate("dot") == 0.5


def test_rounding_of_long_vectors_is_no_miss() -> None:
    row = VECTORS[0] * np.float32(1e4)
    assert Answers([5.0, 0.499], [5.0, 0.5], row).estimate("dot") == 1
    assert Answers([5.0, 0.4], [5.0, 0.5], row).estimate("dot") == 0.5


def test_hits_that_an_offset_skips_count_too() -> None:
    answers = Answers([4, 3, 2, 1], [4, 3, 2, 1])
    answers.estimate("cosine", offset=20)
    assert [(request.options.k, request.options.offset) for request in answers.asked] == [(24, 0), (24, 0)]

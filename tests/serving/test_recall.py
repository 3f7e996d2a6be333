"""Which queries the running estimate of recall is drawn from."""

from __future__ import annotations

import queue

import numpy as np
import pytest

from scannery.client.calls import search, search_many
from scannery.serving.deadline import Deadline
from scannery.serving.metrics import ServerMetrics
from scannery.serving.recall import RecallSampler
from scannery.v1 import search_pb2

VECTORS = np.eye(4, dtype=np.float32)


@pytest.mark.parametrize("asked", ["single", "matrix", "list"])
def test_it_looks_at_one_of_the_queries_of_a_call(asked: str) -> None:
    looked: queue.Queue[search_pb2.SearchRequest] = queue.Queue()

    def look(request: search_pb2.SearchRequest, deadline: Deadline) -> search_pb2.SearchResponse:
        copy = search_pb2.SearchRequest()
        copy.CopyFrom(request)
        looked.put(copy)
        return search_pb2.SearchResponse()

    sampler = RecallSampler(
        look, ServerMetrics(), share=0.3, busy=lambda: False, random=lambda: 0.5, pause_s=0.001
    )
    calls = {
        "single": search("i", VECTORS[2], 3, where={"a": 1}),
        "matrix": search_many("i", VECTORS, 3, where={"a": 1}),
        "list": search_many("i", list(VECTORS), 3, where={"a": 1}),
    }
    sampler.offer(calls[asked].request)
    if asked == "single":
        # 0.5 is not below a share of 0.3; of four queries, one is drawn four times as often.
        with pytest.raises(queue.Empty):
            looked.get(timeout=0.2)
    else:
        found = looked.get(timeout=10)
        assert (found.index, found.options.k) == ("i", 3)
        assert found.options.where == calls["single"].request.options.where
        assert found.query.vector.packed == VECTORS[2].tobytes()
    sampler.close()


def test_queries_with_a_filter_each_are_left_alone() -> None:
    sampler = RecallSampler(
        lambda request, deadline: search_pb2.SearchResponse(),
        ServerMetrics(),
        share=1.0,
        busy=lambda: True,
        random=lambda: 0.0,
    )
    request = search_many("i", VECTORS, 3).request
    request.where_each.add()
    sampler.offer(request)
    assert sampler._waiting.empty()
    sampler.close()

"""Leaves that answer what no leaf should: a root gives an error, and no wrong answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from scannery.indexer import Store, read_manifest
from scannery.v1.leaf_pb2 import At, LeafFound, LeafRanking, LeafSearchRequest, LeafSearchResponse
from scannery.v1.search_pb2 import Hit, Query, SearchOptions, SearchRequest
from scannery.v1.search_pb2_grpc import SearchServiceStub
from scannery.v1.types_pb2 import Datapoint, Vector
from tests.cluster.servers import root_server
from tests.served import make_library_store
from tests.serving.leaves.leaf_server import ScriptedLeaf

SCORES = np.array([0.9, 0.8], "<f4").tobytes()
PLACES = np.array([0, 1], "<u4").tobytes()


class AnsweringLeaf(ScriptedLeaf):
    """A leaf of the only group with one answer to all searches."""

    answer = LeafSearchResponse()

    def Search(self, request: LeafSearchRequest, context: grpc.ServicerContext) -> LeafSearchResponse:  # noqa: N802
        return self.answer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AnsweringLeaf, SearchServiceStub]]:
    store: Path = make_library_store(tmp_path_factory.mktemp("wrong"))
    manifest = read_manifest(Store.open(store), "library", 1)
    leaf = AnsweringLeaf()
    leaf.states = [
        At(
            index="library",
            index_id=manifest.index_id or "",
            version=manifest.version,
            sequence=manifest.log_sequence,
        )
    ]
    with root_server(store, leaf.address) as root, grpc.insecure_channel(root.address) as channel:
        yield leaf, SearchServiceStub(channel)
    leaf.stop()


def right() -> LeafFound:
    """Return what a leaf finds: two rows."""
    points = [Hit(datapoint=Datapoint(id=name)).SerializeToString() for name in ("a", "b")]
    ranking = LeafRanking(places=PLACES, scores=SCORES)
    return LeafFound(ids=["a", "b"], by_vector=[ranking], datapoints=points)


def wrong(**parts: Any) -> LeafSearchResponse:
    """Return the answer of a leaf with other parts than it should have."""
    found = right()
    for name, value in parts.items():
        found.ClearField(name)  # type: ignore[arg-type]  # a name of a field
        found.MergeFrom(LeafFound(**{name: value}))
    return LeafSearchResponse(results=[found], allowed=2, allowed_by_vector=[2])


def ranked(places: bytes = PLACES, scores: bytes = SCORES) -> list[LeafRanking]:
    return [LeafRanking(places=places, scores=scores)]


WRONG = {
    "no results": LeafSearchResponse(allowed=2),
    "no ranking": wrong(by_vector=[]),
    "a place beyond the ids": wrong(by_vector=ranked(places=np.array([0, 9], "<u4").tobytes())),
    "half a place": wrong(by_vector=ranked(places=PLACES[:-2])),
    "fewer scores than places": wrong(by_vector=ranked(scores=SCORES[:4])),
    "more scores than places": wrong(by_vector=ranked(scores=SCORES * 2)),
    "a score that is no number": wrong(by_vector=ranked(scores=np.array([0.9, np.nan], "<f4").tobytes())),
    "fewer datapoints than ids": wrong(datapoints=right().datapoints[:1]),
}


def ask(stub: SearchServiceStub) -> Any:
    vector = Vector(packed=np.ones(16, "<f4").tobytes())
    request = SearchRequest(index="library", query=Query(vector=vector), options=SearchOptions(k=2))
    return stub.Search(request, timeout=20)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer_of_a_leaf_is_an_error(
    served: tuple[AnsweringLeaf, SearchServiceStub], case: str
) -> None:
    leaf, stub = served
    leaf.answer = WRONG[case]
    with pytest.raises(grpc.RpcError) as caught:
        ask(stub)
    assert caught.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE), case
    leaf.answer = wrong()
    assert [hit.datapoint.id for hit in ask(stub).hits] == ["a", "b"]

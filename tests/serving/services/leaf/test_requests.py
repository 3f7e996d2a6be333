"""Requests of roots that are wrong: errors name the field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from scannery.indexer import Store
from scannery.runtime.errors import InvalidRequestError, StateUnavailableError, UnknownIndexError
from scannery.serving import limits
from scannery.v1 import leaf_pb2 as pb
from scannery.v1 import search_pb2
from tests.serving.services.leaf.leaves import SIZES, Cluster, cluster_of

Change = Callable[[pb.LeafSearchRequest], object]


@pytest.fixture(scope="module")
def one(notes: Store) -> Iterator[Cluster]:
    with cluster_of(notes, 1) as cluster:
        yield cluster


def hybrid(cluster: Cluster) -> pb.LeafSearchRequest:
    """Return a valid request: two queries, by one vector and by words."""
    request = pb.LeafSearchRequest(at=cluster.at, queries=2, wanted=5)
    request.options.mode = search_pb2.MODE_HYBRID
    own = request.vectors.add().vectors
    own.dimensions = SIZES[""]
    own.packed = np.ones((2, SIZES[""]), "<f4").tobytes()
    request.options.vectors.add(name="")
    request.words.add(terms=["volcano", "tax"], weights=[1.5, 0.5], average_length=6.0)
    request.words.add()
    return request


def with_nan(request: pb.LeafSearchRequest) -> None:
    request.vectors[0].vectors.packed = np.full(2 * SIZES[""], np.nan, "<f4").tobytes()


def of_two_vectors(request: pb.LeafSearchRequest, numbers: list[int]) -> None:
    request.options.vectors.add(name="title")
    own = request.vectors.add(queries=numbers).vectors
    own.dimensions = SIZES["title"]
    own.packed = np.ones((len(numbers), SIZES["title"]), "<f4").tobytes()


WRONG: list[tuple[Change, str, str]] = [
    (lambda r: r.options.ClearField("mode"), "options.mode", "must be set"),
    (lambda r: setattr(r.options, "mode", 9), "mode", "unknown mode 9"),
    (lambda r: setattr(r, "queries", 0), "queries", "must be 1 to 1000"),
    (lambda r: setattr(r, "queries", 1001), "queries", "must be 1 to 1000"),
    (lambda r: setattr(r, "wanted", 0), "wanted", "must be at least 1"),
    (lambda r: setattr(r, "queries", 3), "vectors[0].vectors", "must have 3 items, got 2"),
    (lambda r: r.ClearField("vectors"), "vectors", "must have 1 items, got 0"),
    (lambda r: r.vectors.add(), "vectors", "must have 1 items, got 2"),
    (lambda r: setattr(r.vectors[0].vectors, "dimensions", 5), "vectors[0].vectors", "12 dimensions, got 5"),
    (lambda r: setattr(r.vectors[0].vectors, "packed", b"1"), "vectors[0].vectors", "not a whole number"),
    (with_nan, "vectors[0].vectors", "must be finite"),
    (lambda r: r.vectors[0].queries.extend([0, 1]), "vectors[0].queries", "must have 0 items"),
    (lambda r: of_two_vectors(r, [1, 0]), "vectors[1].queries", "must ascend, and be below 2"),
    (lambda r: of_two_vectors(r, [1, 2]), "vectors[1].queries", "must ascend, and be below 2"),
    (lambda r: of_two_vectors(r, [0, 0]), "vectors[1].queries", "must ascend"),
    (lambda r: r.words.add(), "words", "must have 2 items, got 3"),
    (lambda r: r.words[0].terms.append("a"), "words[0].weights", "must have 3 items, got 2"),
    (lambda r: r.words[0].terms.__setitem__(1, "volcano"), "words[0].terms", "1 distinct items"),
    (lambda r: r.words[0].weights.__setitem__(1, 0.0), "words[0].weights", "must be above 0"),
    (lambda r: r.words[0].weights.__setitem__(1, np.inf), "words[0].weights", "must be above 0"),
    (lambda r: setattr(r.words[0], "average_length", 0.0), "words[0].average_length", "must be above 0"),
    (lambda r: setattr(r.words[0], "highest_score", -1.0), "words[0].highest_score", "must be at least 0"),
    (lambda r: r.words[0].sparse_vector.indices.append(1), "words[0].terms", "must have 0 items, got 2"),
    (lambda r: r.words[1].sparse_vector.SetInParent(), "words[1].sparse_vector", "must have 1 to"),
    (lambda r: setattr(r, "group_by", "colour"), "group_by", "colour"),
    (lambda r: setattr(r.options, "mode", search_pb2.MODE_LEXICAL), "vectors", "are for dense and hybrid"),
    (lambda r: setattr(r.options, "mode", search_pb2.MODE_DENSE), "words", "must have 0 items, got 2"),
    (lambda r: setattr(r.options, "target_recall", 2.0), "target_recall", "must be 0.5 to 0.999"),
    (lambda r: setattr(r.at, "index", ""), "at.index", "must not be empty"),
]


@pytest.mark.system
@pytest.mark.parametrize(("change", "field", "message"), WRONG)
def test_wrong_searches(one: Cluster, change: Change, field: str, message: str) -> None:
    request = hybrid(one)
    change(request)
    with pytest.raises(InvalidRequestError) as caught:
        one.ask("Search", request)
    assert caught.value.field == field
    assert message in str(caught.value)


@pytest.mark.system
def test_the_valid_search_is_answered(one: Cluster) -> None:
    request = hybrid(one)
    # The root applies these.
    request.options.rerank.candidates = 50
    request.options.min_score = 0.9
    request.options.explain = True
    request.options.crowding.max_per_group = 1
    [answer] = one.ask("Search", request)
    assert [len(found.by_vector[0].places) for found in answer.results] == [20, 20]
    assert [len(found.by_words.places) for found in answer.results] == [20, 0]
    assert answer.results[1].by_words.scores == b""


def test_the_rows_of_one_call_are_bounded(one: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    request = hybrid(one)
    request.wanted = 1 << 31  # as many as there are
    one.ask("Search", request)
    monkeypatch.setattr(limits, "MAX_LEAF_ROWS", 1000)
    with pytest.raises(
        InvalidRequestError, match="wanted: must be at most 500 for 2 queries, got 2147483648"
    ):
        one.ask("Search", request)


def test_other_wrong_requests(one: Cluster) -> None:
    at = one.at
    assert not any(answer.found for answer in one.ask("Fetch", pb.LeafFetchRequest(at=at)))
    many: dict[str, Any] = {"ids": ["d"] * 8001}
    with pytest.raises(InvalidRequestError, match="^ids: must be 0 to 8000, got 8001"):
        one.ask("Fetch", pb.LeafFetchRequest(at=at, **many))
    with pytest.raises(InvalidRequestError, match="^document_ids: must be 0 to 8000, got 8001"):
        one.ask("Fetch", pb.LeafFetchRequest(at=at, document_ids=many["ids"]))
    with pytest.raises(InvalidRequestError, match=r"searched_vectors\[1\]: index 'notes' has no vectors 'x'"):
        one.ask("Fetch", pb.LeafFetchRequest(at=at, ids=["d0001"], searched_vectors=["", "x"]))
    with pytest.raises(InvalidRequestError, match="fields: '': no such field"):
        one.ask("Fetch", pb.LeafFetchRequest(at=at, ids=["d0001"], datapoint=True, return_fields=["", "a"]))
    with pytest.raises(InvalidRequestError, match="terms: must have at most 65536 items"):
        one.ask("GetStatistics", pb.LeafStatisticsRequest(at=at, terms=["a"] * 65_537))
    with pytest.raises(InvalidRequestError, match="attribute: must not be id"):
        one.ask("Count", pb.LeafCountRequest(at=at, attribute="id"))


@pytest.mark.parametrize(
    "changes",
    [{"index_id": "0" * 32}, {"index_id": ""}, {"version": 1}, {"version": 3}, {"sequence": 1}],
    ids=str,
)
def test_other_states_are_not_there(one: Cluster, changes: dict[str, object]) -> None:
    at = pb.At(index=one.at.index, index_id=one.at.index_id, version=2, sequence=0)
    assert at == one.at
    for name, value in changes.items():
        setattr(at, name, value)
    with pytest.raises(StateUnavailableError, match="here, but at version 2, sequence 0") as caught:
        one.ask("Count", pb.LeafCountRequest(at=at))
    assert ("of another index of this name" in str(caught.value)) == ("index_id" in changes)


def test_an_unknown_index(one: Cluster) -> None:
    with pytest.raises(UnknownIndexError, match="there is no index 'other'"):
        one.ask("Count", pb.LeafCountRequest(at=pb.At(index="other", version=1)))

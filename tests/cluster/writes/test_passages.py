"""Writes of texts to a root: it cuts and encodes them, and changes all passages of a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from scannery.v1 import index_pb2 as pb
from scannery.v1.types_pb2 import Condition, Datapoint, Filter, Operator, Value
from tests.cluster.writes.targets import Pair, made_pair
from tests.live.log.postgres_server import PostgresServer
from tests.live.named_vectors.named_index import opened
from tests.served import MINILM

pytestmark = pytest.mark.system

NAME = "passages"
SPEC: dict[str, Any] = {
    "index": NAME,
    "source": {"id": "id", "text": "text", "title": "title", "chunk": {"max_tokens": 32, "overlap_tokens": 0}},
    "encoder": {"model": MINILM},
    "lexical": True,
    "dynamic": True,
    "attributes": {"show": "string"},
    "named_vectors": {"show": {"encoder": {"model": MINILM, "dimensions": 8}}},
    "shards": 4,
}  # fmt: skip
TEXT = "Molten rock rises from deep below and cools at the surface of the sea. " * 6


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("passages")
    with opened(folder / "store") as index:
        index.create(SPEC)
    with made_pair(folder / "store", folder, postgres.new_database()) as found:
        yield found


def same(pair: Pair, method: str, request: Any) -> Any:
    """Return the answer of both."""
    alone, cluster = pair.alone.write(method, request), pair.cluster.write(method, request)
    assert alone == cluster, request
    return alone


def upsert(*points: Datapoint, mask: str = "", **condition: Any) -> pb.UpsertRequest:
    request = pb.UpsertRequest(index=NAME)
    for point in points:
        item = request.upserts.add(datapoint=point)
        if mask:
            item.update_mask.paths.append(mask)
        if condition:
            item.condition.CopyFrom(pb.WriteCondition(**condition))
    return request


def point(number: int, text: str | None = None, **attributes: str) -> Datapoint:
    values = {name: Value(string_value=value) for name, value in attributes.items()}
    return Datapoint(id=f"doc{number}", text=text, title=None if text is None else "Rocks", attributes=values)


def test_documents_of_passages(pair: Pair) -> None:
    whole = [point(number, TEXT * (1 + number % 2), show="geo", mood="calm") for number in range(8)]
    first = same(pair, "Upsert", upsert(*whole, if_absent=True))
    assert first.written > 3 * len(whole)
    # All passages of a document change, and the named vector of its first one is made again.
    changed = upsert(*(point(number, show="sea") for number in range(3)), mask="attributes.show")
    assert same(pair, "Upsert", changed).written > 6
    dynamic = upsert(point(1, mood="wild"), mask="attributes.mood", if_revision=first.sequence + 1)
    assert same(pair, "Upsert", dynamic).sequence == first.sequence + 2
    assert same(pair, "Upsert", dynamic)[0] == grpc.StatusCode.FAILED_PRECONDITION
    assert (
        same(pair, "Upsert", upsert(point(9, show="x"), mask="attributes.show"))[0]
        == grpc.StatusCode.NOT_FOUND
    )
    calm = Filter(
        condition=Condition(field="mood", operator=Operator.OPERATOR_EQ, values=[Value(string_value="calm")])
    )
    update = pb.UpdateWhereRequest(index=NAME, where=calm, attributes={"mood": Value(string_value="warm")})
    assert same(pair, "UpdateWhere", update).updated > 20
    gone = same(pair, "Delete", pb.DeleteRequest(index=NAME, document_ids=["doc2", "doc3", "none"]))
    assert gone.deleted > 6
    last = same(pair, "Upsert", upsert(point(4, "Bread.", show="food"))).sequence
    found = [target.contents(last, index=NAME, vectors=False) for target in (pair.alone, pair.cluster)]
    assert found[0] == found[1]
    vectors = [
        [Datapoint.FromString(each) for each in target.contents(last, index=NAME)]
        for target in (pair.alone, pair.cluster)
    ]
    for one, other in zip(*vectors, strict=True):
        assert set(one.vectors) == set(other.vectors)
        for name in ("", *one.vectors):
            own, its = (components(each.vectors[name] if name else each.vector) for each in (one, other))
            np.testing.assert_allclose(own, its, atol=1e-5)
    assert any(each.vectors for each in vectors[0])


def components(vector: Any) -> np.ndarray:
    return np.frombuffer(vector.packed, "<f4") if vector.packed else np.array(vector.values, np.float32)

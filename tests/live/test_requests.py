"""What a request id makes harmless, and what it does not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.runtime.retry import Deadline
from scannery.serving import InvalidRequestError
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.security.principal import ANONYMOUS, CURRENT, SCOPES, Principal
from scannery.serving.services.write import Writes
from scannery.v1 import index_pb2, types_pb2
from tests.live.model import DIMENSIONS, make_store, random_row

VECTOR = [1.0, *[0.0] * (DIMENSIONS - 1)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = random.Random(0)
    return make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(10)])


@pytest.fixture
def catalog(path: Path) -> Iterator[Catalog]:
    catalog = open_embedded_catalog(path)
    yield catalog
    catalog.close()


def upsert(catalog: Catalog, name: str, request_id: str) -> index_pb2.UpsertResponse:
    point = types_pb2.Datapoint(id=name, vector=types_pb2.Vector(values=VECTOR))
    request = index_pb2.UpsertRequest(
        index="live", upserts=[index_pb2.Upsert(datapoint=point)], request_id=request_id
    )
    return Writes(catalog).upsert(request, Deadline.after(20))


def delete(catalog: Catalog, name: str, request_id: str) -> index_pb2.DeleteResponse:
    request = index_pb2.DeleteRequest(index="live", ids=[name], request_id=request_id)
    return Writes(catalog).delete(request, Deadline.after(20))


def caller(principal: Principal | None, call: Any, *arguments: Any) -> Any:
    def called() -> Any:
        CURRENT.set(principal)
        return call(*arguments)

    return copy_context().run(called)


def test_another_request_with_a_known_id_is_refused_and_not_written(path: Path) -> None:
    with scannery.connect(path) as client:
        index = client.index("live")
        assert index.upsert([{"id": "a", "vector": VECTOR}], request_id="r").sequence == 1
        assert index.upsert([{"id": "a", "vector": VECTOR}], request_id="r").sequence == 1
        others: list[Any] = [
            lambda: index.upsert([{"id": "b", "vector": VECTOR}], request_id="r"),
            lambda: index.upsert([{"id": "a", "vector": VECTOR, "title": "new"}], request_id="r"),
            lambda: index.delete(["a"], request_id="r"),
            lambda: index.update([{"id": "a", "title": "new"}], request_id="r"),
        ]
        for other in others:
            with pytest.raises(scannery.InvalidArgumentError, match="request_id: must not be used again"):
                other()
        assert [point is not None for point in index.get(["a", "b"])] == [True, False]
        assert index.stats().sequence == 1


def test_a_refused_repetition_leaves_the_others_of_its_group_alone(catalog: Catalog) -> None:
    assert upsert(catalog, "a", "r").sequence == 1
    with pytest.raises(InvalidRequestError):
        upsert(catalog, "b", "r")
    assert upsert(catalog, "c", "r2").sequence == 2


def test_callers_do_not_share_request_ids(catalog: Catalog) -> None:
    one, two = (Principal(name, frozenset(SCOPES)) for name in ("one", "two"))
    assert caller(one, upsert, catalog, "a", "r").sequence == 1
    # Neither gets the answer of the other, nor is refused because of it.
    assert caller(two, upsert, catalog, "a", "r").sequence == 2
    assert caller(two, delete, catalog, "b", "s").sequence == 3
    assert caller(one, upsert, catalog, "a", "r").sequence == 1
    # A caller cannot name another in the id.
    assert caller(None, upsert, catalog, "a", "one\0r").sequence == 4


def test_callers_without_credentials_are_one(catalog: Catalog) -> None:
    assert caller(ANONYMOUS, upsert, catalog, "a", "r").sequence == 1
    assert caller(None, upsert, catalog, "a", "r").sequence == 1

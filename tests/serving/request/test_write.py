"""Upserts of many or hostile datapoints: the work is bounded, and ends at the deadline."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from datetime import datetime, timezone

import pytest

from scannery.indexer import Manifest, parse_spec
from scannery.indexer.datapoints.dynamic import MAX_DYNAMIC_BYTES
from scannery.runtime.errors import DeadlineError, InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving.request.write import parse_upsert
from scannery.v1 import index_pb2 as pb
from scannery.v1.types_pb2 import Datapoint

SPEC = parse_spec(
    {
        "index": "notes",
        "source": {"vector": "vector", "text": "text"},
        "vectors": "optional",
        "attributes": {"at": "geo", "year": "int"},
        "dynamic": True,
    }
)
NO_DEADLINE = Deadline.after(None)
MANY_VALUES = "{" + ",".join(f'"k{i}":[{",".join(["0"] * 60_000)}]' for i in range(12)) + "}"
"""1.4 MiB with more values than 1 MiB of JSON can have."""


def manifest_of(*, dynamic: bool = True) -> Manifest:
    return Manifest(
        index="notes",
        version=1,
        created_at=datetime.now(timezone.utc),
        spec=SPEC.model_copy(update={"dynamic": dynamic}),
        dimensions=4,
        shards=1,
        segments=(),
    )


def request_of(points: int, fill: Callable[[Datapoint, int], None]) -> pb.UpsertRequest:
    request = pb.UpsertRequest(index="notes")
    for number in range(points):
        point = request.upserts.add().datapoint
        point.id = f"p{number}"
        fill(point, number)
    return request


def text_of(point: Datapoint, number: int) -> None:
    # With a vector, the text is not cut; it is searched for what is spoken in it.
    point.vector.values.extend([1, 2, 3, 4])
    point.text = f"text {number}"


@pytest.mark.parametrize("fill", [
    lambda point, _: setattr(point, "dynamic_json", '{"a": 1}'),
    lambda point, _: setattr(point.attributes["a"], "json_value", '{"a": 1}'),
    lambda point, _: setattr(point.attributes["at"], "json_value", '{"lat": 1, "lon": 2}'),
    lambda point, _: setattr(point, "payload_json", '{"a": 1}'),
    lambda point, _: point.sparse_vector.MergeFrom(type(point.sparse_vector)(indices=[1, 2], values=[1, 2])),
    text_of,
], ids=["dynamic_json", "json_value", "geo", "payload", "sparse", "text"])  # fmt: skip
def test_the_deadline_is_checked_between_datapoints(fill: Callable[[Datapoint, int], None]) -> None:
    request, ticks = request_of(100, fill), itertools.count()
    with pytest.raises(DeadlineError):
        parse_upsert(request, manifest_of(), Deadline(at_s=50, clock=lambda: next(ticks)))
    assert next(ticks) == 51


def cpu_s(request: pb.UpsertRequest, manifest: Manifest) -> float:
    """Return the processor time of a reading: the least of three, since caches are shared with other processes."""
    return min(_cpu_s(request, manifest) for _ in range(3))


def _cpu_s(request: pb.UpsertRequest, manifest: Manifest) -> float:
    started = time.thread_time()
    try:
        parse_upsert(request, manifest, NO_DEADLINE)
    except InvalidRequestError as error:
        assert str(error).startswith(("upserts[0].datapoint.attributes", "upserts[0].datapoint.vectors"))
    return time.thread_time() - started


@pytest.mark.system
def test_one_datapoint_that_is_refused_ends_the_reading_of_others() -> None:
    one, many = (
        request_of(points, lambda point, _: setattr(point, "dynamic_json", MANY_VALUES)) for points in (1, 10)
    )
    manifest = manifest_of()
    assert cpu_s(many, manifest) < 4 * cpu_s(one, manifest)
    with pytest.raises(InvalidRequestError, match=r"at most 1048576 bytes, got more than 524288 values"):
        parse_upsert(one, manifest, NO_DEADLINE)


@pytest.mark.system
def test_as_many_values_as_fit_are_taken() -> None:
    text = json.dumps({f"k{i}": [0] * 65_000 for i in range(8)}, separators=(",", ":"))
    assert MAX_DYNAMIC_BYTES - 10_000 < len(text) < MAX_DYNAMIC_BYTES
    request = request_of(1, lambda point, _: setattr(point, "dynamic_json", text))
    assert parse_upsert(request, manifest_of(), NO_DEADLINE).rows["_dynamic"].to_pylist() == [text]


@pytest.mark.system
@pytest.mark.parametrize("dynamic", [True, False])
def test_names_of_their_own_in_each_datapoint_take_linear_time(dynamic: bool) -> None:
    def named(point: Datapoint, number: int) -> None:
        for name in range(100):
            point.attributes[f"n{number}_{name}"].int_value = name

    manifest = manifest_of(dynamic=dynamic)
    few, many = (cpu_s(request_of(points, named), manifest) for points in (100, 400))
    assert many < 9 * few  # 16 times if it were quadratic


@pytest.mark.system
def test_unknown_names_of_vectors_take_linear_time() -> None:
    def named(point: Datapoint, number: int) -> None:
        for name in range(100):
            point.vectors[f"n{number}_{name}"].packed = b""

    few, many = (cpu_s(request_of(points, named), manifest_of()) for points in (100, 400))
    assert many < 9 * few  # 16 times if it were quadratic

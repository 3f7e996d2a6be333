"""Batches that are read column by column come to what they would item by item, and wrong ones are left to that."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scannery.client.request.writes import build_upserts
from scannery.indexer import Manifest, Store, id_hashes, open_index, parse_spec, read_manifest
from scannery.serving.deadline import Deadline
from scannery.serving.encoding import EncoderPool
from scannery.serving.errors import InvalidRequestError
from scannery.serving.live.memtable import apply, begin
from scannery.serving.live.parsing import parse_upsert
from scannery.serving.live.plain import prepare_plain
from scannery.serving.live.preparing import prepare
from scannery.serving.live.records import Mutation, decode, encode
from scannery.v1 import index_pb2 as pb
from tests.serving.live.model import DIMENSIONS, make_store, random_row

SPEC = parse_spec(
    {
        "index": "live",
        "source": {"id": "id", "vector": "vector", "text": "text", "title": "title", "document_id": "doc"},
        "lexical": True,
        "attributes": {
            "show": "string",
            "year": "int",
            "tags": "string_list",
            "weight": "float",
            "good": "bool",
            "at": "timestamp",
        },
    }
)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("plain")
    rng = random.Random(0)
    return read_manifest(Store.open(make_store(folder, [random_row(rng, "a")])), "live").model_copy(
        update={"spec": SPEC}
    )


def full_row(rng: random.Random, identifier: str) -> dict[str, Any]:
    row = random_row(rng, identifier)
    more = {
        "weight": rng.choice([None, rng.random(), 3]),
        "good": rng.choice([None, True, False]),
        "at": rng.choice([None, "2025-01-02T03:04:05", "2024-02-29"]),
    }
    row["attributes"] = {
        k: v for k, v in (row["attributes"] | more).items() if v is not None or rng.random() < 0.5
    }
    for key in ("document_id", "title", "text", "payload", "attributes"):
        if rng.random() < 0.2:
            del row[key]
    return row


def request_of(rows: list[dict[str, Any]]) -> pb.UpsertRequest:
    message = pb.UpsertRequest(index="live", upserts=build_upserts(rows))
    return pb.UpsertRequest.FromString(message.SerializeToString())


@pytest.mark.parametrize("seed", range(30))
def test_it_comes_to_the_same(manifest: Manifest, seed: int) -> None:
    rng = random.Random(seed)
    request = request_of([full_row(rng, f"idé{i}") for i in range(rng.choice([1, 2, 40]))])
    before = request.SerializeToString(deterministic=True)
    found = prepare_plain(request, manifest)
    assert request.SerializeToString(deterministic=True) == before
    right = _slowly(request, manifest)
    assert found is not None
    assert found.mutation.rows.equals(right.rows)
    assert found.mutation.rows.schema.equals(right.rows.schema)
    assert found.mutation.encoder == right.encoder
    back = decode(found.encoded, sequence=1)
    assert back.rows.equals(right.rows)
    np.testing.assert_array_equal(back.hashes, id_hashes(right.ids))


def _slowly(request: pb.UpsertRequest, manifest: Manifest) -> Mutation:
    return prepare(parse_upsert(request, manifest), manifest, EncoderPool(), Deadline.after(None)).mutation


def _same_id(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.id = request.upserts[1].datapoint.id


def _no_id(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.id = ""


def _control(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.document_id = "a\nb"


def _long_id(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.id = "é" * 257


def _long_title(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.title = "x" * (1 << 16) + "y"


def _short_vector(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.vector.packed = b"1234" * (DIMENSIONS - 1)


def _nan(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.vector.packed = np.full(DIMENSIONS, np.nan, "<f4").tobytes()


def _zero(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.vector.packed = np.zeros(DIMENSIONS, "<f4").tobytes()


def _twice(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.vector.values.append(1.0)


def _unknown_attribute(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.attributes["colour"].string_value = "red"


def _wrong_type(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.attributes["year"].string_value = "soon"


def _infinite(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.attributes["weight"].float_value = float("inf")


def _payload(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.payload_json = "{"


def _sparse(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.sparse_vector.indices.append(1)


def _no_vector(request: pb.UpsertRequest) -> None:
    request.upserts[3].datapoint.ClearField("vector")


def _none(request: pb.UpsertRequest) -> None:
    del request.upserts[:]


def _request_id(request: pb.UpsertRequest) -> None:
    request.request_id = "x" * 65


@pytest.mark.parametrize(
    "spoil",
    [
        _same_id, _no_id, _control, _long_id, _long_title, _short_vector, _nan, _zero, _twice, _unknown_attribute,
        _wrong_type, _infinite, _payload, _sparse, _no_vector, _none, _request_id,
    ],
)  # fmt: skip
def test_what_is_wrong_is_left_to_who_says_where(
    manifest: Manifest, spoil: Callable[[pb.UpsertRequest], None]
) -> None:
    rng = random.Random(1)
    request = request_of([random_row(rng, f"id{i}") for i in range(5)])
    assert prepare_plain(request, manifest) is not None
    spoil(request)
    assert prepare_plain(request, manifest) is None
    with pytest.raises(InvalidRequestError):
        _slowly(request, manifest)


def test_many_writes_without_a_query_between_them_are_there_afterwards(
    manifest: Manifest, tmp_path: Any
) -> None:
    rng = random.Random(2)
    rows = [random_row(rng, f"id{i}") for i in range(3000)]
    store = Store.open(make_store(tmp_path, rows[:5]))
    opened = open_index(store, "live")
    state, expected = begin(opened), {row["id"]: row for row in rows[:5]}
    position, sequence = 5, 0
    while position < len(rows):
        some = rows[position : position + rng.choice([1, 1, 7, 300])]
        position += len(some)
        some += [random_row(rng, f"id{i}") for i in rng.sample(range(position - len(some)), 3)]
        sequence += 1
        prepared = prepare_plain(request_of(some), opened.manifest)
        assert prepared is not None
        state = apply(state, [(sequence, decode(encode(prepared.mutation), sequence=sequence))])
        expected |= {row["id"]: row for row in some}
    found: dict[str, Any] = {}
    for segment, rows_R in state.opened().live_rows():
        table = segment.take(rows_R, ["id", "text"])
        assert len(segment.searched_ND) == len(segment.given_ND) == len(segment.table) == segment.rows
        for name, text, vector_D in zip(*table.to_pydict().values(), segment.vectors(rows_R), strict=True):
            assert name not in found
            found[name] = text
            np.testing.assert_allclose(vector_D, np.array(expected[name]["vector"], np.float32))
    assert found == {name: row["text"] for name, row in expected.items()}

"""What becomes of the datapoints of a write; and that builds and writes judge a datapoint alike."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from scannery.client.request.writes import build_upserts
from scannery.indexer import (
    InvalidRecordError,
    Manifest,
    Store,
    datapoint_schema,
    id_hashes,
    open_index,
    parse_spec,
    read_manifest,
)
from scannery.indexer.datapoints.validation import ValidatedBatch
from scannery.live.log.records import decode
from scannery.live.memtable import apply, begin
from scannery.live.prepare import prepare
from scannery.pipelines.records.source_columns import validate_batch, validate_records
from scannery.pipelines.sources import Batch, Record
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.request.write import parse_upsert
from scannery.v1 import index_pb2 as pb
from scannery.v1.types_pb2 import Datapoint, SparseVector, StringList, Value
from tests.live.model import DIMENSIONS, make_store, random_row

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


def rows_of(request: pb.UpsertRequest, manifest: Manifest) -> pa.Table:
    upserts = parse_upsert(request, manifest, Deadline.after(None))
    return prepare(upserts, manifest, EncoderPool(), Deadline.after(None)).mutation.rows


def test_a_record_of_the_log_holds_the_rows(manifest: Manifest) -> None:
    rng = random.Random(0)
    request = request_of([full_row(rng, f"idé{i}") for i in range(40)])
    before = request.SerializeToString(deterministic=True)
    prepared = prepare(
        parse_upsert(request, manifest, Deadline.after(None)), manifest, EncoderPool(), Deadline.after(None)
    )
    assert request.SerializeToString(deterministic=True) == before
    back = decode(prepared.encoded, sequence=1)
    assert back.rows.equals(prepared.mutation.rows)
    assert back.rows.schema.names[: len(SPEC.attributes) + 10] == datapoint_schema(SPEC, DIMENSIONS).names
    np.testing.assert_array_equal(back.hashes, id_hashes(prepared.mutation.ids))


NAN, ZERO = (np.full(DIMENSIONS, value, "<f4").tobytes() for value in (np.nan, 0))
SPOILT: dict[str, tuple[str, Callable[[pb.UpsertRequest, Datapoint], object]]] = {
    "an id twice": ("upserts[3].datapoint.id", lambda _, point: point.MergeFrom(Datapoint(id="id1"))),
    "no id": ("upserts[3].datapoint.id", lambda _, point: point.ClearField("id")),
    "a long id": ("upserts[3].datapoint.id", lambda _, point: point.MergeFrom(Datapoint(id="é" * 257))),
    "a control character": (
        "upserts[3].datapoint.document_id", lambda _, point: point.MergeFrom(Datapoint(document_id="a\nb"))),
    "a long title": (
        "upserts[3].datapoint.title", lambda _, point: point.MergeFrom(Datapoint(title="x" * (1 << 16) + "y"))),
    "a short vector": ("upserts[3].datapoint.vector", lambda _, point: packed(point, b"1234" * (DIMENSIONS - 1))),
    "NaN": ("upserts[3].datapoint.vector", lambda _, point: packed(point, NAN)),
    "zeros": ("upserts[3].datapoint.vector", lambda _, point: packed(point, ZERO)),
    "a vector twice": ("upserts[3].datapoint.vector", lambda _, point: point.vector.values.append(1.0)),
    "no vector": ("upserts[3].datapoint.vector", lambda _, point: point.ClearField("vector")),
    "an unknown attribute": ("upserts[3].datapoint.attributes.colour", lambda _, point: text(point, "colour")),
    "an attribute of another type": ("upserts[3].datapoint.attributes.year", lambda _, point: text(point, "year")),
    "a payload": ("upserts[3].datapoint.payload_json", lambda _, point: point.MergeFrom(Datapoint(payload_json="{"))),
    "a sparse vector": (
        "upserts[3].datapoint.sparse_vector", lambda _, point: point.sparse_vector.indices.append(1)),
    "nothing": ("upserts", lambda request, _: request.ClearField("upserts")),
    "a long request_id": ("request_id", lambda request, _: request.MergeFrom(pb.UpsertRequest(request_id="x" * 65))),
}  # fmt: skip
"""What is wrong: the field that is named, and what makes it wrong."""


def packed(point: Datapoint, data: bytes) -> None:
    point.vector.packed = data


def text(point: Datapoint, name: str) -> None:
    point.attributes[name].string_value = "text"


@pytest.mark.parametrize("wrong", SPOILT)
def test_what_is_wrong_is_named(manifest: Manifest, wrong: str) -> None:
    rng, (field, spoil) = random.Random(1), SPOILT[wrong]
    request = request_of([random_row(rng, f"id{i}") for i in range(5)])
    assert rows_of(request, manifest).num_rows == 5
    spoil(request, request.upserts[3].datapoint)
    with pytest.raises(InvalidRequestError, match=re.escape(field)) as caught:
        parse_upsert(request, manifest, Deadline.after(None))
    assert caught.value.field == field


def test_the_first_item_that_is_wrong_is_named(manifest: Manifest) -> None:
    rng = random.Random(1)
    request = request_of([random_row(rng, f"id{i}") for i in range(5)])
    request.upserts[4].datapoint.id = ""
    request.upserts[2].datapoint.vector.packed = b""
    request.upserts[3].condition.SetInParent()
    with pytest.raises(InvalidRequestError, match=r"^upserts\[2\]\.datapoint\.vector: "):
        parse_upsert(request, manifest, Deadline.after(None))


@pytest.mark.system
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
        upserts = parse_upsert(request_of(some), opened.manifest, Deadline.after(None))
        prepared = prepare(upserts, opened.manifest, EncoderPool(), Deadline.after(None))
        state = apply(state, [(sequence, decode(prepared.encoded, sequence=sequence))])
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


# Field names as in a request, so that both name what is wrong alike; but for attributes.
SAME = parse_spec(
    {
        "index": "live",
        "source": {
            "id": "id", "vector": "vector", "text": "text", "title": "title", "document_id": "document_id",
            "payload": "payload_json", "sparse_vector": "sparse_vector",
        },
        "attributes": {"show": "string", "year": "int", "tags": "string_list", "weight": "float", "good": "bool",
                       "at": "timestamp"},
    }
)  # fmt: skip
GOOD: dict[str, Any] = {
    "id": "a", "document_id": "d", "title": " T ", "text": "some words", "payload_json": '{ "a": 1 }',
    "vector": [1.0, *[0.0] * (DIMENSIONS - 1)], "sparse_vector": {"indices": [3, 1], "values": [0.5, 2.0]},
    "show": "s", "year": 3, "tags": ["x"], "weight": 0.5, "good": True, "at": "2025-01-02T03:04:05",
}  # fmt: skip
ANY_VALUE = st.one_of(
    st.none(), st.text(max_size=3), st.integers(-(2**63), 2**63 - 1), st.booleans(),
    st.floats(allow_infinity=False), st.lists(st.text(max_size=2), max_size=2),
    st.sampled_from(["7", "1.5", "true", "soon", "2020-01-01", "[", '["a"]', "[1, [2]]", 3.0, 1e18, -1e18]),
)  # fmt: skip
IDS = st.one_of(
    st.text(max_size=3), st.sampled_from(["a\nb", "\x00", "\x7f", "x" * 512, "é" * 257, "x" * 503])
)
ODD_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": IDS,
    "document_id": IDS.filter(bool),  # a request without one means the id
    "title": st.one_of(st.none(), st.text(max_size=3), st.sampled_from([" ", "\x1f b\u3000"])),
    "text": st.one_of(st.none(), st.text(max_size=3), st.sampled_from([" ", "\n", "00:01 --> 00:02"])),
    "payload_json": st.sampled_from([None, "{", "NaN", "null", "1.0", '"\\ud800"', '{"a":NaN}', "[" * 9000]),
    "vector": st.one_of(
        st.none(),
        st.lists(st.floats(width=32), min_size=DIMENSIONS, max_size=DIMENSIONS),
        st.lists(st.floats(width=32), min_size=1, max_size=DIMENSIONS + 1),
        st.sampled_from([[0.0] * DIMENSIONS, [1e15] * DIMENSIONS, [1.1e15] * DIMENSIONS]),
    ),
    "sparse_vector": st.one_of(
        st.none(),
        st.builds(
            lambda indices, values: {"indices": indices, "values": values},
            st.lists(st.integers(0, 4), max_size=3), st.lists(st.floats(width=32), max_size=3),
        ),
    ),
    **dict.fromkeys(SAME.attributes, ANY_VALUE),
}  # fmt: skip


def value_of(value: Any) -> Value:
    if isinstance(value, bool):
        return Value(bool_value=value)
    kinds = {str: "string_value", int: "int_value", float: "float_value"}
    if isinstance(value, list):
        return Value(string_list_value=StringList(values=value))
    return Value() if value is None else Value(**{kinds[type(value)]: value})


def message_of(fields: dict[str, Any]) -> pb.Upsert:
    names = ("id", "document_id", "title", "text", "payload_json")
    point = Datapoint(**{name: fields[name] for name in names})
    if fields["vector"] is not None:
        point.vector.packed = np.array(fields["vector"], "<f4").tobytes()
    if fields["sparse_vector"] is not None:
        point.sparse_vector.CopyFrom(SparseVector(**fields["sparse_vector"]))
    for name in SAME.attributes:
        point.attributes[name].CopyFrom(value_of(fields[name]))
    return pb.Upsert(datapoint=point)


Verdict = tuple[str | None, str] | dict[str, Any]
"""The row that a datapoint becomes, or the field and message that refuse it."""


def built(records: list[Record], number: int) -> Verdict:
    """Return the row that a build makes of a record, or the field and message of its dead letter."""
    return verdict_of(validate_records(records, SAME, {"": DIMENSIONS}), number)


def by_columns(records: list[Record], number: int) -> Verdict:
    """Return what a build makes of a record that comes as one of a Parquet file."""
    columns = pa.Table.from_pylist([dict(record.fields) for record in records]).to_batches()[0]
    return verdict_of(validate_batch(Batch(columns, "vector", "f", 1), SAME, {"": DIMENSIONS}), number)


def verdict_of(valid: ValidatedBatch, number: int) -> Verdict:
    for rejected in valid.rejected:
        if rejected.row == number:
            return rejected.error.field, InvalidRecordError.merged(
                [rejected.error, *rejected.more_errors]
            ).message
    row: dict[str, Any] = valid.table.to_pylist()[valid.rows_N.tolist().index(number)]
    return row


def written(messages: list[pb.Upsert], number: int, manifest: Manifest) -> Verdict:
    """Return the row that a write makes of an item, or the field and message of its error."""
    try:
        rows = rows_of(pb.UpsertRequest(index="live", upserts=messages), manifest)
    except InvalidRequestError as error:
        front = f"upserts[{number}].datapoint."
        assert error.field is not None and error.field.startswith(front)
        assert error.message.startswith(error.field)
        field, message = (
            text.replace(front, "").replace("attributes.", "") for text in (error.field, error.message)
        )
        return field, message
    row: dict[str, Any] = rows.to_pylist()[number]
    return row


@pytest.mark.system
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_builds_and_writes_judge_a_datapoint_alike(manifest: Manifest, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(ODD_VALUES)), min_size=1, max_size=2, unique=True))
    fields = GOOD | {name: data.draw(ODD_VALUES[name], name) for name in names}
    manifest = manifest.model_copy(update={"spec": SAME})
    others = [GOOD | {"id": f"other {i}"} for i in range(2)]
    verdicts = [
        built([Record(fields, "f")], 0),
        built([Record(one, "f") for one in (others[0], fields, others[1])], 1),
        written([message_of(fields)], 0, manifest),
        written([message_of(one) for one in (others[0], fields, others[1])], 1, manifest),
    ]
    if all(value is None or type(value) is type(GOOD[name]) for name, value in fields.items()):
        verdicts.append(by_columns([Record(one, "f") for one in (others[0], fields, others[1])], 1))
    first = verdicts[0]
    for verdict in verdicts[1:]:
        if fields["vector"] is None and isinstance(first, tuple) and isinstance(verdict, tuple):
            assert verdict[0] == first[0]  # a dead letter says what the record has instead
        else:
            assert repr(verdict) == repr(first)

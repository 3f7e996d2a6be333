"""Hits on the wire against messages made by the generated code from the same rows."""

from __future__ import annotations

import datetime as dt
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import IndexSpec, Records, parse_spec
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.engine.hydrator import Hydrator
from scannery.serving.engine.top_k import Ranking
from scannery.serving.engine.wire_fields import framed, varint
from scannery.serving.request.options import Fields
from scannery.v1.search_pb2 import Hit, HitList
from scannery.v1.types_pb2 import Datapoint, StringList, Value, Vector
from tests.data import datapoints

NONE = float("nan")
KINDS = {
    "name": "string",
    "tags": "string_list",
    "size": "int",
    "ratio": "float",
    "live": "bool",
    "at": "timestamp",
    "an_attribute_with_a_name_that_is_as_long_as_a_name_may_be_6789": "int",
}
LONG_NAME = list(KINDS)[-1]
SPEC: IndexSpec = parse_spec({"index": "i", "source": {"vector": "v"}, "attributes": KINDS})
UTC = dt.timezone.utc
COLUMNS: dict[str, list[Any]] = {
    "document_id": ["d", "dd", "é" * 100, "d", "d"],
    "title": ["", None, "t" * 127, "t" * 128, "ü"],
    "text": ["x" * 20_000, "", None, "one", "two"],
    "payload": [None, "{}", "[1]", None, "null"],
    "text_start": [0, 1, None, 2**40, 127],
    "text_end": [128, None, 0, 2**62, 16384],
    "time_start_s": [0.0, None, -1.5, 1e300, 2.0],
    "time_end_s": [None, 0.0, 1.0, 2.0, 3.0],
    "name": ["a", None, "", "日本", "n" * 300],
    "tags": [["a", "", "ccc"], [], None, ["t" * 200] * 100, ["x"]],
    "size": [0, -1, None, 2**63 - 1, -(2**63)],
    "ratio": [0.0, -0.5, None, 1e-300, float("inf")],
    "live": [True, False, None, True, False],
    "at": [dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
     dt.datetime(1970, 1, 1, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), None],
    LONG_NAME: [1, 128, 300, None, -5],
}  # fmt: skip
ROWS = 5
VECTORS_ND = np.random.default_rng(0).standard_normal((ROWS, 3)).astype(np.float32)
TABLE = datapoints(SPEC, VECTORS_ND, columns=COLUMNS)
EVERYTHING = Fields(title=True, text=True, payload=True, offsets=True, attributes=tuple(KINDS), vector=True)
NOTHING = Fields(title=False, text=False, payload=False, offsets=False, attributes=(), vector=False)


class _Segment(SimpleNamespace):
    """What a hydrator wants of a segment."""

    reads_given = False

    def take(self, rows: np.ndarray) -> pa.Table:
        return self.records.table.take(pa.array(rows))

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        return self.given_ND[rows]


def segment(table: pa.Table = TABLE, *, pieces: bool = False) -> Any:
    records = Records.of(table.drop_columns(["embedding"]))
    records.in_one_piece = not pieces  # as if there were more text than fits one
    vectors_ND = VECTORS_ND.copy()
    vectors_ND.setflags(write=False)
    return _Segment(records=records, given_ND=vectors_ND)


def value(kind: str, given: Any) -> Value:
    if kind == "timestamp":
        message = Value()
        message.timestamp_value.FromDatetime(given)
        return message
    if kind == "string_list":
        return Value(string_list_value=StringList(values=given))
    field = {"string": "string_value", "int": "int_value", "float": "float_value", "bool": "bool_value"}[kind]
    return Value(**{field: given})


def expected(row: int, fields: Fields = EVERYTHING) -> Datapoint:
    point = Datapoint(id=f"d{row}", document_id=COLUMNS["document_id"][row])
    offsets = ("text_start", "text_end", "time_start_s", "time_end_s") if fields.offsets else ()
    for name in (*(name for name in ("title", "text", "payload") if getattr(fields, name)), *offsets):
        given = COLUMNS[name][row]
        if given is not None:
            setattr(point, "payload_json" if name == "payload" else name, given)
    for name in fields.attributes:
        if COLUMNS[name][row] is not None:
            point.attributes[name].CopyFrom(value(KINDS[name], COLUMNS[name][row]))
    if fields.vector:
        point.vector.CopyFrom(Vector(packed=VECTORS_ND[row].tobytes()))
    return point


def ranking(places: list[tuple[int, int]], **sides: list[float]) -> Ranking:
    numbers, rows = np.array(places, np.int64).reshape(-1, 2).T
    scores = np.arange(len(places), dtype=np.float32)[::-1].copy()
    parts: dict[str, Any] = {name: np.array(values, np.float32) for name, values in sides.items()}
    return Ranking(numbers.copy(), rows.copy(), scores, **parts)


def test_columns_without_any_value_are_not_read() -> None:
    empty = {"text", "size", "ratio", "time_start_s"}
    table = TABLE
    for name in empty:
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pa.nulls(ROWS, table.schema.types[place]))
    hydrator = Hydrator([segment(table)], SPEC, EVERYTHING, group_by="size")
    found = hydrator.datapoints([(0, row) for row in range(ROWS)])
    for row, point in enumerate(found):
        wanted = expected(row)
        for name in empty & {"text", "time_start_s"}:
            wanted.ClearField(name)  # type: ignore[arg-type]
        for name in empty & set(KINDS):
            wanted.attributes.pop(name, None)
        assert point == wanted
    layout = hydrator._layouts[0]
    assert len(layout.columns_C7) == len({"id", *COLUMNS} - empty)
    assert len(layout.groups_G7) == 0


@pytest.mark.parametrize("pieces", [False, True])
def test_every_kind_of_field_is_written_as_protobuf_would(pieces: bool) -> None:
    hydrator = Hydrator([segment(pieces=pieces)], SPEC, EVERYTHING, group_by=None)
    rows = [4, 0, 3, 1, 2, 2]
    assert hydrator.datapoints([(0, row) for row in rows]) == [expected(row) for row in rows]
    few = Fields(title=True, text=False, payload=False, offsets=False, attributes=("size",), vector=False)
    hydrator = Hydrator([segment(pieces=pieces)], SPEC, few, group_by=None)
    assert hydrator.datapoints([(0, row) for row in rows]) == [expected(row, few) for row in rows]
    assert hydrator.datapoints([]) == []


@pytest.mark.parametrize("group_by", ["document_id", *(name for name in KINDS if name != "tags")])
def test_groups_and_scores(group_by: str) -> None:
    hydrator = Hydrator([segment()], SPEC, NOTHING, group_by=group_by)
    sides = {
        "dense": [0.5, NONE, 1, 2, 3],
        "lexical": [NONE, 7, -1, 0, 1],
        "rerank": [NONE] * 5,
        "relevance": [1, 0.5, 0.25, 0.125, 0],
    }
    [data] = hydrator.hits([ranking([(0, row) for row in range(ROWS)], **sides)]).lists()
    for row, hit in enumerate(HitList.FromString(data).hits):
        right = Hit(datapoint=expected(row, NOTHING), score=4 - row, relevance=sides["relevance"][row])
        if row != 1:
            right.dense_score = sides["dense"][row]
        if row != 0:
            right.lexical_score = sides["lexical"][row]
        given = COLUMNS[group_by][row]
        if given is not None:
            right.group.CopyFrom(value(KINDS.get(group_by, "string"), given))
        assert hit == right


def test_hits_of_one_score_have_a_relevance_beside_it() -> None:
    hydrator = Hydrator([segment(), segment()], SPEC, NOTHING, group_by=None)
    relevance = [0.5, NONE, 0.0]
    rankings = [ranking([(0, 1), (1, 2), (0, 3)], relevance=relevance), ranking([(1, 4)])]
    first, second = (HitList.FromString(data).hits for data in hydrator.hits(rankings).lists())
    assert [hit.relevance if hit.HasField("relevance") else None for hit in first] == [0.5, None, 0.0]
    assert [hit.score for hit in (*first, *second)] == [2, 1, 0, 0]
    assert not second[0].HasField("relevance"), "another query of the call, without a curve"
    rows_12, scores_12 = np.array([[3, 1]]), np.array([[2, 1]], np.float32)
    written = hydrator.block(0, rows_12, scores_12, scores_12 / 4)
    assert list(HitList.FromString(written.whole()).hits) == [
        Hit(datapoint=expected(row, NOTHING), score=score, relevance=score / 4)
        for row, score in ((3, 2), (1, 1))
    ]


def test_hits_of_several_queries_and_segments_keep_their_order() -> None:
    hydrator = Hydrator([segment(), segment(), segment(TABLE.slice(0, 0))], SPEC, EVERYTHING, group_by="name")
    places = [[(1, 0), (0, 0), (1, 4)], [], [(0, 3)], [(1, 2), (0, 2)]]
    answers = hydrator.hits([ranking(hits) for hits in places]).lists()
    assert answers[1] == b""
    for data, hits in zip(answers, places, strict=True):
        found = HitList.FromString(data).hits
        assert [hit.datapoint for hit in found] == [expected(row) for _, row in hits]
        assert [hit.score for hit in found] == list(range(len(hits)))[::-1]


def test_columns_without_a_value_need_no_place() -> None:
    nothing = {name: [None] * ROWS for name in COLUMNS if name != "document_id"}
    table = datapoints(SPEC, VECTORS_ND, columns=nothing)
    hydrator = Hydrator([segment(table)], SPEC, EVERYTHING, group_by="name")
    [data] = hydrator.hits([ranking([(0, 1)])]).lists()
    [hit] = HitList.FromString(data).hits
    bare = Datapoint(id="d1", document_id="d1", vector=Vector(packed=VECTORS_ND[1].tobytes()))
    assert hit == Hit(datapoint=bare, score=0)


def test_records_on_disk_are_those_in_memory(tmp_path: Path) -> None:
    from scannery.indexer.datapoints.row_records import write_records

    table = TABLE.drop_columns(["embedding"])
    write_records(table, tmp_path / "records.arrow")
    mapped, copied = Records.map(tmp_path / "records.arrow"), Records.of(table)
    assert mapped.table.equals(copied.table)
    assert [mapped.address(name) for name in table.column_names] == [
        copied.address(name) for name in table.column_names
    ]


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32])
def test_varints_are_those_of_protobuf(number: int) -> None:
    assert varint(number) == Datapoint(revision=number).SerializeToString()[1:] or number == 0
    assert framed(5, b"x" * 300) == Datapoint(text="x" * 300).SerializeToString()


@pytest.mark.system
def test_large_hits_do_not_decide_on_the_room_for_small_ones() -> None:
    hydrator = Hydrator([segment()], SPEC, EVERYTHING, group_by=None)
    large, small = np.zeros((1, 100), np.int64), np.ones((1000, 100), np.int64)
    hydrator.block(0, large, np.zeros(large.shape, np.float32))
    tracemalloc.start()
    try:
        written = hydrator.block(0, small, np.zeros(small.shape, np.float32))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(written.lists()) == 1000
    assert peak_bytes < 4 * len(written.data_B) + (32 << 20)
    hits = HitList.FromString(written.lists()[-1]).hits
    assert hits[-1].datapoint == expected(1)


@pytest.mark.parametrize("segments", [1, 2])
def test_answers_are_bounded(segments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of 1 MiB that each of a thousand queries finds would be 1 GiB."""
    monkeypatch.setattr("scannery.serving.engine.hydrator.MAX_ANSWER_BYTES", 1 << 20)
    hydrator = Hydrator([segment()] * segments, SPEC, EVERYTHING, group_by=None)
    numbers = np.arange(80, dtype=np.int64) % segments
    some = Ranking(numbers[:40], np.zeros(40, np.int64), np.zeros(40, np.float32))
    assert len(hydrator.hits([some]).lists()) == 1
    many = Ranking(numbers, np.zeros(80, np.int64), np.zeros(80, np.float32))
    with pytest.raises(InvalidRequestError, match="fewer hits"):
        hydrator.hits([many])

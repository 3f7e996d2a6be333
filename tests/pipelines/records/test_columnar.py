"""By columns or record by record: the same rows, the same dead letters, the same segments."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from scannery.indexer import Store, open_index, parse_spec
from scannery.indexer.spec.spec import shard_of, shards_of_ids
from scannery.pipelines.records.source_columns import validate_batch
from scannery.pipelines.records.unit_rows import Item, own_rows
from scannery.pipelines.sources import Batch
from tests.data import clustered
from tests.indexer.datapoints.columns.column_types import COLUMNS
from tests.pipelines.conftest import letters_of, manifest_of, run

pytestmark = pytest.mark.system

ATTRIBUTES = {"s": "string", "l": "string_list", "i": "int", "f": "float", "b": "bool", "t": "timestamp"}
SPEC: dict[str, Any] = {
    "index": "vectors",
    "source": {"vector": "v", "text": "text", "title": "title", "payload": "payload"},
    "attributes": ATTRIBUTES,
}
DIMENSIONS = 3


def batch_of(columns: dict[str, pa.Array]) -> Batch:
    return Batch(pa.record_batch(columns), "v", "file.parquet", 11)


def one_by_one(batches: list[Batch]) -> Iterator[Item]:
    return itertools.chain.from_iterable(batch.records() for batch in batches)


def check(batches: list[Batch], spec: dict[str, Any] = SPEC) -> pa.Table:
    """Return what both ways make of the batches, which must be the same."""
    parsed = parse_spec(spec)
    ours = own_rows(batches, parsed, {"": DIMENSIONS})
    theirs = own_rows(one_by_one(batches), parsed, {"": DIMENSIONS})
    assert ours.letters == theirs.letters
    assert (ours.documents, ours.ignored) == (theirs.documents, theirs.ignored)
    assert ours.converted == theirs.converted
    assert ours.table.schema == theirs.table.schema
    ours.table.validate(full=True)
    for name in ours.table.column_names:
        assert ours.table.column(name).combine_chunks() == theirs.table.column(name).combine_chunks(), name
    return ours.table


IDS = st.one_of(
    st.none(), st.just(""), st.text(max_size=4), st.sampled_from(["a\n", "\x00", "\x7f", "\x85", "x" * 512, "é" * 257])
)  # fmt: skip
NUMBERS = st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, 1e15, 1.1e15, -2e15, 1.0]))
MOMENTS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))


def columns_of(draw: st.DrawFn, rows: int) -> dict[str, pa.Array]:
    def values(one: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(st.one_of(one, one, st.none()), min_size=rows, max_size=rows))

    def column(*kinds: tuple[st.SearchStrategy[Any], pa.DataType]) -> pa.Array:
        one, kind = draw(st.sampled_from(kinds))
        return pa.array(values(one), kind)

    text = (st.text(max_size=5), pa.string())
    whole = (st.integers(-(2**63), 2**63 - 1), pa.int64())
    real = (st.floats(), pa.float64())
    vectors = draw(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=rows, max_size=rows))
    given_columns = {
        "id": column(
            (IDS, pa.string()), (IDS, pa.large_string()), whole, (st.integers(0, 2**64 - 1), pa.uint64()), real
        ),
        "v": pa.array(vectors, draw(st.sampled_from([pa.list_(pa.float32(), 3), pa.list_(pa.float64())]))),
        "text": column(text, (st.text(max_size=3), pa.large_string()), whole),
        "title": column(text, (st.sampled_from([" a ", "\x1f b", "\u3000"]), pa.string())),
        "payload": column((st.sampled_from(['{"a": 1}', "NaN", "{", "1.0"]), pa.string()), real),
        "s": column(text, whole, real, (st.booleans(), pa.bool_())),
        "l": column((st.lists(st.text(max_size=2), max_size=2), pa.list_(pa.string())), text),
        "i": column(whole, (st.integers(0, 2**64 - 1), pa.uint64()), real, (st.just("7"), pa.string())),
        "f": column(real, (st.floats(width=32), pa.float32()), whole, text),
        "b": column((st.booleans(), pa.bool_()), (st.sampled_from(["true", "no"]), pa.string())),
        "t": column(
            (MOMENTS, pa.timestamp("us")), (MOMENTS, pa.timestamp("ms", tz="Europe/Oslo")),
            (st.sampled_from(["2020-01-01", "soon"]), pa.string()), (st.floats(-1e9, 1e9), pa.float64()),
        ),
    }  # fmt: skip
    # A row that is wrong in one thing says nothing about the others, so most columns are good.
    odd = draw(st.sets(st.sampled_from(sorted(given_columns)), min_size=1, max_size=2))
    columns = good_columns(rows) | {name: given_columns[name] for name in odd}
    left_out = draw(st.sets(st.sampled_from(sorted(columns)), max_size=1))
    return {name: values for name, values in columns.items() if name not in left_out}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_both_ways_make_the_same_of_anything(data):
    spec = SPEC | {"distance": data.draw(st.sampled_from(["cosine", "dot"]))}
    rows = data.draw(st.integers(1, 5))
    check([batch_of(columns_of(data.draw, rows)) for _ in range(data.draw(st.integers(1, 2)))], spec)


EDGES = {
    "id": [
        pa.array(["a\n", "\x00", "\x1f", "\x7f", "\x85", "", "x" * 512, "x" * 513, "é" * 257, None, "\u200b"]),
        pa.array([0, 2**64 - 1, None], pa.uint64()),
        pa.array([-(2**63), 7, None]),
        pa.array([True, None]),
        pa.array([1.0, 2.5]),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array([7.0, 8.0]),
        pa.array([Decimal("7"), Decimal("7.5")]),
    ],
    "v": [
        pa.array([[1, 2, np.nan], [0, 0, 0], [-0.0, 0, 0], [1e15, 0, 1], [-1e15, 0, 1], [0, 1.1e15, 1], [0, -2e15, 1],
                  [np.inf, 0, 0], [-np.inf, 0, 0], [1e300, 0, 0], [1e-45, 0, 0]]),
        pa.array([[1, 2, 3], [1, 2]]),
        pa.array([[1.0, 2.0, None], [1.0, 2.0, 3.0]]),
        pa.array([None, [1.0, 2.0, 3.0]]),
        pa.array([[1.0, 2.0]]),
        pa.array([[-128, 0, 127], [0, 0, 0]], pa.list_(pa.int8(), 3)),
    ],
    "title": [pa.array([" a ", "\x1f b\u3000", " ", "", None])],
    "text": [pa.array(["", " \n", "té", None, "x"]), pa.array([1, 2])],
    "payload": [pa.array(["{", "NaN", "null", '{"a": [1, "é"]}', None]), pa.array([1.5, np.nan])],
    "s": [pa.array([Decimal("1.50"), None]), pa.array([dt.date(2020, 1, 2), None]), pa.array([dt.time(10, 30)]),
          pa.array([dt.datetime(2020, 1, 2)]), pa.array(["a", None, "a"]).dictionary_encode(),
          pa.array([b"x", b"\xff"]), pa.array(["a"], pa.large_string()), pa.array([{"a": 1}]),
          pa.array([1, None]), pa.array([True]), pa.array([1.5, np.nan]), pa.array([["a"]])],
    "i": [pa.array([7.0, None, 8.0]), pa.array([Decimal("7"), None]), pa.array([Decimal("7.5"), Decimal("8.0")]),
          pa.array(["7.0", "1e3", "7.5", "1_0", "1e999999999"]), pa.array([1, 2], pa.int8()).dictionary_encode(),
          pa.array([1e19]), pa.array([2**63, 2**63 - 1, None], pa.uint64()), pa.array([1.0, 1.5, np.nan]),
          pa.array([True]),
          pa.array(["7", "x"])],
    "f": [pa.array([Decimal("1.50"), None]), pa.array([Decimal("1.123456789012345678901"), Decimal("1")]),
          pa.array([np.nan, np.inf, -0.0, None]), pa.array([0.1], pa.float32()), pa.array([2**60 + 1]),
          pa.array(["1e3", "x"])],
    "b": [pa.array([True, False, None]), pa.array(["TRUE", "no"]), pa.array([1, 0, None]),
          pa.array([1.0, 0.0]), pa.array([0, 2]), pa.array([1], pa.uint8()), pa.array(["Y", "f", "0", "maybe"])],
    "t": [pa.array([dt.date(2020, 1, 2), None]), pa.array([1, None], pa.timestamp("ns")),
          pa.array([1_709_424_000, None]), pa.array([1_709_424_000_123]), pa.array([1_709_424_000, 1_709_424_000_123]),
          pa.array([2020, 1999]), pa.array([0, -5, 2**62]), pa.array(["1709424000", "1709424000123", "20240302100000"]),
          pa.array([2**62], pa.uint64()), pa.array([2**36], pa.int64()), pa.array([1709424000], pa.int32()),
          pa.array([dt.date(2020, 1, 2)], pa.date64()), pa.array([1_709_424_000.5]), pa.array([dt.time(1)]),
          pa.array([0, 2**50], pa.timestamp("s")), pa.array([1, None], pa.timestamp("ms", tz="Europe/Oslo")),
          pa.array(["2020-01-01T00:00Z", "soon"])],
    "l": [pa.array([["a", None], ["b"], [], None]), pa.array(["[1]", "x"]),
          pa.array([["a"], None], pa.large_list(pa.large_string())),
          pa.array([["a", "b"], ["c", None]], pa.list_(pa.string(), 2)), pa.array([[1, 2]]),
          pa.array(["['a', 'b']", "{a,\"b c\"}", "a,b", "{}"])],
}  # fmt: skip


@pytest.mark.parametrize("distance", ["cosine", "dot"])
@pytest.mark.parametrize("name", EDGES)
def test_both_ways_make_the_same_of_what_is_odd(name, distance):
    for values in EDGES[name]:
        check([batch_of(good_columns(len(values)) | {name: values})], SPEC | {"distance": distance})


@pytest.mark.parametrize("name", COLUMNS)
def test_both_ways_make_the_same_of_every_type(name: str) -> None:
    array = COLUMNS[name].array
    for column in good_columns(len(array)):
        check([batch_of(good_columns(len(array)) | {column: array})])


def good_columns(rows: int) -> dict[str, pa.Array]:
    return {
        "id": pa.array([f"id{row}" for row in range(rows)]),
        "v": pa.FixedSizeListArray.from_arrays(clustered(rows, 3).ravel(), 3),
        "text": pa.array([f"téxt {row}" for row in range(rows)]),
        "title": pa.array([f" title {row}" for row in range(rows)]),
        "payload": pa.array(['{ "a": 1 }'] * rows),
        "s": pa.array(["x"] * rows),
        "i": pa.array(range(rows)),
        "f": pa.array(np.linspace(0, 1, rows)),
        "t": pa.array([dt.datetime(2020, 1, 1)] * rows, pa.timestamp("us")),
    }


def test_good_rows_need_no_record():
    batch = batch_of(good_columns(50))
    valid = validate_batch(batch, parse_spec(SPEC), {"": DIMENSIONS})
    assert (len(valid.table), valid.rejected) == (50, [])
    assert check([batch, batch]).column("_record").to_pylist() == list(range(100))


def test_a_bad_row_keeps_its_neighbours_in_columns():
    columns = good_columns(50)
    columns["payload"] = pa.array(['{"a": 1}'] * 20 + ["{"] + ['{"a": 1}'] * 29)
    columns["id"] = pa.array([None, *(f"id{row}" for row in range(1, 50))])
    valid = validate_batch(batch_of(columns), parse_spec(SPEC), {"": DIMENSIONS})
    assert (len(valid.table), [rejected.row for rejected in valid.rejected]) == (48, [0, 20])
    assert len(check([batch_of(columns)])) == 48


def test_text_that_is_not_utf8_costs_its_own_row():
    columns = good_columns(5)
    raw = pa.array([b"a", b"b", b"\xff", b"d", b"e"], pa.binary())
    columns["s"] = pa.StringArray.from_buffers(5, *raw.buffers()[1:])
    rows = own_rows([batch_of(columns)], parse_spec(SPEC), {"": DIMENSIONS})
    assert rows.table.column("id").to_pylist() == ["id0", "id1", "id3", "id4"]
    assert [(letter.reason, letter.row) for letter in rows.letters] == [("encoding", 13)]


@pytest.mark.parametrize("name", ["document_id", "datapoints", "sparse"])
def test_other_sources(name):
    columns = good_columns(6)
    source: dict[str, Any] = {"vector": "v"}
    if name == "document_id":
        columns["doc"] = pa.array([1, 1, 2, None, 3, 3])
        source["document_id"] = "doc"
    elif name == "sparse":
        columns["w"] = pa.array(['{"1": 0.5}', None, "{", '{"2": 1}', None, "[]"])
        source["sparse_vector"] = "w"
    else:
        source = {"format": "datapoints"}
        columns["embedding"] = columns.pop("v")
        columns["document_id"] = columns["id"]
        columns |= {
            "text_start": pa.array([0, 1, 2, 3, None, 5]),
            "time_end_s": pa.array(["1.5", "x", *[None] * 4]),
        }
        batch = Batch(pa.record_batch(columns), "embedding", "file.parquet", 1)
        assert len(check([batch], {"index": "i", "source": source})) == 5
        return
    assert len(check([batch_of(columns)], {"index": "i", "source": source})) in (4, 5)


def test_shards_of_a_column_are_those_of_its_ids():
    ids = [f"d{number % 40}é" for number in range(200)]
    column = pa.chunked_array([pa.array(ids[:7]), pa.array(ids[7:])])
    assert shards_of_ids(column, 5).tolist() == [shard_of(name, 5) for name in ids]
    assert shards_of_ids(column, 1).tolist() == [0] * 200


def segments_of(store: Store) -> list[pa.Table]:
    opened = open_index(store, "vectors")
    return [segment.take(np.arange(segment.rows)) for segment in opened.segments] + [
        pa.table({"v": segment.vectors(np.arange(segment.rows)).ravel()}) for segment in opened.segments
    ]


def test_a_build_from_columns_is_that_from_records(tmp_path: Path) -> None:
    rows = 3000
    vectors = clustered(rows, 6)
    vectors[5, 2] = np.nan
    ids = [f"d{row}" for row in range(rows)]
    ids[70] = ids[3]
    table = pa.table({"id": ids, "v": list(vectors), "n": pa.array(range(rows))})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    spec = {"index": "vectors", "source": {"vector": "v"}, "attributes": {"n": "int"}, "shards": 3}
    stores = {kind: Store.open(tmp_path / kind, create=True) for kind in ("parquet", "jsonl")}
    reports = {kind: run(store, str(tmp_path / f"a.{kind}"), spec=spec) for kind, store in stores.items()}
    assert reports["parquet"].dead_letters == reports["jsonl"].dead_letters == {
        "vector_value": 1, "duplicate_id": 1
    }  # fmt: skip
    letters = [
        [
            (letter.reason, letter.message, letter.id, letter.line or letter.row)
            for letter in letters_of(store, report)
        ]
        for store, report in zip(stores.values(), reports.values(), strict=True)
    ]
    assert letters[0] == letters[1]
    assert segments_of(stores["parquet"]) == segments_of(stores["jsonl"])
    entries = [{entry.sha256 for entry in manifest_of(store).segments} for store in stores.values()]
    assert entries[0] == entries[1]
    # The same rows in another format change nothing.
    again = run(stores["jsonl"], str(tmp_path / "a.parquet"), spec=spec)
    assert (again.up_to_date, again.unchanged) == (True, rows - 2)

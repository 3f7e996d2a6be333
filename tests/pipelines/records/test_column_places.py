"""Columns of every type at every place: right, or refused with the field's name; by columns, by records, by upserts."""

from __future__ import annotations

import datetime as dt
import decimal
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import scannery
from scannery.indexer import parse_spec
from scannery.indexer.datapoints.columns.converted import TARGETS, ColumnKind, Target, kind_of, takes
from scannery.indexer.datapoints.columns.plain import plain
from scannery.pipelines.records.unit_rows import UnitRows, own_rows
from scannery.pipelines.sources.batches import Batch
from scannery.pipelines.sources.lines import json_record
from tests.data import ROOT
from tests.indexer.datapoints.columns.column_types import COLUMNS
from tests.tools.generate_column_docs import columns_page

TYPES: tuple[Target, ...] = ("string", "string_list", "int", "float", "bool", "timestamp", "geo")
SPECS: dict[str, tuple[dict[str, Any], str | None, Target]] = {
    "id": ({"source": {"id": "x"}}, "id", "id"),
    "document_id": ({"source": {"document_id": "x"}}, "document_id", "id"),
    "text": ({"source": {"text": "x"}}, "text", "text"),
    "two texts": ({"source": {"text": ["id", "x"]}}, "text", "text"),
    "title": ({"source": {"title": "x"}}, "title", "text"),
    "template": ({"source": {"title": "{id}: {x}"}}, "title", "text"),
    "vector": ({"source": {"vector": "x"}}, "embedding", "vector"),
    "sparse vector": ({"source": {"sparse_vector": "x"}}, None, "sparse_vector"),
    "payload": ({"source": {"payload": "x"}}, "payload", "payload"),
    "dynamic": ({"dynamic": True}, "_dynamic", "dynamic"),
    **{type: ({"attributes": {"x": type}}, "x", type) for type in TYPES},
}
"""The spec of each place, the column that its value is in, and its name in the table."""
REFUSED = "refused"


def _made(rows: UnitRows, column: str | None) -> Any:
    """Return the value of the first row."""
    letters = [letter for letter in rows.letters if letter.row == 1]
    assert all(letter.field and letter.message for letter in letters)
    if letters:
        return REFUSED
    return "sparse" if column is None else rows.table.column(column)[0].as_py()


def _built(place: str, array: pa.Array) -> Any:
    own, column, _ = SPECS[place]
    source = {"id": "id", "vector": "v", **own.get("source", {})}
    spec = parse_spec({**own, "index": "a", "source": source, "lexical": "text" in source})
    columns = {"id": pa.array(["a", "b"]), "v": pa.array([[1.0, 2.0]] * 2), "x": array}
    batch = Batch(pa.record_batch(columns), source["vector"], "file", 1)
    value = _made(own_rows([batch], spec, {"": 2}), column)
    assert array.null_count == 2 or value == _made(own_rows(batch.records(), spec, {"": 2}), column)
    return value


@pytest.mark.system
@pytest.mark.parametrize("place", SPECS)
def test_the_table_says_which_columns_can_be_used(place: str) -> None:
    for name, (array, value) in COLUMNS.items():
        made = None if value is None else _built(place, array)
        if made not in (None, REFUSED):
            assert takes(SPECS[place][2], kind_of(plain(array).type)), (name, made)
    for kind in TARGETS[SPECS[place][2]]:
        if (kind, place) != ("bytes", "vector"):  # which needs `vector_bytes`
            assert _built(place, pa.array([_good(kind, place), None])) is not REFUSED, kind


def _good(kind: ColumnKind, place: str) -> Any:
    """Return a value of a kind that fits a place."""
    texts = {"vector": "[1, 2]", "sparse vector": '{"3": 1}', "geo": "1,2", "timestamp": "2024-03-03"}
    is_place, at = place == "geo", dt.datetime(2024, 3, 3)
    pairs = [("lat", 1.0), ("lon", 2.0)] if is_place else [("3", 1.0)]
    good: Mapping[ColumnKind, Any] = {
        "bool": True, "int": 1, "float": 1.0, "decimal": decimal.Decimal(1), "text": texts.get(place, "1"),
        "bytes": b"1", "date": at.date(), "time": at.time(), "timestamp": at, "duration": dt.timedelta(seconds=1),
        "list": [1.0, 2.0], "struct": dict(pairs) if is_place else {"indices": [3], "values": [1.0]},
        "map": pa.scalar(pairs, pa.map_(pa.string(), pa.float64())),
    }  # fmt: skip
    return good[kind]


BEYOND_FLOATS = ["1e999999999999", "-1e400", '"[1e999999999999]"', '"1e999999999999"']


@pytest.mark.parametrize("number", BEYOND_FLOATS)
@pytest.mark.parametrize("place", SPECS)
def test_numbers_in_json_that_no_float_can_hold_are_refused(place: str, number: str) -> None:
    own, column, _ = SPECS[place]
    source = {"id": "id", "vector": "v", **own.get("source", {})}
    spec = parse_spec({**own, "index": "a", "source": source, "lexical": "text" in source})
    record = json_record(b'{"id": "a", "v": [1, 2], "x": %s}' % number.encode(), "file", 1)
    started = time.thread_time()
    rows = own_rows([record], spec, {"": 2})
    assert time.thread_time() - started < 2  # 1e999999999999 would have as many digits
    stored = [] if rows.letters or column is None else [str(rows.table.column(column)[0].as_py())]
    assert rows.letters or number.startswith('"')  # texts stay texts
    assert all(number.strip('"') in text for text in stored)


VALUES: Mapping[str, Mapping[str, Any]] = {
    "timestamp": {"timestamp[ns]": dt.datetime(2024, 3, 3, 0, 0, 0, 123456, dt.timezone.utc),
     "timestamp[ns], before 1970": dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.timezone.utc),
     "run-end encoded times": dt.datetime(2024, 3, 3, 0, 0, 0, 123456, dt.timezone.utc), "NaN": None},
    "title": {"timestamp[ns]": "2024-03-03T00:00:00.123456", "dictionary of integers": "7", "string view": "a",
     "uuid": "5d760231-7a8d-49ce-9de8-6e7933ce50ef", "bool8": "true", "NaN": None},
    "template": {"timestamp[ns]": "a: 2024-03-03T00:00:00.123456", "NaN": "a:", "struct": REFUSED},
    "float": {"NaN": None, "infinity": float("inf"), "duration[ns]": 1.5, "float16": 1.5, "bool8": REFUSED},
    "int": {"uint64 beyond int64": REFUSED, "NaN": None, "dictionary of integers": 7},
    "payload": {"struct of nanoseconds": '{"at":"2024-03-03T00:00:00.123456"}', "map": '{"k":1}'},
    "dynamic": {"map of nanoseconds": '{"x":{"k":"2024-03-03T00:00:00.123456+00:00"}}',
     "map of integers": '{"x":{"3":0.5}}', "infinity": REFUSED, "duration[ns]": '{"x":1.5}', "binary": REFUSED},
    "vector": {"fixed-shape tensor": [1.0, 2.0], "fixed-size list of float16": [1.0, 2.0],
     "fixed-size list": [1.0, 2.0]},
    "sparse vector": {"map of integers": "sparse"},
    "geo": {"struct": {"lat": 1.0, "lon": 2.0}},
    "string_list": {"list view": ["a"], "list of dictionaries": ["a"], "dictionary of lists": ["a"]},
}  # fmt: skip


@pytest.mark.parametrize("place", VALUES)
def test_values_are_right(place: str) -> None:
    made = {name: _built(place, COLUMNS[name].array) for name in VALUES[place]}
    assert made == VALUES[place]


@pytest.mark.parametrize("text", [" ", "\n\t", "\u3000", " x "])
def test_a_text_beside_a_vector_comes_back_exactly(text: str, tmp_path: Any) -> None:
    assert _built("text", pa.array([text, None])) == text
    with scannery.connect(str(tmp_path), create=True) as client:
        index = client.create_index("a", dimensions=2)
        index.upsert([{"id": "a", "vector": [1.0, 2.0], "text": text}])
        [point] = index.get(["a"])
        assert point is not None
        assert (point.text, point.text_start, point.text_end) == (text, 0, len(text))


LISTS: list[list[Any]] = [["a", "b"], [1, 2], ["a", None, ""], [None], [], [True], [["x"]], [0.5, 2.0]]


@pytest.mark.system
@pytest.mark.parametrize("items", LISTS, ids=str)
@pytest.mark.parametrize("place", ["title", "text"])
def test_lists_become_texts_in_upserts_as_in_builds(place: str, items: list[Any], tmp_path: Any) -> None:
    array = pa.array([items, None])
    built = _built(place, array)
    point: Any = {"id": "a", "vector": [1.0, 2.0], place: items}
    with scannery.connect(str(tmp_path), create=True) as client:
        index = client.create_index("a", dimensions=2)
        for points in (pa.table({name: [value] for name, value in point.items()}), [point]):
            index.delete(["a"])
            if built is REFUSED:
                with pytest.raises(scannery.ScanneryError, match=f"datapoint.{place}"):
                    index.upsert(points)
            else:
                index.upsert(points)
                [written] = index.get(["a"])
                assert getattr(written, place) == built


STRICTER = {
    # Datapoints as records are messages with types of their own: refused there by name, what a build converts.
    "string": {"binary", "binary view", "fixed-size binary", "uint64 beyond int64"},
    "string_list": {
        "list of nanoseconds",
        "fixed-shape tensor",
        "fixed-size list",
        "fixed-size list of float16",
    },
    "float": {"uint64 beyond int64"},
    "timestamp": {"uint64 beyond int64"},
}
"""Columns, by place, of which records with Python's values are refused, and builds are not."""
AS_OTHERS = {"time32", "time64[ns]"}
"""Messages have texts for these, which more places take."""


@pytest.mark.system
@pytest.mark.parametrize("place", [*TYPES, "dynamic", "title", "text"])
def test_upserts_take_what_builds_take(place: str, tmp_path: Any) -> None:
    attributes = {"x": place} if place in TYPES else {}
    differing = {}
    with scannery.connect(str(tmp_path), create=True) as client:
        index = client.create_index("a", dimensions=2, attributes=attributes, dynamic=place == "dynamic")
        for name, (array, value) in COLUMNS.items():
            if value is None or "unknown zone" in name:  # of which Python makes no value
                continue
            built = _built(place, array)
            for door, points in _doors(place, array).items():
                try:
                    index.upsert(points)
                    written = REFUSED if index.get(["a"]) == [None] else index.get(["a"])[0]
                    index.delete(["a"])
                except scannery.ScanneryError as error:
                    assert "x" in str(error) or place in str(error), str(error)
                    written = REFUSED
                stricter = door == "record" and name in STRICTER.get(place, ())
                if (written is REFUSED) != (built is REFUSED) and not stricter and name not in AS_OTHERS:
                    differing[name, door] = str(built)
    assert differing == {}


def _doors(place: str, array: pa.Array) -> dict[str, Any]:
    """Return the first row as a table, and as a record of Python's values."""
    name = place if place in ("title", "text") else "x"
    table = pa.table({"id": ["a"], "vector": [[1.0, 2.0]], name: array[:1]})
    value = array[0].as_py()
    record: dict[str, Any] = {"id": "a", "vector": [1.0, 2.0]}
    record |= {name: value} if name != "x" else {"attributes": {"x": value}}
    return {"table": table, "record": [record]}


def test_the_page_is_that_of_the_table() -> None:
    assert (ROOT / "docs" / "columns.md").read_text() == columns_page()

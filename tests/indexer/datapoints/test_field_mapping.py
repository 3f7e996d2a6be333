"""Fields by name, path and template; what a spec does with them; and the spec that says so."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from scannery.indexer import FieldMapping, IndexSpec, InvalidRecordError, parse_spec
from scannery.indexer.datapoints.columns.plain import plain_batch, python_rows
from scannery.indexer.datapoints.dynamic import dynamic_json
from scannery.indexer.datapoints.field_mapping import FieldExpression

RECORD: dict[str, Any] = {
    "id": 7,
    "title": "T",
    "Price (USD)": "12.50",
    "meta": {"author": {"name": "Ann"}, "a.b": "dotted", "year": 2020, "none": None},
    "meta.year": "literal",
    "authors": [{"name": "A", "tags": ["x", "y"]}, {"name": "B"}, {}],
    "doc": '{"id": "in JSON", "list": [1, 2]}',
    "{odd}": "braces",
}


def spec(source: dict[str, Any] | None = None, attributes: dict[str, Any] | None = None) -> IndexSpec:
    own = {"text": "text"} | (source or {})
    return parse_spec(
        {"index": "i", "source": own, "encoder": {"model": "m"}, "attributes": attributes or {}}
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", "T"),
        ("Price (USD)", "12.50"),
        ("meta.author.name", "Ann"),
        ("meta.a.b", "dotted"),
        ("meta.year", "literal"),
        ("meta.none", None),
        ("meta.author.age", None),
        ("title.x", None),
        ("authors.name", ["A", "B"]),
        ("authors[*].name", ["A", "B"]),
        ("authors.tags", ["x", "y"]),
        ("authors.1.name", "B"),
        ("authors[0].tags[1]", "y"),
        ("authors.9.name", None),
        ("doc.id", "in JSON"),
        ("doc.list.0", 1),
        ("{odd}", "braces"),
        ("{title}: {meta.author.name}", "T: Ann"),
        ("{title} {missing}", "T"),
        ("{missing}{absent}", None),
        ("{{{id}}}", "{7}"),
        ("{authors.name}", "A, B"),
        (".", None),
    ],
)
def test_a_field_is_a_name_a_path_or_a_template(field, value):
    assert FieldExpression(field).value(RECORD) == value


def test_texts_are_joined_and_columns_of_any_name_become_attributes():
    mapping = FieldMapping.of(
        spec(
            {"id": "meta.id", "text": ["title", "body.paragraphs"], "title": "{title} ({meta.year})"},
            {
                "price": {"type": "float", "from": "Price (EUR)", "decimal": ","},
                "tags": {"type": "string_list", "split": ","},
                "authors": {"type": "string_list", "from": "authors.name"},
                "names": {"type": "string", "from": "authors.name"},
                "kind": {"type": "string", "value": "episode"},
                "at": {"type": "timestamp", "unit": "ms"},
                "day": {"type": "timestamp", "format": "%d/%m/%Y"},
                "show": "string",
            },
        )
    )
    record = {
        "meta": {"id": 7.0, "year": 2020},
        "title": "T",
        "body": {"paragraphs": ["one", "", "two"]},
        "Price (EUR)": "1.234,50",
        "tags": "a, b,,c ",
        "authors": [{"name": "A"}, {"name": "B"}],
        "at": "1709424000000",
        "day": "03/02/2024",
    }
    utc = dt.timezone.utc
    assert mapping.datapoint(record) == {
        "id": "7",
        "title": "T (2020)",
        "text": "T\n\none\n\ntwo",
        "attributes": {
            "price": 1234.5,
            "tags": ["a", "b", "c"],
            "authors": ["A", "B"],
            "names": "A, B",
            "kind": "episode",
            "at": dt.datetime(2024, 3, 3, tzinfo=utc),
            "day": dt.datetime(2024, 2, 3, tzinfo=utc),
        },
    }
    assert mapping.apply(record)["price"] == Decimal("1234.50")
    assert {"meta", "meta.id", "body", "Price (EUR)", "authors"} <= mapping.names


def test_a_datapoint_names_all_that_does_not_fit():
    mapping = FieldMapping.of(spec(attributes={"year": "int", "d": {"type": "float", "decimal": ","}}))
    with pytest.raises(InvalidRecordError, match="year: must be a 64-bit integer, got 'soon'"):
        mapping.datapoint({"id": "a", "text": "t", "year": "soon"})
    with pytest.raises(InvalidRecordError, match=r"id: must be .*; year: must be") as caught:
        mapping.datapoint({"id": ["a"], "year": "soon"})
    assert (caught.value.reason, caught.value.field) == ("id", "id")
    with pytest.raises(InvalidRecordError, match="d: must be a number with `,` as decimal mark, got '1.5'"):
        mapping.datapoint({"id": "a", "d": "1.5"})


def test_an_id_made_of_several_fields_needs_all_of_them():
    mapping = FieldMapping.of(spec({"id": "{show}-{number}"}))
    assert mapping.apply({"show": "s", "number": 3}) == {"id": "s-3"}
    assert mapping.apply({"show": "s"}) == {}


@pytest.mark.parametrize(
    "field", ["plain", "meta.name", "meta.inner.x", "list.name", "mapped.k", "meta.absent", "none"]
)
def test_columns_have_the_values_of_their_rows(field):
    rows = [
        {"plain": 1, "meta": {"name": "a", "inner": {"x": 1}}, "list": [{"name": "p"}, {"name": "q"}],
         "mapped": [("k", 1)]},
        {"plain": None, "meta": None, "list": [], "mapped": []},
        {"plain": 3, "meta": {"name": None, "inner": None}, "list": None, "mapped": None},
    ]  # fmt: skip
    inner = pa.struct([("name", pa.string()), ("inner", pa.struct([("x", pa.int64())]))])
    schema = pa.schema([("plain", pa.int64()), ("meta", inner), ("list", pa.list_(pa.struct([("name", pa.string())]))),
                        ("mapped", pa.map_(pa.string(), pa.int64()))])  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema)
    mapped = FieldMapping.of(spec(attributes={"x": {"type": "string", "from": field}})).fields["x"]
    values = mapped.values(batch)
    if isinstance(values, pa.Array):
        values = values.to_pylist()
    assert values == [mapped.value(row) for row in python_rows(batch)]


def test_a_column_without_anything_to_convert_stays_one():
    batch = pa.record_batch({"p": pa.array([1.5]), "q": pa.array(["1,5"]), "m": pa.array([{"v": 1.5}])})
    own = {"type": "float", "decimal": ","}
    fields = FieldMapping.of(
        spec(attributes={"p": own, "q": own, "m": own | {"from": "m.v"}, "c": {"type": "int", "value": 3}})
    ).fields
    assert isinstance(fields["p"].values(batch), pa.Array)
    assert isinstance(fields["m"].values(batch), pa.Array)
    assert fields["q"].values(batch) == [Decimal("1.5")]
    assert fields["c"].values(batch) == [3]


def test_other_columns_have_the_values_that_live_updates_give_them() -> None:
    taken = parse_spec({"index": "i", "source": {"vector": "vector"}, "dynamic": True})
    pairs = [[("k", 1), ("l", None)], None, []]
    batch = pa.record_batch(
        {
            "day": pa.array([dt.date(2024, 5, 1), None, dt.date(1, 1, 1)]),
            "days": pa.array([[dt.date(2024, 5, 1)], None, []]),
            "nanos": pa.array([1_577_836_800_000_000_001, None, 1], pa.timestamp("ns")),
            "map": pa.array(pairs, pa.map_(pa.string(), pa.int64())),
            "numbers": pa.array([[(1, 2)], None, []], pa.map_(pa.int64(), pa.int64())),
        }
    )
    others = FieldMapping.of(taken).others_of(plain_batch(batch))
    rows = [dynamic_json(row) for row in others if isinstance(row, dict)]
    day, year = "2024-05-01T00:00:00+00:00", "0001-01-01T00:00:00+00:00"
    nanos, first = "2020-01-01T00:00:00+00:00", "1970-01-01T00:00:00+00:00"
    assert [row and json.loads(row) for row in rows] == [
        {"day": day, "days": [day], "map": {"k": 1, "l": None}, "nanos": nanos, "numbers": {"1": 2}},
        None,
        {"day": year, "days": [], "map": {}, "nanos": first, "numbers": {}},
    ]


def test_no_pandas_is_needed_for_nanoseconds_in_other_columns() -> None:
    taken = parse_spec({"index": "i", "source": {"vector": "vector"}, "dynamic": True})
    times = pa.array([1_577_836_800_000_000_001], pa.timestamp("ns", "UTC"))
    lists = pa.ListArray.from_arrays([0, 1], times)
    batch = pa.record_batch(
        {"a": times, "b": lists, "c": pa.StructArray.from_arrays([times, lists], names=["x", "y"])}
    )
    at = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
    [row] = FieldMapping.of(taken).others_of(plain_batch(batch))
    assert isinstance(row, dict)
    assert row == {"a": at, "b": [at], "c": {"x": at, "y": [at]}}
    assert type(row["a"]) is type(row["b"][0]) is type(row["c"]["x"]) is dt.datetime

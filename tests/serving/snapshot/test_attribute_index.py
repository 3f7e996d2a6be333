"""The distinct values of a field with their rows, which facets and statistics read."""

from __future__ import annotations

import datetime as dt
import operator
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import MemorySegment, ValuePostings, parse_spec
from scannery.indexer.datapoints.dynamic import dynamic_json, dynamic_values
from scannery.serving.request.filter import Compare, Truth, parse_filter
from scannery.serving.snapshot.attribute_index import AttributePostings, Field, Operator
from scannery.serving.snapshot.dynamic_index import DynamicField
from scannery.serving.snapshot.filter_cache import FilterCache
from scannery.v1 import types_pb2 as pb
from tests.served import LIBRARY, library_table

TABLE = library_table()
ORDERS: dict[Operator, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


def indexed(column: pa.ChunkedArray) -> AttributePostings:
    return AttributePostings(ValuePostings.of_column(column))


def read(field: Field) -> dict[str, list[tuple[Any, list[int]]]]:
    return {
        run.kind: [
            (value, run.rows_P[run.starts[place] : run.starts[place + 1]].tolist())
            for place, value in enumerate(run.values.to_pylist())
        ]
        for run in field.runs()
    }


@pytest.mark.parametrize("name", [name for name in (*LIBRARY.attributes, "document_id") if name != "place"])
def test_a_declared_field_has_one_type(name: str) -> None:
    rows: dict[Any, list[int]] = defaultdict(list)
    for number, value in enumerate(TABLE.column(name).to_pylist()):
        for item in dict.fromkeys(value if isinstance(value, list) else [value]):
            if item is not None:
                rows[item].append(number)
    kind = {"string_list": "string"}.get(
        LIBRARY.attributes.get(name, "string"), LIBRARY.attributes.get(name, "string")
    )
    assert read(indexed(TABLE.column(name))) == {kind: sorted(rows.items())}


def test_a_field_without_values_has_no_runs() -> None:
    assert indexed(pa.chunked_array([pa.nulls(3, pa.int64())])).runs() == ()
    assert dynamic(None, {"a": None}, {"b": 1}).runs() == []


def test_a_row_is_there_once_for_each_value_of_its_list() -> None:
    column = pa.chunked_array([pa.array([["a", "b", "a"], None, ["a"]])])
    assert read(indexed(column)) == {"string": [("a", [0, 2]), ("b", [0])]}
    assert read(dynamic({"a": ["a", "b", "a", 1, 1.0]}, None, {"a": "a"})) == {
        "int": [(1, [0])],
        "float": [(1.0, [0])],
        "string": [("a", [0, 2]), ("b", [0])],
    }


def test_a_dynamic_field_has_a_run_for_each_exact_type() -> None:
    field = dynamic(
        {"a": 1},
        {"a": "1"},
        {"a": 1.0},
        {"a": True},
        {"a": None},
        {"a": {}},
        {"a": [[1]]},
        {"a": [1]},
        {"a": -0.0},
        {"a": 0.0},
    )
    assert read(field) == {
        "bool": [(True, [3])],
        "int": [(1, [0, 7])],
        "float": [(0.0, [8, 9]), (1.0, [2])],
        "string": [("1", [1])],
        "other": [(None, [5, 6])],
    }
    assert field.lists.tolist() == [7]
    assert field.size_bytes > 0


@pytest.mark.parametrize("wanted", [[1], [1.0, "1"], [Truth.TRUE], [Truth.FALSE, 0], ["x", 2.5]])
def test_values_are_found_within_their_kind(wanted: list[Any]) -> None:
    field = dynamic(*({"a": value} for value in (1, "1", 1.0, True, 0, False, [1, "1"], 2**53 + 1, 2.5)))
    expected = {
        "[1]": [0, 2, 6], "[1.0, '1']": [0, 1, 2, 6], "[<Truth.TRUE: True>]": [3],
        "[<Truth.FALSE: False>, 0]": [4, 5], "['x', 2.5]": [8],
    }[str(wanted)]  # fmt: skip
    assert field.among(wanted).numbers.tolist() == expected


def test_segments_of_before_an_attribute_was_declared_have_it_as_a_dynamic_one_or_not() -> None:
    moment = dt.datetime(2024, 5, 1, tzinfo=dt.timezone.utc)
    objects = pa.array([dynamic_json({"a": 3}), None, dynamic_json({"a": moment})], pa.string())
    tables = {
        "with": pa.table({"id": ["x", "y", "z"], "_dynamic": objects}),
        "without": pa.table({"id": ["x"]}),
    }
    spec = parse_spec({"index": "t", "source": {"vector": "vector"}})
    found = {}
    for name, table in tables.items():
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(table.num_rows, np.float32)), 1)
        whole = table.append_column("document_id", table.column("id")).append_column("embedding", vectors)
        field = FilterCache().field(MemorySegment.of(whole, spec), "a")
        rows = (field.compare("eq", 3), field.compare("gte", moment), field.compare("lt", 2.5))
        found[name] = [matching.numbers.tolist() for matching in (*rows, field.exists())]
    assert found == {"with": [[0], [2], [], [0, 2]], "without": [[], [], [], []]}


def dynamic(*rows: dict[str, Any] | None) -> DynamicField:
    texts = [None if row is None else dynamic_json(row) for row in rows]
    return DynamicField(dynamic_values(pa.chunked_array([pa.array(texts, pa.string())]), "a"))


@pytest.mark.parametrize(
    "value", [2**53 + 1, 2**53 + 3, -(2**53) - 1, 2**63 - 1, -(2**63) + 1, 2**53, 1, 1.5]
)
def test_floats_compare_exactly_with_integers_that_are_no_floats(value: float) -> None:
    floats = [2.0**53, 2.0**53 + 2, 2.0**53 + 4, -(2.0**53), -(2.0**53) - 2, 2.0**63, -(2.0**63), 1.0, 1.5]
    field = indexed(pa.chunked_array([pa.array(floats)]))
    for name, compares in ORDERS.items():
        expected = [row for row, each in enumerate(floats) if compares(each, value)]
        assert field.compare(name, value).numbers.tolist() == expected, name
    assert field.among([value, 0.5]).numbers.tolist() == [
        row for row, each in enumerate(floats) if each == value
    ]
    where = pb.Filter(condition=pb.Condition(field="rating", operator=pb.OPERATOR_EQ))
    kind = "int_value" if isinstance(value, int) else "float_value"
    where.condition.values.add(**{kind: value})
    assert parse_filter(where, LIBRARY) == Compare("rating", "eq", value)


def test_a_filter_by_moments_or_texts_imports_no_pandas(tmp_path: Path) -> None:
    """Arrow imports it to convert single values, which took the first filter of each process half a second."""
    moments = [dt.datetime(2024, 5, day, tzinfo=dt.timezone.utc) for day in (1, 2)]
    for name, column in {
        "times": pa.array(moments, pa.timestamp("us", "UTC")),
        "texts": pa.array(["a", "b"]),
    }.items():
        ValuePostings.of_column(pa.chunked_array([column])).save(tmp_path / name, None)
    code = f"""
import datetime as dt, pathlib, sys
import pyarrow as pa
from scannery.indexer import ValuePostings
from scannery.serving.snapshot.attribute_index import AttributePostings
folder, moments = pathlib.Path({str(tmp_path)!r}), {moments!r}
times = AttributePostings(ValuePostings.map(folder / "times", 2, pa.timestamp("us", "UTC")))
texts = AttributePostings(ValuePostings.map(folder / "texts", 2, pa.string()))
found = [times.compare("gt", moments[0]), times.among(moments), texts.among(["b", "c"]), texts.compare("lt", "b")]
print([each.numbers.tolist() for each in found], "pandas" in sys.modules)
""".replace("datetime.", "dt.")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[[1], [0, 1], [1], [0]] False"

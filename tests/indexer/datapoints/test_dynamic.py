"""Dynamic attributes as canonical JSON, and their values read back without parsing whole objects."""

from __future__ import annotations

import json
import math
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.indexer import InvalidRecordError
from scannery.indexer.datapoints.dynamic import (
    DynamicValues,
    changed_dynamic,
    dynamic_json,
    dynamic_values,
    some_dynamic,
)
from scannery.indexer.kernels import json_kernels

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)
NAMES = st.sampled_from(["a", "b", 'a"', "a\\", "ä", "aa", "A b"])
ROWS = st.lists(st.none() | st.dictionaries(NAMES, VALUES, max_size=4), max_size=8)


def column_of(rows: list[Any]) -> pa.ChunkedArray:
    texts = [None if row is None else dynamic_json(row) for row in rows]
    half = len(texts) // 2
    return pa.chunked_array([pa.array(part, pa.string()) for part in (texts[:half], texts[half:])])


def is_flat(value: list[Any]) -> bool:
    return not any(isinstance(item, (list, dict)) for item in value)


def expected(rows: list[Any], name: str) -> dict[str, list[tuple[int, Any]]]:
    """The row of each value, by its type, found by Python."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for number, row in enumerate(rows):
        value = (row or {}).get(name)
        items = (value if is_flat(value) else []) if isinstance(value, list) else [value]
        for item in items:
            if item is not None and not isinstance(item, dict):
                found.setdefault(type(item).__name__, []).append((number, item))
    return found


def got(values: DynamicValues) -> dict[str, list[tuple[int, Any]]]:
    names = {"string": "str"}
    return {
        names.get(kind, kind): list(zip(rows_P.tolist(), items.to_pylist(), strict=True))
        for kind, (rows_P, items) in values.by_kind.items()
    }


@pytest.mark.system
@settings(max_examples=150, deadline=None)
@given(ROWS, NAMES)
def test_the_values_of_a_name_are_those_that_python_finds(rows: list[Any], name: str) -> None:
    column = column_of(rows)
    values = dynamic_values(column, name)
    assert {kind: repr(pairs) for kind, pairs in got(values).items()} == {
        kind: repr(pairs) for kind, pairs in expected(rows, name).items()
    }
    given_values = [(row or {}).get(name) for row in rows]
    assert values.rows == len(rows)
    assert values.present_N.tolist() == [value is not None for value in given_values]
    lists = [i for i, value in enumerate(given_values) if isinstance(value, list)]
    flat = [i for i in lists if is_flat(given_values[i] or [])]
    nested = [
        i for i, value in enumerate(given_values) if isinstance(value, dict) or (i in lists and i not in flat)
    ]
    assert (values.lists.tolist(), values.nested.tolist()) == (flat, nested)


@pytest.mark.system
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_is_written_comes_back_and_equal_attributes_are_equal_text(row: dict[str, Any]) -> None:
    text = dynamic_json(row)
    assert repr(json.loads(text) if text else {}) == repr(dict(sorted(row.items()))) or has_objects(row)
    assert dynamic_json(dict(reversed(row.items()))) == text == (dynamic_json(text) if text else None)


def has_objects(row: dict[str, Any]) -> bool:
    return "{" in json.dumps(list(row.values()))


def test_a_kernel_is_compiled_once() -> None:
    for rows in ([{"a": 1}], [None, {"a": [1]}], [None], []):
        dynamic_values(column_of(rows), "a")
    dynamic_values(column_of([{"a": 1}] * 9).slice(5, 3), "a")
    assert len(json_kernels.find_values.signatures) == len(json_kernels.copy_values.signatures) == 1  # type: ignore[attr-defined]


def test_slices_and_nulls_are_read_in_place() -> None:
    whole = pa.chunked_array([pa.array(['{"a":1}', None, '{"a":"x"}', '{"a":1}'])])
    values = dynamic_values(whole.slice(1, 3), "a")
    assert got(values) == {"str": [(1, "x")], "int": [(2, 1)]}


@pytest.mark.system
@pytest.mark.parametrize(
    "text", ["{", '{"a', '{"a"', '{"a":', '{"a":"', '{"a":[1', '{"a":[', '{"a":{"b":', '{"b":[[', "x"]
)
def test_damaged_objects_are_read_to_their_end_only(text: str) -> None:
    # The next row begins with what would close the value.
    values = json_kernels.find_values
    for after in ('"]}', "]}", '":1}'):
        column = pa.array([text, after, '{"a":7}'])
        _, offsets, data = column.buffers()
        kinds_N, starts_N, sizes_2 = np.zeros(3, np.uint8), np.zeros(3, np.int32), np.zeros(2, np.int64)
        json_B, offsets_N = (np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int32)[:4])
        key_K = np.frombuffer(b'"a"', np.uint8)
        bounds_L = np.array([0, 3, 6])
        path_K = np.frombuffer(b'"a""b"', np.uint8)
        values(json_B, offsets_N, np.zeros(0, bool), key_K, path_K, bounds_L, kinds_N, starts_N, sizes_2)
        count, size = sizes_2.tolist()
        rows_P, ends_P, out_T = (
            np.empty(count, np.int32),
            np.empty(count + 1, np.int64),
            np.empty(size, np.uint8),
        )
        json_kernels.copy_values(json_B, offsets_N, kinds_N, starts_N, rows_P, ends_P, out_T)
        assert rows_P[-1] == 2
        assert bytes(out_T[ends_P[-2] :]) == b"7"
        assert ends_P[-1] == size <= len(text) + 1


def test_changes_leave_other_attributes_alone() -> None:
    column = column_of([{"a": 1, "b": None}, None, {"b": [1.0]}])
    changed = changed_dynamic(column, {"a": None, "c": {"x": 1}, "b": "new"})
    assert changed.to_pylist() == ['{"b":"new","c":{"x":1}}'] * 3
    assert changed_dynamic(column, {"a": None}).to_pylist() == ['{"b":null}', None, '{"b":[1.0]}']
    assert some_dynamic(column, ["b", "c"]).to_pylist() == ['{"b":null}', None, '{"b":[1.0]}']


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("[1]", "_dynamic"), ("{", "_dynamic"), ({1: 2}, "1"), ({"a": {1.5: 2}}, "a"), ({"a": math.inf}, "a"),
        ({"a": [2**63]}, "a[0]"), ({"a": {"b": "\ud800"}}, "a.b"), ({"\ud800": 1}, "\ud800"), ({"a": {1}}, "a"),
        ({"a": 10**5000}, "a"),
    ],
)  # fmt: skip
def test_errors_name_the_field(row: Any, field: str) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        dynamic_json(row)
    assert caught.value.field == field


def test_nesting_has_a_limit() -> None:
    value: Any = 1
    for _ in range(63):
        value = [value]
    assert dynamic_json({"a": value})
    with pytest.raises(InvalidRecordError, match="at most 64 deep"):
        dynamic_json({"a": [[value]]})
    assert json.loads(dynamic_json({"a": value}) or "")


def test_duckdb_reads_the_column() -> None:
    table = pa.table(
        {"id": ["a", "b", "c"], "_dynamic": column_of([{"stars": 5}, {"stars": "5"}, {"x y": [1, None]}])}
    )
    query = "SELECT id FROM table WHERE json_type(_dynamic, '$.stars') = 'UBIGINT'"
    with duckdb.connect() as database:
        database.register("points", table)
        assert database.execute(query.replace("table", "points")).fetchall() == [("a",)]
        assert database.execute("SELECT _dynamic->>'$.stars' FROM points").fetchall() == [
            ("5",),
            ("5",),
            (None,),
        ]


def below(row: Any, path: str) -> Any:
    """The value of a key, or else at a path, found by Python; a KeyError if there is none."""
    if path in row:
        return row[path]
    for key in path.split("."):
        if not isinstance(row, dict):
            raise KeyError(key)
        row = row[key]
    return row


KEYS = st.sampled_from(["a", "b", "a.b", '"', "\\", "a.a"])
TREES = st.recursive(VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=4), max_leaves=20)


@pytest.mark.system
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.dictionaries(KEYS, TREES, max_size=4), min_size=1, max_size=6),
    st.lists(KEYS, min_size=1, max_size=4),
    st.integers(1, 200),
)
def test_the_values_at_a_path_are_those_that_python_finds(
    rows: list[Any], parts: list[str], piece_bytes: int
) -> None:
    path, column = ".".join(parts), column_of(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scannery.indexer.datapoints.dynamic.PIECE_BYTES", piece_bytes)
        values = dynamic_values(column, path)
    alone = []
    for row in rows:
        try:
            alone.append({path: below(json.loads(dynamic_json(row) or "{}"), path)})
        except KeyError:
            alone.append({})
    assert {kind: repr(pairs) for kind, pairs in got(values).items()} == {
        kind: repr(pairs) for kind, pairs in expected(alone, path).items()
    }
    assert values.present_N.tolist() == [row.get(path) is not None for row in alone]


@pytest.mark.parametrize("name", ["a", "a.b", ".".join("a" * 60)])
def test_the_work_ends_between_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scannery.indexer.datapoints.dynamic.PIECE_BYTES", 100)
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        dynamic_values(column_of([{"a": 1}] * 1000), name, check=check)
    assert len(calls) == 3

"""Columns of every Arrow type become plain ones, whole and in pieces."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scannery.indexer.datapoints.columns.plain import plain, python_rows, python_values, unreadable
from tests.indexer.datapoints.columns.column_types import COLUMNS, REFUSED


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_has_its_values_whole_and_sliced(name: str) -> None:
    array, value = COLUMNS[name]
    assert unreadable(pa.field("x", array.type)) is None
    for part, values in ((array, [value, None]), (array[1:], [None]), (array[:1], [value]), (array[:0], [])):
        column = plain(part)
        column.validate(full=True)
        assert python_values(column) == values
        assert plain(column) is column
        assert len(column.take(pa.array(range(len(values)), pa.int64()))) == len(values)


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_without_a_plain_form_is_named(name: str) -> None:
    problem = unreadable(pa.field("x", REFUSED[name].type))
    assert problem is not None
    assert "cannot be read; write it as text" in problem


def test_chunks_with_different_dictionaries_are_read_apart() -> None:
    chunks = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()]
    table = pa.table({"x": pa.chunked_array([chunks[0], chunks[1].cast(chunks[0].type)])})
    assert [python_values(plain(batch.column(0))) for batch in table.to_batches()] == [["a", "b"], ["c", "a"]]


def test_a_period_without_pandas_is_refused_by_name() -> None:
    field = pa.field("x", pa.int64(), metadata={"ARROW:extension:name": "pandas.period"})
    assert "pandas.period" in (unreadable(field) or "")


def test_a_map_with_a_key_twice_is_no_row() -> None:
    maps = pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(ValueError, match="a map cannot be read"):
        python_rows(pa.record_batch({"x": maps}))

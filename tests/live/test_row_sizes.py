"""Sizes of rows, of each type that a segment has."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from scannery.live.row_tables import row_sizes

PLACE = {"lat": 1.0, "lon": 2.0}
TEXTS = ["a", None, "", "é" * 1000, "b" * 70_000, "x"]
COLUMNS = {
    "string": (pa.array(TEXTS), [1, 0, 0, 2000, 70_000, 1]),
    "large_string": (pa.array(TEXTS, pa.large_string()), [1, 0, 0, 2000, 70_000, 1]),
    "list": (pa.array([["a", "bc"], None, [], ["d" * 5000], [None], ["x"]]), [3, 0, 0, 5000, 0, 1]),
    "nested": (pa.array([[[1.0], [2.0, 3.0]], None, [], [[]], [[4.0] * 900]]), [24, 0, 0, 0, 7200]),
    "struct": (pa.array([PLACE, None, PLACE]), [16, 16, 16]),
    "vector": (pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)), [8] * 4),
    "int": (pa.array([1, None, 2, 3]), [8] * 4),
    "bool": (pa.array([True, None, False]), [1] * 3),
    "time": (pa.array([0, 1, 2, None], pa.timestamp("us")), [8] * 4),
    "null": (pa.nulls(4), [0] * 4),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_sizes_are_those_of_the_values(name: str) -> None:
    values, sizes = COLUMNS[name]
    count = len(values)
    rows_R = np.random.default_rng(0).permutation(count)
    expected = [sizes[row] for row in rows_R.tolist()]
    sliced = pa.concat_arrays([values, values, values]).slice(count, count)
    for chunks in ([values], [sliced], [values[:2], values[2:2], values[2:]]):
        column = pa.chunked_array(chunks)
        assert row_sizes(pa.table({"c": column}), rows_R).tolist() == expected
    assert row_sizes(pa.table({"c": values, "d": sliced}), rows_R).tolist() == [2 * size for size in expected]

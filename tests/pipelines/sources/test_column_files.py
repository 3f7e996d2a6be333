"""Files of columns, Parquet and Arrow's own, give the rows of every type; a type that cannot be read is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.indexer import parse_spec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources import (
    Fields,
    Part,
    Record,
    arrange,
    columns,
    find_files,
    read_part,
    split_file,
)
from tests.indexer.datapoints.columns.column_types import COLUMNS, REFUSED

pytestmark = pytest.mark.system

SPEC = parse_spec({"index": "a", "source": {"vector": "v"}, "attributes": {"x": "string"}})
UNWRITTEN = {
    "run-end encoded", "run-end encoded times", "dictionary of string views", "dictionary of lists",
    "list of dictionaries of lists",
}  # fmt: skip
"""Types that Arrow writes to no Parquet file."""


def _read(path: Path, table: pa.Table, kind: str) -> list[Record | DeadLetter]:
    if kind == "parquet":
        pq.write_table(table, path / "x.parquet", row_group_size=5)
    else:
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with make(str(path / "x.arrow"), table.schema) as writer:
            writer.write_table(table)
    fields = Fields.of(SPEC)
    parts = [part for file in arrange(find_files([str(path)]), SPEC.source) for part in split_file(file, 100)]
    return [item for part in parts for item in read_part(part, fields)]


def _table(array: pa.Array) -> pa.Table:
    rows = 6
    return pa.table(
        {
            "id": [f"r{row}" for row in range(2 * rows)],
            "v": pa.array([[1.0, 2.0]] * 2 * rows, pa.list_(pa.float32(), 2)),
            "x": pa.chunked_array([array] * rows),
        }
    )


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
@pytest.mark.parametrize("name", COLUMNS)
def test_rows_have_the_values_of_every_type(name: str, kind: str, tmp_path: Path) -> None:
    if kind == "parquet" and name in UNWRITTEN:
        pytest.skip("Arrow writes no such Parquet file")
    array, value = COLUMNS[name]
    items = _read(tmp_path, _table(array), kind)
    assert [(item.fields["id"], item.fields["x"]) for item in items if isinstance(item, Record)] == [
        (f"r{row}", None if row % 2 else value) for row in range(12)
    ]
    vectors: list[Any] = [[*item.fields["v"]] for item in items if isinstance(item, Record)]
    assert vectors == [[1.0, 2.0]] * 12


@pytest.mark.parametrize("name", REFUSED)
def test_a_column_that_cannot_be_read_refuses_its_rows_by_name(name: str, tmp_path: Path) -> None:
    items = _read(tmp_path, _table(REFUSED[name]), "file")
    assert [(item.row, item.field) for item in items if isinstance(item, DeadLetter)] == [
        (row, "x") for row in range(1, 13)
    ]
    assert "cannot be read; write it as text" in items[0].message  # type: ignore[union-attr]


def test_a_row_group_is_decoded_once_for_all_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, group_rows = 30_000, 20_000
    table = pa.table({"id": [f"r{row}" for row in range(rows)], "v": [[1.0, 2.0]] * rows})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=group_rows)
    fields = Fields.of(SPEC)
    parts = [
        part
        for file in arrange(find_files([str(tmp_path)]), SPEC.source)
        for part in split_file(file, 50_000)
    ]
    assert len(parts) > 4
    decoded: list[int] = []
    real = columns._of_group

    def counted(files: Any, group: int, names: Any) -> Any:
        decoded.append(group)
        yield from real(files, group, names)

    monkeypatch.setattr(columns, "_of_group", counted)

    def ids(part: Part) -> list[str]:
        return [item.fields["id"] for item in read_part(part, fields) if isinstance(item, Record)]

    assert [name for part in parts for name in ids(part)] == table.column("id").to_pylist()
    assert decoded == [0, 1]
    # In any other order, and after a part that was not read to its end, a part has the same rows.
    next(read_part(parts[0], fields))
    for part in reversed(parts):
        assert ids(part) == table.column("id").to_pylist()[part.start : part.end]

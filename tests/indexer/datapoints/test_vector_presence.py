"""Rows with and without a vector in one table, and what is written of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.indexer import parse_spec, vectors_of, written_schema
from scannery.indexer.datapoints.columns.plain import conformed
from scannery.indexer.datapoints.named_vectors import (
    filled,
    has_vector,
    is_vectorless,
    parts_by_vector,
    unfilled,
)

SPEC = parse_spec({"index": "x", "source": {"vector": "v"}, "vectors": "optional"})
SCHEMA = written_schema(SPEC, 3)


def table(*present: bool) -> pa.Table:
    """Return rows a, b, c, …, of which some have the vector of their number."""
    names = pa.array([chr(97 + row) for row in range(len(present))], pa.string())
    vectors = [[row] * 3 if one else None for row, one in enumerate(present)]
    kind = SCHEMA.field("embedding").type
    return conformed(
        pa.table({"id": names, "document_id": names, "embedding": pa.array(vectors, kind)}), SCHEMA
    )


@pytest.mark.parametrize(
    "present", [(True, False, True), (False, False), (True, True), (False, True, False), ()]
)
def test_tables_survive_a_parquet_file_and_part_by_vector(present: tuple[bool, ...], tmp_path: Path):
    rows = table(*present)
    assert has_vector(rows).tolist() == list(present)
    pq.write_table(filled(rows), tmp_path / "x.parquet")
    again = conformed(unfilled(pq.read_table(tmp_path / "x.parquet")), SCHEMA)
    assert again.to_pylist() == rows.to_pylist()
    # Again, since the nulls of a table that was read are made otherwise.
    assert conformed(again, SCHEMA).to_pylist() == rows.to_pylist()
    parts = parts_by_vector(pa.concat_tables([rows, rows.slice(1)]))
    numbers = [*range(len(present)), *range(1, len(present))]
    found = {is_vectorless(part): part for part in parts}
    assert len(found) == len(parts)
    for without, part in found.items():
        wanted = [number for number in numbers if present[number] != without]
        assert part.column("id").to_pylist() == [chr(97 + number) for number in wanted]
        if without:
            assert "embedding" not in part.column_names
        else:
            np.testing.assert_array_equal(vectors_of(part), np.repeat(wanted, 3).reshape(-1, 3))
    assert sum(part.num_rows for part in parts) == len(numbers)


def test_nulls_do_not_fit_a_column_of_vectors_that_all_rows_must_have():
    strict = written_schema(SPEC.model_copy(update={"vectors": "required"}), 3)
    assert conformed(table(True), strict).schema == strict
    with pytest.raises(pa.ArrowInvalid, match="embedding has nulls"):
        conformed(table(True, False), strict)

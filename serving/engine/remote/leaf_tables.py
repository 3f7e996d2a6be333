"""Rows that leaves return for a write, checked before anything of them is written.

A root appends what it makes of them to the log, and all processes must be able to read each record of it: one with rows
that do not fit the index would keep all of them from opening it.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer import MAX_MAGNITUDE, Manifest
from scannery.indexer.datapoints.named_vectors import vector_column
from scannery.indexer.datapoints.schema import MAX_ID_BYTES
from scannery.indexer.datapoints.vector_presence import has_vector
from scannery.live.row_tables import stored_schema
from scannery.runtime.errors import ServingError

__all__ = ["checked_tables"]


def checked_tables(tables: Iterable[pa.Table], manifest: Manifest, *, whole: bool) -> list[pa.Table]:
    """Return the columns of tables that rows of an index have.

    Args:
        tables: of the leaves of all groups.
        manifest: of the index.
        whole: whether all columns were asked for, and not id, document and revision alone.

    Raises:
        ServingError: no leaf of ours has such rows.

    """
    schema = stored_schema(manifest)
    found = [_known_columns(table, schema) for table in tables]
    for table in found:
        for name in ("id", "document_id"):
            _check_names(table, name)
        if whole:
            _check_vectors(table, manifest)
    _check_distinct(found)
    return found


def _known_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns that the schema has, too; a leaf of the next release may have others."""
    if len(set(table.column_names)) < table.num_columns:
        raise _wrong("columns of the same name")
    known = [field for field in schema if field.name in table.column_names]
    for field in known:
        kind = table.schema.field(field.name).type
        if not kind.equals(field.type):
            raise _wrong(f"a column {field.name!r} of {kind}, and not of {field.type}")
    return table.select([field.name for field in known])


def _check_names(table: pa.Table, name: str) -> None:
    if name not in table.column_names or table.column(name).null_count:
        raise _wrong(f"rows without {name!r}")
    sizes = pc.min_max(pc.binary_length(table.column(name))).as_py()
    if table.num_rows and not 1 <= sizes["min"] <= sizes["max"] <= MAX_ID_BYTES:
        raise _wrong(f"values of {name!r} that are empty, or longer than {MAX_ID_BYTES} bytes")


def _check_distinct(tables: Sequence[pa.Table]) -> None:
    """Raise ServingError if two rows have one id: each row has one shard, and each shard one group."""
    if tables:
        ids = pa.concat_tables([table.select(["id"]) for table in tables]).column("id")
        if pc.count_distinct(ids).as_py() < len(ids):
            raise _wrong("two rows of one id")


def _check_vectors(table: pa.Table, manifest: Manifest) -> None:
    if manifest.spec.vectors == "required" and not has_vector(table).all():
        raise _wrong("rows without a vector")
    if "embedding" in table.column_names:
        _check_numbers(table.column("embedding"), max(1, manifest.dimensions))
    for name, info in manifest.named_vectors.items():
        if vector_column(name) in table.column_names:
            _check_numbers(table.column(vector_column(name)), info.dimensions)


def _check_numbers(vectors: pa.ChunkedArray, dimensions: int) -> None:
    """Raise ServingError unless all vectors that are there have D numbers within the bounds of written ones."""
    present = vectors.drop_null()
    if not len(present):
        return
    sizes = pc.min_max(pc.list_value_length(present)).as_py()
    numbers = np.concatenate([chunk.flatten().to_numpy(zero_copy_only=False) for chunk in present.chunks])
    if {*sizes.values()} != {dimensions} or len(numbers) != dimensions * len(present):
        raise _wrong(f"vectors that have not {dimensions} dimensions")
    if not (np.abs(numbers) <= MAX_MAGNITUDE).all():  # of NaN, too
        raise _wrong("vectors that are not finite")


def _wrong(what: str) -> ServingError:
    return ServingError(f"a leaf returned {what}")

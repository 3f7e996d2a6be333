"""Read rows of open segments as tables from which new segments are built.

Shapes: N rows of a segment, R selected rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    REVISION_COLUMN,
    AllowedRows,
    Manifest,
    Segment,
    vector_column,
    written_schema,
)

__all__ = ["live_rows", "stored_schema", "whole_rows"]


def stored_schema(manifest: Manifest) -> pa.Schema:
    """Return the schema of a segment of live rows: the columns of every segment, and the revision."""
    schema = written_schema(manifest.spec, manifest.dimensions)
    return schema.append(pa.field(REVISION_COLUMN, pa.int64()))


def live_rows(segments: Iterable[tuple[Segment, AllowedRows | None]], schema: pa.Schema) -> pa.Table:
    """Return the live rows of segments (None: all rows), with all columns of a schema."""
    tables = [
        whole_rows(segment, np.arange(segment.rows) if alive is None else alive.rows, schema)
        for segment, alive in segments
    ]
    return pa.concat_tables([schema.empty_table(), *tables])


def whole_rows(segment: Segment, rows_R: np.ndarray, schema: pa.Schema) -> pa.Table:
    """Return rows of a segment with all columns of a schema; what the segment lacks is null: attributes, vectors."""
    stored = set(segment.table.column_names)
    taken = segment.take(rows_R, [name for name in schema.names if name in stored])
    named = {vector_column(name): vectors for name, vectors in segment.named.items()}
    arrays = [
        _embedding(segment, rows_R, field.type)
        if field.name == "embedding" and segment.has_vectors
        else named[field.name].column(rows_R)
        if field.name in named
        else taken.column(field.name)
        if field.name in stored
        else pa.nulls(taken.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _embedding(segment: Segment, rows_R: np.ndarray, kind: pa.DataType) -> pa.Array:
    vectors_RD = np.ascontiguousarray(segment.vectors(rows_R), np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors_RD.reshape(-1)), type=kind)

"""Documents that were cut and embedded → the rows of their passages.

Shapes: P passages of all documents, D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.schema import written_schema
from scannery.indexer.spec.spec import AttributeType, IndexSpec

__all__ = ["PASSAGE_ATTRIBUTES", "embedding_column", "passage_rows"]

PASSAGE_ATTRIBUTES: Mapping[str, AttributeType] = {
    "speakers": "string_list",
    "section": "string",
    "page": "int",
}
"""Attributes that hold what is known of a passage (who speaks in it, its headings, its page), where the spec has them
with these types and the document has no value of its own."""


def passage_rows(
    documents: pa.Table,
    counts: Sequence[int],
    passages: Mapping[str, Sequence[Any]],
    vectors_PD: np.ndarray,
    spec: IndexSpec,
) -> pa.Table:
    """Return a table of `written_schema` with a row for each passage, in order.

    Args:
        documents: good rows as `validate` returns them; their vectors are not used.
        counts: passages of each document.
        passages: what passages have of their own, by columns; with `PASSAGE_ATTRIBUTES`.
        vectors_PD: of the passages, float32.
        spec: of the index.

    """
    schema = written_schema(spec, vectors_PD.shape[1])
    parents_P = np.repeat(np.arange(documents.num_rows), counts)
    own = PASSAGE_ATTRIBUTES
    shared = [name for name in documents.column_names if name in own or name not in passages]
    rows = documents.select(shared).take(pa.array(parents_P, pa.int64()))
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    for name, values in passages.items():
        if name not in own:
            columns[name] = pa.array(values, schema.field(name).type)
        elif spec.attributes.get(name) == own[name]:
            kind = schema.field(name).type
            found = [list(value) or None for value in values] if pa.types.is_list(kind) else values
            columns[name] = pc.coalesce(columns[name], pa.array(found, kind))
    if spec.source.chunk is not None:
        numbers = [str(number) for count in counts for number in range(count)]
        columns["id"] = pc.binary_join_element_wise(columns["id"], pa.array(numbers, pa.string()), "#")
    columns["embedding"] = embedding_column(vectors_PD, schema)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def embedding_column(vectors_PD: np.ndarray, schema: pa.Schema) -> pa.Array:
    """Return float32 vectors as the `embedding` column of a schema."""
    flat = pa.array(np.ascontiguousarray(vectors_PD, np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=schema.field("embedding").type)

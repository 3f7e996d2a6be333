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
from scannery.indexer.spec.spec import IndexSpec

__all__ = [
    "MAX_REPEATED_BYTES",
    "SPEAKERS",
    "embedding_column",
    "passage_rows",
    "repeated_bytes",
    "repetition_problem",
]

SPEAKERS = "speakers"
"""The attribute that holds who speaks in a passage, where the spec has it as a list of strings and the document has
none of its own."""

MAX_REPEATED_BYTES = 64 << 20
"""Most bytes that the passages of a document repeat: each holds its title, attributes and payload. Without a limit, a
text and a payload of a MiB each would take 8 GiB."""
_OF_PASSAGES = frozenset({"id", "text", "embedding"})


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
        passages: what passages have of their own, by columns; with `SPEAKERS`.
        vectors_PD: of the passages, float32.
        spec: of the index.

    """
    schema = written_schema(spec, vectors_PD.shape[1])
    parents_P = np.repeat(np.arange(documents.num_rows), counts)
    shared = [name for name in documents.column_names if name == SPEAKERS or name not in passages]
    rows = documents.select(shared).take(pa.array(parents_P, pa.int64()))
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    for name, values in passages.items():
        if name != SPEAKERS:
            columns[name] = pa.array(values, schema.field(name).type)
    if spec.attributes.get(SPEAKERS) == "string_list":
        found = pa.array([list(names) or None for names in passages[SPEAKERS]], pa.list_(pa.string()))
        columns[SPEAKERS] = pc.coalesce(columns[SPEAKERS], found)
    if spec.source.chunk is not None:
        numbers = [str(number) for count in counts for number in range(count)]
        columns["id"] = pc.binary_join_element_wise(columns["id"], pa.array(numbers, pa.string()), "#")
    columns["embedding"] = embedding_column(vectors_PD, schema)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def repeated_bytes(documents: pa.Table, counts: Sequence[int]) -> list[int]:
    """Return the bytes that the passages of each document repeat: what it holds besides its text, times `counts`."""
    shared = documents.select([name for name in documents.column_names if name not in _OF_PASSAGES])
    if shared.nbytes * max(counts, default=0) <= MAX_REPEATED_BYTES >> 6:
        return [0] * len(counts)  # the usual case: all of them together are far from the limit
    return [shared.slice(i, 1).nbytes * count for i, count in enumerate(counts)]


def repetition_problem(size: int, passages: int) -> str | None:
    """Return why a document of so many passages and `repeated_bytes` cannot be stored; None if it can."""
    if size <= MAX_REPEATED_BYTES:
        return None
    return (
        f"its {passages} passages would each repeat the document's title, attributes and payload, {size >> 20} MiB in "
        f"all; at most {MAX_REPEATED_BYTES >> 20} MiB: shorten these, or split the text into several documents"
    )


def embedding_column(vectors_PD: np.ndarray, schema: pa.Schema) -> pa.Array:
    """Return float32 vectors as the `embedding` column of a schema."""
    flat = pa.array(np.ascontiguousarray(vectors_PD, np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=schema.field("embedding").type)

"""Embeddings files: the vectors of a work unit as Parquet, one row group per shard.

They have the columns of `datapoint_schema`, `_spoken`, and, for the build itself: `_content_hash` (passages.py),
`_speakers` of the passage, `_record` (its number within the unit) and `_source`, `_line`, `_row` (where the record
was).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.embed import Passage
from scannery.embed.text.documents import passage_id
from scannery.indexer.datapoints.schema import SPOKEN_COLUMN, datapoint_schema
from scannery.indexer.datapoints.sparse import SPARSE_COLUMNS
from scannery.indexer.spec.sharding import shards_of_ids
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.records.passages import EmbeddedDocument

__all__ = ["embeddings_schema", "table_of", "write_embeddings"]

SPEAKERS = "speakers"
"""The attribute that the chunker fills, where the spec has it as a list of strings and the record does not."""


def embeddings_schema(spec: IndexSpec, dimensions: int) -> pa.Schema:
    """Return the Arrow schema of an embeddings file."""
    own = [
        pa.field(SPOKEN_COLUMN, pa.string()),
        pa.field("_content_hash", pa.binary(16)),
        pa.field("_speakers", pa.list_(pa.string())),
        pa.field("_record", pa.int64(), nullable=False),
        pa.field("_source", pa.string(), nullable=False),
        pa.field("_line", pa.int64()),
        pa.field("_row", pa.int64()),
    ]
    return pa.schema([*datapoint_schema(spec, dimensions), *own])


def write_embeddings(path: Path, table: pa.Table, *, shards: int) -> dict[int, int]:
    """Write the rows of a unit as its embeddings file, and return which row group each of its shards has.

    Within a shard the rows keep the order of the input, and a document's passages stand together.
    """
    shard_N = shards_of_ids(table.column("document_id"), shards)
    used = np.unique(shard_N).tolist()
    # Floats as split byte streams are smaller and faster to read; vectors never repeat, so no dictionary. Of 64 MiB of
    # vectors, LZ4 leaves 0.93 and takes 0.17 s to write and 0.07 s to read them, zstd 0.85 and 0.32 s and 0.39 s.
    with pq.ParquetWriter(
        path,
        table.schema,
        compression={_leaf(field): "lz4" if field.name == "embedding" else "zstd" for field in table.schema},
        use_dictionary=["title", "_source", "payload"],
        column_encoding={"embedding.list.element": "BYTE_STREAM_SPLIT"},
        write_page_checksum=True,
    ) as writer:
        for shard in used:
            own = table if len(used) == 1 else table.take(pa.array(np.flatnonzero(shard_N == shard)))
            writer.write_table(own, row_group_size=own.num_rows)
    return {shard: group for group, shard in enumerate(used)}


def _leaf(field: pa.Field) -> str:
    """Return the path of a column's values in the file."""
    is_list = pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)
    return f"{field.name}.list.element" if is_list else str(field.name)


def table_of(documents: Iterable[EmbeddedDocument], spec: IndexSpec, dimensions: int) -> pa.Table:
    """Return a table of `embeddings_schema`: a row for each passage, in order."""
    schema = embeddings_schema(spec, dimensions)
    columns: dict[str, list[Any]] = {name: [] for name in schema.names if name != "embedding"}
    vectors = [np.empty((0, dimensions), np.float32)]
    for record, embedded in enumerate(documents):
        vectors.append(embedded.vectors)
        for number, passage in enumerate(embedded.passages):
            for name, value in _row(record, embedded, number, passage, spec).items():
                columns[name].append(value)
    vectors_ND = np.concatenate(vectors).astype(np.float32, copy=False)
    kind = schema.field("embedding").type
    arrays: dict[str, pa.Array] = {
        name: pa.array(values, schema.field(name).type) for name, values in columns.items()
    }
    arrays["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.reshape(-1)), type=kind)
    return pa.table([arrays[name] for name in schema.names], schema=schema)


def _row(
    record: int, embedded: EmbeddedDocument, number: int, passage: Passage, spec: IndexSpec
) -> dict[str, Any]:
    document, has_sparse = embedded.document, spec.source.sparse_vector is not None
    speakers = list(passage.speakers) or None
    attributes = dict(document.attributes)
    if spec.attributes.get(SPEAKERS) == "string_list" and attributes[SPEAKERS] is None:
        attributes[SPEAKERS] = speakers
    return {
        "id": document.id if spec.source.chunk is None else passage_id(document.id, number),
        "document_id": document.document_id,
        "title": document.title,
        "text": passage.text,
        "text_start": passage.start,
        "text_end": passage.end,
        "time_start_s": passage.time_start_s,
        "time_end_s": passage.time_end_s,
        "payload": document.payload,
        **(dict(zip(SPARSE_COLUMNS, document.sparse or (None, None), strict=True)) if has_sparse else {}),
        **attributes,
        SPOKEN_COLUMN: passage.spoken,
        "_content_hash": embedded.content_hash,
        "_speakers": speakers,
        "_record": record,
        "_source": document.record.source,
        "_line": document.record.line,
        "_row": document.record.row,
    }

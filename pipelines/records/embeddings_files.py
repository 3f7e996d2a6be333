"""Embeddings files: the vectors of a work unit, one piece per shard (state/row_groups.py), each a Parquet file.

They have the columns of `datapoint_schema` (vectors as `filled` returns them), `_spoken`, and, for the build itself:
`_content_hash` (passages.py), `_speakers` of the passage, `_cut_tokens` (how many the encoder cut off its text, about),
`_record` (its number within the unit) and `_source`, `_line`, `_row` (where the record was).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.datapoints.named_vectors import NAMED_TYPE, filled
from scannery.indexer.datapoints.schema import SPOKEN_COLUMN, datapoint_schema
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.sources import Record
from scannery.pipelines.state.embedding_cache import CUT_TOKENS_COLUMN
from scannery.pipelines.state.job import Piece

__all__ = ["WrittenEmbeddings", "embeddings_schema", "embeddings_table", "places_of", "write_embeddings"]


def embeddings_schema(spec: IndexSpec, dimensions: int) -> pa.Schema:
    """Return the Arrow schema of an embeddings file."""
    columns = [
        pa.field(SPOKEN_COLUMN, pa.string()),
        pa.field("_content_hash", pa.binary(16)),
        pa.field("_speakers", pa.list_(pa.string())),
        pa.field(CUT_TOKENS_COLUMN, pa.int64()),
        pa.field("_record", pa.int64(), nullable=False),
        pa.field("_source", pa.string(), nullable=False),
        pa.field("_line", pa.int64()),
        pa.field("_row", pa.int64()),
    ]
    return pa.schema([*datapoint_schema(spec, dimensions), *columns])


class WrittenEmbeddings(NamedTuple):
    """An embeddings file that was written."""

    pieces: dict[int, Piece]
    """Shard → place of its rows; shards without rows are left out."""

    size_bytes: int
    sha256: str


def write_embeddings(path: Path, table: pa.Table, *, shard_N: np.ndarray) -> WrittenEmbeddings:
    """Write the rows of a unit as its embeddings file, one piece after another.

    Within a shard the rows keep the order of the input, and a document's passages stand together.

    Args:
        path: of the file.
        table: the rows, in input order.
        shard_N: shard of each row, int64 (`shards_of_ids`).

    """
    pieces: dict[int, Piece] = {}
    with path.open("wb") as file:
        whole = _HashingFile(file)
        for shard, shard_rows in _by_shard(table, shard_N):
            piece = _HashingFile(whole)
            _write_piece(filled(shard_rows), piece)
            pieces[shard] = Piece(whole.size_bytes - piece.size_bytes, piece.size_bytes, piece.sha256[:32])
    return WrittenEmbeddings(pieces, whole.size_bytes, whole.sha256)


def _by_shard(table: pa.Table, shard_N: np.ndarray) -> Iterator[tuple[int, pa.Table]]:
    used = np.unique(shard_N).tolist()
    for shard in used:
        yield shard, table if len(used) == 1 else table.take(pa.array(np.flatnonzero(shard_N == shard)))


def _write_piece(rows: pa.Table, sink: _HashingFile) -> None:
    # Floats as split byte streams are smaller and faster to read; vectors never repeat, so no dictionary. Of 64 MiB of
    # vectors, LZ4 leaves 0.93 and takes 0.17 s to write and 0.07 s to read them, zstd 0.85 and 0.32 s and 0.39 s.
    vectors = [
        "embedding",
        *(name for name in rows.column_names if rows.schema.field(name).type == NAMED_TYPE),
    ]
    pq.write_table(
        rows,
        pa.PythonFile(sink, mode="w"),
        row_group_size=rows.num_rows,
        compression={
            leaf: "lz4" if field.name in vectors else "zstd"
            for field in rows.schema
            for leaf in _leaves(field)
        },
        use_dictionary=["title", "_source", "payload"],
        column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in vectors},
        write_statistics=False,  # a reader takes all rows; of a piece of few rows they would be a tenth
        write_page_checksum=True,
    )


class _HashingFile:
    """A writable file that hashes what is written to it, so that the bytes are not read again for it.

    Args:
        sink: where the bytes go: an open file, or another one of these.

    """

    closed = False

    def __init__(self, sink: BinaryIO | _HashingFile) -> None:
        self._sink, self._hash, self.size_bytes = sink, hashlib.sha256(), 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: bytes) -> int:
        self._sink.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """Do nothing: the file below is flushed when it is closed."""

    def close(self) -> None:
        """Do nothing: the file below has further pieces."""


def _leaves(field: pa.Field) -> list[str]:
    """Return the paths of a column's values in the file."""
    if pa.types.is_struct(field.type):
        return [f"{field.name}.{inner.name}" for inner in field.type]
    kind = field.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return [f"{field.name}.list.element" if is_list else str(field.name)]


def embeddings_table(
    rows: pa.Table,
    columns: Mapping[str, pa.Array | np.ndarray | Sequence[object]],
    spec: IndexSpec,
    dimensions: int,
) -> pa.Table:
    """Return rows with the columns of `embeddings_schema`: null where neither they nor `columns` have one."""
    schema = embeddings_schema(spec, dimensions)
    if not rows.num_rows:
        return schema.empty_table()
    arrays = [
        rows.column(field.name)
        if field.name in rows.column_names
        else pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def places_of(records: Sequence[Record]) -> dict[str, Sequence[object]]:
    """Return the columns that say where records were."""
    return {
        "_source": [record.source for record in records],
        "_line": [record.line for record in records],
        "_row": [record.row for record in records],
    }

"""Mutations as bytes: one Arrow stream for each batch.

The stream holds the new rows with everything that was found out about them (passages, vectors), and its metadata what
they replace. So whoever replays a log needs neither an encoder nor an older version of the index.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    WORD_COLUMNS,
    CorruptError,
    FormatError,
    IndexSpec,
    Manifest,
    id_hashes,
    with_terms,
    written_schema,
)

__all__ = ["RECORD_FORMAT", "Mutation", "decode", "encode", "encoder_digest", "rows_fit", "with_words"]

RECORD_FORMAT = 1
"""Version of the records that this code writes; it refuses later ones."""

_KEY = b"scannery.mutation"
_HASHES = "_id_hash"
"""A column of records alone: what every worker that applies one would have to find out for itself."""


@dataclass(frozen=True)
class Mutation:
    """What one batch changes: removals first, then the new rows, each of which replaces the row with its id."""

    rows: pa.Table
    """The columns of `written_schema`, and the words where the index has any. Ids are distinct."""
    removed_ids: tuple[str, ...] = ()
    removed_documents: tuple[str, ...] = ()
    """All rows of these documents go."""
    encoder: str | None = None
    """Digest of the encoder in whose space the vectors are; None where the index has none."""
    words: dict[str, Any] | None = None
    """`LexicalSpec.rules` by which the words were made; None: the rows have none yet."""
    known_hashes: np.ndarray | None = None
    """The `id_hashes` of the new rows, if a record had them."""

    @cached_property
    def hashes(self) -> np.ndarray:
        """The `id_hashes` of the new rows, uint64."""
        return id_hashes(self.ids) if self.known_hashes is None else self.known_hashes

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the new rows, in order."""
        ids: list[str] = self.rows.column("id").to_pylist()
        return ids


def encode(mutation: Mutation) -> bytes:
    """Return a mutation as bytes."""
    header = {
        "format": RECORD_FORMAT,
        "removed_ids": mutation.removed_ids,
        "removed_documents": mutation.removed_documents,
        "encoder": mutation.encoder,
        "words": mutation.words,
    }
    table = mutation.rows.append_column(_HASHES, pa.array(mutation.hashes))
    table = table.replace_schema_metadata({_KEY: json.dumps(header).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes, *, sequence: int) -> Mutation:
    """Return the mutation in a record.

    Raises:
        FormatError: it is of a later format.
        CorruptError: it is no record.

    """
    try:
        with pa.ipc.open_stream(data) as reader:
            rows = reader.read_all()
        header: dict[str, Any] = json.loads((rows.schema.metadata or {})[_KEY])
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise CorruptError(f"record {sequence} of the log is damaged: {error}") from error
    if header["format"] > RECORD_FORMAT:
        raise FormatError(
            f"record {sequence} of the log has format {header['format']}, this Scannery reads up to "
            f"{RECORD_FORMAT}; upgrade it"
        )
    rows, hashes_N = rows.replace_schema_metadata(None), None
    if _HASHES in rows.column_names:  # older records lack it
        hashes_N = rows.column(_HASHES).to_numpy()
        rows = rows.drop_columns([_HASHES])
    return Mutation(
        rows,
        tuple(header["removed_ids"]),
        tuple(header["removed_documents"]),
        header["encoder"],
        header.get("words"),
        hashes_N,
    )


def encoder_digest(manifest: Manifest) -> str | None:
    """Return what names the space of an index's vectors."""
    return None if manifest.encoder is None else manifest.encoder.get("digest")


def with_words(mutation: Mutation, spec: IndexSpec) -> Mutation:
    """Return a mutation whose rows have the words that the index has of them.

    It takes long for long texts, so it is done before the write's transaction, and what it comes to is in the record.
    """
    rules = None if spec.lexical is None else spec.lexical.rules
    if mutation.words == rules:
        return mutation
    rows = mutation.rows.drop_columns([name for name in WORD_COLUMNS if name in mutation.rows.column_names])
    return replace(mutation, rows=with_terms(rows, spec.lexical), words=rules)


def rows_fit(mutation: Mutation, manifest: Manifest, *, sequence: int) -> Mutation:
    """Return a mutation with the columns and words that a version has; attributes that it lacks are null.

    Raises:
        FormatError: its vectors are not of the space of this version, or an attribute is of another type.

    """
    schema = written_schema(manifest.spec, manifest.dimensions)
    what = f"record {sequence} of the log does not fit version {manifest.version} of index {manifest.index!r}"
    if mutation.rows.num_rows and mutation.encoder != encoder_digest(manifest):
        raise FormatError(f"{what}: its vectors were made for another encoder")
    mutation = with_words(mutation, manifest.spec)
    words = [mutation.rows.schema.field(name) for name in WORD_COLUMNS if mutation.words]
    schema = pa.schema([*schema, *words])
    if mutation.rows.schema.equals(schema):
        return mutation
    size = mutation.rows.schema.field("embedding").type.list_size
    if size != manifest.dimensions:
        raise FormatError(
            f"{what}: its vectors have {size} dimensions, those of the version {manifest.dimensions}"
        )
    rows = mutation.rows
    for field in schema:
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    try:
        rows = rows.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise FormatError(f"{what}: {error}") from error
    return replace(mutation, rows=rows)

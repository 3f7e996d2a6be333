"""Encode mutations as records of the log: one Arrow stream per batch.

The stream holds the new rows with everything derived from them (passages, vectors); its metadata holds the removals.
So replaying a log needs neither an encoder nor an older version of the index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer import (
    WORD_COLUMNS,
    CorruptError,
    FormatError,
    IndexSpec,
    Manifest,
    conformed,
    id_hashes,
    is_vectorless,
    vector_column,
    with_terms,
    without_vectors,
    written_schema,
)
from scannery.indexer.datapoints.declaring import with_declared
from scannery.indexer.datapoints.named_vectors import names_in, without_absent
from scannery.live.log.mutation_log import LogGapError
from scannery.runtime.errors import InvalidRequestError

__all__ = [
    "RECORD_FORMAT",
    "Mutation",
    "columns_version_of",
    "decode",
    "encode",
    "encoder_digests",
    "rows_fit",
    "vectors_problem",
    "with_words",
]

RECORD_FORMAT = 1
"""Version of the records that this code writes; later versions are refused."""

_KEY = b"scannery.mutation"
_HASHES = "_id_hash"
"""A column of records only: it saves every worker that applies the record from hashing the ids."""


@dataclass(frozen=True)
class Mutation:
    """One batch: removals apply first, then each new row replaces the row with its id."""

    rows: pa.Table
    """The columns of `written_schema`, and WORD_COLUMNS if the index is lexical. Ids are distinct."""
    removed_ids: tuple[str, ...] = ()
    """Ids of rows to remove."""
    removed_documents: tuple[str, ...] = ()
    """Ids of documents of which all rows are removed."""
    words: dict[str, Any] | None = None
    """`LexicalSpec.rules` with which WORD_COLUMNS were computed; None: the rows lack them."""
    known_hashes: np.ndarray | None = None
    """The `id_hashes` of the new rows, uint64, if the record holds them."""
    encoders: Mapping[str, str] = field(default_factory=dict)
    """Digests of the encoders that made the vectors, by name; names without an encoder are left out."""
    columns_version: int = 0
    """`Manifest.columns_version` of the version that the rows were made for; 0 in records of earlier releases."""

    @classmethod
    def of(cls, rows: pa.Table, manifest: Manifest, **options: Any) -> Mutation:
        """Return a mutation with rows that were made for a version; `options` are further fields."""
        made_for = {"encoders": encoder_digests(manifest), "columns_version": manifest.columns_version}
        return cls(rows, **{**made_for, **options})

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
    """Return a mutation as a record."""
    named_encoders = dict(mutation.encoders)
    header = {
        "format": RECORD_FORMAT,
        "removed_ids": mutation.removed_ids,
        "removed_documents": mutation.removed_documents,
        "encoder": named_encoders.pop("", None),
        "words": mutation.words,
    }
    if named_encoders:
        header["named_encoders"] = named_encoders
    if mutation.columns_version:
        header["columns_version"] = mutation.columns_version
    # Nulls of a fixed size take the space of vectors.
    rows = without_vectors(mutation.rows) if is_vectorless(mutation.rows) else mutation.rows
    rows = without_absent(rows)
    table = rows.append_column(_HASHES, pa.array(mutation.hashes))
    table = table.replace_schema_metadata({_KEY: json.dumps(header).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes, *, sequence: int) -> Mutation:
    """Return the mutation of a record.

    Args:
        data: the record.
        sequence: its sequence, for errors.

    Raises:
        FormatError: its format is later than RECORD_FORMAT.
        CorruptError: it is not a valid record.

    """
    try:
        with pa.ipc.open_stream(data) as reader:
            header, rows = _header(reader.schema), reader.read_all()
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise CorruptError(f"record {sequence} of the log is damaged: {error}") from error
    if header["format"] > RECORD_FORMAT:
        raise FormatError(
            f"record {sequence} of the log has format {header['format']}, this Scannery reads up to "
            f"{RECORD_FORMAT}; upgrade it"
        )
    rows, hashes_N = rows.replace_schema_metadata(None), None
    if _HASHES in rows.column_names:  # records of earlier releases lack it
        hashes_N = rows.column(_HASHES).to_numpy()
        rows = rows.drop_columns([_HASHES])
    unnamed = {} if header["encoder"] is None else {"": header["encoder"]}
    return Mutation(
        rows,
        tuple(header["removed_ids"]),
        tuple(header["removed_documents"]),
        header.get("words"),
        hashes_N,
        unnamed | header.get("named_encoders", {}),
        header.get("columns_version", 0),
    )


def columns_version_of(data: bytes) -> int:
    """Return `Mutation.columns_version` of a record, without decoding its rows; 0 of a damaged one."""
    with suppress(pa.ArrowException, KeyError, ValueError), pa.ipc.open_stream(data) as reader:
        return int(_header(reader.schema).get("columns_version", 0))
    return 0


def _header(schema: pa.Schema) -> dict[str, Any]:
    header: dict[str, Any] = json.loads((schema.metadata or {})[_KEY])
    return header


def encoder_digests(manifest: Manifest) -> dict[str, str]:
    """Return the digests of the encoders that made an index's vectors, by name, of those that have one."""
    encoders = {name: info.encoder for name, info in manifest.vectors.items()}
    return {name: encoder["digest"] for name, encoder in encoders.items() if encoder and "digest" in encoder}


def with_words(mutation: Mutation, spec: IndexSpec) -> Mutation:
    """Return the mutation with the WORD_COLUMNS that the index's spec asks for.

    Long texts take long, so this is done before the write's transaction, and the record holds the result.
    """
    rules = None if spec.lexical is None else spec.lexical.rules
    if mutation.words == rules:
        return mutation
    rows = mutation.rows.drop_columns([name for name in WORD_COLUMNS if name in mutation.rows.column_names])
    return replace(mutation, rows=with_terms(rows, spec.lexical), words=rules)


def rows_fit(mutation: Mutation, manifest: Manifest, *, sequence: int, new: bool = False) -> Mutation:
    """Return the mutation converted to the schema of a version; attributes and vectors that it lacks are null.

    Attributes and named vectors that the version does not have are dropped: those of rows from before a rollback. Rows
    that were made for a later version are refused: a writer that had dropped what it does not know would write them
    back without it. Dynamic attributes that the version declares move into their columns, if their values fit.

    Args:
        mutation: the mutation.
        manifest: of the version.
        sequence: sequence of the mutation, for errors.
        new: whether it is not in the log yet: values that do not fit are an error then.

    Raises:
        LogGapError: it was made for a later version.
        InvalidRequestError: a new one has a dynamic attribute with a value that does not fit the declared type.
        FormatError: its vectors of a name were made by another encoder or have other dimensions, an attribute has
            another type, or the version must have vectors that it lacks.

    """
    # Not with its `columns_version`, which versions of earlier releases lack.
    if mutation.columns_version > manifest.version:
        raise LogGapError(
            f"record {sequence} of the log was made for version {mutation.columns_version} of index "
            f"{manifest.index!r}, which has other columns than version {manifest.version}"
        )
    schema = written_schema(manifest.spec, manifest.dimensions)
    what = f"record {sequence} of the log does not fit version {manifest.version} of index {manifest.index!r}"
    if problem := vectors_problem(mutation, manifest):
        raise FormatError(f"{what}: its {problem}")
    mutation = with_words(mutation, manifest.spec)
    words = [mutation.rows.schema.field(name) for name in WORD_COLUMNS if mutation.words]
    schema = pa.schema([*schema, *words])
    if mutation.rows.schema.equals(schema):
        return mutation
    rows = mutation.rows
    if not rows.num_rows:  # of a deletion, say: no type has to be converted
        return replace(mutation, rows=schema.empty_table())
    if is_vectorless(rows):
        if manifest.spec.vectors == "required":
            raise FormatError(f"{what}: it has rows without a vector")
        rows = without_vectors(rows)
    elif (size := rows.schema.field("embedding").type.list_size) != max(1, manifest.dimensions):
        raise FormatError(
            f"{what}: its vectors have {size} dimensions, those of the version {manifest.dimensions}"
        )
    rows, misfits = with_declared(rows, manifest.spec.attributes)
    if misfits and new:
        raise InvalidRequestError(misfits[0].message, field=f"attributes.{misfits[0].attribute}")
    try:
        rows = conformed(rows, schema)
    except pa.ArrowException as error:
        raise FormatError(f"{what}: {error}") from error
    return replace(mutation, rows=rows)


def vectors_problem(mutation: Mutation, manifest: Manifest) -> str | None:
    """Return why vectors of a mutation cannot be those of a version; None if they can.

    The number of components of unnamed vectors is in the type of their column.
    """
    digests, infos, rows = encoder_digests(manifest), manifest.vectors, mutation.rows
    for name in ["", *names_in(rows)] if rows.num_rows else []:
        # An index whose vectors come with the rows may get an encoder for queries; rows before are none of an encoder.
        is_given = not name and name not in mutation.encoders and manifest.spec.source.vector is not None
        if name not in infos or is_given:
            continue
        vectors = f"vectors {name!r}" if name else "vectors"
        if mutation.encoders.get(name) != digests.get(name):
            return f"{vectors} were made for another encoder"
        sizes = pc.min_max(pc.list_value_length(rows.column(vector_column(name)))).as_py() if name else {}
        if {*sizes.values()} - {infos[name].dimensions}:
            return f"{vectors} have {sizes['max']} dimensions, those of the version {infos[name].dimensions}"
    return None

"""Resolve a write against the current state: conditions, partial updates, number of deleted datapoints."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    DYNAMIC_COLUMN,
    REVISION_COLUMN,
    IndexSpec,
    InvalidRecordError,
    KnownTerms,
    Manifest,
    OpenIndex,
    Segment,
    first_passages,
    vectors_array,
    with_known_terms,
    written_schema,
)
from scannery.indexer.datapoints.declaring import rows_with_dynamic
from scannery.indexer.datapoints.dynamic import changed_dynamic
from scannery.indexer.datapoints.named_vectors import is_vector_column
from scannery.live.log.records import Mutation, encoder_digests, rows_fit
from scannery.live.memtable import LiveState
from scannery.live.prepare import Condition, Deletion, PartialUpdate, PreparedUpsert, VectorsOf, encode_again
from scannery.live.row_tables import whole_rows
from scannery.live.writing.write_views import NamedRows, RowFilter
from scannery.runtime.errors import (
    ConditionError,
    InvalidRequestError,
    OtherVersionError,
    PermissionDeniedError,
    UnknownDatapointError,
)

__all__ = ["RowsBySegment", "changed_rows", "look_ahead", "named_by", "resolve_deletion", "resolve_upsert"]

RowsBySegment: TypeAlias = list[tuple[Segment, np.ndarray]]
"""Rows by segment."""

RETRY_S = 0.1


def resolve_upsert(upsert: PreparedUpsert, state: LiveState) -> Mutation:
    """Return the mutation of a batch.

    Args:
        upsert: the prepared batch.
        state: the index before it.

    Raises:
        ConditionError: a condition does not hold.
        UnknownDatapointError: a partial update names a datapoint that does not exist.
        InvalidRequestError: two items write the same datapoint.
        PermissionDeniedError: a datapoint that the writer does not see would be replaced.
        FormatError: the index has got another encoder or other dimensions since the batch was prepared.

    """
    index = state.opened()
    for item in upsert.conditional:
        matches = _seen(_rows(index, item.id), upsert.seen)
        _check(item.condition, matches, item.id, f"{item.path}.condition")
    _check_replaced(upsert, index)
    manifest = state.manifest
    vectors_of = None if upsert.vectors is None else upsert.vectors.encoded
    changed = [_changed(item, upsert, index, vectors_of) for item in upsert.partial]
    if not changed:
        return upsert.mutation
    # The index may have got other words since the batch was prepared; changed rows have the new ones.
    whole = rows_fit(upsert.mutation, manifest, sequence=state.sequence + 1, new=True)
    mutation = replace(whole, rows=pa.concat_tables([whole.rows, *changed]), known_hashes=None)
    if len(set(mutation.ids)) < len(mutation.ids):
        raise InvalidRequestError.at("upserts", "two of them would write the same datapoint")
    return mutation


def resolve_deletion(deletion: Deletion, state: LiveState) -> tuple[Mutation, int]:
    """Return the mutation of a deletion, and the number of datapoints that it removes.

    Raises:
        ConditionError: a datapoint has another revision, or does not exist.

    """
    gone: dict[tuple[str, int], None] = {}
    ids: list[str] = []
    index = state.opened()
    for field, names, places_of in (
        ("ids", deletion.ids, _rows_of_id),
        ("document_ids", deletion.document_ids, _rows_of_document),
    ):
        for i, name in enumerate(names):
            matches = _seen(places_of(index, name), deletion.seen)
            if deletion.condition is not None:
                _check(deletion.condition, matches, name, f"{field}[{i}]")
            if deletion.conditions and field == "ids":
                _check(deletion.conditions[i], matches, name, f"conditions[{i}]")
            gone |= {(segment.entry.key, row): None for segment, rows in matches for row in rows.tolist()}
            ids += [] if deletion.seen is None else _ids(matches)
    manifest = state.manifest
    nothing = written_schema(manifest.spec, manifest.dimensions).empty_table()
    if deletion.seen is None:
        return Mutation(nothing, deletion.ids, deletion.document_ids), len(gone)
    # By name, a document would be removed with the rows that the writer does not see.
    return Mutation(nothing, tuple(dict.fromkeys(ids))), len(gone)


def _ids(matches: RowsBySegment) -> list[str]:
    return [name for segment, rows_R in matches for name in segment.ids.take(pa.array(rows_R)).to_pylist()]


def _seen(matches: RowsBySegment, seen: RowFilter | None) -> RowsBySegment:
    """Return those of some rows that a writer sees."""
    if seen is None:
        return matches
    kept = [(segment, rows_R[seen.allowed(segment).holds(rows_R)]) for segment, rows_R in matches]
    return [(segment, rows_R) for segment, rows_R in kept if len(rows_R)]


def _check_replaced(upsert: PreparedUpsert, index: OpenIndex) -> None:
    """Raise PermissionDeniedError if a batch replaces a datapoint that its writer does not see."""
    mutation = upsert.mutation
    if upsert.seen is None:
        return
    for names, places_of in (
        ((*mutation.ids, *mutation.removed_ids), _rows_of_id),
        (mutation.removed_documents, _rows_of_document),
    ):
        for name in names:
            matches = places_of(index, name)
            if _count(matches) > _count(_seen(matches, upsert.seen)):
                raise PermissionDeniedError(
                    f"upserts: datapoint {name!r:.200} cannot be written with these credentials",
                    field="upserts",
                )


def _count(matches: RowsBySegment) -> int:
    return sum(len(rows_R) for _, rows_R in matches)


def _check(condition: Condition, matches: RowsBySegment, name: str, path: str) -> None:
    if condition.revision is None:
        if matches:
            raise ConditionError(f"{path}.if_absent: there is a datapoint {name!r:.200}", field=path)
        return
    if not matches:
        raise ConditionError(f"{path}.if_revision: there is no datapoint {name!r:.200}", field=path)
    revision = max(_revision(segment, row) for segment, rows in matches for row in rows.tolist())
    if revision != condition.revision:
        raise ConditionError(
            f"{path}.if_revision: datapoint {name!r:.200} has revision {revision}, not {condition.revision}",
            field=path,
        )


def _revision(segment: Segment, row: int) -> int:
    """Return the revision of a row; 0 if a build wrote it."""
    if REVISION_COLUMN not in segment.table.column_names:
        return 0
    revision: int | None = segment.column(REVISION_COLUMN)[row].as_py()
    return revision or 0


def _rows(index: OpenIndex, name: str) -> RowsBySegment:
    """Return the rows that an upsert's id names: those of the document if texts are chunked, else the datapoint."""
    if index.spec.source.chunk is not None and (rows := _rows_of_document(index, name)):
        return rows
    return _rows_of_id(index, name)


def named_by(upsert: PreparedUpsert, state: LiveState) -> NamedRows:
    """Return the rows that `resolve_upsert` reads (`_rows`)."""
    names = [item.id for item in upsert.conditional] + [item.id for item in upsert.partial]
    documents = names if state.manifest.spec.source.chunk is not None else []
    if upsert.seen is not None or upsert.max_rows is not None:  # it matters which rows are replaced
        names = [*names, *upsert.mutation.ids, *upsert.mutation.removed_ids]
        documents = [*documents, *upsert.mutation.removed_documents]
    return NamedRows(
        ids=tuple(dict.fromkeys(names)),
        document_ids=tuple(dict.fromkeys(documents)),
        # The filter of `seen` is about all columns.
        whole=bool(upsert.partial or upsert.seen is not None),
        counted=upsert.max_rows is not None,
    )


def _rows_of_id(index: OpenIndex, identifier: str) -> RowsBySegment:
    matches: RowsBySegment = []
    for segment, alive in zip(index.segments, index.alive, strict=True):
        row = segment.row_of(identifier, alive)
        if row is not None:
            matches.append((segment, np.array([row])))
    return matches


def _rows_of_document(index: OpenIndex, document_id: str) -> RowsBySegment:
    matches: RowsBySegment = []
    for segment, alive in zip(index.segments, index.alive, strict=True):
        rows_R = segment.rows_of_document(document_id)
        if alive is not None:
            rows_R = rows_R[alive.mask_N[rows_R]]
        if len(rows_R):
            matches.append((segment, rows_R))
    return matches


def look_ahead(upsert: PreparedUpsert, state: LiveState) -> None:
    """Cache terms and named vectors of partially updated rows: making them in the transaction would delay others."""
    vectors_of = None if upsert.vectors is None else upsert.vectors.encode
    index = state.opened()
    for item in upsert.partial:
        with contextlib.suppress(UnknownDatapointError):  # it may exist when the write is resolved
            _changed(item, upsert, index, vectors_of)


def _changed(
    item: PartialUpdate, upsert: PreparedUpsert, index: OpenIndex, vectors_of: VectorsOf | None
) -> pa.Table:
    """Return the rows of an existing datapoint with the fields of the mask changed, and their terms."""
    matches = _seen(_rows(index, item.id), upsert.seen)
    path = f"{item.path}.datapoint.id"
    if not matches:
        raise UnknownDatapointError(
            f"{path}: index {index.manifest.index!r} has no datapoint {item.id!r:.200} to update", field=path
        )
    return changed_rows(matches, item, index.manifest, upsert.terms, vectors_of)


def changed_rows(
    matches: RowsBySegment,
    item: PartialUpdate,
    manifest: Manifest,
    terms: KnownTerms,
    vectors_of: VectorsOf | None = None,
) -> pa.Table:
    """Return rows with new values, and their terms.

    Args:
        matches: the rows.
        item: the new values.
        manifest: of the version that the rows are written to.
        terms: terms that were found before; terms of other texts are added.
        vectors_of: returns the named vectors of texts; needed for items with `encoded`.

    Raises:
        OtherVersionError: the values were checked for another spec.
        OverloadedError: a text to encode has just changed.

    """
    schema = written_schema(manifest.spec, manifest.dimensions)
    if not _fits(item, manifest, schema):
        raise OtherVersionError("the index has just got another spec", retry_after_s=RETRY_S)
    table = pa.concat_tables([whole_rows(segment, rows_R, schema) for segment, rows_R in matches])
    for column, value in item.values.items():
        if is_vector_column(column):
            table = _with_vector(table, column, value, manifest.spec)
            continue
        field = schema.field(column)
        values = pa.array([value] * table.num_rows, field.type)
        table = table.set_column(schema.get_field_index(column), field, values)
    if item.dynamic:
        table = _with_dynamic(table, item.dynamic, item.path)
    if manifest.spec.dynamic and (set_names := manifest.spec.attributes.keys() & item.values):
        # A value of before the attribute was declared, if it did not fit (`with_declared`).
        stale = rows_with_dynamic(table.column(DYNAMIC_COLUMN), set_names)
        table = _with_dynamic(table, dict.fromkeys(stale), item.path) if stale else table
    if item.encoded and vectors_of is not None:
        table = encode_again(table, item, manifest.spec, vectors_of)
    return with_known_terms(table, manifest.spec.lexical, terms)


def _fits(item: PartialUpdate, manifest: Manifest, schema: pa.Schema) -> bool:
    """Return whether new values, which were checked for a version, are possible in another one."""
    digests = encoder_digests(manifest)
    return (
        item.values.keys() <= set(schema.names)
        and manifest.spec.attributes.keys().isdisjoint(item.dynamic)
        and manifest.named_vectors.keys() >= set(item.encoded)
        and all(digests.get(name) == digest for name, digest in item.encoders.items())
    )


def _with_vector(table: pa.Table, column: str, vector: np.ndarray | None, spec: IndexSpec) -> pa.Table:
    """Return the rows of a datapoint with another named vector: that of its first passage, if it has passages."""
    first_N = first_passages(table, spec)
    array = vectors_array([vector if first else None for first in first_N.tolist()])
    return table.set_column(table.schema.get_field_index(column), column, array)


def _with_dynamic(table: pa.Table, changes: Mapping[str, Any], path: str) -> pa.Table:
    front = f"{path}.datapoint." if path else ""
    try:
        column = changed_dynamic(table.column(DYNAMIC_COLUMN), changes, path="attributes")
    except InvalidRecordError as error:
        raise InvalidRequestError(f"{front}{error.message}", field=f"{front}{error.field}") from error
    return table.set_column(table.schema.get_field_index(DYNAMIC_COLUMN), DYNAMIC_COLUMN, column)

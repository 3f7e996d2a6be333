"""Existing rows of an index: read back from its segments, and compared with new ones.

What a full build removes: datapoints of the parent version that are not in its input, and live updates.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scannery.indexer.datapoints.columns.plain import conformed
from scannery.indexer.datapoints.declaring import with_declared
from scannery.indexer.datapoints.named_vectors import (
    NAMED_TYPE,
    ROW_COLUMN,
    has_vector,
    named_column,
    vector_column,
)
from scannery.indexer.datapoints.schema import REVISION_COLUMN, vectors_of, written_schema
from scannery.indexer.errors import CorruptError, NotFoundError
from scannery.indexer.manifest import Manifest, SegmentEntry
from scannery.indexer.store.object_store import RangeFile, Store
from scannery.indexer.vectors.arrays import taken
from scannery.indexer.versions.tombstones import read_live_mask
from scannery.indexer.versions.versions import segment_key
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.state.job import Job

__all__ = ["newer_rows", "read_live_rows", "removals", "stored_schema", "unchanged_documents"]


TOLERANCE = 0.01
"""A cosine of 0.995: vectors of one text in two dtypes have a cosine of 0.999, those of different texts hardly ever."""


def stored_schema(job: Job) -> pa.Schema:
    """Return the columns of live rows: those of written rows, and the revision (null in rows of a build)."""
    schema = written_schema(job.spec, job.dimensions)
    return schema.append(pa.field(REVISION_COLUMN, pa.int64()))


def read_live_rows(
    entry: SegmentEntry, job: Job, store: Store, columns: Sequence[str] | None = None
) -> tuple[pa.Table, np.ndarray]:
    """Return some or all columns of a segment's rows that are not deleted, and the numbers of these rows, int64.

    Columns are those of `stored_schema`; columns that the segment lacks are null.

    Raises:
        CorruptError: a file does not match the manifest.
        SpecConflictError: rows have a dynamic attribute that the spec declares, with values of another type.
        NotFoundError: a file is missing.

    """
    key = segment_key(job.index, entry.key)
    schema = stored_schema(job)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    by_range = columns is not None and store.local_root is None
    read = _read_columns if by_range else _read_whole
    table = _complete(read(entry, key, store, schema.names), entry)
    for name, named_entry in entry.named.items():
        if vector_column(name) in schema.names:
            stored = segment_key(job.index, named_entry.key)
            vectors = _complete(read(named_entry, stored, store, ["embedding", ROW_COLUMN]), named_entry)
            table = table.append_column(vector_column(name), named_column(vectors, entry.rows))
    mask_N, rows_R = read_live_mask(store, job.index, entry), np.arange(len(table))
    if mask_N is not None:
        table, rows_R = table.filter(pa.array(mask_N)), np.flatnonzero(mask_N)
    return conformed(_declared(table, job), schema), rows_R


def _complete(table: pa.Table, entry: SegmentEntry) -> pa.Table:
    if len(table) != entry.rows:
        raise CorruptError(f"{entry.key} has {len(table)} rows, the manifest says {entry.rows}")
    return table


def _declared(table: pa.Table, job: Job) -> pa.Table:
    """Return rows with the attributes that the spec declares and they have as dynamic ones."""
    table, misfits = with_declared(table, job.spec.attributes)
    if misfits:
        first = misfits[0]
        raise SpecConflictError(
            f"{first.message}: {len(misfits)} datapoints of the index have this dynamic attribute with such values "
            f"(the first is {table.column('id')[first.row].as_py()!r:.200}); nothing was published. Change or remove "
            "them, or declare another name",
            field=f"attributes.{first.attribute}",
        )
    return table


def _read_whole(entry: SegmentEntry, key: str, store: Store, names: Sequence[str]) -> pa.Table:
    """Return those of the columns that a segment has; its hash is checked."""
    with contextlib.ExitStack() as stack:
        try:
            checked = store.open_checked(key, sha256=entry.sha256, size_bytes=entry.size_bytes)
            path = stack.enter_context(checked)
        except CorruptError as error:
            raise CorruptError(f"{error.message}; build the whole index again (--full)") from error
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read(columns=_stored(file, names))


def _read_columns(entry: SegmentEntry, key: str, store: Store, names: Sequence[str]) -> pa.Table:
    """Return those of the columns that a segment in a bucket has, without reading the others.

    Pages have checksums of their own. Ids are a hundredth of a segment, and an update reads them of every segment.
    """
    if store.size(key) != entry.size_bytes:
        raise CorruptError(f"{key} is damaged: its size is not the one in the manifest")
    try:
        with pq.ParquetFile(
            RangeFile(store, key, entry.size_bytes), pre_buffer=True, page_checksum_verification=True
        ) as file:
            return file.read(columns=_stored(file, names))
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(f"{key} is damaged: {error}; build the whole index again (--full)") from error


def _stored(file: pq.ParquetFile, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in file.schema_arrow.names]


def newer_rows(table: pa.Table, job: Job) -> np.ndarray:
    """Return which rows live updates wrote during the build, bool (N,)."""
    if job.newer_than is None:
        return np.zeros(table.num_rows, bool)
    newer_N: np.ndarray = pc.greater(
        pc.fill_null(table.column(REVISION_COLUMN), 0), job.newer_than
    ).to_numpy()
    return newer_N


def unchanged_documents(old: pa.Table, new: pa.Table, job: Job) -> set[str]:
    """Return the documents that have the same rows in both tables.

    Vectors encoded by the build may differ within `TOLERANCE`, since batches, devices and dtypes change them slightly;
    such rows are equal, and a different revision is ignored. A release that embeds a text differently exceeds it.
    """
    columns = [name for name in new.column_names if name != REVISION_COLUMN]
    tolerant = _encoded_columns(job)
    shared = _shared(old, new)
    if not len(shared):
        return set()
    old, new = (
        table.select(columns).filter(pc.is_in(table.column("document_id"), value_set=shared))
        for table in (old, new)
    )
    positions = pc.index_in(new.column("id"), value_set=old.column("id").combine_chunks())
    is_old = pc.is_valid(positions)
    same_N = _equal_rows(taken(old, positions.filter(is_old).to_numpy()), new.filter(is_old), tolerant)
    same = Counter(new.filter(is_old).filter(pa.array(same_N)).column("document_id").to_pylist())
    before, after = (Counter(table.column("document_id").to_pylist()) for table in (old, new))
    return {name for name, count in same.items() if count == before[name] == after[name]}


def _encoded_columns(job: Job) -> set[str]:
    """Return the columns of vectors that builds encode, all of them."""
    named = job.spec.named_vectors
    names = (name for name in job.spec.document_encoders if not name or named[name].vector is None)
    return set(map(vector_column, names))


def _shared(old: pa.Table, new: pa.Table) -> pa.Array:
    names = pc.unique(new.column("document_id"))
    return names.filter(pc.is_in(names, value_set=pc.unique(old.column("document_id"))))


def _equal_rows(a: pa.Table, b: pa.Table, tolerant: set[str]) -> np.ndarray:
    """Return which rows of two tables with the same schema are equal; vectors of `tolerant` within `TOLERANCE`."""
    same_N = _near_vectors(a, b, TOLERANCE if "embedding" in tolerant else 0.0)
    for name in a.column_names:
        if a.schema.field(name).type == NAMED_TYPE:
            same_N &= _near_named(a, b, name, TOLERANCE if name in tolerant else 0.0)
        elif name != "embedding":
            same_N &= _equal_values(a, b, name)
    return same_N


def _near_named(first: pa.Table, second: pa.Table, name: str, tolerance: float) -> np.ndarray:
    """Return what `_near_vectors` does for a column of named vectors."""
    columns = [table.column(name) for table in (first, second)]
    sizes = pc.unique(
        pa.concat_arrays([*(pc.list_value_length(column).combine_chunks() for column in columns)])
    )
    sizes_present = [size for size in sizes.to_pylist() if size is not None]
    if len(sizes_present) > 1:
        return _equal_values(first, second, name)
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False), sizes_present[0] if sizes_present else 1)
    left, right = (pa.table({"embedding": column.cast(kind)}) for column in columns)
    return _near_vectors(left, right, tolerance)


def _near_vectors(first: pa.Table, second: pa.Table, tolerance: float) -> np.ndarray:
    """Return where the squared distance of two vectors is at most `tolerance` times the squared length of the second.

    Also where neither row has a vector.
    """
    present_N, other_N = has_vector(first), has_vector(second)
    both_N = present_N & other_N
    if not both_N.all():
        same_N: np.ndarray = present_N == other_N
        pairs = pa.array(both_N)
        if both_N.any():
            same_N[both_N] = _near_vectors(first.filter(pairs), second.filter(pairs), tolerance)
        return same_N
    vectors_ND, others_ND = vectors_of(first), vectors_of(second)
    apart_N = np.einsum("nd,nd->n", difference_ND := vectors_ND - others_ND, difference_ND)
    near_N: np.ndarray = apart_N <= tolerance * np.einsum("nd,nd->n", others_ND, others_ND)
    return near_N


def _equal_values(first: pa.Table, second: pa.Table, name: str) -> np.ndarray:
    left, right = first.column(name), second.column(name)
    if pa.types.is_nested(left.type):  # Arrow does not compare lists and structs
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.fromiter((a == b for a, b in pairs), bool, len(left))
    equal = pc.fill_null(pc.equal(left, right), False)
    nulls = pc.and_(pc.is_null(left), pc.is_null(right))
    result: np.ndarray = pc.or_(equal, nulls).to_numpy(zero_copy_only=False)
    return result


MOST_ROWS = 20_000_000
"""Most rows of changed segments whose ids one worker compares: about 2 GB of memory."""


def removals(
    job: Job, store: Store, parent: Manifest | None, entries: Sequence[SegmentEntry]
) -> dict[str, int | None]:
    """Return how many datapoints of the parent a full build removes, and how many rows of live updates it drops.

    Only the ids and revisions of segments that are not in both versions are read. None: the segments are too large, or
    one of the parent is damaged.

    Args:
        job: the build.
        store: of the index.
        parent: the version before.
        entries: segments of the new version.

    """
    unknown: dict[str, int | None] = {"removed_datapoints": None, "dropped_live": None}
    if job.mode != "full" or parent is None:
        return {}
    shared = {entry.labelled_keys for entry in parent.segments} & {entry.labelled_keys for entry in entries}
    old = [entry for entry in parent.segments if entry.labelled_keys not in shared]
    new = [entry for entry in entries if entry.labelled_keys not in shared]
    if sum(entry.rows for entry in (*old, *new)) > MOST_ROWS:
        return unknown
    try:
        before, after = (_ids(some, job, store) for some in (old, new))
    except (CorruptError, NotFoundError):  # a full build repairs them
        return unknown
    gone = pc.invert(pc.is_in(before.column("id"), value_set=after.column("id").combine_chunks()))
    live_before, live_after = (_live_count(table) for table in (before, after))
    return {"removed_datapoints": pc.sum(gone).as_py() or 0, "dropped_live": max(0, live_before - live_after)}


def _ids(entries: Sequence[SegmentEntry], job: Job, store: Store) -> pa.Table:
    columns = ["id", REVISION_COLUMN]
    empty = pa.schema([stored_schema(job).field(name) for name in columns]).empty_table()
    return pa.concat_tables([empty, *(read_live_rows(entry, job, store, columns)[0] for entry in entries)])


def _live_count(table: pa.Table) -> int:
    """Return how many rows were written by live updates."""
    return int(table.num_rows - table.column(REVISION_COLUMN).null_count)

"""Row groups of embeddings files: references that are shuffled, and reading of the rows.

An embeddings file is a sequence of pieces. A piece is a Parquet file of its own with one row group, the rows of one
shard. A shard reads its piece by one request for a range of bytes, and checks the hash of this range; it reads neither
the footer of other shards' rows nor the unit's record, both of which grow with the number of shards. So the shards of a
build together read each embeddings file once.

Embeddings files of earlier releases are one Parquet file with a row group per shard. They are read as a whole.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence, Set
from hashlib import sha256
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.errors import NotFoundError, StoreError
from scannery.indexer.store.object_store import Store
from scannery.pipelines.errors import StageDamagedError
from scannery.pipelines.state.job import (
    Job,
    Piece,
    UnitOutcome,
    embeddings_key,
    forget_unit,
    open_checked,
    read_unit,
)

__all__ = ["RowGroup", "embeddings_of", "piece_digest", "read_row_group", "row_groups_of", "rows_of_shards"]


class RowGroup(NamedTuple):
    """Reference to the rows that one unit has for one shard; the shuffle moves these instead of vectors."""

    ordinal: int
    """Position of the unit in the input."""

    unit: str
    """Key of the unit."""

    group: int
    """Number of the row group in the unit's embeddings file."""

    lost: tuple[int, ...] = ()
    """Rows of the group that are duplicates of records in other shards (resolve.py)."""

    file: str = ""
    """`UnitOutcome.file`; empty: the file of an earlier release."""

    piece: Piece | None = None
    """Place of the rows in the file; None: a row group in a file of an earlier release."""

    @classmethod
    def from_json(cls, text: str) -> RowGroup:
        """Return the row group that `to_json` wrote."""
        ordinal, unit, group, lost, file, piece = json.loads(text)
        return cls(ordinal, unit, group, tuple(lost), file, piece and Piece(*piece))

    def to_json(self) -> str:
        """Return the reference as a string, for Beam."""
        return json.dumps(self)


def row_groups_of(unit: UnitOutcome) -> Iterator[tuple[int, RowGroup]]:
    """Yield each shard that a unit has rows for, and the reference to them."""
    for shard, group in unit.row_groups.items():
        yield shard, RowGroup(unit.ordinal, unit.key, group, file=unit.file, piece=unit.pieces.get(shard))


def read_row_group(item: RowGroup, job: Job, store: Store, columns: Sequence[str] | None = None) -> pa.Table:
    """Return some or all columns of the rows that one unit has for one shard, in input order.

    Raises:
        StageDamagedError: the file is damaged; the next run makes it again.

    """
    key = embeddings_key(job.index, item.unit, item.file)
    with _damage_forgotten(store, job.index, item.unit, item.file, key):
        if item.piece is not None:
            return _opened(store, key, item.piece).read(columns=columns)
        with _whole_file(store, job.index, item.unit) as file:
            return file.read_row_group(item.group, columns=columns)


def rows_of_shards(
    store: Store,
    index: str,
    unit: str,
    shards: Set[int] | None,
    columns: Sequence[str],
    dimensions: int | None = None,
) -> Iterator[tuple[int, pa.Table]]:
    """Yield some columns of a finished unit's rows by shard; no other rows are read.

    Args:
        store: where the files are.
        index: name of the index.
        unit: key of the unit.
        shards: the wanted ones; None: all.
        columns: those of them that the file has.
        dimensions: of the vectors; rows with vectors of another size are left out. None: any.

    Raises:
        StageDamagedError: the file is damaged; the next run makes it again.

    """
    outcome = read_unit(store, index, unit)
    if outcome is None:
        return
    if outcome.pieces:
        for shard, item in row_groups_of(outcome):
            if shards is None or shard in shards:
                file = _piece_of(item, index, store)
                if _has_vectors(file, dimensions):
                    yield shard, file.read(columns=columns)
        return
    for file in embeddings_of(store, index, unit):
        for shard, group in outcome.row_groups.items() if _has_vectors(file, dimensions) else ():
            if shards is None or shard in shards:
                yield shard, file.read_row_group(group, columns=columns)


def _has_vectors(file: pq.ParquetFile, dimensions: int | None) -> bool:
    kind = file.schema_arrow.field("embedding").type
    return dimensions is None or (bool(pa.types.is_fixed_size_list(kind)) and kind.list_size == dimensions)


def _piece_of(item: RowGroup, index: str, store: Store) -> pq.ParquetFile:
    assert item.piece is not None
    key = embeddings_key(index, item.unit, item.file)
    with _damage_forgotten(store, index, item.unit, item.file, key):
        return _opened(store, key, item.piece)


def embeddings_of(store: Store, index: str, unit: str) -> Iterator[pq.ParquetFile]:
    """Yield the pieces of a finished unit's embeddings file in order; a file of an earlier release as one piece.

    Raises:
        StageDamagedError: the unit has no record, or the file is damaged; the next run makes it again.

    """
    outcome = read_unit(store, index, unit)
    if outcome is None:
        raise StageDamagedError(f"unit {unit} has no record; run the build again, which makes a new one")
    if not outcome.file:
        with _whole_file(store, index, unit) as file:
            yield file
        return
    key = embeddings_key(index, unit, outcome.file)
    for piece in sorted(outcome.pieces.values()):
        with _damage_forgotten(store, index, unit, outcome.file, key):
            file = _opened(store, key, piece)
        yield file


def piece_digest(data: bytes | memoryview) -> str:
    """Return the digest of a piece's bytes, as in `Piece.digest`."""
    return sha256(data).hexdigest()[:32]


def _opened(store: Store, key: str, piece: Piece) -> pq.ParquetFile:
    try:
        data = store.map_range(key, piece.offset, piece.length)
    except NotFoundError as error:
        raise StageDamagedError(f"{key} is missing; run the build again, which makes a new one") from error
    except StoreError as error:
        if store.size(key) >= piece.offset + piece.length:  # the store failed, not the file
            raise
        raise StageDamagedError(f"{key} is too short; run the build again, which makes a new one") from error
    if piece_digest(data) != piece.digest:
        raise StageDamagedError(f"{key} is damaged; run the build again, which makes a new one")
    return pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)), page_checksum_verification=True)


@contextlib.contextmanager
def _whole_file(store: Store, index: str, unit: str) -> Iterator[pq.ParquetFile]:
    with (
        open_checked(store, index, unit) as path,
        pq.ParquetFile(path, page_checksum_verification=True) as file,
    ):
        yield file


@contextlib.contextmanager
def _damage_forgotten(store: Store, index: str, unit: str, file: str, key: str) -> Iterator[None]:
    """Remove the unit's record if its file is damaged, so that the next run makes the unit again."""
    try:
        yield
    except StageDamagedError:
        forget_unit(store, index, unit, file)
        raise
    except (pa.ArrowException, OSError) as error:
        forget_unit(store, index, unit, file)
        raise StageDamagedError(f"{key} is damaged ({error}); run the build again") from error

"""Build a segment: a file of datapoints, and one file for the vectors of each name (docs/format.md).

Each file has the order of its own ScaNN tree; a file of named vectors has the row of each datapoint.

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints.named_vectors import (
    ROW_COLUMN,
    names_in,
    vectors_table,
    without_named,
)
from scannery.indexer.datapoints.schema import datapoint_schema
from scannery.indexer.errors import BuildError
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.scann.config import Effort
from scannery.indexer.segment.segment_writer import WrittenSegment, write_segment
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.versions import segment_key

__all__ = ["BuiltSegment", "build_segment", "store_segment"]


@dataclass(frozen=True, kw_only=True)
class BuiltSegment:
    """The finished files of a segment, not in a store yet: see `store_segment`."""

    entry: SegmentEntry
    paths: tuple[Path, ...]
    """The files, in the order of the entry and its `named`."""
    statistics: dict[str, Any]
    """Seconds by stage and the ScaNN configuration, for the build report; `named`: the same by name."""

    @property
    def path(self) -> Path:
        """The file of the datapoints."""
        return self.paths[0]


def build_segment(
    table: pa.Table,
    *,
    spec: IndexSpec,
    shard: int,
    directory: Path,
    threads: int | None = None,
    queries: Mapping[str, np.ndarray] = MappingProxyType({}),
    measured: bool = False,
    effort: Effort = "full",
    earlier: SegmentEntry | None = None,
) -> BuiltSegment:
    """Write datapoints of one shard as the files of a segment: all of them with an unnamed vector, or all without one.

    Rows are in leaf order if ScaNN is used, else in input order. The input is not changed.

    Args:
        table: the columns of `datapoint_schema`, and optionally `_spoken` and `_revision`; others are dropped. Rows
            without a vector as in named_vectors.py, named vectors as in named_vectors.py.
        spec: of the index.
        shard: number of the shard.
        directory: where the files are written.
        threads: for ScaNN; None: all cores.
        queries: real queries to tune the vectors of a name for, float32 (any number, dimensions); for others they are
            made from the vectors.
        measured: whether the statistics have the recall of the default setting for FRESH_QUERIES queries near rows that
            were not used in tuning.
        effort: of training; less than `full` for segments that will soon be merged.
        earlier: another segment of the index; ScaNN gets the configuration that was chosen for it by trial, if any was
            and its rows were similarly many.

    Raises:
        BuildError: only some rows have an unnamed vector, a vector is not finite or has another number of components,
            two rows have one id, ScaNN failed, or a file cannot be written; the message names the shard.

    """
    trials = {name: entry.trial for name, entry in earlier.by_name.items()} if earlier else {}

    def write(name: str, rows: pa.Table) -> WrittenSegment:
        return write_segment(
            rows,
            spec=spec.of_vectors(name),
            shard=shard,
            directory=directory,
            threads=threads,
            queries=queries.get(name),
            measured=measured and not name,
            effort=effort,
            earlier=trials.get(name),
        )

    rows, names = write("", _datapoints(table)), names_in(table)
    places_N = None if rows.order_N is None or not names else np.argsort(rows.order_N)
    return _built(rows, {name: write(name, _vectors(table, name, spec, shard, places_N)) for name in names})


def _datapoints(table: pa.Table) -> pa.Table:
    """Return the rows without their named vectors; builds have a column of their own that is named ROW_COLUMN."""
    rows = without_named(table)
    return rows.drop_columns([ROW_COLUMN]) if ROW_COLUMN in rows.column_names else rows


def _vectors(
    table: pa.Table, name: str, spec: IndexSpec, shard: int, places_N: np.ndarray | None
) -> pa.Table:
    """Return the vectors of a name as a table that `write_segment` takes, in the order of their rows.

    Args:
        table: as of `build_segment`.
        name: of the vectors.
        spec: of the index.
        shard: for errors.
        places_N: number of each row in the file of the datapoints, int64; None: the number in the table.

    """
    try:
        vectors = vectors_table(table, name, places_N)
    except ValueError as error:
        raise BuildError(f"shard {shard} of index {spec.index!r}: {error}") from error
    if places_N is not None:
        vectors = vectors.sort_by(ROW_COLUMN)
    vectors = vectors.append_column("document_id", vectors.column("id"))
    schema = datapoint_schema(spec.of_vectors(name), vectors.schema.field("embedding").type.list_size)
    for field in schema:
        if field.name not in vectors.column_names:
            vectors = vectors.append_column(field.name, pa.nulls(len(vectors), field.type))
    return vectors


def _built(rows: WrittenSegment, named: Mapping[str, WrittenSegment]) -> BuiltSegment:
    statistics = dict(rows.statistics)
    if named:
        statistics["named"] = {name: output.statistics for name, output in named.items()}
    entries = {name: output.entry for name, output in named.items()}
    return BuiltSegment(
        entry=rows.entry.model_copy(update={"named": entries}) if named else rows.entry,
        paths=(rows.path, *(output.path for output in named.values())),
        statistics=statistics,
    )


def store_segment(store: Store, index: str, built: BuiltSegment) -> None:
    """Write the files of a segment to a store; StoreError if one cannot be written."""
    for entry, path in zip(built.entry.by_name.values(), built.paths, strict=True):
        store.write_file(segment_key(index, entry.key), path)

"""What a migration will cost, by converting a sample of the datapoints; nothing is written.

Shapes: N datapoints.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from scannery.indexer import (
    Manifest,
    NotFoundError,
    SegmentCache,
    Store,
    read_manifest,
    without_vectors,
)
from scannery.indexer.datapoints.named_vectors import vector_column
from scannery.indexer.reader import open_manifest
from scannery.indexer.versions.creation import new_manifest
from scannery.live.migration.conversion import Conversion, packed
from scannery.live.migration.errors import MigrationError
from scannery.live.migration.filling import random_rows
from scannery.live.migration.mirrors import VectorsOfSpec, mirror_of, planned_spec
from scannery.live.prepare import Encoders
from scannery.live.row_tables import stored_schema

__all__ = ["Price", "price_of"]

SAMPLE_ROWS = 256
"""Datapoints that are converted at once, whole documents of them: as large as the batches of an encoder."""
SAMPLE_S = 5.0
"""Time for which samples are converted; a model is loaded, and reaches its speed, before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a migration will cost, as estimated from a sample; of the mirror, by a spec that is not stored."""

    mirror: Manifest
    """Manifest that the mirror would begin with: its encoders and dimensions."""
    datapoints: int
    """Datapoints of the version; live updates that are not sealed come on top."""
    mirror_datapoints: int
    """Datapoints of the mirror, which differ if texts are cut anew."""
    texts: int
    """Texts that are encoded."""
    sampled: int
    """Datapoints of the sample."""
    rows_per_s: float
    """Datapoints that this process converted a second."""
    staged_bytes: int
    """Size of the converted datapoints, which the store has until the mirror is filled."""
    bytes_per_row: float
    """Size of a datapoint of the mirror without its vectors, in memory."""

    @property
    def seconds(self) -> float:
        """Time until all are converted at this rate by one process."""
        return self.datapoints / self.rows_per_s if self.datapoints else 0.0


def price_of(
    store: Store,
    index: str,
    changes: Mapping[str, Any],
    vectors_of: VectorsOfSpec,
    encoders: Encoders,
    *,
    cache: SegmentCache | None = None,
) -> Price:
    """Return what a migration of an index will cost.

    Args:
        store: of the index.
        index: its name.
        changes: keys of the spec, as of `begin_mirror`.
        vectors_of: finds the encoders of the changed spec.
        encoders: encoders of the mirror.
        cache: for opening segments; None: the default cache.

    Raises:
        NotFoundError: there is no such index.
        MigrationError: it is a mirror, is being migrated, or nothing changes.
        InvalidSpecError: a value of the changes is wrong.
        UnencodableError, EncoderUnavailableError, EmbedError: a datapoint of the sample cannot be converted.

    """
    source = read_manifest(store, index)
    _check_not_migrated(store, index)
    _, spec = planned_spec(source, changes)
    mirror = new_manifest(store, spec, vectors=vectors_of(spec))
    conversion = Conversion(source, mirror, encoders)
    tables = random_rows(open_manifest(store, source, cache=cache), SAMPLE_ROWS)
    first = next(tables, None)
    sampled, made, seconds = 0, list[pa.Table](), 0.0
    if first is not None:
        conversion.rows(first)
        began_s = time.monotonic()
        for table in chain([first], tables):
            made.append(conversion.rows(table))
            sampled += table.num_rows
            seconds = time.monotonic() - began_s
            if seconds >= SAMPLE_S:
                break
    rows = pa.concat_tables(made) if made else stored_schema(mirror).empty_table()
    share = source.rows / sampled if sampled else 0.0
    return Price(
        mirror=mirror,
        datapoints=source.rows,
        mirror_datapoints=round(rows.num_rows * share),
        texts=round(_encoded(conversion, rows) * share),
        sampled=sampled,
        rows_per_s=sampled / seconds if sampled else 0.0,
        staged_bytes=round(len(packed(rows)) * share),
        bytes_per_row=without_vectors(rows).nbytes / max(1, rows.num_rows),
    )


def _check_not_migrated(store: Store, index: str) -> None:
    try:
        mirror_of(store, index)
    except NotFoundError:
        return
    raise MigrationError(
        f"index {index!r} is being migrated already: --status tells how far it is", field="index"
    )


def _encoded(conversion: Conversion, rows: pa.Table) -> int:
    """Return how many vectors of converted rows were encoded."""
    columns = [rows.column(vector_column(name)) for name in conversion.encoded]
    return sum(len(column) - column.null_count for column in columns)

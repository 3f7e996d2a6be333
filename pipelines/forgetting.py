"""Forget rows that builds keep for later builds: embeddings files with such rows, and the records of their units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

import pyarrow as pa

from scannery.indexer.datapoints.named_vectors import is_vector_column
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.leases import Leases, read_leases
from scannery.pipelines.errors import StageDamagedError
from scannery.pipelines.state.row_groups import embeddings_of

__all__ = ["forget_units"]


def forget_units(
    store: Store, index: str, rows_in: Callable[[pa.Table], int], *, dry_run: bool = False
) -> tuple[int, int]:
    """Remove the embeddings files with some rows; return how many rows these have, and how many rows remain.

    A later build makes the units of these files again, of what its source has then. What a running build may use
    remains. A file that cannot be read, or whose attributes have other types, counts as one row.

    Args:
        store: the store.
        index: name of the index.
        rows_in: returns the number of such rows in a table of an embeddings file without vectors.
        dry_run: only count.

    Raises:
        StoreError: a file cannot be read or removed.

    """
    leases, units = read_leases(store, index), dict[str, list[str]]()
    for folder in ("stage/units", "embeddings"):  # the files last: by these a run that was killed goes on
        for item in store.list(f"{index}/{folder}"):
            units.setdefault(PurePosixPath(item.key).name.partition(".")[0], []).append(item.key)
    count = remaining = 0
    for unit, keys in units.items():
        if not keys[-1].startswith(f"{index}/embeddings/"):  # it has no rows
            continue
        rows, is_used = _rows_of(store, index, unit, rows_in, leases)
        count += rows
        if rows and (dry_run or is_used):
            remaining += rows
        elif rows:
            for key in keys:
                store.delete(key)
    return count, remaining


def _rows_of(
    store: Store, index: str, unit: str, rows_in: Callable[[pa.Table], int], leases: Leases
) -> tuple[int, bool]:
    """Return the number of such rows of a unit, and whether a build may use its files."""
    rows = 0
    try:
        for file in embeddings_of(store, index, unit):
            names = [
                name for name in file.schema_arrow.names if not is_vector_column(name) and name != "embedding"
            ]
            rows += rows_in(file.read(columns=names))
    except (StageDamagedError, pa.ArrowException):
        return 1, leases.since is not None
    return rows, unit in leases.units

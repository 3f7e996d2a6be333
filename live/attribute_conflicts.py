"""What the rows of an index have under names that its spec is about to declare, as attributes or as vectors.

Shapes: R rows of a segment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pyarrow as pa

from scannery.indexer import DYNAMIC_COLUMN, IndexSpec, Manifest, attribute_columns
from scannery.indexer.datapoints.declaring import rows_with_dynamic
from scannery.live.live_index import LiveIndex
from scannery.live.log.records import decode, vectors_problem

__all__ = ["attribute_of_other_type", "dynamic_attribute_counts", "named_vectors_problem"]


def attribute_of_other_type(
    live: LiveIndex[Any], manifest: Manifest, spec: IndexSpec, names: Iterable[str]
) -> str | None:
    """Return an attribute of which the log has values of another type than a spec; None if it has none.

    Rows that were written before a rollback may have attributes that the index does not have now.

    Args:
        live: the index.
        manifest: of its current version.
        spec: with the attributes.
        names: the attributes to look for.

    Raises:
        CorruptError, LogGapError, StoreError: the log cannot be read.

    """
    columns = attribute_columns(spec)
    kinds = {name: columns[name] for name in names}
    for entry in live.log_entries(manifest.log_sequence):
        rows = decode(entry.data, sequence=entry.sequence).rows
        for name, kind in kinds.items():
            if rows.num_rows and name in rows.column_names and rows.schema.field(name).type != kind:
                return name
    return None


def dynamic_attribute_counts(live: LiveIndex[Any], names: Collection[str]) -> dict[str, int]:
    """Return how many datapoints have dynamic attributes of these names; only names that some have.

    Attributes with the value null count. Datapoints are those of the version that is open and of the log after it.
    """
    live.catch_up()
    counts: dict[str, int] = {}
    for segment, rows_R in live.state.opened().live_rows():
        if DYNAMIC_COLUMN in segment.table.column_names:
            column = segment.column(DYNAMIC_COLUMN).take(pa.array(rows_R))
            for name, own_R in rows_with_dynamic(column, names).items():
                counts[name] = counts.get(name, 0) + len(own_R)
    return counts


def named_vectors_problem(live: LiveIndex[Any], manifest: Manifest, altered: Manifest) -> str | None:
    """Return why named vectors of the log cannot be those of an altered version; None if they can.

    Rows that were written before a rollback may have vectors of names that the index does not have now.

    Args:
        live: the index.
        manifest: of its current version.
        altered: the same with further named vectors.

    Raises:
        CorruptError, LogGapError, StoreError: the log cannot be read.

    """
    mutations = (
        decode(entry.data, sequence=entry.sequence) for entry in live.log_entries(manifest.log_sequence)
    )
    return next(filter(None, (vectors_problem(mutation, altered) for mutation in mutations)), None)

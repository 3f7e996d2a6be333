"""LanceDB: a table of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.indexer import Distance
from scannery.pipelines.errors import InputNotFoundError, PeerError
from scannery.pipelines.peers.collection import (
    PeerCollection,
    PeerRecord,
    as_identifier,
    chosen,
    distance_of,
    json_value,
    loaded,
)
from scannery.pipelines.peers.options import PeerOptions

__all__ = ["open_lancedb"]

DISTANCES: dict[str, Distance] = {"cosine": "cosine", "dot": "dot", "l2": "squared_l2"}


def open_lancedb(source: str, options: PeerOptions, _: ExitStack) -> PeerCollection:
    """Return a table of a folder."""
    lancedb = loaded("lancedb", system="lancedb")
    if not Path(source).is_dir():
        raise InputNotFoundError(f"{source}: is no folder of LanceDB")
    names = [path.stem for path in Path(source).glob("*.lance")]
    name = chosen(options.collection, names, what="tables", option="--collection")
    table = lancedb.connect(source).open_table(name)
    sizes = {field.name: field.type.list_size for field in table.schema if _is_vector(field.type)}
    vector = chosen(options.vector, list(sizes), what="vector columns", option="--vector")
    columns = list(table.schema.names)
    identifier = options.id or ("id" if "id" in columns else None)
    if identifier not in columns:
        raise PeerError(
            f"table {name!r} has no column {options.id or 'id'!r} for the ids; choose one by --id NAME: "
            f"{', '.join(columns)}"
        )
    metric = _metric(table, vector)
    notes = []
    if metric is None and options.distance is None:
        notes.append("the table has no index of its vectors: the distance is l2, which is LanceDB's default")
    others = [each for each in sizes if each != vector]
    if others:
        notes.append(f"other vectors are left out: {', '.join(others)}")
    return PeerCollection(
        name=name,
        dimensions=sizes[vector],
        distance=distance_of(metric or "l2", DISTANCES, options.distance),
        rows=table.count_rows(),
        records=lambda size: _records(table, vector, str(identifier), others, size),
        notes=notes,
    )


def _is_vector(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type))


def _metric(table: Any, vector: str) -> str | None:
    """Return the distance of the index of a column; None if it has none."""
    for index in table.list_indices():
        if vector in index.columns:
            stats = table.index_stats(index.name)
            metric = getattr(stats, "distance_type", None)
            return None if metric is None else str(metric).lower()
    return None


def _records(
    table: Any, vector: str, identifier: str, others: list[str], size: int
) -> Iterator[list[PeerRecord]]:
    left_out = {vector, identifier, *others}
    for batch in table.search().to_batches(size):
        dimensions = batch.schema.field(vector).type.list_size
        column = batch.column(vector)
        values_ND = np.asarray(column.values.to_numpy(zero_copy_only=False), np.float32)
        values_ND = values_ND.reshape(-1, dimensions)[column.offset : column.offset + len(column)]
        valid_N = column.is_valid().to_numpy(zero_copy_only=False)
        names = [name for name in batch.schema.names if name not in left_out and not name.startswith("_row")]
        rows = batch.select(names).to_pylist() if names else [{}] * batch.num_rows
        yield [
            PeerRecord(as_identifier(each), vector_D if valid else None, json_value(row))
            for each, vector_D, valid, row in zip(
                batch.column(identifier).to_pylist(), values_ND, valid_N, rows, strict=True
            )
        ]

"""LanceDB: a table of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.bridges.importers.collection import (
    PeerCollection,
    PeerOptions,
    PeerRecord,
    PeerVectors,
    as_identifier,
    chosen,
    distance_of,
    json_value,
    loaded,
    names_in_index,
    rename_notes,
    vector_columns,
)
from scannery.indexer import Distance
from scannery.pipelines.errors import InputNotFoundError, PeerError

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
    selected = vector_columns(options.vector, list(sizes))
    columns = list(table.schema.names)
    identifier = options.id or ("id" if "id" in columns else None)
    if identifier not in columns:
        raise PeerError(
            f"table {name!r} has no column {options.id or 'id'!r} for the ids; choose one by --id NAME: "
            f"{', '.join(columns)}"
        )
    notes: list[str] = []
    vectors = {each: PeerVectors(sizes[each], _distance(table, each, options, notes)) for each in selected}
    if unselected := [each for each in sizes if each not in selected]:
        notes.append(f"other vectors are left out: {', '.join(unselected)}")
    unnamed = selected[0] if len(selected) == 1 else None
    own_names = names_in_index([each for each in selected if each != unnamed])
    unnamed_vectors = PeerVectors(0, "cosine") if unnamed is None else vectors[unnamed]
    return PeerCollection(
        name=name,
        dimensions=unnamed_vectors.dimensions,
        distance=unnamed_vectors.distance,
        rows=table.count_rows(),
        records=lambda size: _records(table, unnamed, own_names, str(identifier), unselected, size),
        named={own_names[each]: vectors[each] for each in own_names},
        notes=[*notes, *rename_notes(own_names)],
    )


def _distance(table: Any, vector: str, options: PeerOptions, notes: list[str]) -> Distance:
    metric = _metric(table, vector)
    if metric is None and options.distance is None:
        notes.append(
            f"the table has no index of the vectors {vector!r}: the distance is l2, which is LanceDB's default"
        )
    return distance_of(metric or "l2", DISTANCES, options.distance)


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
    table: Any,
    unnamed: str | None,
    names: Mapping[str, str],
    identifier: str,
    unselected: list[str],
    size: int,
) -> Iterator[list[PeerRecord]]:
    left_out = {unnamed, *names, identifier, *unselected}
    for batch in table.search().to_batches(size):
        fields = [name for name in batch.schema.names if name not in left_out and not name.startswith("_row")]
        rows = batch.select(fields).to_pylist() if fields else [{}] * batch.num_rows
        ids = batch.column(identifier).to_pylist()
        vectors = [None] * batch.num_rows if unnamed is None else _vectors(batch.column(unnamed))
        named = {own_name: _vectors(batch.column(name)) for name, own_name in names.items()}
        yield [
            PeerRecord(
                as_identifier(ids[row]),
                vectors[row],
                json_value(rows[row]),
                vectors={name: vector for name, each in named.items() if (vector := each[row]) is not None},
            )
            for row in range(batch.num_rows)
        ]


def _vectors(column: pa.Array) -> list[np.ndarray | None]:
    values_ND = np.asarray(column.values.to_numpy(zero_copy_only=False), np.float32)
    values_ND = values_ND.reshape(-1, column.type.list_size)[column.offset : column.offset + len(column)]
    valid_N = column.is_valid().to_numpy(zero_copy_only=False)
    return [vector_D if valid else None for vector_D, valid in zip(values_ND, valid_N, strict=True)]

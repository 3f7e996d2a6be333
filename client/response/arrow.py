"""Hits as tables. Imported only where tables are wanted: pyarrow takes its time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from scannery.client.response.results import Hit

__all__ = ["hits_table"]

_FIELDS: dict[str, pa.DataType] = {
    "id": pa.string(),
    "score": pa.float32(),
    "document_id": pa.string(),
    "title": pa.string(),
    "text": pa.string(),
    "text_start": pa.int64(),
    "text_end": pa.int64(),
    "time_start_s": pa.float64(),
    "time_end_s": pa.float64(),
    "dense_score": pa.float32(),
    "lexical_score": pa.float32(),
    "rerank_score": pa.float32(),
}


def hits_table(hits: Sequence[Hit]) -> pa.Table:
    """Return a table with a row for each hit, in their order; the fixed columns are there also without hits."""
    columns: dict[str, pa.Array] = {
        name: pa.array([getattr(hit, name) for hit in hits], kind) for name, kind in _FIELDS.items()
    }
    if any(hit.payload is not None for hit in hits):
        columns["payload"] = pa.array(
            [None if hit.payload is None else json.dumps(hit.payload) for hit in hits], pa.string()
        )
    vector = next((hit.vector for hit in hits if hit.vector is not None), None)
    if vector is not None:
        kind = pa.list_(pa.float32(), len(vector))
        columns["vector"] = pa.array([hit.vector for hit in hits], kind)
    for name in sorted({name for hit in hits for name in hit.attributes}):
        column = f"attribute_{name}" if name in columns else name
        columns[column] = _values([hit.attributes.get(name) for hit in hits])
    return pa.table(columns)


def _values(values: list[Any]) -> pa.Array:
    # A declared attribute has one type; an empty list says nothing about it.
    if all(value is None or value == [] for value in values):
        return pa.array(values, pa.list_(pa.string()))
    if all(value is None or _is_place(value) for value in values):
        return pa.array(values, _PLACE)
    if not any(isinstance(value, dict) for value in values):
        with contextlib.suppress(pa.ArrowException):
            return pa.array(values)
    # Dynamic attributes of several types, and nested ones, are JSON text.
    texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return pa.array(texts, pa.string())


def _is_place(value: object) -> bool:
    return (
        isinstance(value, dict)
        and [*map(type, value.values())] == [float, float]
        and [*value] == ["lat", "lon"]
    )


_PLACE = pa.struct([("lat", pa.float64()), ("lon", pa.float64())])

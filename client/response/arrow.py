"""Hits as tables. Imported only where tables are wanted: pyarrow takes its time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scannery.client.packages import needed_for

with needed_for("a table or a data frame", "scannery-client[tables]"):
    import pyarrow as pa

if TYPE_CHECKING:
    import pandas as pd

    from scannery.client.response.aggregations import Facets
    from scannery.client.response.results import Datapoint, Hit

__all__ = ["datapoints_table", "facets_table", "frame", "hits_table"]

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
    "relevance": pa.float32(),
    "base_score": pa.float32(),
}

_SNIPPET: dict[str, pa.DataType] = {
    "text": pa.string(),
    "start": pa.int64(),
    "end": pa.int64(),
    "score": pa.float32(),
}
_CONTEXT: dict[str, pa.DataType] = {
    "text": pa.string(),
    "start": pa.int64(),
    "end": pa.int64(),
    "time_start_s": pa.float64(),
    "time_end_s": pa.float64(),
    "tokens": pa.int64(),
    "within": pa.string(),
}


_OF_HITS = {"score", "dense_score", "lexical_score", "rerank_score", "relevance", "base_score"}


def hits_table(hits: Sequence[Hit]) -> pa.Table:
    """Return a table with a row for each hit, in their order; the fixed columns are there also without hits."""
    return _table(hits, _FIELDS)


def datapoints_table(points: Sequence[Datapoint]) -> pa.Table:
    """Return a table with a row for each datapoint, with the columns of `hits_table` but the scores."""
    return _table(points, {name: kind for name, kind in _FIELDS.items() if name not in _OF_HITS})


def _table(hits: Sequence[Datapoint], fields: dict[str, pa.DataType]) -> pa.Table:
    columns: dict[str, pa.Array] = {
        name: pa.array([getattr(hit, name) for hit in hits], kind) for name, kind in fields.items()
    }
    if any(hit.payload is not None for hit in hits):
        columns["payload"] = pa.array(
            [None if hit.payload is None else json.dumps(hit.payload) for hit in hits], pa.string()
        )
    for part, kinds in (("snippet", _SNIPPET), ("context", _CONTEXT)):
        parts = [getattr(hit, part, None) for hit in hits]
        for name, kind in kinds.items() if any(parts) else ():
            values = [getattr(each, name) if each else None for each in parts]
            columns[part if name == "text" else f"{part}_{name}"] = pa.array(values, kind)
    columns |= _score_columns(hits) | _vector_columns(hits)
    for name in sorted({name for hit in hits for name in hit.attributes}):
        column = f"attribute_{name}" if name in columns else name
        columns[column] = _values([hit.attributes.get(name) for hit in hits])
    return pa.table(columns)


def _score_columns(hits: Sequence[Datapoint]) -> dict[str, pa.Array]:
    """Return `vector_scores.NAME` for each named vector that was searched; `vector_scores` is the unnamed one."""
    scores: list[dict[str, float]] = [getattr(hit, "vector_scores", {}) for hit in hits]
    return {
        f"vector_scores.{name}".removesuffix("."): pa.array([each.get(name) for each in scores], pa.float32())
        for name in sorted({name for each in scores for name in each})
    }


def _vector_columns(hits: Sequence[Datapoint]) -> dict[str, pa.Array]:
    """Return `vector`, and `vectors.NAME` for each name; those that no row has are left out."""
    columns = {"vector": [hit.vector for hit in hits]}
    for name in sorted({name for hit in hits for name in hit.vectors}):
        columns[f"vectors.{name}"] = [hit.vectors.get(name) for hit in hits]
    return {
        name: _vectors(values) for name, values in columns.items() if not all(each is None for each in values)
    }


def _vectors(vectors: list[Any]) -> pa.Array:
    present = [vector for vector in vectors if vector is not None]
    # Arrow cannot read nulls among lists of a fixed size from Parquet.
    whole = len(present) == len(vectors)
    return pa.array(vectors, pa.list_(pa.float32(), len(present[0])) if whole else pa.list_(pa.float32()))


def _values(values: list[Any]) -> pa.Array:
    # A declared attribute has one type; an empty list says nothing about it.
    if all(value is None or value == [] for value in values):
        return pa.array(values, pa.list_(pa.string()))
    if all(value is None or _is_place(value) for value in values):
        return pa.array(values, _LOCATION)
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


_LOCATION = pa.struct([("lat", pa.float64()), ("lon", pa.float64())])


def facets_table(facets: Facets) -> pa.Table:
    """Return the columns `value` and `count`; values of several types are written as JSON."""
    values: list[Any] = [facet.value for facet in facets]
    if len(set(map(type, values))) > 1:
        values = [json.dumps(value, ensure_ascii=False) for value in values]
    counts = pa.array([facet.count for facet in facets], pa.int64())
    return pa.table({"value": pa.array(values) if values else pa.array([], pa.string()), "count": counts})


def frame(table: pa.Table) -> pd.DataFrame:
    """Return a table as a data frame.

    Raises:
        ModuleNotFoundError: pandas is not installed.

    """
    try:
        import pandas  # noqa: F401 -- Arrow's error does not say what to install
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "to_pandas needs pandas, which is not installed: pip install pandas", name="pandas"
        ) from error
    return table.to_pandas()

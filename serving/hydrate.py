"""From rows to messages: what an answer carries of a datapoint."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.indexer import AttributeType, IndexSpec, Segment
from scannery.serving.ranking import Ranking
from scannery.serving.requests import Fields
from scannery.v1.search_pb2 import Hit
from scannery.v1.types_pb2 import Datapoint, StringList, Value, Vector

__all__ = ["datapoints", "hits", "value_message"]

_OFFSETS = ("text_start", "text_end", "time_start_s", "time_end_s")


def hits(
    rankings: Sequence[Ranking],
    segments: Sequence[Segment],
    spec: IndexSpec,
    fields: Fields,
    *,
    group_by: str | None,
) -> list[list[Hit]]:
    """Return the hits of each query as messages; `group_by` names the column of `Hit.group`, None leaves it out."""
    places = [
        place
        for ranking in rankings
        for place in zip(ranking.segments.tolist(), ranking.rows.tolist(), strict=True)
    ]
    points = dict(zip(places, datapoints(places, segments, spec, fields), strict=True))
    groups = _groups(places, segments, spec, group_by)
    return [[_hit(ranking, i, points, groups) for i in range(len(ranking))] for ranking in rankings]


def _hit(
    ranking: Ranking,
    number: int,
    points: Mapping[tuple[int, int], Datapoint],
    groups: Mapping[tuple[int, int], Value],
) -> Hit:
    place = int(ranking.segments[number]), int(ranking.rows[number])
    hit = Hit(datapoint=points[place], score=ranking.scores[number], group=groups.get(place))
    if ranking.dense is not None and not np.isnan(ranking.dense[number]):
        hit.dense_score = ranking.dense[number]
    if ranking.lexical is not None and not np.isnan(ranking.lexical[number]):
        hit.lexical_score = ranking.lexical[number]
    return hit


def datapoints(
    places: Sequence[tuple[int, int]], segments: Sequence[Segment], spec: IndexSpec, fields: Fields
) -> list[Datapoint]:
    """Return the datapoints at (segment number, row), in their order; each segment is read once."""
    columns = _columns(fields)
    made: dict[tuple[int, int], Datapoint] = {}
    for number, rows in _by_segment(places):
        segment = segments[number]
        table = segment.take(rows, columns)
        vectors = segment.vectors(rows) if fields.vector else None
        for i, message in enumerate(_messages(table, spec, fields)):
            if vectors is not None:
                message.vector.CopyFrom(Vector(packed=vectors[i].astype("<f4", copy=False).tobytes()))
            made[number, int(rows[i])] = message
    return [made[place] for place in places]


def value_message(value: Any, kind: AttributeType) -> Value:
    """Return a column's value as a message; None becomes null."""
    return Value() if value is None else _VALUES[kind](value)


def _groups(
    places: Sequence[tuple[int, int]], segments: Sequence[Segment], spec: IndexSpec, group_by: str | None
) -> dict[tuple[int, int], Value]:
    groups: dict[tuple[int, int], Value] = {}
    if group_by is None:
        return groups
    kind = spec.attributes.get(group_by, "string")
    for number, rows in _by_segment(places):
        values = segments[number].take(rows, [group_by]).column(0).to_pylist()
        for row, value in zip(rows.tolist(), values, strict=True):
            if value is not None:
                groups[number, row] = value_message(value, kind)
    return groups


def _by_segment(places: Iterable[tuple[int, int]]) -> Iterable[tuple[int, np.ndarray]]:
    rows: dict[int, dict[int, None]] = {}
    for number, row in places:
        rows.setdefault(number, {})[row] = None
    return ((number, np.fromiter(distinct, np.int64)) for number, distinct in rows.items())


def _columns(fields: Fields) -> list[str]:
    offsets = _OFFSETS if fields.offsets else ()
    single = [name for name in ("title", "text", "payload") if getattr(fields, name)]
    return ["id", "document_id", *single, *offsets, *fields.attributes]


def _messages(table: pa.Table, spec: IndexSpec, fields: Fields) -> Iterable[Datapoint]:
    values = {name: table.column(name).to_pylist() for name in table.column_names}
    plain = {
        ("payload_json" if name == "payload" else name): column
        for name, column in values.items()
        if name not in fields.attributes
    }
    for i in range(table.num_rows):
        # None leaves an optional field unset.
        message = Datapoint(**{name: column[i] for name, column in plain.items()})
        for name in fields.attributes:
            value = values[name][i]
            if value is not None:
                message.attributes[name].CopyFrom(_VALUES[spec.attributes[name]](value))
        yield message


def _timestamp(value: dt.datetime) -> Value:
    message = Value()
    message.timestamp_value.FromDatetime(value)
    return message


_VALUES: dict[AttributeType, Callable[[Any], Value]] = {
    "string": lambda value: Value(string_value=value),
    "string_list": lambda value: Value(string_list_value=StringList(values=value)),
    "int": lambda value: Value(int_value=value),
    "float": lambda value: Value(float_value=value),
    "bool": lambda value: Value(bool_value=value),
    "timestamp": _timestamp,
}

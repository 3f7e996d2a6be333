"""Places on the Earth: the values of attributes of type `geo`.

    {"lat": 52.5, "lon": 13.4}        also latitude, longitude and lng
    "52.5,13.4"                       latitude first, as maps show it; also either of the mappings as JSON
    {"type": "Point", "coordinates": [13.4, 52.5]}        GeoJSON: longitude first (RFC 7946, section 3.1.1)

A bare list of two numbers is refused: it is longitude first for some, and latitude first for others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["GEO_TYPE", "place_of", "place_problem", "places_column"]

GEO_TYPE = pa.struct([pa.field("lat", pa.float64()), pa.field("lon", pa.float64())])
"""Degrees north, -90 to 90, and degrees east, -180 to 180 (WGS 84): a struct, which DuckDB and Spark read as such."""

_NAMES = {"lat": "lat", "latitude": "lat", "lon": "lon", "longitude": "lon", "lng": "lon"}
_LIMITS = {"lat": 90.0, "lon": 180.0}
_MAX_TEXT = 200


def place_of(value: object) -> dict[str, float] | None:
    """Return a place as `{"lat": …, "lon": …}`; None for a mapping without values, as Parquet can have.

    Raises:
        TypeError, ValueError: it is none; the message says why.

    """
    if isinstance(value, str):
        value = _parsed(value)
    if not isinstance(value, Mapping):
        hint = " (a list may be latitude or longitude first)" if isinstance(value, (list, tuple)) else ""
        raise TypeError(f"it is no mapping{hint}")
    if "coordinates" in value:
        value = _geojson(value)
    numbers: dict[str, Any] = {}
    for key, number in value.items():
        name = _NAMES.get(key)
        if name is None or name in numbers:
            raise ValueError(f"it has the key {key!r:.80}")
        numbers[name] = number
    if not any(number is not None for number in numbers.values()) and numbers:
        return None
    if missing := [name for name in _LIMITS if numbers.get(name) is None]:
        raise ValueError(f"it has no {missing[0]}")
    return {name: _degrees(numbers[name], name) for name in _LIMITS}


def place_problem(value: object) -> str:
    """Return why `place_of` refuses a value; empty if it does not."""
    try:
        place_of(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return str(error)
    return ""


def places_column(values: pa.Array) -> pa.Array | None:
    """Return a column of structs as places; None for others, and where a value does not fit."""
    kind = values.type
    if not pa.types.is_struct(kind) or kind.num_fields != len(_LIMITS):
        return None
    columns = {_NAMES.get(kind.field(i).name): pc.struct_field(values, [i]) for i in range(kind.num_fields)}
    if columns.keys() != _LIMITS.keys():
        return None
    degrees = [columns[name].cast(pa.float64()) for name in _LIMITS]
    for column, limit in zip(degrees, _LIMITS.values(), strict=True):
        ends = pc.min_max(column).as_py()
        has_nan = pc.any(pc.is_nan(column)).as_py()
        if column.null_count != values.null_count or has_nan:
            return None
        if ends["min"] is not None and not -limit <= ends["min"] <= ends["max"] <= limit:
            return None
    return pa.StructArray.from_arrays(degrees, fields=list(GEO_TYPE), mask=pc.is_null(values))


def _parsed(text: str) -> object:
    if len(text) > _MAX_TEXT:
        raise ValueError(f"it has {len(text)} characters")
    if text.lstrip().startswith("{"):
        return json.loads(text)
    parts = text.split(",")
    if len(parts) != len(_LIMITS):
        raise ValueError("a text is 'latitude,longitude'")
    return dict(zip(_LIMITS, parts, strict=True))


def _geojson(value: Mapping[Any, Any]) -> dict[str, Any]:
    numbers = value["coordinates"]
    if value.get("type") != "Point" or value.keys() != {"type", "coordinates"}:
        raise ValueError("of GeoJSON, only a Point is taken")
    if isinstance(numbers, str) or len(numbers) != len(_LIMITS):  # TypeError of what has no length
        raise ValueError("a Point has longitude and latitude")
    longitude, latitude = numbers
    return {"lat": latitude, "lon": longitude}


def _degrees(value: Any, name: str) -> float:
    if isinstance(value, bool):
        raise TypeError(f"{name} is no number")
    degrees, limit = float(value), _LIMITS[name]
    if not math.isfinite(degrees) or abs(degrees) > limit:
        raise ValueError(f"{name} must be -{limit:g} to {limit:g} degrees")
    return degrees

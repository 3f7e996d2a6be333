"""Conditions on places: `$geo_radius` and `$geo_box`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from scannery.runtime.errors import InvalidRequestError
from scannery.serving.limits import MAX_GEO_RADIUS_M
from scannery.serving.request.field_names import FieldKind
from scannery.v1 import types_pb2 as pb

__all__ = ["GEO", "Area", "Box", "Circle", "GeoWithin", "parse_geo"]


@dataclass(frozen=True, slots=True)
class Circle:
    """The places within a distance of another one, which counts."""

    latitude: float
    """Degrees north, -90 to 90."""
    longitude: float
    """Degrees east, -180 to 180."""
    radius_m: float


@dataclass(frozen=True, slots=True)
class Box:
    """The places between two parallels and two meridians, which count; in degrees, as those of `Circle`."""

    south: float
    west: float
    north: float
    east: float
    """Less than `west` in a box that crosses the antimeridian."""


Area: TypeAlias = Circle | Box


@dataclass(frozen=True, slots=True)
class GeoWithin:
    """The field is a place in an area."""

    field: str
    area: Area


GEO = (pb.OPERATOR_GEO_RADIUS, pb.OPERATOR_GEO_BOX)


def parse_geo(message: pb.Condition, name: str, kind: FieldKind, path: str) -> GeoWithin:
    """Return a condition of an operator of GEO.

    Args:
        message: the condition.
        name: of the field in the tree.
        kind: type of the attribute.
        path: where the condition is in the request, for errors.

    Raises:
        InvalidRequestError: the attribute is no place, or the area is none.

    """
    if kind != "geo":
        hint = "; only a declared attribute of type geo has places" if kind == "dynamic" else ""
        what = f"is for places, and {message.field!r:.80} is of type {kind}{hint}"
        raise InvalidRequestError.at(path, what)
    if len(message.values) != 2:
        raise InvalidRequestError.at(path, f"needs two values, got {len(message.values)}")
    first, second = message.values
    is_circle = message.operator == pb.OPERATOR_GEO_RADIUS
    return GeoWithin(name, _circle(first, second, path) if is_circle else _box(first, second, path))


def _circle(centre: pb.Value, radius: pb.Value, path: str) -> Circle:
    latitude, longitude = _place(centre, path, ("lat", "lon"))
    given = radius.WhichOneof("kind")
    metres = float(getattr(radius, given)) if given in ("int_value", "float_value") else math.nan
    if not 0 <= metres <= MAX_GEO_RADIUS_M:  # of NaN, too
        raise InvalidRequestError.at(
            f"{path}.radius_m", f"must be 0 to {MAX_GEO_RADIUS_M} metres, got {metres:g}"
        )
    return Circle(latitude, longitude, metres)


def _box(south_west: pb.Value, north_east: pb.Value, path: str) -> Box:
    south, west = _place(south_west, path, ("south", "west"))
    north, east = _place(north_east, path, ("north", "east"))
    if south > north:
        raise InvalidRequestError.at(f"{path}.south", f"must be at most north ({north:g}), got {south:g}")
    return Box(south, west, north, east)


def _place(message: pb.Value, path: str, names: tuple[str, str]) -> tuple[float, float]:
    if message.WhichOneof("kind") != "geo_value":
        raise InvalidRequestError.at(path, f"needs a place with {' and '.join(names)}")
    found = (message.geo_value.latitude, message.geo_value.longitude)
    for name, degrees, most in zip(names, found, (90, 180), strict=True):
        if not -most <= degrees <= most:  # NaN is not, either
            raise InvalidRequestError.at(
                f"{path}.{name}", f"must be {-most} to {most} degrees, got {degrees:g}"
            )
    return found

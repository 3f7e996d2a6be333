"""Operands of `$geo_radius` and `$geo_box`: dictionaries to values of a condition.

Here only the grammar is checked; which coordinates and distances are allowed is the server's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scannery.client.errors import InvalidArgumentError
from scannery.v1 import types_pb2 as pb

__all__ = ["GEO_OPERATORS"]

_SYNONYMS = {"latitude": "lat", "longitude": "lon", "lng": "lon"}


def _radius(operand: object, path: str) -> list[pb.Value]:
    """Return the centre and the radius in metres."""
    given = _numbers(operand, ("lat", "lon", "radius_m"), path)
    return [_place(given["lat"], given["lon"]), pb.Value(float_value=given["radius_m"])]


def _box(operand: object, path: str) -> list[pb.Value]:
    """Return the south-west and the north-east corner."""
    given = _numbers(operand, ("south", "west", "north", "east"), path)
    return [_place(given["south"], given["west"]), _place(given["north"], given["east"])]


GEO_OPERATORS: dict[str, tuple[pb.Operator.ValueType, Callable[[object, str], list[pb.Value]]]] = {
    "$geo_radius": (pb.OPERATOR_GEO_RADIUS, _radius),
    "$geo_box": (pb.OPERATOR_GEO_BOX, _box),
}
"""The operator, and what makes its values; raises InvalidArgumentError."""


def _place(latitude: float, longitude: float) -> pb.Value:
    return pb.Value(geo_value=pb.GeoPoint(latitude=latitude, longitude=longitude))


def _numbers(operand: object, names: tuple[str, ...], path: str) -> dict[str, float]:
    """Return the numbers of an operand by name; it must have all names and no others."""
    if not isinstance(operand, Mapping):
        raise _invalid(path, f"must be a dictionary of {', '.join(names)}, got {operand!r:.80}")
    numbers: dict[str, float] = {}
    for key, value in operand.items():
        name = _SYNONYMS.get(key, key) if isinstance(key, str) else key
        if name not in names or name in numbers:
            raise _invalid(f"{path}.{key!s:.80}", f"is not one of {', '.join(names)}, each once")
        numbers[name] = _number(value, f"{path}.{key}")
    if missing := [name for name in names if name not in numbers]:
        raise _invalid(path, f"needs {', '.join(missing)}")
    return numbers


def _number(value: Any, path: str) -> float:
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number:
        raise _invalid(path, f"must be a number, got {value!r:.80}")
    try:
        return float(value)
    except OverflowError as error:
        raise _invalid(path, "must be a finite number") from error


def _invalid(path: str, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{path}: {what}", field=path)

"""The grammar of filters: `where` dictionaries to filter messages, for calls of clients and for credentials.

Here only the grammar is checked. What the index has, and of which type, is the server's to say.

Operands of `$geo_radius` and `$geo_box`: dictionaries to values of a condition.

Here only the grammar is checked; which coordinates and distances are allowed is the server's to say.
"""

from __future__ import annotations

import datetime as dt
import decimal
import difflib
import math
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from scannery.runtime.errors import InvalidRequestError
from scannery.v1 import types_pb2 as pb

__all__ = ["Scalar", "Where", "build_filter", "build_value"]


_SYNONYMS = {"latitude": "lat", "longitude": "lon", "lng": "lon"}


def _radius(operand: object, path: str) -> list[pb.Value]:
    """Return the centre and the radius in metres."""
    numbers = _numbers(operand, ("lat", "lon", "radius_m"), path)
    return [_location(numbers["lat"], numbers["lon"]), pb.Value(float_value=numbers["radius_m"])]


def _box(operand: object, path: str) -> list[pb.Value]:
    """Return the south-west and the north-east corner."""
    numbers = _numbers(operand, ("south", "west", "north", "east"), path)
    return [_location(numbers["south"], numbers["west"]), _location(numbers["north"], numbers["east"])]


PHRASE, SLOP = "$phrase", "$slop"
"""Words in order, and how many others may stand between them: the one condition that two keys make."""

GEO_OPERATORS: dict[str, tuple[pb.Operator.ValueType, Callable[[object, str], list[pb.Value]]]] = {
    "$geo_radius": (pb.OPERATOR_GEO_RADIUS, _radius),
    "$geo_box": (pb.OPERATOR_GEO_BOX, _box),
}
"""The operator, and what makes its values; raises InvalidRequestError."""


def _location(latitude: float, longitude: float) -> pb.Value:
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


def _invalid(path: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path}: {what}", field=path)


Scalar: TypeAlias = str | int | float | bool | uuid.UUID | np.datetime64 | dt.datetime | dt.date | None
"""A value to compare with. UUIDs are strings, naive datetimes and dates UTC; timestamps may be ISO 8601 strings too.
None stands for "not set"."""

_Operand: TypeAlias = Scalar | Collection[Scalar] | Mapping[str, Any]
Where: TypeAlias = Mapping[str, "Scalar | Mapping[str, _Operand] | Sequence[Where] | Where"]
"""A filter, for example `{"show": "gotime", "year": {"$gte": 2020}}`; several keys must all match. None equals "not
set".
"""

# Deeper is refused by the server; this bound only keeps a dictionary that holds itself from recursing for ever.
_MAX_DEPTH = 40
_IDS = ("id", "document_id")
_INT64 = range(-(2**63), 2**63)

_LISTS = {"$in": pb.OPERATOR_IN, "$nin": pb.OPERATOR_NIN, "$all": pb.OPERATOR_ALL}
_TAKE_NULL = (pb.OPERATOR_EQ, pb.OPERATOR_NE, pb.OPERATOR_IN, pb.OPERATOR_NIN)
"""Operators for which null is a value: it equals "not set"."""
_FLAGS = {"$exists": pb.OPERATOR_EXISTS, "$empty": pb.OPERATOR_EMPTY}
_COMPARISONS: dict[str, pb.Operator.ValueType] = {
    f"${name.removeprefix('OPERATOR_').lower()}": operator
    for name, operator in pb.Operator.items()
    if operator
    not in (
        pb.OPERATOR_UNSPECIFIED,
        *_LISTS.values(),
        *_FLAGS.values(),
        pb.OPERATOR_PHRASE,
        *(operator for operator, _ in GEO_OPERATORS.values()),
    )
}
"""Operators of one value: all others of the message."""
_FIELD_OPERATORS = (*_COMPARISONS, *_LISTS, *GEO_OPERATORS, *_FLAGS, PHRASE, "$not")
_LOGICAL_OPERATORS = ("$and", "$or", "$not")


def build_filter(where: Where, *, path: str = "where") -> pb.Filter:
    """Return the filter message for a `where` dictionary; an empty one allows everything.

    Raises:
        InvalidRequestError: it is not in the grammar; `field` is the path to the place.

    """
    return _filter(where, path, 0)


def build_value(value: object, *, path: str) -> pb.Value:
    """Return the message for a scalar; None becomes null. Raises InvalidRequestError."""
    if value is None:
        return pb.Value()
    for kinds, build in _BUILDERS:
        if isinstance(value, kinds):
            return build(value, path)
    hint = (
        "; use $in for several values" if isinstance(value, (list, tuple, set, frozenset, np.ndarray)) else ""
    )
    if type(value).__name__ == "NAType":  # of pandas
        hint = _NONE
    raise _invalid(path, f"must be a string, number, boolean, date or datetime, got {_shown(value)}{hint}")


def _filter(where: object, path: str, depth: int) -> pb.Filter:
    if depth > _MAX_DEPTH:
        raise _invalid(path.split("[", 1)[0], f"is nested more than {_MAX_DEPTH} deep")
    if not isinstance(where, Mapping):
        raise _invalid(path, f"must be a dictionary, got {_shown(where)}")
    return _joined([_entry(key, value, path, depth) for key, value in where.items()])


def _entry(key: object, value: object, path: str, depth: int) -> pb.Filter:
    if not isinstance(key, str) or not key:
        raise _invalid(path, f"keys must be names of attributes or operators, got {_shown(key)}")
    here = f"{path}.{key}"
    if not key.startswith("$"):
        return _field(key, value, here, depth)
    if key == "$not":
        return pb.Filter(negation=_filter(value, here, depth + 1))
    if key not in _LOGICAL_OPERATORS:
        raise _invalid(here, f"unknown operator; {_nearest(key, _LOGICAL_OPERATORS)}")
    filters = pb.FilterList(
        filters=[_filter(item, f"{here}[{i}]", depth + 1) for i, item in enumerate(_items(value, here))]
    )
    return pb.Filter(all_of=filters) if key == "$and" else pb.Filter(any_of=filters)


def _field(name: str, value: object, path: str, depth: int) -> pb.Filter:
    if not isinstance(value, Mapping):
        return _condition(name, pb.OPERATOR_EQ, [_value(value, pb.OPERATOR_EQ, path)])
    if not value:
        raise _invalid(path, f"needs a value or one of {', '.join(_FIELD_OPERATORS)}")
    slop = []
    if SLOP in value:
        if PHRASE not in value:
            raise _invalid(f"{path}.{SLOP}", f"belongs to {PHRASE}, which is not there")
        slop = [build_value(value[SLOP], path=f"{path}.{SLOP}")]
    return _joined(
        [
            _condition(name, pb.OPERATOR_PHRASE, [build_value(operand, path=f"{path}.{key}"), *slop])
            if key == PHRASE
            else _operator(name, key, operand, path, depth)
            for key, operand in value.items()
            if key != SLOP
        ]
    )


def _operator(name: str, key: object, operand: object, path: str, depth: int) -> pb.Filter:
    here = f"{path}.{key}"
    if depth > _MAX_DEPTH:
        raise _invalid(path.split(".$not", 1)[0], f"is nested more than {_MAX_DEPTH} deep")
    if not isinstance(key, str) or key not in _FIELD_OPERATORS:
        raise _invalid(here, f"unknown operator; {_nearest(str(key), _FIELD_OPERATORS)}")
    if key == "$not":
        return pb.Filter(negation=_field(name, operand, here, depth + 1))
    if key in _FLAGS:
        if not isinstance(operand, (bool, np.bool_)):
            raise _invalid(here, f"must be true or false, got {_shown(operand)}")
        return _condition(name, _FLAGS[key], [pb.Value(bool_value=bool(operand))])
    if key in GEO_OPERATORS:
        operator, values_of = GEO_OPERATORS[key]
        return _condition(name, operator, values_of(operand, here))
    if key in _LISTS:
        items = enumerate(_items(operand, here))
        return _condition(name, _LISTS[key], [_value(item, _LISTS[key], f"{here}[{i}]") for i, item in items])
    return _condition(name, _COMPARISONS[key], [_value(operand, _COMPARISONS[key], here)])


def _value(value: object, operator: pb.Operator.ValueType, path: str) -> pb.Value:
    if value is None and operator not in _TAKE_NULL:
        raise _invalid(path, "null has no order, parts or spelling; use $exists")
    return build_value(value, path=path)


def _condition(name: str, operator: pb.Operator.ValueType, values: Sequence[pb.Value]) -> pb.Filter:
    if name in _IDS:
        # Ids are given as integers, too, and become their digits.
        values = [
            pb.Value(string_value=str(value.int_value)) if value.HasField("int_value") else value
            for value in values
        ]
    return pb.Filter(condition=pb.Condition(field=name, operator=operator, values=values))


def _joined(filters: list[pb.Filter]) -> pb.Filter:
    if not filters:
        return pb.Filter()
    return filters[0] if len(filters) == 1 else pb.Filter(all_of=pb.FilterList(filters=filters))


def _items(value: object, path: str) -> list[object]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(
        value, (Sequence, set, frozenset, np.ndarray)
    ):
        raise _invalid(path, f"must be a list, got {_shown(value)}")
    if len(value) == 0:
        raise _invalid(path, "must not be empty")
    return list(value)


def _int(value: Any, path: str) -> pb.Value:
    if int(value) not in _INT64:
        raise _invalid(path, f"must fit 64 bits, got {value}")
    return pb.Value(int_value=int(value))


def _float(value: Any, path: str) -> pb.Value:
    if not math.isfinite(value):
        raise _invalid(path, f"must be finite, got {value}{_NONE if math.isnan(value) else ''}")
    return pb.Value(float_value=float(value))


def _decimal(value: Any, path: str) -> pb.Value:
    is_whole = value.is_finite() and value == value.to_integral_value()
    return _int(value, path) if is_whole else _float(value, path)


def _string(value: Any, path: str) -> pb.Value:
    try:
        return pb.Value(string_value=value)
    except (UnicodeEncodeError, ValueError) as error:
        raise _invalid(path, f"is not valid Unicode: {_shown(value)}") from error


def _datetime(value: Any, path: str) -> pb.Value:
    if type(value).__name__ == "NaTType":  # of pandas; it is a datetime
        raise _invalid(path, f"must be a date, got NaT{_NONE}")
    aware = value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
    micros = (aware - _EPOCH) // dt.timedelta(microseconds=1)
    message = pb.Value()
    message.timestamp_value.seconds, fraction = divmod(micros, 1_000_000)
    message.timestamp_value.nanos = fraction * 1000
    return message


def _date(value: Any, path: str) -> pb.Value:
    return _datetime(dt.datetime(value.year, value.month, value.day), path)


def _datetime64(value: Any, path: str) -> pb.Value:
    if np.isnat(value):
        raise _invalid(path, f"must be a date, got NaT{_NONE}")
    # Microseconds are those of a datetime; beyond the years of one, this is an integer.
    moment = value.astype("datetime64[us]").item()
    if not isinstance(moment, dt.datetime):
        raise _invalid(path, f"must be within the years 1 to 9999, got {_shown(value)}")
    return _datetime(moment, path)


def _duration(value: Any, path: str) -> pb.Value:
    raise _invalid(
        path, f"must be no duration; where it is stored as seconds, compare numbers; got {_shown(value)}"
    )


_NONE = "; None stands for no value"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
# In this order: a bool is an int, and a datetime is a date.
_BUILDERS: tuple[tuple[tuple[type, ...], Callable[[Any, str], pb.Value]], ...] = (
    ((bool, np.bool_), lambda value, _: pb.Value(bool_value=bool(value))),
    ((str,), _string),
    ((uuid.UUID,), lambda value, _: pb.Value(string_value=str(value))),
    ((np.timedelta64, dt.timedelta), _duration),  # before integers, of which NumPy's is one
    ((int, np.integer), _int),
    ((float, np.floating), _float),
    ((dt.datetime,), _datetime),
    ((dt.date,), _date),
    ((np.datetime64,), _datetime64),
    ((decimal.Decimal,), _decimal),
)


_ABSENT = {
    "$regex": "patterns are not matched; use $substring for a part of a value, or mode='lexical' for words",
    "$text": "for words in texts, search with mode='lexical'; for words in order, use {'text': {'$phrase': …}}",
    "$nor": "use $not with $or",
    "$between": "use $gte and $lte together",
    "$any": "for a list that has any of several values, use $in",
    "$has": "use $contains",
    "$startswith": "use $prefix, or $iprefix without regard to case",
    "$ilike": "use $ieq, $iprefix or $isubstring",
    "$size": "lengths of lists are not indexed; use $empty for lists without values",
    "$icontains": "use $isubstring",
    "$is_empty": "use $empty",
    "$near": "use $geo_radius: {lat, lon, radius_m}",
    "$box": "use $geo_box: {south, west, north, east}",
}
"""Operators of other systems, and what to use here."""
_ABSENT |= dict.fromkeys(("$like", "$match"), _ABSENT["$regex"])
_ABSENT |= dict.fromkeys(("$match_phrase", "$matchphrase"), "use $phrase, with $slop")
_ABSENT |= dict.fromkeys(("$elemmatch", "$containsany", "$contains_any"), _ABSENT["$any"])
_ABSENT |= dict.fromkeys(("$array_contains",), _ABSENT["$has"])
_ABSENT |= dict.fromkeys(("$containsall", "$contains_all"), "use $all")
_ABSENT |= dict.fromkeys(("$geonear", "$nearsphere", "$geo_distance", "$geodistance"), _ABSENT["$near"])
_ABSENT |= dict.fromkeys(("$geowithin", "$geo_bounding_box"), _ABSENT["$box"])
_ABSENT |= {
    "$range": _ABSENT["$between"],
    "$isempty": _ABSENT["$is_empty"],
    "$starts_with": _ABSENT["$startswith"],
}


def _nearest(name: str, valid: Sequence[str]) -> str:
    absent = _ABSENT.get(f"${name.lstrip('$').lower()}")
    if absent is not None:
        return absent
    is_operator = name.startswith("$")
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.5 if is_operator else 0.75)
    if not near and not is_operator:
        return f"operators begin with $; a key of an object in an attribute is named with a dot, ATTRIBUTE.{name:.80}"
    return f"did you mean {near[0]}?" if near else f"it must be one of {', '.join(valid)}"


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."

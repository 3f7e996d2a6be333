"""Values of the input → the types of attributes, ids and texts, with a note wherever the input has another type.

`note` says what was converted, in a few words, where the conversion could be wrong: a report counts them. Text is taken
for every type, without a note if it can only mean one value, since CSV has nothing else.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from scannery.indexer.datapoints.places import place_of
from scannery.indexer.datapoints.text_values import (
    epoch_number,
    epoch_time,
    is_zero_date,
    list_in_text,
    number_in_price,
    price_in_text,
    time_in_text,
    unit_of,
)
from scannery.indexer.spec.spec import AttributeType

__all__ = [
    "FLOAT_AS_ID",
    "LONG_DECIMAL",
    "NUMBER_AS_TEXT",
    "ONE_AS_BOOL",
    "TRUTH_WORDS",
    "WHOLE_AS_INT",
    "ConvertedValue",
    "convert",
    "epoch_note",
    "is_nan",
    "json_text",
    "plain_text",
]

MAX_JSON_DIGITS = 308
"""A float has no more digits before its point."""
INT64 = range(-(2**63), 2**63)
TRUTH_WORDS = (
    ("true", "false"), ("yes", "no"), ("y", "n"), ("t", "f"), ("on", "off"), ("ja", "nein"), ("oui", "non"),
    ("sí", "no"), ("si", "no"), ("wahr", "falsch"), ("vrai", "faux"), ("verdadero", "falso"), ("vero", "falso"),
)  # fmt: skip
"""Words for true and for false, in lower case."""
_TRUE, _FALSE = zip(*TRUTH_WORDS, ("1", "0"), ("1.0", "0.0"), strict=True)
_WORDS = dict.fromkeys(_TRUE, True) | dict.fromkeys(_FALSE, False)
_LISTED = re.compile(r"[,;|]")

NUMBER_AS_TEXT = "a number as text"
LONG_DECIMAL = "a number with more digits than a float has"
FLOAT_AS_ID = "a whole number with decimals (such as 7.0) as an id"
WHOLE_AS_INT = "a whole number with decimals (such as 7.0) as an integer"
ONE_AS_BOOL = "1 or 0 as true or false"
NAN_TEXT = "a text such as NaN as no value"
ZERO_DATE = "a date of zeros (such as 0000-00-00) as no value"
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_FIRST_SECOND, _LAST_USUAL_SECOND = 100_000_000, 4_102_444_800
"""1973 and 2100: a number of seconds outside of these is more often something else, such as a year."""


class ConvertedValue(NamedTuple):
    """What became of a value."""

    value: Any
    note: str | None = None


def convert(value: object, kind: AttributeType) -> ConvertedValue:
    """Return a value as the type of an attribute; None for NaN.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError, OSError: it does not fit.

    """
    if isinstance(value, np.generic):
        value = value.astype("datetime64[us]").item() if isinstance(value, np.datetime64) else value.item()
    return ConvertedValue(None) if value is None or is_nan(value) else _CONVERTERS[kind](value)


def is_nan(value: object) -> bool:
    """Return whether a value is NaN, which stands for no value: it has no order, so no filter could find it."""
    return isinstance(value, (float, Decimal)) and math.isnan(value)


def plain_text(value: object) -> str:
    """Return the text of a string, number, time or UUID: true, 7 and 7.0 as JSON writes them.

    TypeError for others, ValueError for a number that no float can hold.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)):  # bool is an int: True becomes "true", as JSON writes it
        return json.dumps(value)
    if isinstance(value, Decimal):
        if _is_beyond_floats(value):  # 1e999999999 in JSON would become as many digits
            raise ValueError(f"a number must be within ±1e{MAX_JSON_DIGITS}")
        return format(value, "f")
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError


def _is_beyond_floats(value: Decimal) -> bool:
    return value.is_finite() and abs(value.adjusted()) > MAX_JSON_DIGITS


def json_text(value: object) -> str:
    """Return a value as JSON, with times and UUIDs as text, and NaN as null.

    TypeError, ValueError or RecursionError for others.
    """
    try:
        return _TO_JSON(value)
    except ValueError:
        return _TO_JSON(_without_nan(value))


def _without_nan(value: object) -> object:
    """Return a value with null in place of each NaN."""
    if isinstance(value, Mapping):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if is_nan(value) else value


def json_value(value: object) -> object:
    """Return a value that JSON has no type for as one that it has; TypeError or ValueError for others."""
    if isinstance(value, Decimal):
        if not value.is_finite() or _is_beyond_floats(value):
            raise ValueError(f"a number must be finite and within ±1e{MAX_JSON_DIGITS}")
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else plain_text(value)


_TO_JSON = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=json_value
).encode


def _string(value: object) -> ConvertedValue:
    return ConvertedValue(plain_text(value))


def _string_list(value: object) -> ConvertedValue:
    note = None
    if isinstance(value, str):
        items = list_in_text(value)
        if items is None and value.lstrip().startswith("["):
            raise ValueError
        if items is None and _LISTED.search(value):
            note = "a text with separators as a list of one (see `split`)"
        elif items is not None and not value.lstrip().startswith("["):
            note = "a text in braces as a list"
        value = [value] if items is None else items
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return ConvertedValue([plain_text(item) for item in value], note)
    raise TypeError


def _int(value: object) -> ConvertedValue:
    if isinstance(value, bool):
        raise TypeError
    note = None
    if isinstance(value, str):
        try:
            number = int(value)
            if "_" in value:  # Python takes 1_000; in data it is a code
                raise TypeError
        except ValueError:
            price = _price(value) or ConvertedValue(_decimal(value), WHOLE_AS_INT)
            number, note = _whole(price.value), price.note
    elif isinstance(value, (float, Decimal)):
        number, note = _whole(value), WHOLE_AS_INT if isinstance(value, float) else None
    elif isinstance(value, int):
        number = value
    else:
        raise TypeError
    if number not in INT64:
        raise ValueError
    return ConvertedValue(number, note)


def _price(text: str) -> ConvertedValue | None:
    """Return the number in a price; None for other text. ValueError where it can be two numbers."""
    price = price_in_text(text)
    if price is None:
        return None
    number = number_in_price(price)
    if number is None:
        raise ValueError
    return ConvertedValue(number, f"a price in {price.currency} as a number")


def _decimal(text: str) -> Decimal:
    number = Decimal(text.strip()) if len(text) < 400 and "_" not in text else Decimal("nan")
    if not number.is_finite():
        raise ValueError
    return number


def _whole(value: float | Decimal) -> int:
    if isinstance(value, Decimal) and _is_beyond_floats(value):  # 1e999999999 would become a huge integer
        raise OverflowError
    number = int(value)  # of infinity and NaN: an error
    if number != value:
        raise ValueError
    return number


def _float(value: object) -> ConvertedValue:
    if isinstance(value, dt.timedelta):
        return ConvertedValue(value.total_seconds(), "a duration as seconds")
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise TypeError
    if isinstance(value, str) and "_" in value:
        raise ValueError  # Python takes 1_000; in data it is a code
    try:
        number = float(value)
    except ValueError:
        priced = _price(value) if isinstance(value, str) else None
        if priced is None:
            raise
        return ConvertedValue(float(priced.value), priced.note)
    if math.isnan(number):
        return ConvertedValue(None, NAN_TEXT)
    if math.isinf(number) and any(char.isdigit() for char in str(value)):
        raise OverflowError  # 1e400
    is_cut = (isinstance(value, Decimal) and Decimal(repr(number)) != value) or (
        isinstance(value, int) and int(number) != value
    )
    return ConvertedValue(number, LONG_DECIMAL if is_cut else None)


def _bool(value: object) -> ConvertedValue:
    if isinstance(value, bool):
        return ConvertedValue(value)
    if isinstance(value, str) and (word := value.strip().lower()) in _WORDS:
        return ConvertedValue(
            _WORDS[word], None if word in ("true", "false") else "a word or number as true or false"
        )
    if isinstance(value, (int, float, Decimal)) and value in (0, 1):
        return ConvertedValue(value == 1, ONE_AS_BOOL)
    raise TypeError


def _timestamp(value: object) -> ConvertedValue:
    note = None
    if isinstance(value, bool):
        raise TypeError
    number = epoch_number(value) if isinstance(value, str) else value
    if isinstance(number, (int, float, Decimal)):
        unit = unit_of(number)
        value, note = epoch_time(number, unit), epoch_note(number, is_text=isinstance(value, str))
    elif isinstance(value, str):
        if is_zero_date(value):
            return ConvertedValue(None, ZERO_DATE)
        value = time_in_text(value)
    if isinstance(value, dt.datetime):
        utc = dt.timezone.utc
        return ConvertedValue(value.astimezone(utc) if value.tzinfo else value.replace(tzinfo=utc), note)
    if isinstance(value, dt.date):
        return ConvertedValue(dt.datetime(value.year, value.month, value.day, tzinfo=dt.timezone.utc))
    raise TypeError


def _geo(value: object) -> ConvertedValue:
    return ConvertedValue(place_of(value))


def epoch_note(number: Any, *, is_text: bool = False) -> str | None:
    """Return the note on a number that was read as a time; None for seconds of usual years, which are documented."""
    unit = unit_of(number)
    is_usual = unit == "s" and (_FIRST_SECOND <= number <= _LAST_USUAL_SECOND or number == 0)
    if is_usual and not is_text:
        return None
    unusual = "" if unit != "s" or is_usual else ", in years before 1973 or after 2100"
    return f"a number as {_UNITS[unit]} since 1970{unusual}"


_CONVERTERS: dict[AttributeType, Callable[[Any], ConvertedValue]] = {
    "string": _string,
    "string_list": _string_list,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "timestamp": _timestamp,
    "geo": _geo,
}

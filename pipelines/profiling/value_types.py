"""The attribute type of a field, from a sample of its values and its name.

Typed values (Parquet, Avro, JSON) decide by themselves. Texts (CSV) are of the narrowest type that all of them are
written in: true or false, a number, a time, a list; else they are strings.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from scannery.indexer.datapoints.conversions import TRUTH_WORDS
from scannery.indexer.datapoints.text_values import is_zero_date, list_in_text, price_in_text
from scannery.indexer.spec.spec import AttributeType

__all__ = ["TypeGuess", "guess_type", "has_decimal_commas", "is_missing"]

MISSING = frozenset({"", "null", "none", "nan", "n/a", "na", "nil", "\\n", "#n/a", "-"})
"""Texts that stand for no value, in lower case."""

_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,18})")
_WHOLE = re.compile(r"[+-]?(0|[1-9]\d{0,15})\.0+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_LEADING_ZERO = re.compile(r"[+-]?0\d")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})*(\.\d+)?")
_POINT_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})*|0")
_COMMA_NUMBER = re.compile(r"(?:[^\w,.]{0,3}|[A-Z]{3} )-?\d{1,3}(\.?\d{3})*,(\d\d?|-+)(?: ?[^\d,.]{0,4})")
_POINT_NUMBER = re.compile(r"(?:[^\w,.]{0,3}|[A-Z]{3} )-?\d{1,3}(,?\d{3})*\.\d\d?(?: ?[^\d,.]{0,4})")
_DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}([.\s']\d{3})*|\d+)(,\d+)?")
_SPACED = re.compile(r"(?<=\d)[ '’\u00a0\u202f](?=\d{3})")
_ISO_TIME = re.compile(
    r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?\s?(Z|z|UTC|[+-]\d\d(:?\d\d)?)?)?"
)
_TIME_NAME = re.compile(
    r"(^|[\W_])(time|date|day|created|updated|modified|published|posted|timestamp|ts|epoch|at|on|ms|when|datum)($|[\W_])"
    r"|(Time|Date|At|Timestamp|Ms)$|(time|date)$"
)
_TRUTH_NAME = re.compile(r"^(is|has|can|was|in|on)[_A-Z]|(ed|able|flag|active)$")
_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d.%m.%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y",
         "%B %d, %Y")  # fmt: skip
_CLOCKS = ("", " %H:%M", " %H:%M:%S", ", %H:%M", " %I:%M %p", " %I:%M:%S %p")
_TIME_FORMATS = tuple(day + clock for day in _DAYS for clock in _CLOCKS)
_MAIL_TIME = re.compile(r"[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{4} \d\d:\d\d(:\d\d)? (\S+)")
_UNITS: Mapping[str, int] = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
_EPOCH_RANGE_S = (10**8, 2_200_000_000)
"""Seconds from 1973 to 2039: years, ids and counts are rarely in it."""


@dataclasses.dataclass(frozen=True)
class TypeGuess:
    """What an attribute of a field would be."""

    kind: AttributeType
    why: str
    """What the type was seen from, for a comment."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further keys of the attribute in the spec: `split`, `unit`, `format`, `decimal`."""


def has_decimal_commas(texts: Iterable[str]) -> bool:
    """Return whether numbers and prices in texts have decimal commas (`1.299,00 €`), and none a decimal point."""
    has_comma = False
    for text in texts:
        if _POINT_NUMBER.fullmatch(text.strip()):
            return False
        has_comma = has_comma or _COMMA_NUMBER.fullmatch(text.strip()) is not None
    return has_comma


def is_missing(value: object) -> bool:
    """Return whether a value stands for none: null, a blank text, NaN, or a word such as NULL."""
    if value is None:
        return True
    if isinstance(value, float):
        return math.isnan(value)
    return isinstance(value, str) and value.strip().lower() in MISSING


def guess_type(  # noqa: PLR0911 -- one return for each type of values
    name: str, values: Sequence[Any], *, has_missing: bool = False, has_commas: bool = False
) -> TypeGuess | None:
    """Return the type of a field; None if no attribute can hold its values (mappings, bytes, lists of numbers).

    Args:
        name: of the field; tells times and truth values from numbers.
        values: of the field, without those that are missing; at least one.
        has_missing: whether some records have none.
        has_commas: whether numbers of the same records have decimal commas: `1.002` is then a thousand and two.

    """
    kinds = {type(value) for value in values}
    if kinds <= {str}:
        return _of_texts(
            name, [value.strip() for value in values], has_missing=has_missing, has_commas=has_commas
        )
    if kinds <= {bool}:
        return TypeGuess("bool", "true or false")
    if kinds <= {int}:
        return _of_integers(name, values)
    if kinds <= {int, float, Decimal}:
        return _of_numbers(values, has_missing=has_missing)
    if all(isinstance(value, dt.date) for value in values):
        return TypeGuess("timestamp", "dates" if kinds == {dt.date} else "times")
    if kinds <= {list, tuple}:
        return _of_lists(values)
    if kinds & {dict, bytes, list, tuple}:
        return None
    return TypeGuess("string", "values of several types")


def _of_integers(name: str, values: Sequence[int]) -> TypeGuess:
    if unit := _epoch_unit(name, values):
        return TypeGuess("timestamp", f"a time, in {unit} since 1970", {"unit": unit})
    if set(values) <= {0, 1} and _TRUTH_NAME.search(name):
        return TypeGuess("bool", "0 or 1")
    if any(not -(2**63) <= value < 2**63 for value in values):
        return TypeGuess("string", "numbers that are too large for int")
    return TypeGuess("int", "whole numbers")


def _of_numbers(values: Sequence[Any], *, has_missing: bool) -> TypeGuess:
    # pandas and databases turn whole numbers into floats where a value is missing.
    is_whole = has_missing and all(value == int(value) for value in values if abs(value) < 2**53)
    if is_whole and not any(isinstance(value, Decimal) or abs(value) >= 2**53 for value in values):
        return TypeGuess("int", "whole numbers, as floats beside missing ones")
    return TypeGuess("float", "numbers")


def _of_lists(values: Sequence[Sequence[Any]]) -> TypeGuess | None:
    items = {type(item) for value in values for item in value}
    if items <= {str}:
        return TypeGuess("string_list", "lists of texts")
    if items <= {int, str} and max(map(len, values), default=0) < 32:
        return TypeGuess("string_list", "lists of numbers, which are kept as texts")
    return None


def _of_texts(name: str, texts: Sequence[str], *, has_missing: bool, has_commas: bool) -> TypeGuess:
    guesses: tuple[Callable[[], TypeGuess | None], ...] = (
        lambda: _truth(name, texts),
        lambda: _point_groups(texts) if has_commas else None,
        lambda: _number(name, texts, has_missing=has_missing),
        lambda: _prices(name, texts, has_missing=has_missing, has_commas=has_commas),
        lambda: _time(texts),
        lambda: _list(texts),
    )
    results = (guess() for guess in guesses)
    return next((guess for guess in results if guess is not None), TypeGuess("string", "texts"))


def _truth(name: str, texts: Sequence[str]) -> TypeGuess | None:
    words = {text.lower() for text in texts}
    if any(words <= {*pair} for pair in TRUTH_WORDS) and (len(words) == 2 or words <= {*TRUTH_WORDS[0]}):
        return TypeGuess("bool", " or ".join(sorted({*texts}, key=str.lower)))
    if words == {"0", "1"} and _TRUTH_NAME.search(name):
        return TypeGuess("bool", "0 or 1")
    return None


def _number(name: str, texts: Sequence[str], *, has_missing: bool) -> TypeGuess | None:
    if any(_LEADING_ZERO.match(text) and not text.lstrip("+-").startswith("0.") for text in texts):
        return None if not _all(_DECIMAL_COMMA, texts) else _with_comma(texts)
    if _all(_INTEGER, texts):
        return _of_integers(name, [int(text) for text in texts])
    if has_missing and all(_WHOLE.fullmatch(text) or _INTEGER.fullmatch(text) for text in texts):
        return TypeGuess("int", "whole numbers, written as 7.0 beside missing ones")
    if _all(_NUMBER, texts):
        return TypeGuess("float", _number_why(texts))
    if _all(_THOUSANDS, texts):
        kind: AttributeType = "float" if any("." in text for text in texts) else "int"
        return TypeGuess(kind, "numbers with commas between thousands", {"decimal": "."})
    return _with_comma(texts) or _point_groups(texts)  # 1.234.567


def _prices(name: str, texts: Sequence[str], *, has_missing: bool, has_commas: bool) -> TypeGuess | None:
    """Return the type of prices in one currency; None for other texts, and where the currencies differ."""
    prices = [price_in_text(text) for text in texts]
    currencies = {price.currency for price in prices if price is not None}
    if len(currencies) != 1:
        return None
    digits = [_SPACED.sub("", text if price is None else price.digits)
              for text, price in zip(texts, prices, strict=True)]  # fmt: skip
    number = (_point_groups(digits) if has_commas else None) or _number(name, digits, has_missing=has_missing)
    if number is None or number.kind not in ("int", "float"):
        return None
    return dataclasses.replace(number, why=f"prices in {currencies.pop()}: {number.why}")


def _number_why(texts: Sequence[str]) -> str:
    are_unclear = _all(_POINT_GROUPS, texts) and any("." in text for text in texts)
    return (
        "numbers; if the points stand between thousands: {type: int, decimal: ','}"
        if are_unclear
        else "numbers"
    )


def _point_groups(texts: Sequence[str]) -> TypeGuess | None:
    if _all(_POINT_GROUPS, texts) and any("." in text for text in texts):
        return TypeGuess("int", "numbers with points between thousands", {"decimal": ","})
    return None


def _with_comma(texts: Sequence[str]) -> TypeGuess | None:
    if _all(_DECIMAL_COMMA, texts) and any("," in text for text in texts):
        return TypeGuess("float", "numbers with a decimal comma", {"decimal": ","})
    return None


def _time(texts: Sequence[str]) -> TypeGuess | None:
    texts = [text for text in texts if not is_zero_date(text)]
    if not texts:
        return None
    if _all(_ISO_TIME, texts):
        return TypeGuess("timestamp", "dates" if all(len(text) == 10 for text in texts) else "times")
    if _all(_MAIL_TIME, texts):
        return TypeGuess("timestamp", "times as in e-mail and RSS")
    fitting = [format for format in _TIME_FORMATS if all(_parses(text, format) for text in texts)]
    if not fitting:
        return None
    ambiguity = f"; could also be {fitting[1]}" if len(fitting) > 1 and "%m/%d" in "".join(fitting) else ""
    return TypeGuess("timestamp", f"dates{ambiguity}", {"format": fitting[0]})


def _list(texts: Sequence[str]) -> TypeGuess | None:
    if all(text.startswith("[") and text.endswith("]") for text in texts):
        lists = [list_in_text(text) for text in texts]
        if all(items is not None and all(isinstance(item, str) for item in items) for items in lists):
            return TypeGuess("string_list", "lists")
    if all(text.startswith("{") and text.endswith("}") and ":" not in text for text in texts):
        return TypeGuess("string_list", "lists of PostgreSQL")
    for mark in ("|", ";", ","):
        if _is_separator(mark, texts):
            return TypeGuess("string_list", f"items separated by {mark!r}", {"split": mark})
    return None


def _is_separator(mark: str, texts: Sequence[str]) -> bool:
    """Return whether texts are short items with a mark between them, many of which occur again."""
    with_mark = sum(mark in text for text in texts)
    if with_mark < 2 or with_mark < 0.3 * len(texts):
        return False
    items = [item.strip() for text in texts for item in text.split(mark)]
    are_short = all(item and len(item) <= 40 and len(item.split()) <= 3 for item in items)
    return are_short and len({*items}) <= 0.7 * len(items)


def _epoch_unit(name: str, values: Sequence[int]) -> str | None:
    low, high = _EPOCH_RANGE_S
    if not _TIME_NAME.search(name):
        return None
    units = _UNITS.items()
    return next((unit for unit, n in units if all(low * n <= value < high * n for value in values)), None)


def _all(pattern: re.Pattern[str], texts: Sequence[str]) -> bool:
    return all(pattern.fullmatch(text) for text in texts)


def _parses(text: str, format: str) -> bool:
    try:
        dt.datetime.strptime(text, format)
    except ValueError:
        return False
    return True

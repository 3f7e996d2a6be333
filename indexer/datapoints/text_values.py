"""Numbers, times, lists and prices as people, spreadsheets, databases and shops write them in text.

Dynamic attributes hold times as text, and are compared by the instants that the texts name. Of ISO 8601,

    2025-02-03T12:45:46Z    2025-02-03 18:15:46.5+05:30    2025-02-03T12:45    2025-02-03    20250203T124546Z

are times: a date, or a date with a time of day to the minute or finer; without an offset, in UTC. Nanoseconds are cut
to microseconds. All else, such as 2025, 2025-02 and 20250203, is a text like any other.

A text that is a time is compared as if it were written in UTC, like 2025-02-03T12:45:46+00:00. Such texts are in the
order of time, and so two times are equal, or one before the other, however each is written; and a time is compared with
a text that is none as two texts are. A datetime, which is no text, is compared with times only.

Shapes: V texts.
"""

from __future__ import annotations

import ast
import csv
import datetime as dt
import email.utils
import io
import itertools
import math
import re
import tokenize
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.strict_json import exact_json

__all__ = [
    "Price",
    "comparable",
    "comparable_text",
    "decimal_number",
    "epoch_number",
    "epoch_time",
    "formatted_time",
    "instants",
    "is_zero_date",
    "list_in_text",
    "number_in_price",
    "number_of_time",
    "price_in_text",
    "split_text",
    "time_in_text",
    "unit_of",
    "without_currency",
]


EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0}
"""Microseconds in a unit; of nanoseconds, a thousand are one."""

LAST_SECOND = 253_402_300_799
"""The end of the year 9999: larger numbers cannot be seconds."""

_EPOCH = re.compile(r"[+-]?\d{9,20}(?:\.\d*)?")
_COMPACT = re.compile(r"(?:19|20)\d{12}")
_ZULU = re.compile(r"\s*(?:[Zz]|UTC|GMT)$")
_SHORT_OFFSET = re.compile(r"([+-]\d\d)(\d\d)?$")
_POINTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(?:,? +(\d{1,2}:\d\d(?::\d\d)?))?")
_SLASHED = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})(?:[ T](.+))?")
_MAILED = re.compile(r"(?:[A-Za-z]{3,9},? |\d{1,2} [A-Za-z]{3,9} )")
_MAIL_WORDS = frozenset({
    "mon", "tue", "wed", "thu", "fri", "sat", "sun", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday",
    "sunday", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", "january", "february",
    "march", "april", "june", "july", "august", "september", "october", "november", "december",
    "ut", "utc", "gmt", "z", "est", "edt", "cst", "cdt", "mst", "mdt", "pst", "pdt",
})  # fmt: skip
"""Names of days, months and zones that `email.utils` knows. It takes other words, such as CET or PM, for no zone."""
_ZONES = {"cet": "+0100", "mez": "+0100", "cest": "+0200", "mesz": "+0200", "wet": "+0000", "west": "+0100",
          "eet": "+0200", "eest": "+0300",
          "msk": "+0300", "jst": "+0900", "aest": "+1000", "aedt": "+1100"}  # fmt: skip
"""Zones that are known by one meaning only, unlike BST and IST."""
_GROUPED = {
    ",": re.compile(r"[+-]?(?:\d{1,3}(?:[. '\u00a0\u202f’]\d{3})+|\d+)?(?:,\d+)?"),
    ".": re.compile(r"[+-]?(?:\d{1,3}(?:[, '\u00a0\u202f’]\d{3})+|\d+)?(?:\.\d+)?"),
}
_SEPARATORS = re.compile("[ '\u00a0\u202f’]")
_ZERO_DATE = re.compile(r"(?:0000([-/.]?)00(?:\1)00|00([-/.])00(?:\2)(?:00)?00)(?:[T ,]+[0:.]+Z?)?")


def decimal_number(text: str, mark: str) -> Decimal | None:
    """Return a number with the decimal mark `.` or `,`, and perhaps thousands separators; None for other text.

    `1.234,5` and `1 234,5` with `,`; `1,234.5` with `.`. Groups must have three digits: `1.5` with `,` is refused.
    """
    text = text.strip()
    if not _GROUPED[mark].fullmatch(text):
        return None
    digits = _SEPARATORS.sub("", text).replace("." if mark == "," else ",", "").replace(",", ".")
    try:
        return Decimal(digits)
    except InvalidOperation:
        return None


def split_text(value: object, separator: str) -> object:
    """Return the items of a text, without spaces around them and without empty ones; a list in JSON as it is."""
    if not isinstance(value, str) or value.lstrip().startswith("["):
        return value
    return [item.strip() for item in value.split(separator) if item.strip()]


def list_in_text(text: str) -> list[Any] | None:
    """Return the list in text that is one of JSON, Python (of pandas' CSV) or PostgreSQL; None for other text."""
    text = text.strip()
    if text.startswith("["):
        try:
            literal = exact_json(text)
        except RecursionError:
            return None
        except ValueError:
            literal = _python_list(text)
        return literal if isinstance(literal, list) else None
    if text.startswith("{") and text.endswith("}") and ":" not in text:
        items = next(csv.reader([text[1:-1]], escapechar="\\", doublequote=False), [])
        return [item for item in items if item != "NULL"]
    return None


def _python_list(text: str) -> object:
    """Return the value that Python's source text stands for, None for other text.

    `['a' 'b']`, as NumPy writes two texts, is none: Python would read it as the one text `ab`.
    """
    try:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        kinds = [token.type for token in tokens if token.type != tokenize.NL]
        if (tokenize.STRING, tokenize.STRING) in itertools.pairwise(kinds):
            return None
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError):
        return None


def is_zero_date(text: str) -> bool:
    """Return whether a text is the date of MySQL that stands for none, `0000-00-00`, perhaps with a time of zeros."""
    return _ZERO_DATE.fullmatch(text.strip()) is not None


def formatted_time(text: str, format: str) -> dt.datetime | None:
    """Return the time in a text by a format of `strptime`; None if it is written otherwise."""
    try:
        return dt.datetime.strptime(text.strip(), format)
    except ValueError:
        return None


def number_of_time(value: object, unit: str) -> object:
    """Return the time that a number, or the text of one, states in a unit since 1970; other values as they are."""
    number = epoch_number(value) if isinstance(value, str) else value
    if number is None or isinstance(number, bool) or not isinstance(number, (int, float, Decimal, np.number)):
        return value
    return epoch_time(number, unit)


def epoch_number(text: str) -> Decimal | None:
    """Return the number in a text of at least nine digits, as times since 1970 have; None for other text."""
    text = text.strip()
    return Decimal(text) if _EPOCH.fullmatch(text) and not _COMPACT.fullmatch(text) else None


def unit_of(number: Any) -> str:
    """Return the unit of a number since 1970: seconds up to the year 9999; larger ones are in smaller units."""
    size, unit = abs(number), "s"
    for smaller in ("ms", "us", "ns"):
        if size <= LAST_SECOND:
            return unit
        size, unit = size / 1000, smaller
    return unit


def epoch_time(number: Any, unit: str) -> dt.datetime:
    """Return the time of a number since 1970, in UTC. ValueError or OverflowError for years that are none."""
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError("not finite")
    exact = number if isinstance(number, (int, Decimal)) else Decimal(float(number))
    micros = Fraction(exact) / 1000 if unit == "ns" else exact * UNITS[unit]
    # Digits are cut towards the past, as nanoseconds are everywhere; a float is seldom the number that was meant.
    whole = math.floor(micros) if exact is number else round(micros)
    return EPOCH + dt.timedelta(microseconds=whole)


def time_in_text(text: str) -> dt.datetime:
    """Return the time in a text: ISO 8601, and what databases, mails and feeds write. ValueError for other text.

    `2024-03-02 10:00:00 UTC`, `2024/03/02`, `20240302100000`, `02.03.2024` and `Sat, 02 Mar 2024 10:00:00 GMT` are
    taken. `02/03/2024` is not: it is another day in America.
    """
    text = text.strip()
    if _COMPACT.fullmatch(text):
        return dt.datetime.strptime(text, "%Y%m%d%H%M%S")
    if match := _POINTED.fullmatch(text):
        day, month, year, time = match.groups()
        text = f"{year}-{month:0>2}-{day:0>2}" + (f" {time:0>5}" if time else "")
    elif match := _SLASHED.fullmatch(text):
        year, month, day, time = match.groups()
        text = f"{year}-{month:0>2}-{day:0>2}" + (f" {time}" if time else "")
    elif _MAILED.match(text):
        return _mailed_time(text)
    if match := _ZULU.search(text):
        text = text[: match.start()] + "+00:00"
    elif ":" in text and (match := _SHORT_OFFSET.search(text)):
        text = f"{text[: match.start()].rstrip()}{match[1]}:{match[2] or '00'}"
    return dt.datetime.fromisoformat(text)


def _mailed_time(text: str) -> dt.datetime:
    """Return the time as mails and feeds write it; ValueError if a word in it is no day, month or known zone.

    `email.utils` ignores words that it does not know: CET would be UTC, and 10:00 PM the morning.
    """
    text = re.sub(r"\b[A-Za-z]{3,4}\b", lambda word: _ZONES.get(word[0].lower(), word[0]), text)
    words = re.findall(r"[^\W\d_]+", re.sub(r"\([^()]*\)", " ", text))
    if any(word.lower() not in _MAIL_WORDS for word in words):
        raise ValueError(f"an unknown word in {text!r}")
    try:
        return email.utils.parsedate_to_datetime(text)
    except (TypeError, IndexError) as error:
        raise ValueError(str(error)) from error


_SYMBOLS = "$€£¥₹₽₩₺₴₫฿₪₦₱₡₵₸₭₮¢"
_NAMES = (
    "AED", "ARS", "AUD", "BGN", "BRL", "CAD", "CHF", "CLP", "CNY", "COP", "CZK", "DKK", "EGP", "EUR", "GBP",
    "HKD", "HUF", "IDR", "ILS", "INR", "ISK", "JPY", "KRW", "KZT", "MAD", "MXN", "MYR", "NGN", "NOK", "NZD",
    "PEN", "PHP", "PKR", "PLN", "RON", "RSD", "RUB", "SAR", "SEK", "SGD", "THB", "TRY", "TWD", "UAH", "USD",
    "VND", "ZAR", "kr", "Kr", "kr.", "Kr.", "Fr", "Fr.", "SFr.", "zł", "Kč", "Ft", "lei", "лв", "лв.", "руб",
    "руб.", "R$", "US$", "A$", "C$", "CA$", "AU$", "NZ$", "HK$", "S$", "NT$", "Rs", "Rs.", "Euro", "euro",
)  # fmt: skip
_CURRENCY = "|".join(re.escape(name) for name in sorted(_NAMES, key=len, reverse=True)) + f"|[{_SYMBOLS}]"
_SPACE = r"[ \u00a0\u202f]?"
_NUMBER = r"(?P<number>\d(?:[\d.,'’ \u00a0\u202f]*\d)?)(?:[.,][-–—]{1,2})?"
_BEFORE = re.compile(rf"(?P<sign>[-+−]?){_SPACE}(?P<currency>{_CURRENCY}){_SPACE}(?P<minus>[-−]?){_NUMBER}")
_BEHIND = re.compile(rf"(?P<sign>[-+−]?){_SPACE}(?P<minus>){_NUMBER}{_SPACE}(?P<currency>{_CURRENCY})")
_MOST_CHARACTERS = 60


class Price(NamedTuple):
    """A price in a text."""

    currency: str
    """Currency as it is written."""
    digits: str
    """The number as it is written, with its sign."""


def price_in_text(text: str) -> Price | None:
    """Return the price that a text is; None for other text."""
    text = text.strip()
    if len(text) > _MOST_CHARACTERS or text.isdecimal():
        return None
    match = _BEFORE.fullmatch(text) or _BEHIND.fullmatch(text)
    if match is None:
        return None
    is_negative = (match["sign"] in ("-", "−")) != bool(match["minus"])
    return Price(match["currency"], ("-" if is_negative else "") + match["number"])


def without_currency(text: str) -> str:
    """Return the number in a price, as it is written; other text as it is."""
    price = price_in_text(text)
    return text if price is None else price.digits


def number_in_price(price: Price) -> Decimal | None:
    """Return the number of a price; None if it is none, or can be two: `1.234` is 1234 or 1.234."""
    numbers = {decimal_number(price.digits, mark) for mark in ".,"} - {None}
    return numbers.pop() if len(numbers) == 1 else None


_SECOND = r"(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_FORMS = (
    r"^(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
    rf"(?:[Tt ](?P<hour>\d\d):(?P<minute>\d\d)(?::{_SECOND})?(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?)?$",
    r"^(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)"
    rf"[Tt](?P<hour>\d\d)(?P<minute>\d\d)(?:{_SECOND})?(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?$",
)
"""The extended and the basic form of ISO 8601, as regular expressions of RE2."""
_MINUTE, _DAY = 60_000_000, 86_400_000_000
_FIRST_OF_1970 = dt.datetime(1970, 1, 1)
_FIRST = (dt.datetime(1, 1, 1) - _FIRST_OF_1970) // dt.timedelta(microseconds=1)
_LAST = (dt.datetime.max - _FIRST_OF_1970) // dt.timedelta(microseconds=1)


def comparable(texts: pa.Array) -> pa.Array:
    """Return texts as they are compared; arguments and result as of `instants`."""
    return instants(texts)[0]


def instants(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return texts as they are compared, and which are times, bool (V,).

    Args:
        texts: strings, no nulls, (V,). If none is a time, they are returned as they are: the same array.

    """
    is_time_V = np.zeros(len(texts), bool)
    for form in _FORMS:
        is_form = pc.match_substring_regex(texts, form)
        if not pc.any(is_form).as_py():
            continue
        micros, are_times = _micros(pc.extract_regex(texts.filter(is_form), form))
        own_V = np.zeros(len(texts), bool)
        own_V[np.flatnonzero(np.asarray(is_form))[are_times]] = True
        if own_V.any():
            is_time_V |= own_V
            texts = pc.replace_with_mask(
                texts, pa.array(own_V), _texts_of(micros[are_times]).cast(texts.type)
            )
    return texts, is_time_V


@lru_cache(maxsize=4096)
def comparable_text(text: str) -> str:
    """Return one text as it is compared."""
    if not text[:4].isdecimal():
        return text
    text_form: str = comparable(pa.array([text], pa.large_string()))[0].as_py()
    return text_form


def _micros(parts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the microseconds since 1970 of times by their parts, int64, and which are times: February 30 is none."""
    year, month, day, hour, minute, second = (
        _numbers(parts, name) for name in ("year", "month", "day", "hour", "minute", "second")
    )
    fraction = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.struct_field(parts, "fraction"), 6, "0"), 0, 6)
    zone = pc.struct_field(parts, "zone")
    digits = pc.utf8_rpad(pc.replace_substring_regex(zone, r"[^\d]", ""), 4, "0")
    offset_hour, offset_minute = (
        _integers(pc.utf8_slice_codeunits(digits, *span)) for span in ((0, 2), (2, 4))
    )
    offset = offset_hour * 60 + offset_minute
    offset[np.asarray(pc.starts_with(zone, "-"))] *= -1
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    micros = days.astype(np.int64) * _DAY + (hour * 60 + minute - offset) * _MINUTE
    micros += second * 1_000_000 + _integers(fraction)
    is_time = (month >= 1) & (month <= 12) & (day >= 1) & (days.astype("datetime64[M]") == months)
    is_time &= (hour <= 23) & (minute <= 59) & (second <= 59) & (offset_hour <= 23) & (offset_minute <= 59)
    return micros, is_time & (micros >= _FIRST) & (micros <= _LAST)


def _numbers(parts: pa.Array, name: str) -> np.ndarray:
    return _integers(pc.struct_field(parts, name))


def _integers(digits: pa.Array) -> np.ndarray:
    """Return the numbers in some digits, int64; 0 of none."""
    padded = pc.if_else(pc.equal(digits, ""), "0", pc.fill_null(digits, "0"))
    numbers: np.ndarray = padded.cast(pa.int64()).to_numpy(zero_copy_only=False).copy()
    return numbers


def _texts_of(micros: np.ndarray) -> Any:
    """Return times as `datetime.isoformat` writes those in UTC."""
    seconds = pa.array(micros // 1_000_000).cast(pa.timestamp("s")).cast(pa.string())
    remainder = micros % 1_000_000
    digits = pc.utf8_lpad(pa.array(remainder).cast(pa.string()), 6, "0")
    fraction = pc.if_else(pa.array(remainder == 0), "", pc.binary_join_element_wise(".", digits, ""))
    return pc.binary_join_element_wise(pc.replace_substring(seconds, " ", "T"), fraction, "+00:00", "")

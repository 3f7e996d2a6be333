"""Texts that are times in ISO 8601, as instants: what dynamic attributes are compared by, which hold times as text.

    2025-02-03T12:45:46Z    2025-02-03 18:15:46.5+05:30    2025-02-03T12:45    2025-02-03    20250203T124546Z

are times: a date, or a date with a time of day to the minute or finer; without an offset, in UTC. Nanoseconds are cut
to microseconds. All else, such as 2025, 2025-02 and 20250203, is a text like any other.

A text that is a time is compared as if it were written in UTC, like 2025-02-03T12:45:46+00:00. Such texts are in the
order of time, and so two times are equal, or one before the other, however each is written; and a time is compared with
a text that is none as two texts are. A datetime, which is no text, is compared with times only.

Shapes: V texts.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["comparable", "comparable_text", "instants"]

_SECOND = r"(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_FORMS = (
    r"^(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
    rf"(?:[Tt ](?P<hour>\d\d):(?P<minute>\d\d)(?::{_SECOND})?(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?)?$",
    r"^(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)"
    rf"[Tt](?P<hour>\d\d)(?P<minute>\d\d)(?:{_SECOND})?(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?$",
)
"""The extended and the basic form of ISO 8601, as regular expressions of RE2."""
_MINUTE, _DAY = 60_000_000, 86_400_000_000
_EPOCH = dt.datetime(1970, 1, 1)
_FIRST = (dt.datetime(1, 1, 1) - _EPOCH) // dt.timedelta(microseconds=1)
_LAST = (dt.datetime.max - _EPOCH) // dt.timedelta(microseconds=1)


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
            texts = pc.replace_with_mask(texts, pa.array(own_V), _written(micros[are_times]).cast(texts.type))
    return texts, is_time_V


@lru_cache(maxsize=4096)
def comparable_text(text: str) -> str:
    """Return one text as it is compared."""
    if not text[:4].isdecimal():
        return text
    found: str = comparable(pa.array([text], pa.large_string()))[0].as_py()
    return found


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
    given = pc.if_else(pc.equal(digits, ""), "0", pc.fill_null(digits, "0"))
    numbers: np.ndarray = given.cast(pa.int64()).to_numpy(zero_copy_only=False).copy()
    return numbers


def _written(micros: np.ndarray) -> Any:
    """Return times as `datetime.isoformat` writes those in UTC."""
    seconds = pa.array(micros // 1_000_000).cast(pa.timestamp("s")).cast(pa.string())
    rest = micros % 1_000_000
    digits = pc.utf8_lpad(pa.array(rest).cast(pa.string()), 6, "0")
    fraction = pc.if_else(pa.array(rest == 0), "", pc.binary_join_element_wise(".", digits, ""))
    return pc.binary_join_element_wise(pc.replace_substring(seconds, " ", "T"), fraction, "+00:00", "")

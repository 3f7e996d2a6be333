"""What databases, spreadsheets and pandas write for the types of attributes."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from scannery.indexer import InvalidRecordError, attribute_value, identifier
from scannery.indexer.datapoints.conversions import convert
from scannery.indexer.datapoints.text_values import decimal_number, split_text

DAY = dt.datetime(2024, 3, 3, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("kind", "value", "typed", "is_noted"),
    [
        ("int", "7", 7, False),
        ("int", "7.0", 7, True),
        ("int", 7.0, 7, True),
        ("int", "1e3", 1000, True),
        ("int", Decimal("7.00"), 7, False),
        ("int", np.int32(7), 7, False),
        ("float", Decimal("1.50"), 1.5, False),
        ("float", Decimal("0.1234567890123456789"), 0.12345678901234568, True),
        ("float", np.float32(0.5), 0.5, False),
        ("bool", "TRUE", True, False),
        ("bool", "yes", True, True),
        ("bool", "n", False, True),
        ("bool", "0", False, True),
        ("bool", 1, True, True),
        ("bool", 0.0, False, True),
        ("string", Decimal("1.50"), "1.50", False),
        ("string", dt.date(2024, 3, 3), "2024-03-03", False),
        ("string", dt.time(10, 30), "10:30:00", False),
        ("string", b"bytes", "bytes", False),
        ("string", uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001", False),
        ("string_list", '["a", "b"]', ["a", "b"], False),
        ("string_list", "['a', \"b's\"]", ["a", "b's"], False),
        ("string_list", '{electric,"big city"}', ["electric", "big city"], True),
        ("string_list", "kitchen,electric", ["kitchen,electric"], True),
        ("string_list", "one", ["one"], False),
        ("timestamp", DAY, DAY, False),
        ("timestamp", dt.date(2024, 3, 3), DAY, False),
        ("timestamp", np.datetime64("2024-03-03"), DAY, False),
        ("timestamp", 1_709_424_000, DAY, False),
        ("timestamp", "1709424000", DAY, True),
        ("timestamp", 1_709_424_000_000, DAY, True),
        ("timestamp", "1709424000000", DAY, True),
        ("timestamp", 1_709_424_000_000_000, DAY, True),
        ("timestamp", 1_709_424_000_000_000_000, DAY, True),
        ("timestamp", Decimal("1709424000.0"), DAY, False),
        ("timestamp", "2024-03-03T01:00:00+01:00", DAY, False),
        ("timestamp", "2024-03-03 00:00:00+00", DAY, False),
        ("timestamp", "2024-03-03 00:00:00 UTC", DAY, False),
        ("timestamp", "Sun, 03 Mar 2024 00:00:00 GMT", DAY, False),
        ("timestamp", "3 Mar 2024 01:00 +0100", DAY, False),
        ("timestamp", "Sun, 03 Mar 2024 01:00:00 CET", DAY, False),
        ("timestamp", "Sun Mar 3 02:00:00 CEST 2024", DAY, False),
        ("timestamp", "Sat, 02 Mar 2024 16:00:00 -0800 (PST)", DAY, False),
        ("timestamp", "Sun Mar  3 00:00:00 2024", DAY, False),
        ("timestamp", "20240303", DAY, False),
        ("timestamp", "20240303000000", DAY, False),
        ("timestamp", "03.03.2024", DAY, False),
        ("timestamp", "3.3.2024 0:00", DAY, False),
        ("timestamp", "2024/3/3", DAY, False),
        ("timestamp", 2024, dt.datetime(1970, 1, 1, 0, 33, 44, tzinfo=dt.timezone.utc), True),
        ("timestamp", 253_402_300_799, dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.timezone.utc), True),
    ],
)
def test_a_value_of_another_type_is_converted_and_what_could_be_wrong_is_noted(kind, value, typed, is_noted):
    converted = convert(value, kind)
    assert converted.value == typed
    assert type(converted.value) is type(typed)
    assert (converted.note is not None) == is_noted


@pytest.mark.parametrize(
    ("kind", "value", "hint"),
    [
        ("float", "1,5", "decimal: ','}"),
        ("float", "1.234,50", "decimal: ','}"),
        ("float", "1,234", "decimal: ',' or '.'}"),
        ("int", "1,234", "decimal: '.'}"),
        ("timestamp", "02/03/2024", "format: '%d/%m/%Y'"),
        ("bool", "maybe", "yes or no, 1 or 0"),
    ],
)
def test_what_is_refused_says_how_it_is_taken(kind, value, hint):
    with pytest.raises(InvalidRecordError) as caught:
        attribute_value(value, kind, field="x")
    assert hint in caught.value.message
    assert repr(value) in caught.value.message


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp", "Wed, 06 Mar 2024 09:00:00 BST"),  # `email.utils` reads it as UTC
        ("timestamp", "Mar 5, 2024 10:00 PM"),  # and this as ten in the morning
        ("string_list", "['a' 'b']"),  # NumPy's; Python reads one text, `ab`
        ("string_list", "['a'\n 'b']"),
        ("int", "1_000"),
        ("float", "1_000"),
        ("float", "1e400"),
    ],
)
def test_text_that_python_reads_as_another_value_is_refused(kind, value):
    with pytest.raises(InvalidRecordError):
        attribute_value(value, kind, field="x")


@pytest.mark.parametrize("value", [7.0, np.float64(7), Decimal("7"), np.int64(7), 7])
def test_whole_numbers_are_ids(value: Any):
    assert identifier(value, field="id") == "7"


@pytest.mark.parametrize("value", [7.5, float("nan"), float("inf"), True, Decimal("7.5")])
def test_other_numbers_are_no_ids(value: Any):
    with pytest.raises(InvalidRecordError, match="id: must be"):
        identifier(value, field="id")


@pytest.mark.parametrize(
    ("text", "mark", "number"),
    [
        ("1.234,5", ",", "1234.5"),
        ("1 234,5", ",", "1234.5"),
        ("1\u202f234", ",", "1234"),
        ("1'234.50", ".", "1234.50"),
        ("-1,234,567", ".", "-1234567"),
        ("0,5", ",", "0.5"),
        ("12", ",", "12"),
        ("1.5", ",", None),
        ("1,5", ".", None),
        ("", ",", None),
        ("12 €", ",", None),
    ],
)
def test_numbers_with_separators(text, mark, number):
    assert decimal_number(text, mark) == (None if number is None else Decimal(number))


def test_a_list_in_json_is_not_split():
    assert split_text('["a,b"]', ",") == '["a,b"]'
    assert split_text("a; b;", ";") == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("€ 1.234,50", 1234.5), ("$1,234.50", 1234.5), ("1 234 kr", 1234.0), ("€5", 5.0), ("12,99 €", 12.99),
        ("5,- €", 5.0), ("-$5.25", -5.25), ("$-5.25", -5.25), ("CHF 1'234.50", 1234.5), ("R$ 1.234.567", 1234567.0),
        ("1,234.50 USD", 1234.5), ("12 EUR", 12.0), ("1\u00a0234,5\u202f€", 1234.5), ("¥1200", 1200.0),
    ],
)  # fmt: skip
def test_prices_are_numbers_and_counted(text, number):
    found = convert(text, "float")
    assert found.value == number
    assert found.note is not None
    assert found.note.startswith("a price in ")
    if number == int(number):
        assert convert(text, "int").value == number


@pytest.mark.parametrize("text", ["€ 1.234", "$1,234", "1.234 kr"])
def test_a_price_that_can_be_two_numbers_is_refused_with_both(text):
    with pytest.raises(
        InvalidRecordError, match=r"it can be 1(234|\.234) or 1(234|\.234); say what the decimal"
    ):
        attribute_value(text, "float", field="price")


@pytest.mark.parametrize(
    "text", ["$", "5 apples", "1,23,45 €", "€ 1.2.3", "$1.234,5,6", "A4", "10 USDX", "USD"]
)
def test_other_texts_are_no_prices(text):
    with pytest.raises(InvalidRecordError, match="price: must be a number"):
        attribute_value(text, "float", field="price")


@pytest.mark.parametrize(
    "text", ["0000-00-00", "0000-00-00 00:00:00", "0000-00-00T00:00:00.000000Z", "0000/00/00", "00.00.0000"]
)
def test_dates_of_zeros_are_no_value_and_counted(text):
    assert convert(text, "timestamp") == (None, "a date of zeros (such as 0000-00-00) as no value")
    assert attribute_value(text, "timestamp", field="at") is None


@pytest.mark.parametrize("text", ["2024-00-00", "0000-01-01", "0000", "00:00"])
def test_other_dates_that_are_none_are_refused(text):
    with pytest.raises(InvalidRecordError, match="at: must be a timestamp"):
        attribute_value(text, "timestamp", field="at")

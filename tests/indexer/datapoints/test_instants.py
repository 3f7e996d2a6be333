"""Texts that are times in ISO 8601 are compared as instants; all others as they are."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scannery.indexer.datapoints.dynamic import timestamp_text
from scannery.indexer.datapoints.text_values import comparable, comparable_text

UTC = dt.timezone.utc


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2025-02-03T12:45:46Z", "2025-02-03T12:45:46+00:00"),
        ("2025-02-03T12:45:46+00:00", "2025-02-03T12:45:46+00:00"),
        ("2025-02-03t12:45:46z", "2025-02-03T12:45:46+00:00"),
        ("2025-02-03 18:15:46.5+05:30", "2025-02-03T12:45:46.500000+00:00"),
        ("2025-02-03T12:45:46", "2025-02-03T12:45:46+00:00"),
        ("2025-02-03T12:45", "2025-02-03T12:45:00+00:00"),
        ("2025-02-03T12:45:46-0800", "2025-02-03T20:45:46+00:00"),
        ("2025-02-03T12:45:46+00", "2025-02-03T12:45:46+00:00"),
        ("2025-02-03T12:45:46,123456789Z", "2025-02-03T12:45:46.123456+00:00"),
        ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999+00:00"),
        ("2025-02-03", "2025-02-03T00:00:00+00:00"),
        ("2024-02-29", "2024-02-29T00:00:00+00:00"),
        ("20250203T124546Z", "2025-02-03T12:45:46+00:00"),
        ("20250203T1245+0530", "2025-02-03T07:15:00+00:00"),
    ],
)
def test_times_are_written_in_utc(text: str, instant: str) -> None:
    assert comparable_text(text) == instant
    assert comparable(pa.array(["bees", text, ""])).to_pylist() == ["bees", instant, ""]


@pytest.mark.parametrize(
    "text",
    [
        "", "2025", "2025-02", "20250203", "2025-W06-1", "2025-034", "2025-02-30", "2023-02-29", "2025-13-01",
        "2025-02-03T24:00:00", "2025-02-03T12:60", "2025-02-03T12:45:60", "2025-02-03T12", "12:45:46",
        "0000-01-01", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "2025-02-03T12:45:46Z\n",
        " 2025-02-03", "2025-02-03 notes", "2025-02-03T12:45:46+24:00", "２０２５-02-03", "v2025-02-03", "3.2.2025",
    ],
)  # fmt: skip
def test_other_texts_stay_as_they_are(text: str) -> None:
    texts = pa.array([text])
    assert comparable(texts) is texts
    assert comparable_text(text) == text


@pytest.mark.system
@given(
    st.lists(
        st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29), timezones=st.just(UTC)), min_size=1
    ),
    st.integers(-1439, 1439),
)
def test_any_offset_gives_the_instant_and_its_order(times: list[dt.datetime], minutes: int) -> None:
    zone = dt.timezone(dt.timedelta(minutes=minutes))
    texts = comparable(pa.array([time.astimezone(zone).isoformat() for time in times])).to_pylist()
    assert texts == [timestamp_text(time) for time in times]
    assert sorted(texts) == [timestamp_text(time) for time in sorted(times)]

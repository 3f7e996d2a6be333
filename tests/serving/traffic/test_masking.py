"""Texts of queries without addresses and long numbers."""

from __future__ import annotations

import time

import pytest

from scannery.serving.traffic.masking import masked, masked_values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mail to ann.lee+x@example.co.uk please", "mail to # please"),
        ("<ann@example.com>", "<#>"),
        ("ünï@exämple.de", "#"),
        ("call +49 (30) 123 456-789 now", "call # now"),
        ("4111-1111-1111-1111", "#"),
        ("account 1234567", "account #"),
        ("DE89 3704 0044 0532 0130 00", "DE#"),
        ("episode 123456 of 2026-11-29, 10:30", "episode 123456 of 2026-11-29, 10:30"),
        ("python 3.11 @home", "python 3.11 @home"),
        ("", ""),
    ],
)
def test_addresses_and_long_numbers_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_values_of_filters_are_masked() -> None:
    value = {"user": {"op": "a@b.c", "is": [True, None, 2024, 12345678, 1.5]}}
    assert masked_values(value) == {"user": {"op": "#", "is": [True, None, 2024, "#", 1.5]}}


@pytest.mark.parametrize("part", ["1 ", "a@", "1", "@", "+1(", " ./()-", "x"])
def test_masking_takes_linear_time(part: str) -> None:
    started_s = time.process_time()
    masked(part * 50_000)
    assert time.process_time() - started_s < 2

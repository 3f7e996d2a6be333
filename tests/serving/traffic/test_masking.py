"""Texts of queries without addresses and long numbers."""

from __future__ import annotations

import time

import pytest

from scannery.serving.traffic.masking import MAX_TEXT, logged_text, masked, masked_values


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
        ("+49\u00a030\u00a0123\u00a0456\u00a078", "#"),
        ("030 \u2013 123 45 67 89", "#"),
        ("4111\u200b1111\u200b1111\u200b1111", "#"),
        ("4111_1111_1111_1111", "#"),
        ("030 / 123 - 456 - 78", "#"),
        ('"ann lee"@example.com', "#"),
        ("ann\uff20example.com", "#"),
        ("a" * 80 + "@example.com", "#"),
        ("1999-2003, 2010", "1999-2003, 2010"),
        ("", ""),
    ],
)
def test_addresses_and_long_numbers_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize("secret", ["123456789", "ann.lee@example.com"])
def test_a_text_is_cut_after_it_was_masked(secret: str) -> None:
    text = "x" * (MAX_TEXT - 6) + " " + secret
    assert logged_text(text) == "x" * (MAX_TEXT - 6) + " #"


def test_values_of_filters_are_masked() -> None:
    value = {"user": {"op": "a@b.c", "is": [True, None, 2024, 1234567, 1.5]}}
    assert masked_values(value) == {"user": {"op": "#", "is": [True, None, 2024, "#", 1.5]}}


@pytest.mark.parametrize("part", ["1 ", "a@", "1", "@", "+1(", " ./()-", "x"])
def test_masking_takes_linear_time(part: str) -> None:
    started_s = time.process_time()
    masked(part * 50_000)
    assert time.process_time() - started_s < 2

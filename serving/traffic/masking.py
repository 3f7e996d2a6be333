"""Texts of queries without what names a person or an account: e-mail addresses and long numbers."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["MASK", "MAX_TEXT", "logged_text", "masked", "masked_values"]

MASK = "#"
MAX_TEXT = 2000
"""Characters of a text that are logged."""
MIN_LONG = 10**6
"""Numbers of a filter from here on, of seven digits, are masked as in a text: they are rather ids than years."""

# All are linear in the length of the text: what may repeat is followed by what it cannot be.
_PART = r"[^\s@＠<>(),;:\"]{1,320}"
_ADDRESS = re.compile(rf'(?:"[^"@＠]{{1,320}}"|{_PART})[@＠]{_PART}')
# Nine digits and more, with a few signs between them, as in numbers of telephones, cards and accounts; or seven in a
# row. Dates have eight, with signs between them, and stay. Pages have spaces, dashes and nothings of many kinds, which
# come with what is copied from them.
_SIGN = r"[\s./()_\-\u2010-\u2015\u2212\u00ad\u200b-\u200f\u2060\ufeff]"
_NUMBER = re.compile(rf"\+?\d(?:{_SIGN}{{0,3}}\d){{8,}}|\d{{7,}}")


def logged_text(text: str) -> str:
    """Return a text as the log has it."""
    # The mask comes first: of a number that is cut, too few digits may be left to be known as one.
    return masked(text)[:MAX_TEXT]


def masked(text: str) -> str:
    """Return a text with a mask in the place of each e-mail address and each long number.

    >>> masked("invoice 4711 for ann@example.com, card 4111 1111 1111 1111, of 2026-11-29")
    'invoice 4711 for #, card #, of 2026-11-29'
    """
    return _NUMBER.sub(MASK, _ADDRESS.sub(MASK, text))


def masked_values(value: Any) -> Any:
    """Return a JSON value in which the texts and long numbers are masked; its keys stay."""
    if isinstance(value, dict):
        return {key: masked_values(each) for key, each in value.items()}
    if isinstance(value, list):
        return [masked_values(each) for each in value]
    if isinstance(value, str):
        return masked(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return MASK if is_number and abs(value) >= MIN_LONG else value

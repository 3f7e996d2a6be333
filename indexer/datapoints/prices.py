"""Prices as people and shops write them: a number with a currency, such as `€ 1.234,50`, `$1,234.50` or `1 234 kr`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

from scannery.indexer.datapoints.text_values import decimal_number

__all__ = ["Price", "number_in_price", "price_in_text", "without_currency"]

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
    """As it is written."""
    digits: str
    """The number as it is written, with its sign."""


def price_in_text(text: str) -> Price | None:
    """Return the price that a text is; None for other text."""
    text = text.strip()
    if len(text) > _MOST_CHARACTERS or text.isdecimal():
        return None
    found = _BEFORE.fullmatch(text) or _BEHIND.fullmatch(text)
    if found is None:
        return None
    is_negative = (found["sign"] in ("-", "−")) != bool(found["minus"])
    return Price(found["currency"], ("-" if is_negative else "") + found["number"])


def without_currency(text: str) -> str:
    """Return the number in a price, as it is written; other text as it is."""
    price = price_in_text(text)
    return text if price is None else price.digits


def number_in_price(price: Price) -> Decimal | None:
    """Return the number of a price; None if it is none, or can be two: `1.234` is 1234 or 1.234."""
    found = {decimal_number(price.digits, mark) for mark in ".,"} - {None}
    return found.pop() if len(found) == 1 else None

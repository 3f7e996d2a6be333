"""JSON that is read exactly: without keys that are lost, and without numbers that become infinite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

__all__ = ["exact_json", "exact_number", "strict_json"]


def exact_json(text: str) -> Any:
    """Return what a text in JSON says; a number that no float can hold, such as 1e400, as a decimal.

    Python makes an infinity of it, as of the word `Infinity`, which some writers use for one.

    Raises:
        ValueError, RecursionError: it is not JSON, or nested too deeply.

    """
    value = json.loads(text)
    return json.loads(text, parse_float=exact_number) if _has_infinity(value) else value


def exact_number(digits: str) -> float | Decimal:
    """Return the number in a text; one that no float can hold as a decimal. The word `inf` is an infinite float.

    Raises:
        ValueError: it is no number.

    """
    number = float(digits)
    is_cut = math.isinf(number) and any(char.isdigit() for char in digits)
    return Decimal(digits) if is_cut else number


def strict_json(text: str) -> Any:
    """Return what a text in JSON says.

    Raises:
        ValueError: it is not JSON, or an object has a key twice; the message names the key.
        RecursionError: it is nested too deeply.

    """
    return _DECODER.decode(text)


def _has_infinity(value: object) -> bool:
    if isinstance(value, float):
        return math.isinf(value)
    if isinstance(value, Mapping):
        return any(map(_has_infinity, value.values()))
    if isinstance(value, list) and value:
        if isinstance(value[0], float):  # a vector, mostly
            return math.inf in value or -math.inf in value
        return any(map(_has_infinity, value))
    return False


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the key {twice!r:.200} twice")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
"""Made once: making one takes as long as decoding a small object."""

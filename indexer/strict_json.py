"""JSON of requests, in which a key that an object has twice is an error: one of its two values would be lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

__all__ = ["strict_json"]


def strict_json(text: str) -> Any:
    """Return what a text in JSON says.

    Raises:
        ValueError: it is not JSON, or an object has a key twice; the message names the key.
        RecursionError: it is nested too deeply.

    """
    return _DECODER.decode(text)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the key {twice!r:.200} twice")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
"""Made once: making one takes as long as decoding a small object."""

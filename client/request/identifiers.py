"""Ids as callers have them: strings, integers, which become their digits as in builds, and UUIDs."""

from __future__ import annotations

import uuid
from typing import TypeAlias

import numpy as np

from scannery.client.errors import InvalidArgumentError

__all__ = ["Identifier", "as_identifier"]

Identifier: TypeAlias = str | int | uuid.UUID
"""An integer becomes its digits."""


def as_identifier(value: object, field: str) -> str:
    """Return an id as text.

    Raises:
        InvalidArgumentError: it is no string, integer or UUID; `field` names it.

    """
    if isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(
        value,
        (bool, np.timedelta64),  # which are integers to Python and to NumPy
    ):
        return str(int(value))
    if isinstance(value, uuid.UUID):
        return str(value)
    raise InvalidArgumentError(
        f"{field}: must be a string or an integer, got {type(value).__name__} {value!r:.80}", field=field
    )

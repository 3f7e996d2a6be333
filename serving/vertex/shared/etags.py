"""Etags of resources: a caller who sends one changes the resource only in the state that it has read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from scannery.runtime.errors import StaleEtagError

__all__ = ["check_etag", "etag_of"]


def etag_of(resource: Mapping[str, Any]) -> str:
    """Return the etag of a stored resource: a hash of its content."""
    data = json.dumps(resource, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def check_etag(given: str, current: str, field: str = "etag") -> None:
    """Raise StaleEtagError if an etag is given that is not the current one."""
    if given and given != current:
        raise StaleEtagError(
            f"{field}: the resource has changed since it was read: its etag is {current!r}, got {given!r:.80}",
            field=field,
        )

"""Owners of resources that are no indexes, and how much one of them may keep."""

from __future__ import annotations

import json

from scannery.runtime.errors import OverloadedError
from scannery.serving.security.principal import CURRENT

__all__ = ["check_count", "check_kept", "current_owner", "owns"]


def current_owner() -> str:
    """Return the owner of what the caller creates; empty: the caller has no credentials."""
    principal = CURRENT.get()
    return "" if principal is None or principal.is_anonymous else principal.name


def owns(owner: str) -> bool:
    """Return whether the caller is an owner, or sees all indexes. What has no owner, "", is for the latter only."""
    principal = CURRENT.get()
    return principal is None or principal.indexes is None or (owner != "" and principal.name == owner)


def check_count(owned: int, total: int, limit: int, what: str) -> None:
    """Raise OverloadedError if a store has no room for one more.

    Args:
        owned: how many the owner has.
        total: how many all owners have.
        limit: for all; a caller who sees some indexes only has half of what others leave.
        what: they are, for the error.

    """
    if not owns(""):
        limit, total = (limit - total + owned) // 2, owned
    if total >= limit:
        raise OverloadedError(f"{total} {what}, and there is room for {limit}")


def check_kept(resources: object, limit_bytes: int, what: str, field: str) -> None:
    """Raise OverloadedError, which says what they are, if resources would have more than a number of bytes as JSON."""
    size_bytes = len(json.dumps(resources))
    if size_bytes > limit_bytes:
        raise OverloadedError(
            f"{field}: {what} would have {size_bytes} bytes, and may have {limit_bytes}", field=field
        )

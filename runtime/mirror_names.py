"""Names of mirrors: indexes that have the datapoints of others while these are migrated."""

from __future__ import annotations

__all__ = ["mirror_name", "mirrored_name"]

_ENDING = "-mirror"
_FRONT = 56
"""Characters of the name of the mirrored index: that of its mirror must not be too long."""


def mirror_name(index: str) -> str:
    """Return the name of the mirror of an index."""
    return f"{index[:_FRONT]}{_ENDING}"


def mirrored_name(name: str) -> str:
    """Return the name of the index that a mirror has the datapoints of, of a long one its beginning; empty: of none."""
    return name.removesuffix(_ENDING) if name.endswith(_ENDING) else ""

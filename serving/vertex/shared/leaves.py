"""Leaves of an index, of which the managed service's clients ask for a share."""

from __future__ import annotations

from collections.abc import Iterable

from scannery.indexer import Segment

__all__ = ["most_leaves"]


def most_leaves(segments: Iterable[Segment]) -> int:
    """Return the leaves of the segment that has most: an effort is a number of leaves of each. 0: none has any."""
    return max((segment.tree_leaves for segment in segments), default=0)

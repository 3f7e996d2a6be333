"""Ids in lists that fit into a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["MAX_ITEMS", "pages"]

MAX_ITEMS = 1000
"""Most ids or datapoints of a call."""


def pages(ids: Iterable[str]) -> Iterator[list[str]]:
    """Yield the ids in lists that fit into a call.

    >>> [len(page) for page in pages(str(number) for number in range(1500))]
    [1000, 500]
    """
    listed = list(ids)
    for first in range(0, len(listed), MAX_ITEMS):
        yield listed[first : first + MAX_ITEMS]

"""The order of the passages of a document, for servers and for those that read documents passage by passage."""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["have_order", "id_order"]

_NUMBER = re.compile(r"(\d+)")


def have_order(starts: Collection[int | None], ends: Collection[int | None]) -> bool:
    """Return whether the offsets of all passages of a document are known, and tell their order; else ids tell it.

    A text that was not cut begins at 0, so the datapoints of a document may all begin there.

    >>> have_order([0, 9], [10, 20]), have_order([0, 0], [10, 20]), have_order([None, 9], [None, 20])
    (True, False, False)
    """
    return None not in starts and None not in ends and len(set(starts)) == len(starts)


def id_order(identifier: str) -> list[tuple[int, str]]:
    """Return a key that puts ids in the order of the numbers in them.

    >>> sorted(["a#10", "a#2"], key=id_order)
    ['a#2', 'a#10']
    """
    parts = _NUMBER.split(identifier)
    return [(int(part), "") if number % 2 else (-1, part) for number, part in enumerate(parts)]

"""Fewer operations that fail in the same way (delta debugging: Zeller and Hildebrandt 2002)."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.model.operations import Op
from tests.model.runner import Failure, replay

__all__ = ["shrunk"]


def shrunk(
    failure: Failure,
    *,
    minutes: float = 10.0,
    again: Callable[[dict[str, object], list[Op]], Failure | None] = replay,
    save: Callable[[Failure], None] = lambda smaller: None,
) -> Failure:
    """Return a failure with fewer operations: taking any one away makes it succeed, unless time runs out.

    What fails is compared by the type of the error, so the message may become another one.
    """
    end_s = time.monotonic() + 60 * minutes
    parts = 2
    while len(failure.ops) > 1 and time.monotonic() < end_s:
        size = -(-len(failure.ops) // parts)
        smaller = _without_a_part(failure, size, again, end_s)
        if smaller is not None:
            failure, parts = smaller, max(parts - 1, 2)
            save(failure)
        elif size == 1:
            break
        else:
            parts = min(parts * 2, len(failure.ops))
    return failure


def _without_a_part(
    failure: Failure, size: int, again: Callable[..., Failure | None], end_s: float
) -> Failure | None:
    for start in range(0, len(failure.ops), size):
        if time.monotonic() > end_s:
            return None
        found = again(failure.config, [*failure.ops[:start], *failure.ops[start + size :]])
        if found is not None and found.kind == failure.kind:
            return found
    return None

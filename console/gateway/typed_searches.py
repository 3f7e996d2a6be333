"""Searches as people type: few of them at once, whatever the number of people, so that other callers keep their times.

Each key asks anew, so twenty people typing would ask a server a hundred times a second. A view has one search that
waits; the next key replaces it in its place of the queue. Where many people type, a search is followed by a rest of its
own length.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["OvertakenError", "TypedSearches"]

MANY = 4
"""People who type at once, above which searches are followed by a rest."""

T = TypeVar("T")


class OvertakenError(Exception):
    """A later text of the same view has taken the turn of this one."""


class TypedSearches:
    """The queue.

    Args:
        at_once: number of searches that run at once.

    """

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: dict[str, asyncio.Future[None]] = {}
        """The turn of each view, the oldest first."""

    async def run(self, view: str, search: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of a search when it is its turn.

        Args:
            view: what the search is shown in; its later search overtakes this one while it waits.
            search: makes the call.

        Raises:
            OvertakenError: a later one has its turn.

        """
        await self._turn(view)
        started_s = time.monotonic()
        try:
            return await search()
        finally:
            rest_s = time.monotonic() - started_s if len(self._waiting) >= MANY else 0.0
            asyncio.get_running_loop().call_later(rest_s, self._release)

    async def _turn(self, view: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        if (before := self._waiting.get(view)) is not None and not before.done():
            before.set_exception(OvertakenError())
        self._waiting[view] = turn  # a view that waits keeps its place
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.get(view) is turn:
                del self._waiting[view]
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self._release()
            raise

    def _release(self) -> None:
        for view, turn in list(self._waiting.items()):
            del self._waiting[view]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

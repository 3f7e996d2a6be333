"""Searches as people type: few of them at once, whatever the number of people, so that other callers keep their times.

Each key asks anew, so twenty people typing would ask a server a hundred times a second. A view has one search that
waits; the next key replaces it in its place of the queue. Callers take turns, however many views each has, and a search
that takes long lets the next one begin beside it. Where many people type, a search is followed by a rest of its own
length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["OvertakenError", "TypedSearches"]

MANY = 4
"""People who type at once, above which searches are followed by a rest."""
TURN_S = 3.0
"""Time after which a search that still runs lets the next one begin."""

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
        self._waiting: dict[tuple[str, str], asyncio.Future[None]] = {}
        """The turn of each caller's view, the oldest first."""
        self._turns = 0
        self._last_turns: dict[str, int] = {}
        """Number of the last turn of each caller who waits."""

    async def run(self, view: str, search: Callable[[], Awaitable[T]], *, owner: str = "") -> T:
        """Return the answer of a search when it is its turn.

        Args:
            view: what the search is shown in; its later search overtakes this one while it waits.
            search: makes the call.
            owner: who asks, a key or token; owners take turns.

        Raises:
            OvertakenError: a later one has its turn.

        """
        await self._turn((owner, view))
        loop = asyncio.get_running_loop()
        started_s, late = loop.time(), loop.call_later(TURN_S, self._release)
        try:
            return await search()
        finally:
            ended_s = loop.time()
            if ended_s < late.when():  # else it has released, or does so now
                late.cancel()
                loop.call_later(ended_s - started_s if len(self._waiting) >= MANY else 0.0, self._release)

    async def _turn(self, view: tuple[str, str]) -> None:
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
        self._turns += 1
        waiting = {view: turn for view, turn in self._waiting.items() if not turn.done()}
        self._last_turns = {owner: self._last_turns.get(owner, 0) for owner, _ in waiting}
        self._waiting = waiting
        if not waiting:
            self._free += 1
            return
        view = min(waiting, key=lambda each: self._last_turns[each[0]])
        self._last_turns[view[0]] = self._turns
        waiting.pop(view).set_result(None)

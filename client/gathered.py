"""Searches that are gathered (gathering.py), sent: one carries the batch of those that wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

from scannery.client.calls import SEARCH, SEARCH_MANY
from scannery.client.errors import ScanneryError
from scannery.client.gathering import (
    WINDOW_S,
    Gathering,
    Kind,
    Waiting,
    answered,
    batch_of,
    failed,
    kind_of,
    too_late,
)
from scannery.client.results import Hits, parse_hits
from scannery.client.transport import AsyncTransport, Transport
from scannery.v1.search_pb2 import SearchRequest

__all__ = ["AsyncGatheredSearches", "GatheredSearches"]


class _Thread(Waiting):
    """A caller in a thread of its own."""

    __slots__ = ("_ready",)

    def __init__(self, request: SearchRequest, until_s: float) -> None:
        super().__init__(request, until_s)
        self._ready = threading.Lock()
        self._ready.acquire()

    def wake(self) -> None:
        self._ready.release()

    def awaited(self, most_s: float) -> bool:
        """Return whether it was woken, within so many seconds."""
        return self._ready.acquire(timeout=max(0.0, min(most_s, self.left_s, threading.TIMEOUT_MAX)))


class GatheredSearches:
    """Searches of threads, of which one that leads carries the others. May be pickled, and used after a fork."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._gathering: Gathering[_Thread] = Gathering()

    def search(self, request: SearchRequest, timeout_s: float) -> Hits:
        """Return the hits of a search; raise a ScanneryError."""
        kind = kind_of(request, timeout_s) if self._transport.gathers else None
        if kind is None:
            return parse_hits(self._transport.call(SEARCH, request, timeout_s))
        waiting = _Thread(request, time.monotonic() + timeout_s)
        first = self._gathering.enter(kind, waiting)
        if waiting.leads:
            return self._alone(kind, waiting)
        led = self._await(kind, waiting, first=first)
        return self._lead(kind, waiting) if led else self._result(waiting)

    def _alone(self, kind: Kind, waiting: _Thread) -> Hits:
        try:
            return self._ask(waiting)
        finally:
            self._gathering.leave(kind)

    def _ask(self, waiting: _Thread) -> Hits:
        return parse_hits(self._transport.call(SEARCH, waiting.request, waiting.left_s))

    def _await(self, kind: Kind, waiting: _Thread, *, first: bool) -> bool:
        """Wait, and return whether it is to lead; False: its batch has ended."""
        try:
            if first:
                if waiting.awaited(WINDOW_S):
                    return waiting.leads
                self._gathering.overdue(kind, waiting)
            if not waiting.leads and not waiting.awaited(threading.TIMEOUT_MAX):
                raise too_late()
            return waiting.leads
        except BaseException:  # Ctrl-C, too, must leave nobody waiting for this one
            self._gathering.give_up(kind, waiting)
            if waiting.leads:
                self._gathering.leave(kind)
            raise

    def _lead(self, kind: Kind, waiting: _Thread) -> Hits:
        others = self._gathering.followers(kind)
        if not others:
            return self._alone(kind, waiting)
        try:
            self._carry([waiting, *others])
        finally:
            self._gathering.leave(kind, 1 + len(others))
            for other in others:
                other.wake()
        return self._result(waiting)

    def _carry(self, batch: list[_Thread]) -> None:
        try:
            answered(batch, self._transport.call(SEARCH_MANY, *batch_of(batch)))
        except ScanneryError as error:
            failed(batch, error)

    def _result(self, waiting: _Thread) -> Hits:
        hits = waiting.hits()
        return self._ask(waiting) if hits is None else hits


class _Coroutine(Waiting):
    """A caller that awaits. Nobody's coroutine carries others, since each may be cancelled."""

    __slots__ = ("_carry", "carried", "ended")

    def __init__(self, request: SearchRequest, until_s: float, carry: Callable[[_Coroutine], object]) -> None:
        super().__init__(request, until_s)
        self._carry = carry
        """Starts what carries it, and those who wait."""
        self.carried = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if self.leads and not self.carried:
            self.carried = True
            self._carry(self)

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class AsyncGatheredSearches:
    """The same, awaitable: a batch has a task of its own, which ends when all of its callers are cancelled."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._gathering: Gathering[_Coroutine] = Gathering()
        self._tasks: set[asyncio.Task[None]] = set()

    async def search(self, request: SearchRequest, timeout_s: float) -> Hits:
        """Return the hits of a search; raise a ScanneryError."""
        kind = kind_of(request, timeout_s) if self._transport.gathers else None
        if kind is None:
            return parse_hits(await self._transport.call(SEARCH, request, timeout_s))
        waiting = _Coroutine(request, time.monotonic() + timeout_s, partial(self._start, kind))
        first = self._gathering.enter(kind, waiting)
        if waiting.leads:
            try:
                return await self._ask(waiting)
            finally:
                self._gathering.leave(kind)
        await self._await(kind, waiting, first=first)
        hits = waiting.hits()
        return await self._ask(waiting) if hits is None else hits

    async def _ask(self, waiting: _Coroutine) -> Hits:
        return parse_hits(await self._transport.call(SEARCH, waiting.request, waiting.left_s))

    async def _await(self, kind: Kind, waiting: _Coroutine, *, first: bool) -> None:
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(waiting.left_s, self._expire, kind, waiting)]
        if first:
            timers.append(loop.call_later(WINDOW_S, self._overdue, kind, waiting))
        try:
            await waiting.ended
        except asyncio.CancelledError:
            self._gathering.give_up(kind, waiting)
            raise
        finally:
            for timer in timers:
                timer.cancel()

    def _overdue(self, kind: Kind, waiting: _Coroutine) -> None:
        self._gathering.overdue(kind, waiting)
        waiting.wake()

    def _expire(self, kind: Kind, waiting: _Coroutine) -> None:
        waiting.error = too_late()
        self._gathering.give_up(kind, waiting)
        waiting.end()

    def _start(self, kind: Kind, leader: _Coroutine) -> None:
        batch = [leader, *self._gathering.followers(kind)]
        task = asyncio.get_running_loop().create_task(self._carry(kind, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def ended(_: asyncio.Future[None]) -> None:
            if all(each.ended.cancelled() for each in batch):
                task.cancel()

        for each in batch:
            each.ended.add_done_callback(ended)

    async def _carry(self, kind: Kind, batch: list[_Coroutine]) -> None:
        call = self._transport.call
        try:
            if len(batch) > 1:
                answered(batch, await call(SEARCH_MANY, *batch_of(batch)))
            else:
                response = await call(SEARCH, batch[0].request, batch[0].left_s)
                batch[0].found = (response, response.version, response.sequence)
        except ScanneryError as error:
            failed(batch, error)
        finally:
            self._gathering.leave(kind, len(batch))
            for each in batch:
                each.end()

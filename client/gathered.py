"""Searches that are gathered (gathering.py), sent: one carries the batch of those that wait."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from collections.abc import Callable
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
        kind = kind_of(request, timeout_s)
        if kind is None:
            return parse_hits(self._transport.call(SEARCH, request, timeout_s))
        waiting = _Thread(request, time.monotonic() + timeout_s)
        first = self._gathering.enter(kind, waiting)
        if waiting.leads:
            return self._alone(kind, waiting)
        self._await(kind, waiting, first=first)
        return self._lead(kind, waiting) if waiting.leads else self._result(waiting)

    def _alone(self, kind: Kind, waiting: _Thread) -> Hits:
        try:
            return self._ask(waiting)
        finally:
            self._gathering.leave(kind)

    def _ask(self, waiting: _Thread) -> Hits:
        return parse_hits(self._transport.call(SEARCH, waiting.request, waiting.left_s))

    def _await(self, kind: Kind, waiting: _Thread, *, first: bool) -> None:
        if first:
            if waiting.awaited(WINDOW_S):
                return
            self._gathering.overdue(kind, waiting)
        if not waiting.leads and not waiting.awaited(threading.TIMEOUT_MAX):
            self._gathering.give_up(kind, waiting)
            # If it was to lead just now, it still has to make way for the next.
            if waiting.leads:
                self._gathering.leave(kind)
            raise too_late()

    def _lead(self, kind: Kind, waiting: _Thread) -> Hits:
        others = self._gathering.followers(kind)
        if not others:
            return self._alone(kind, waiting)
        try:
            self._carry([waiting, *others])
        finally:
            self._gathering.leave(kind)
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

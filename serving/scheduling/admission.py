"""Admission control: which requests are accepted, and which are refused at once because they would be answered late.

A limit on the requests in flight (being worked on or waiting) adapts to what the machine can do: it shrinks while
requests take much longer than they do on an idle server, and grows while they do not and it is being reached
(additive increase, multiplicative decrease on the latency ratio, after Netflix's `concurrency-limits`). Within the
limit, a client may hold no more than its fair share as soon as others are there; of its share, a batch takes as much as
its queries would have taken one by one. Requests with a short expected wait are let in above the limit.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING

from scannery.runtime.errors import OverloadedError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Admission", "Ticket", "with_reserve"]

# Requests that take this many times as long as on an idle server wait more than they work.
TOLERANCE = 2.0
WINDOW = 32
"""Requests between two adaptations of the limit."""
SHRINK = 0.5
"""Smallest factor of one adaptation (multiplicative decrease)."""
PATIENCE_S = 0.015
"""A request that is expected to be answered within this time is never refused: to refuse it would gain nothing."""
# Room above the limit for clients that hold less than their share, so that one cannot shut out the rest.
RESERVE = 0.25
MIN_RETRY_S, MAX_RETRY_S = 0.02, 5.0
# Weights of a new latency in the idle one: seen on an idle server; faster than known; slower than known, under load.
_IDLE, _FASTER, _SLOWER = 0.05, 0.02, 0.0005
_MAX_KINDS = 1024


def with_reserve(most: float) -> int:
    """Return `most` requests plus the reserve for clients that hold less than their share."""
    return int(most * (1 + RESERVE))


class Ticket:
    """An accepted request. It leaves when it is answered, or when the ticket is garbage-collected."""

    __slots__ = ("_admission", "client", "in_flight", "weight")

    def __init__(self, admission: Admission, client: str, in_flight: int) -> None:
        self._admission: Admission | None = admission
        self.client = client
        self.in_flight = in_flight
        """Requests in flight when it came, itself among them."""
        self.weight = 1
        """Of its client's share."""

    def weigh(self, queries: int) -> None:
        """Set its weight in its client's share to the number of its queries."""
        if self._admission is not None and queries > self.weight:
            self._admission._weigh(self, queries)

    def leave(self) -> None:
        """End the request; a second call does nothing."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission._leave(self.client, self.weight)

    def __del__(self) -> None:
        # gRPC may drop a call between its headers and its handler.
        if self._admission is not None:
            self.leave()

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


class Admission:
    """Counts requests in flight and decides on new ones. Safe to use from several threads."""

    def __init__(self, *, least: int, most: int) -> None:
        """Start with a limit of `least`, which it never goes below."""
        self.limit = float(least)
        self._least, self._most = least, most
        # Reentrant: the collector may finish off a forgotten ticket while we hold it.
        self._lock = threading.RLock()
        self._in_flight = 0
        self._clients: dict[str, int] = {}
        self._idle_s: dict[Hashable, float] = {}
        self._pace_s = 0.0
        """How much later a request is answered for each that is in flight."""
        self._ratios = 0.0
        self._samples = self._peak = 0
        self.refused = 0

    @property
    def in_flight(self) -> int:
        """Requests accepted and not yet answered."""
        return self._in_flight

    def enter(self, client: str) -> Ticket:
        """Return a ticket for a request of the client.

        Raises:
            OverloadedError: too much is going on, or this client has its share; says when to try again.

        """
        with self._lock:
            held = self._clients.get(client, 0)
            if not self._has_room(held):
                self.refused += 1
                raise OverloadedError("the server is overloaded", retry_after_s=self._retry_after_s())
            self._clients[client] = held + 1
            self._in_flight += 1
            self._peak = max(self._peak, self._in_flight)
            return Ticket(self, client, self._in_flight)

    def answered(self, ticket: Ticket, kind: Hashable, took_s: float) -> None:
        """Learn from how long a request took; `kind`: requests that cost about the same."""
        with self._lock:
            self._pace_s += 0.05 * (took_s / ticket.in_flight - self._pace_s)
            idle_s = self._idle_s.get(kind)
            if idle_s is None:
                if len(self._idle_s) >= _MAX_KINDS:
                    return
                idle_s = self._idle_s[kind] = took_s
            weight = _IDLE if ticket.in_flight == 1 else _FASTER if took_s < idle_s else _SLOWER
            self._idle_s[kind] = idle_s + weight * (took_s - idle_s)
            # One that took a thousand times as long says no more than "too long".
            self._ratios += min(10 * TOLERANCE, took_s / max(idle_s, 1e-6))
            self._samples += 1
            if self._samples >= WINDOW:
                self._adapt()

    def _adapt(self) -> None:
        ratio = self._ratios / self._samples
        if ratio > TOLERANCE:
            self.limit = max(self._least, self.limit * max(SHRINK, TOLERANCE / ratio))
        elif self._peak >= 0.8 * self.limit:
            self.limit = min(self._most, self.limit + max(1.0, self.limit**0.5 / 2))
        self._ratios, self._samples, self._peak = 0.0, 0, self._in_flight

    def _has_room(self, held: int) -> bool:
        others = len(self._clients) - (held > 0)
        share = self.limit / (others + 1)
        fair = not others or held < share
        if self._in_flight < self.limit:
            # Alone, a client may have all of it; with others, no more than its share once half is taken.
            return fair or self._in_flight < self.limit / 2
        if held < share and self._in_flight < with_reserve(self._most):
            # What a client has beyond the limit must not keep others from their share: it was let in because it seemed
            # to be answered soon, and may wait for a body that never comes.
            counted = sum(min(held, self.limit) for held in self._clients.values())
            if counted < with_reserve(self.limit):
                return True
        soon = 0 < (self._in_flight + 1) * self._pace_s <= PATIENCE_S
        return soon and fair and self._in_flight < self._most

    def _retry_after_s(self) -> float:
        # When those that are here now will be answered.
        return min(MAX_RETRY_S, max(MIN_RETRY_S, self._in_flight * self._pace_s))

    def _weigh(self, ticket: Ticket, weight: int) -> None:
        with self._lock:
            self._clients[ticket.client] += weight - ticket.weight
            ticket.weight = weight

    def _leave(self, client: str, weight: int) -> None:
        with self._lock:
            self._in_flight -= 1
            left = self._clients[client] - weight
            if left:
                self._clients[client] = left
            else:
                del self._clients[client]

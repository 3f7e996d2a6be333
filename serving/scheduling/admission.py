"""Admission control: which requests are accepted, and which are refused at once because they would be answered late.

A limit on the requests in flight (being worked on or waiting) adapts to what the machine can do: it shrinks while
requests take much longer than they do on an idle server, and grows while they do not and it is being reached
(additive increase, multiplicative decrease on the latency ratio, after Netflix's `concurrency-limits`). Within the
limit, a caller may hold no more than its fair share as soon as others are there; of its share, a batch takes as much as
its queries would have taken one by one. Requests with a short expected wait are let in above the limit.

A burst is not an overload: whoever has not been refused lately may exceed the limit by some requests, once. They may
again when the server has nothing to do, or when it was below the limit for a while and nobody was refused.

Callers are accounts (permits.py). Several clients of one account share what the account has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from scannery.runtime.errors import OverloadedError
from scannery.serving.scheduling.permits import Budget, Share

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["SMALL_BYTES", "Admission", "Ticket", "with_reserve"]

# Requests that take this many times as long as on an idle server wait more than they work.
TOLERANCE = 2.0
WINDOW = 32
"""Requests between two adaptations of the limit."""
SHRINK = 0.5
"""Smallest factor of one adaptation (multiplicative decrease)."""
SMALL_BYTES = 1 << 16
"""Bodies and answers up to this size are not counted: there is at most one of each connection."""
PATIENCE_S = 0.015
"""A request that is expected to be answered within this time is never refused: to refuse it would gain nothing."""
# Room above the limit for clients that hold less than their share, so that one cannot shut out the rest.
RESERVE = 0.25
MIN_RETRY_S, MAX_RETRY_S = 0.02, 5.0
CALM_S = 1.0
"""A burst may exceed the limit again after this time below the limit in which nobody was refused."""
NO_BYTES = 1 << 62
# Weights of a new latency in the idle one: seen on an idle server; faster than known; slower than known, under load.
_IDLE, _FASTER, _SLOWER = 0.05, 0.02, 0.0005
_MAX_KINDS = 1024


def with_reserve(limit: float) -> int:
    """Return `limit` requests plus the reserve for clients that hold less than their share."""
    return int(limit * (1 + RESERVE))


class Ticket:
    """An accepted request. It leaves when it is answered, or when the ticket is garbage-collected."""

    __slots__ = ("_admission", "_share", "account", "client", "holder", "in_flight", "weight")

    def __init__(self, admission: Admission, account: str, client: str, in_flight: int) -> None:
        self._admission: Admission | None = admission
        self._share: Share | None = None
        self.account = self.holder = account
        """The caller that the request counts for, and its bytes."""
        self.client = client
        """What it says of its program, to share what the account has; empty: nothing."""
        self.in_flight = in_flight
        """Requests in flight when it came, itself among them."""
        self.weight = 1
        """Weight of its client's share."""

    def weigh(self, queries: int) -> None:
        """Set its weight in its client's share to the number of its queries."""
        if self._admission is not None and queries > self.weight:
            self._admission._weigh(self, queries)

    def hold(self, size_bytes: int, lose: Callable[[], object]) -> None:
        """Account for the bytes of its body, or of its answer in place of that, until it leaves.

        Args:
            size_bytes: of what is in memory, or soon will be. Few bytes are not counted.
            lose: ends the call if the bytes are needed by a caller that holds less.

        Raises:
            OverloadedError: its caller holds too much.

        """
        if self._share is not None:
            self._share.resize(size_bytes)
        elif size_bytes > SMALL_BYTES and self._admission is not None:
            self._share = self._admission.bytes.take(self.holder, size_bytes, lose)

    def leave(self) -> None:
        """End the request; a second call does nothing."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission._leave(self)
        if self._share is not None:
            self._share.close()

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

    def __init__(
        self,
        *,
        least: int,
        maximum: int,
        burst: int = 0,
        buffers: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with a limit of `least`, which it never goes below.

        Args:
            least: lower bound of the limit.
            maximum: upper bound of the limit.
            burst: requests by which callers may exceed the limit at once, up to `maximum`.
            buffers: bytes of bodies and answers; None: they are not bounded.
            clock: seconds.

        """
        self.limit = float(least)
        self.bytes = buffers or Budget(NO_BYTES, "bytes of bodies and unread answers")
        """Bytes of bodies and answers of the requests in flight."""
        self._least, self._maximum = least, maximum
        self._burst = self._burst_left = burst
        self._clock = clock
        self._has_refused = False
        """Whether a request was refused since the burst was whole."""
        self._full_s = 0.0
        """When a request was refused, or let in above the limit."""
        # Reentrant: the collector may finish off a forgotten ticket while we hold it.
        self._lock = threading.RLock()
        self._in_flight = 0
        self._accounts: dict[str, int] = {}
        self._clients: dict[tuple[str, str], int] = {}
        """Weights of the requests in flight, by account, and by account and client."""
        self._clients_of: dict[str, int] = {}
        """Number of clients that each account has in `_clients`."""
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

    def enter(self, account: str, client: str = "") -> Ticket:
        """Return a ticket for a request of a client of an account.

        Raises:
            OverloadedError: too much is going on, or this caller has its share; says when to try again.

        """
        with self._lock:
            if not self._has_room(account, client):
                self.refused += 1
                self._has_refused, self._full_s = True, self._clock()
                raise OverloadedError("the server is overloaded", retry_after_s=self._retry_after_s())
            if self._in_flight >= self.limit:
                self._full_s = self._clock()
                self._burst_left = max(0, self._burst_left - 1)
            self._in_flight += 1
            self._peak = max(self._peak, self._in_flight)
            ticket = Ticket(self, account, client, self._in_flight)
            self._count(ticket, 1)
            return ticket

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
            self.limit = min(self._maximum, self.limit + max(1.0, self.limit**0.5 / 2))
        self._ratios, self._samples, self._peak = 0.0, 0, self._in_flight

    def _has_room(self, account: str, client: str) -> bool:
        if (
            self._burst_left < self._burst
            and self._in_flight < self.limit
            and self._clock() - self._full_s > CALM_S
        ):
            self._burst_left, self._has_refused = self._burst, False
        limit = self._maximum if self._burst_left else self.limit
        if self._in_flight < limit / 2:
            return True
        # Accounts share the limit, and the clients of an account what it may have.
        held = self._accounts.get(account, 0)
        rivals = len(self._accounts) - (held > 0)
        share = limit / (rivals + 1)
        client_held = self._clients.get((account, client), 0)
        fellows = self._clients_of.get(account, 0) - (client_held > 0)
        within = client_held < share / (fellows + 1) and (not rivals or held < share)
        fair = within or not (rivals or fellows)
        if self._in_flight < limit:
            # Alone, a client may have all of it; with others, no more than its share once half is taken.
            return fair
        if within and self._in_flight < with_reserve(self._maximum):
            # What a client has beyond the limit must not keep others from their share: it was let in because it seemed
            # to be answered soon, and may wait for a body that never comes.
            counted = sum(min(held, limit) for held in (self._accounts if rivals else self._clients).values())
            if counted < with_reserve(limit):
                return True
        soon = 0 < (self._in_flight + 1) * self._pace_s <= PATIENCE_S
        return soon and fair and self._in_flight < self._maximum

    def _retry_after_s(self) -> float:
        # When those that are here now will be answered.
        return min(MAX_RETRY_S, max(MIN_RETRY_S, self._in_flight * self._pace_s))

    def _weigh(self, ticket: Ticket, weight: int) -> None:
        with self._lock:
            self._count(ticket, weight - ticket.weight)
            ticket.weight = weight

    def _leave(self, ticket: Ticket) -> None:
        with self._lock:
            self._in_flight -= 1
            self._count(ticket, -ticket.weight)
            if not self._in_flight and not self._has_refused:
                # All of the burst is answered.
                self._burst_left = self._burst

    def _count(self, ticket: Ticket, weight: int) -> None:
        account, client = ticket.account, (ticket.account, ticket.client)
        before = self._clients.get(client, 0)
        after = before + weight
        if after:
            self._clients[client] = after
        else:
            del self._clients[client]
        if not before or not after:
            clients = self._clients_of.get(account, 0) + (1 if weight > 0 else -1)
            if clients:
                self._clients_of[account] = clients
            else:
                del self._clients_of[account], self._accounts[account]
                return
        self._accounts[account] = self._accounts.get(account, 0) + weight

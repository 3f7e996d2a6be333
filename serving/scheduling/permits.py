"""Permits that bound how many requests run at once.

Callers who wait take turns, however many requests each of them has. While others wait, a caller gets no more permits
than its share. A caller that holds none gets one at once while no more than `most` callers hold any, so that slow
requests of a few never stop the others.

What the requests of all callers share in one process: bytes, open streams, and whatever else has an end.

A caller is an account: the key or token that it shows, else the address that it calls from. A caller may hold half of
what the others leave. So a lone caller has half of all, each of two a third, and there is always room for a caller
that holds nothing. Where a caller would be refused although another one holds more, the one that holds most loses.

The callers of this module take their part before they do the work, and give it back whatever happens.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeVar

from scannery.runtime.errors import DeadlineError, OverloadedError
from scannery.runtime.retry import Deadline
from scannery.serving.telemetry.tracing import span

__all__ = [
    "Budget",
    "CallerGoneError",
    "Permit",
    "Permits",
    "Share",
    "current_permit",
    "heaviest",
    "still_wanted",
    "waiting",
]


class CallerGoneError(Exception):
    """The caller hung up."""


class Turns(Protocol):
    """Permits as one caller sees them; a semaphore is such."""

    def acquire(self, *, timeout: float | None = None) -> bool:
        """Take a permit; return False if none was free in time. None: wait for ever."""

    def release(self) -> None:
        """Give a permit back."""


class _Waiter:
    __slots__ = ("granted", "wake")

    def __init__(self) -> None:
        self.granted = False
        self.wake = threading.Lock()
        self.wake.acquire()


class Permits:
    """Permits of a process: `limit` for any caller, and one for each of as many callers that hold none.

    Safe to use from several threads.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        """Permits by account."""
        self._taken = 0
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        """Requests that wait, by account; the account whose turn it is comes first."""

    def of(self, account: str) -> Turns:
        """Return the permits for an account."""
        return _Turns(self, account)

    def acquire(self, account: str, timeout_s: float | None = None) -> bool:
        """Take a permit for an account; return False if none was free in time. None: wait for ever."""
        with self._lock:
            if account not in self._waiting and self._may_take(account):
                self._take(account)
                return True
            waiter = _Waiter()
            self._waiting.setdefault(account, deque()).append(waiter)
        if waiter.wake.acquire(timeout=-1 if timeout_s is None else timeout_s):
            return True
        with self._lock:
            if waiter.granted:
                return True
            self._waiting[account].remove(waiter)
            if not self._waiting[account]:
                del self._waiting[account]
            # The shares of the others are larger without it.
            self._grant()
            return False

    def release(self, account: str) -> None:
        """Give a permit back."""
        with self._lock:
            self._taken -= 1
            self._held[account] -= 1
            if not self._held[account]:
                del self._held[account]
            if self._waiting:
                self._grant()

    def _grant(self) -> None:
        while account := next((each for each in self._waiting if self._may_take(each)), None):
            waiters = self._waiting[account]
            waiter = waiters.popleft()
            if waiters:
                self._waiting.move_to_end(account)
            else:
                del self._waiting[account]
            self._take(account)
            waiter.granted = True
            waiter.wake.release()

    def _take(self, account: str) -> None:
        self._taken += 1
        self._held[account] = self._held.get(account, 0) + 1

    def _may_take(self, account: str) -> bool:
        held = self._held.get(account, 0)
        if not held:
            return len(self._held) <= self._limit
        if self._taken >= self._limit:
            return False
        competitors = len(self._waiting) - (account in self._waiting)
        if not competitors:
            return True
        callers = len(self._waiting.keys() | self._held.keys())
        return held < math.ceil(self._limit / callers)


@dataclass(frozen=True, slots=True)
class _Turns:
    permits: Permits
    account: str

    def acquire(self, *, timeout: float | None = None) -> bool:
        return self.permits.acquire(self.account, timeout)

    def release(self) -> None:
        self.permits.release(self.account)


class Permit:
    """The permit of a request: a context that waits for it, and raises CallerGoneError if the caller hung up."""

    __slots__ = ("_held", "_permits", "_token", "deadline", "is_wanted", "on_end")

    def __init__(
        self,
        permits: Turns,
        deadline: Deadline,
        is_wanted: Callable[[], bool],
        on_end: Callable[[Callable[[], None]], bool] | None = None,
    ) -> None:
        """Take no permit yet.

        Args:
            permits: those of the process, for its caller.
            deadline: of the request; ends the wait.
            is_wanted: returns whether the caller still waits for the answer.
            on_end: registers a callback for the end of the call, answered or not; False: the call has ended already.

        """
        self._permits = permits
        self._held = False
        self.deadline, self.is_wanted, self.on_end = deadline, is_wanted, on_end

    def __enter__(self) -> None:
        with span("scannery.queue"):
            self.resume()
        if not self.is_wanted():
            self.pause()
            raise CallerGoneError
        self._token = _CURRENT.set(self)

    def __exit__(self, *error: object) -> None:
        _CURRENT.reset(self._token)
        self.pause()

    def pause(self) -> None:
        """Release the permit while the request waits, or has next to nothing left to do."""
        if self._held:
            self._held = False
            self._permits.release()

    def resume(self) -> None:
        """Take the permit again; DeadlineError if that takes too long."""
        if not self._permits.acquire(timeout=min(self.deadline.remaining_s, threading.TIMEOUT_MAX)):
            raise DeadlineError("the deadline passed while the request waited for its turn")
        self._held = True

    def insist(self) -> None:
        """Take the permit again, without a deadline."""
        self._permits.acquire()
        self._held = True


_CURRENT: ContextVar[Permit | None] = ContextVar("scannery_permit", default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """Release the permit of the current request, if it has one, inside the context."""
    permit = _CURRENT.get()
    if permit is None:
        yield
        return
    permit.pause()
    try:
        yield
    finally:
        permit.insist()


def current_permit() -> Permit | None:
    """Return the permit of the current request; None outside of one."""
    return _CURRENT.get()


def still_wanted() -> Callable[[], bool]:
    """Return the function that tells whether the caller of the current request still waits."""
    permit = _CURRENT.get()
    return permit.is_wanted if permit else _always


def _always() -> bool:
    return True


RETRY_S = 1.0
"""What is held is mostly given back within this time: callers read, and requests are answered."""

AccountT = TypeVar("AccountT")


def heaviest(amounts: Mapping[AccountT, float]) -> AccountT:
    """Return the account with the largest amount, the first one of equals."""
    return max(amounts, key=amounts.__getitem__)


class Share:
    """A part of a budget that an account holds, until it is given back, lost or garbage-collected."""

    __slots__ = ("__weakref__", "_budget", "_lose", "account", "amount")

    def __init__(self, budget: Budget, account: str, lose: Callable[[], object] | None) -> None:
        self._budget: Budget | None = budget
        self._lose = lose
        self.account = account
        self.amount = 0
        """Bytes, or what else the budget counts."""

    def resize(self, amount: int) -> None:
        """Hold another amount; raises OverloadedError and holds what it did if there is no room for more."""
        if self._budget is not None:
            self._budget._resize(self, amount)

    def close(self) -> None:
        """Hold nothing any more; a second call does nothing."""
        budget, self._budget, self._lose = self._budget, None, None
        if budget is not None:
            budget._give_back(self)

    def __del__(self) -> None:
        self.close()


class Budget:
    """An amount that accounts share. Safe to use from several threads."""

    def __init__(self, total: int, what: str) -> None:
        """Hold nothing yet.

        Args:
            total: bytes, or what else is counted.
            what: is counted, for messages, with its unit, such as "bytes of unread answers".

        """
        self.total, self._what = total, what
        # Reentrant: the collector may finish off a forgotten share while the lock is held.
        self._lock = threading.RLock()
        self._accounts: Counter[str] = Counter()
        self._losable: weakref.WeakValueDictionary[int, Share] = weakref.WeakValueDictionary()
        """Shares whose holder can be made to lose them."""
        self._held = 0

    @property
    def held(self) -> int:
        """Amount that all accounts hold."""
        return self._held

    def take(self, account: str, amount: int, lose: Callable[[], object] | None = None) -> Share:
        """Return a share of an account.

        Args:
            account: who holds it.
            amount: to hold at first.
            lose: ends what holds the share, from any thread; None: it cannot be ended. The share is given back then.

        Raises:
            OverloadedError: the account holds its part already.

        """
        share = Share(self, account, lose)
        share.resize(amount)
        return share

    def most_of(self, account: str) -> int:
        """Return the amount that an account may hold now."""
        return (self.total - self._held + self._accounts[account]) // 2

    def _resize(self, share: Share, amount: int) -> None:
        losers: list[Callable[[], object]] = []
        with self._lock:
            more = amount - share.amount
            held = self._accounts[share.account]
            while more > 0 and held + more > self.most_of(share.account):
                loser = self._loser(share, held + more)
                if loser is None:
                    break
                losers += filter(None, [loser._lose])
                loser.close()
            limit = self.most_of(share.account)
            refused = more > 0 and held + more > limit
            if not refused:
                self._add(share, more)
        for lose in losers:
            lose()
        if refused:
            raise OverloadedError(
                f"this caller would hold {held + more} {self._what}, and may hold {limit} now of {self.total}",
                retry_after_s=RETRY_S,
            )

    def _loser(self, share: Share, amount: int) -> Share | None:
        """Return the largest share of the account that holds most; None: it has none, or no more than `amount`."""
        account = heaviest(self._accounts) if self._accounts else share.account
        if account == share.account or self._accounts[account] <= amount:
            return None
        shares = [each for each in self._losable.values() if each.account == account]
        return max(shares, key=lambda each: each.amount, default=None)

    def _add(self, share: Share, more: int) -> None:
        share.amount += more
        self._held += more
        self._accounts[share.account] += more
        if not self._accounts[share.account]:
            del self._accounts[share.account]
        if share._lose is not None and share.amount:
            self._losable[id(share)] = share

    def _give_back(self, share: Share) -> None:
        with self._lock:
            self._losable.pop(id(share), None)
            self._add(share, -share.amount)

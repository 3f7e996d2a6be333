"""One call to one group: which leaves are asked, when a second one, and what the outcome is.

Used in the thread of the event loop only, so there are no locks.

1. The better of two random leaves is asked.
2. If it fails, another one is asked at once; each leaf is asked once.
3. If it is slow, another one is asked too, as far as the budget allows; the first answer counts, the other call is
   cancelled.
4. If it is full, one other leaf is asked.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import grpc.aio

from scannery.runtime.errors import (
    DeadlineError,
    OverloadedError,
    ServingError,
    StateGoneError,
    UnavailableError,
)
from scannery.serving.leaves.connector import Connector, Headers
from scannery.serving.leaves.leaf import HedgeBudget, LatencyWindow, Leaf, one_line
from scannery.serving.leaves.view import View
from scannery.serving.status import error_from_status, received_detail
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.telemetry.tracing import OutgoingCalls, OutgoingSpan
from scannery.v1.leaf_pb2 import At

__all__ = ["KEPT_HEDGES", "Attempt", "Call", "Cluster", "GroupCall"]

RETRY_AFTER_S = 0.5
"""Retry delay for callers when a group does not answer: the interval of status calls."""

_OK = "OK"
_FIRST, _HEDGE, _FAILOVER = "first", "hedge", "failover"
"""Why a leaf is asked, as traces say it."""
_LEAST_RETRY_S = 0.05
KEPT_HEDGES = 5.0
"""Second calls that stay saved for calls that take at least three times as long as the 95th percentile."""

_DEFECTS = frozenset((grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS))
# The request is not at fault, as far as is known: another replica may answer it.
_TRY_ANOTHER = _DEFECTS | {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
}


@dataclass
class Cluster:
    """What all calls share."""

    connector: Connector
    metrics: ServerMetrics
    lost: Callable[[Leaf, str], None]
    """Called when the connection to a leaf is lost."""
    view: View = field(default_factory=lambda: View(()))
    windows: dict[tuple[int, str], LatencyWindow] = field(default_factory=dict)
    """Windows by group and method."""
    budgets: dict[int, HedgeBudget] = field(default_factory=dict)
    """Budgets by group."""


@dataclass(frozen=True)
class Call:
    """What is asked of all groups."""

    path: str
    at: At
    end_s: float
    """When leaves have to have answered, in seconds of `time.monotonic`: the clock of uvloop counts milliseconds."""
    trace: OutgoingCalls
    """Makes a span of each call to a leaf."""
    groups: int
    """Number of groups when the request began."""


class Attempt:
    """A call to one leaf."""

    __slots__ = ("headers", "leaf", "owner", "span", "started_s", "task")

    def __init__(
        self, owner: GroupCall, leaf: Leaf, headers: Headers, started_s: float, span: OutgoingSpan
    ) -> None:
        self.owner, self.leaf, self.headers, self.started_s, self.span = owner, leaf, headers, started_s, span
        self.task: asyncio.Future[bytes] | None = None


class GroupCall:
    """A call to one group."""

    def __init__(
        self,
        cluster: Cluster,
        call: Call,
        group: int,
        request: bytes,
        ended: Callable[[int, bytes | ServingError], None],
    ) -> None:
        """Ask nothing yet.

        Args:
            cluster: the leaves.
            call: what is asked.
            group: its number.
            request: the serialised request.
            ended: called once with the group, and its answer or the error.

        """
        self._cluster, self._call, self._group, self._request, self._tell = (
            cluster,
            call,
            group,
            request,
            ended,
        )
        self._loop = asyncio.get_running_loop()
        self._started_s = time.monotonic()
        self._tried: set[Leaf] = set()
        self._running: set[Attempt] = set()
        self._failed: list[grpc.aio.AioRpcError] = []
        self._full = 0
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        key = (group, call.path)
        self._window = cluster.windows.get(key) or cluster.windows.setdefault(key, LatencyWindow())
        self._budget = cluster.budgets.get(group) or cluster.budgets.setdefault(group, HedgeBudget())

    def begin(self) -> None:
        """Ask the first leaf."""
        self._budget.save()
        if not self._ask_another(_FIRST):
            self._end(self._error())
            return
        if not self._ended and len(self._cluster.view.leaves_of(self._group, self._call.groups)) > 1:
            self._wait(self._window.slow_after_s)

    def cancel(self) -> None:
        """Cancel the calls; nothing is told."""
        self._ended = True
        self._stop()

    def fail_over(self, leaf: Leaf) -> None:
        """Ask another leaf, since this one, which was asked, does not answer any more; its answer still counts."""
        if not self._ended and len(self._running) == 1 and self._ask_another(_FAILOVER):
            self._cluster.metrics.leaf_failovers.inc((str(self._group),))

    def _wait(self, delay_s: float, *, again: bool = False) -> None:
        # Loops count milliseconds, from when the current step began: without one more, calls would be slow too early.
        self._timer = self._loop.call_later(math.ceil(delay_s * 1000 + 1) / 1000, self._slow, delay_s, again)

    def _slow(self, delay_s: float, again: bool) -> None:
        """Ask a second leaf; if the budget does not allow it now, look again when twice the time has passed."""
        self._timer = None
        if self._next() is None:
            return
        # Calls that are much slower than others come before those that are a little slower.
        if not self._budget.take(keep=0 if again else KEPT_HEDGES):
            self._wait(2 * delay_s, again=True)
            return
        self._cluster.metrics.leaf_hedges.inc((str(self._group),))
        self._ask_another(_HEDGE)

    def _next(self) -> Leaf | None:
        return self._cluster.view.choose(
            self._group, self._call.groups, self._call.at, self._tried, time.monotonic()
        )

    def _ask_another(self, why: str) -> bool:
        """Ask a leaf that was not asked yet, and return whether there is one."""
        leaf = self._next()
        if leaf is None or time.monotonic() >= self._call.end_s:
            return False
        self._ask(leaf, why)
        return True

    def _ask(self, leaf: Leaf, why: str) -> None:
        now_s = time.monotonic()
        headers = self._cluster.connector.headers()
        attempt = Attempt(self, leaf, headers, now_s, self._traced(leaf, why))
        left_s = None if self._call.end_s == math.inf else self._call.end_s - now_s
        call = leaf.call(self._call.path, self._request, left_s, headers + attempt.span.headers)
        self._tried.add(leaf)
        self._running.add(attempt)
        leaf.attempts.add(attempt)
        attempt.task = asyncio.ensure_future(call)
        attempt.task.add_done_callback(partial(self._attempt_ended, attempt))

    def _traced(self, leaf: Leaf, why: str) -> OutgoingSpan:
        return self._call.trace.begin(
            self._call.path,
            **{
                "server.address": leaf.address,
                "scannery.index": self._call.at.index,
                "scannery.group": self._group,
                "scannery.attempt": why,
            },
        )

    def _attempt_ended(self, attempt: Attempt, task: asyncio.Future[bytes]) -> None:
        attempt.leaf.attempts.discard(attempt)
        self._running.discard(attempt)
        error = None if task.cancelled() else task.exception()
        attempt.span.end(_code_of(task, error))
        if self._ended:
            return
        if task.cancelled():
            # Its connection was closed: the leaf was removed long ago.
            if not self._ask_another(_FAILOVER) and not self._running:
                self._end(self._error())
        elif error is None:
            self._answered(attempt, task.result())
        elif isinstance(error, grpc.aio.AioRpcError):
            self._attempt_failed(attempt, error)
        else:
            self._end(ServingError(f"a call to {attempt.leaf.address} failed: {error!r}"))

    def _answered(self, attempt: Attempt, answer: bytes) -> None:
        now_s = time.monotonic()
        self._count(_OK)
        attempt.leaf.answered(now_s - attempt.started_s, now_s)
        # Of the first leaf that was asked: a later one answers sooner after the begin of its call.
        self._window.add(now_s - self._started_s)
        self._cluster.metrics.leaf_seconds.observe(now_s - self._started_s, (str(self._group),))
        for slower in self._running:
            slower.leaf.abandoned += 1
            slower.leaf.average.add(now_s - slower.started_s, now_s)
        self._end(answer)

    def _attempt_failed(self, attempt: Attempt, error: grpc.aio.AioRpcError) -> None:
        code = error.code()
        self._count(code.name)
        self._failed.append(error)
        if code is grpc.StatusCode.UNAUTHENTICATED and self._cluster.connector.refused(attempt.headers):
            self._ask(attempt.leaf, _FAILOVER)
            return
        if code is grpc.StatusCode.UNAVAILABLE:
            self._cluster.lost(attempt.leaf, error.details() or code.name)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._full += 1
        elif code not in _TRY_ANOTHER and code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            self._end(self._error_of(error))
            return
        if (code in _TRY_ANOTHER or self._full == 1) and self._ask_another(_FAILOVER):
            self._cluster.metrics.leaf_failovers.inc((str(self._group),))
        elif not self._running:
            self._end(self._error())

    def _error(self) -> ServingError:
        """Return the error when no leaf is left that could answer."""
        codes = [error.code() for error in self._failed]
        for code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED):
            if code in codes:
                return self._error_of(self._failed[codes.index(code)])
        if time.monotonic() >= self._call.end_s:
            return DeadlineError(f"the deadline passed before group {self._group} of the leaves answered")
        if codes and all(code is grpc.StatusCode.OUT_OF_RANGE for code in codes):
            return self._error_of(self._failed[-1])
        if self._failed:
            return self._error_of(self._failed[-1])
        return UnavailableError(f"no leaf of group {self._group} is ready", retry_after_s=RETRY_AFTER_S)

    def _error_of(self, failed: grpc.aio.AioRpcError) -> ServingError:
        code: Any = failed.code()
        detail = received_detail(failed.trailing_metadata())
        message = one_line(detail.message or failed.details() or code.name.lower())
        group = f"group {self._group} of the leaves"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineError(f"the deadline passed before {group} answered")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            retry_after_s = max(detail.retry_after_ms / 1000, _LEAST_RETRY_S)
            return OverloadedError(f"{group}: {message}", retry_after_s=retry_after_s)
        if code is grpc.StatusCode.OUT_OF_RANGE:
            return StateGoneError(f"{group}: {message}", retry_after_s=RETRY_AFTER_S)
        if code in _DEFECTS:
            return ServingError(f"{group}: {code.name}: {message}")
        translated = error_from_status(code, message, detail)
        return translated or UnavailableError(
            f"{group} does not answer: {code.name}: {message}", retry_after_s=RETRY_AFTER_S
        )

    def _end(self, outcome: bytes | ServingError) -> None:
        self._ended = True
        self._stop()
        self._tell(self._group, outcome)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for attempt in tuple(self._running):
            if attempt.task is not None:
                attempt.task.cancel()

    def _count(self, code: str) -> None:
        self._cluster.metrics.leaf_calls.inc((str(self._group), code))


def _code_of(task: asyncio.Future[bytes], error: BaseException | None) -> str:
    """Return the name of the status of a call that has ended."""
    if task.cancelled():
        return grpc.StatusCode.CANCELLED.name
    if error is None:
        return _OK
    return error.code().name if isinstance(error, grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN.name

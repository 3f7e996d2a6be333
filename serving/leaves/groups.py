"""A root's calls to the leaves of its cluster.

One thread with an event loop does all calls of a process, with gRPC's asynchronous API: its futures start a thread for
each call, which made a call to 8 groups twice as expensive (docs/benchmarks/cluster.md). A request waits for its
answers without a permit, and parses them in its own thread.

Create it before or after a fork, and start it after.

One call to several groups: it ends with the answers of all, or with the first error that may not be left out.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TypeVar

import uvloop
from google.protobuf.message import Message

from scannery.runtime.errors import (
    ClosedError,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    ServingError,
    StateGoneError,
    UnavailableError,
)
from scannery.runtime.retry import Deadline
from scannery.serving.config import LeavesConfig
from scannery.serving.leaves.connector import Connector
from scannery.serving.leaves.group_call import RETRY_AFTER_S, Call, Cluster, GroupCall
from scannery.serving.leaves.leaf import IndexState, Leaf, most_parts, parsed
from scannery.serving.leaves.watch import Watch
from scannery.serving.scheduling.permits import CallerGoneError, current_permit, waiting
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.telemetry.tracing import outgoing_calls, span
from scannery.v1.leaf_pb2 import At

__all__ = ["LeafGroups", "LeafInfo", "left_out"]


MARGIN_S = 0.005
"""Leaves get this much less time than the request has, for what the root does with their answers."""


class FanOut:
    """A call to several groups, made in the thread of the event loop; `outcome` may be waited for in others."""

    def __init__(
        self,
        path: str,
        requests: Mapping[int, bytes],
        at: At,
        of_groups: int,
        deadline: Deadline,
        left_out: Callable[[ServingError], bool],
    ) -> None:
        """Ask nothing yet.

        Args:
            path: of the method.
            requests: by group, serialised.
            at: the state in them.
            of_groups: number of groups when the request of the caller began.
            deadline: of that request.
            left_out: returns whether a group with an error is left out of the outcome.

        """
        self.deadline = deadline
        self.outcome: Future[dict[int, bytes]] = Future()
        self._path, self._requests, self._at, self._left_out = path, requests, at, left_out
        self._of_groups = of_groups
        # Of the trace of this thread; calls are made in that of the loop.
        self._trace = outgoing_calls()
        self._calls: list[GroupCall] = []
        self._answers: dict[int, bytes] = {}
        self._missing: list[ServingError] = []

    def begin(self, cluster: Cluster) -> None:
        """Ask all groups; in the thread of the loop."""
        if self.outcome.done():
            return
        end_s = time.monotonic() + self.deadline.remaining_s - MARGIN_S
        call = Call(self._path, self._at, end_s, self._trace, self._of_groups)
        self._calls = [
            GroupCall(cluster, call, group, request, self._ended) for group, request in self._requests.items()
        ]
        for group_call in self._calls:
            if self.outcome.done():
                return
            try:
                group_call.begin()
            except Exception as error:  # noqa: BLE001  the caller must not wait for ever
                self.fail(ServingError(f"the leaves cannot be called: {error!r}"))

    def cancel(self) -> None:
        """Cancel all calls, unless the outcome is known; in the thread of the loop."""
        if self.outcome.cancel():
            self._stop()

    def fail(self, error: ServingError) -> None:
        """End with an error; in the thread of the loop."""
        if not self.outcome.done():
            self.outcome.set_exception(error)
            self._stop()

    def _stop(self) -> None:
        for call in self._calls:
            call.cancel()

    def _ended(self, group: int, outcome: bytes | ServingError) -> None:
        if self.outcome.done():
            return
        if isinstance(outcome, bytes):
            self._answers[group] = outcome
        elif self._left_out(outcome):
            self._missing.append(outcome)
        else:
            self.fail(outcome)
            return
        if len(self._answers) + len(self._missing) == len(self._requests):
            if self._answers:
                self.outcome.set_result(self._answers)
            else:
                self.outcome.set_exception(self._missing[0])


def left_out(*, allow_partial: bool, allow_gone: bool) -> Callable[[ServingError], bool]:
    """Return whether a group with an error is left out of an answer."""
    if not allow_partial:
        return lambda error: False

    def is_left_out(error: ServingError) -> bool:
        if isinstance(error, StateGoneError):
            return allow_gone
        return isinstance(error, (UnavailableError, OverloadedError, DeadlineError))

    return is_left_out


_ANSWER_WITHIN_S = 5.0
"""Time after the deadline in which the loop must have ended a call; only a defect takes longer."""

AnswerT = TypeVar("AnswerT", bound=Message)


@dataclass(frozen=True, kw_only=True)
class LeafInfo:
    """What the root knows of a leaf."""

    address: str
    """`host:port`."""
    group: int | None
    """Number of its group; None: it has not said it yet."""
    groups: int | None
    """Number of groups that it says."""
    ready: bool
    """Whether it answers."""
    problem: str
    """What is wrong; empty: nothing."""
    over_http: bool
    """Whether most calls go over HTTP; otherwise over gRPC."""
    latency_s: float
    """Average latency; 0: not asked lately."""
    calls: int
    """Calls of this process that run."""
    in_flight: int
    """These, and the requests of others that it had at its last status."""
    in_flight_limit: int
    """Most requests that it accepts."""
    indexes: tuple[tuple[str, IndexState], ...]
    """The states of the newest versions that it has, by name of the index."""


class LeafGroups:
    """The leaves of a cluster, by group. Safe to use from several threads."""

    def __init__(self, config: LeavesConfig, metrics: ServerMetrics | None = None) -> None:
        """Prepare; `start` connects.

        Args:
            config: target and credentials.
            metrics: of this process.

        """
        self._config = config
        self._cluster = Cluster(Connector(config), metrics or ServerMetrics(), self._lost)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: Watch | None = None
        self._calls: set[FanOut] = set()
        self._thread = threading.Thread(target=self._run, name="scannery-leaves", daemon=True)
        self._ready = threading.Event()
        self._closed = False

    def report_to(self, metrics: ServerMetrics) -> None:
        """Count calls in these metrics from now on."""
        self._cluster.metrics = metrics

    def start(self, timeout_s: float) -> None:
        """Connect, and return when each group has a leaf that is ready, or after `timeout_s`.

        Leaves are watched from then on. Leaves that are not there yet are no error.

        Raises:
            ConfigError: a file with credentials cannot be used.

        """
        self._cluster.connector.check()
        self._loop = uvloop.new_event_loop()
        self._thread.start()
        self._ready.wait(timeout_s)

    def close(self) -> None:
        """Close all connections; calls that run fail with ClosedError."""
        self._closed = True
        loop = self._loop
        if loop is not None and self._thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    @property
    def groups(self) -> int:
        """Number of groups, as the leaves say; raises UnavailableError if none has answered yet."""
        groups = self._cluster.view.groups
        if not groups:
            raise UnavailableError(
                f"no leaf of {self._config.target} has answered", retry_after_s=RETRY_AFTER_S
            )
        return groups

    @property
    def ready(self) -> bool:
        """Whether each group has a leaf that is ready."""
        return self._cluster.view.complete

    @property
    def problems(self) -> Sequence[str]:
        """What is wrong with the leaves; empty: nothing."""
        return tuple(self._cluster.view.problems)

    def indexes(self) -> Sequence[str]:
        """Return the names of the indexes that have a state which every group can answer."""
        return self._cluster.view.indexes()

    def newest(self, index: str) -> At | None:
        """Return the newest state of an index that every group can answer; None: there is none.

        A group can answer it if at least half of its ready leaves have it.
        """
        return self._cluster.view.newest(index)

    def told_rows(self, at: At, group: int) -> int | None:
        """Return how many datapoints of a version a group has told last; None: it has not told any."""
        return self._cluster.view.rows(at, group)

    def catch_up(self, timeout_s: float) -> None:
        """Return when the view has what the leaves have told until now, or after `timeout_s`.

        `statuses` has it a moment before.
        """
        if self._loop is not None:
            done = threading.Event()
            # An answer and the view that follows from it are one step of the loop.
            self._loop.call_soon_threadsafe(done.set)
            done.wait(timeout_s)

    def statuses(self) -> Sequence[LeafInfo]:
        """Return what is known of each leaf, by group and address."""
        leaves = [_info(leaf, time.monotonic()) for leaf in self._cluster.view.leaves]
        return sorted(leaves, key=lambda leaf: (leaf.group is None, leaf.group, leaf.address))

    def call(
        self,
        path: str,
        request: Message,
        response: type[AnswerT],
        deadline: Deadline,
        *,
        at: At,
        groups: Collection[int] | None = None,
        of_groups: int | None = None,
        allow_partial: bool = False,
        allow_gone: bool = False,
    ) -> dict[int, AnswerT]:
        """Send one request to a leaf of each group, and return the answers by group.

        Args:
            path: of the method.
            request: for all groups.
            response: type of the answers.
            deadline: of the request; leaves get 5 ms less.
            at: the state in the request: leaves that have it are asked first.
            groups: those that are asked; None: all.
            of_groups: number of groups when the caller's request began; None: now.
            allow_partial: leave out groups that do not answer, are full, or miss the deadline, unless all do.
            allow_gone: with `allow_partial`, also leave out groups that do not have the state.

        Raises:
            UnavailableError: no leaf of a group answers; the message names the group.
            StateGoneError: no leaf of a group has the state.
            OverloadedError: two leaves of a group are full.
            DeadlineError: the deadline passed.
            CallerGoneError: the caller of the current request hung up.
            ClosedError: the connections were closed.
            ServingError: as the leaves answer.

        """
        total = of_groups or self._cluster.view.groups
        numbers = range(of_groups or self.groups) if groups is None else groups
        requests = dict.fromkeys(numbers, (_serialized(request), most_parts(request)))
        return self._call(path, requests, response, deadline, at, total, allow_partial, allow_gone)

    def call_each(
        self,
        path: str,
        requests: Mapping[int, Message],
        response: type[AnswerT],
        deadline: Deadline,
        *,
        at: At,
        of_groups: int | None = None,
        allow_partial: bool = False,
        allow_gone: bool = False,
    ) -> dict[int, AnswerT]:
        """Send a request of its own to a leaf of each group in `requests`; otherwise as `call`."""
        total = of_groups or self._cluster.view.groups
        serialized = {
            group: (_serialized(request), most_parts(request)) for group, request in requests.items()
        }
        return self._call(path, serialized, response, deadline, at, total, allow_partial, allow_gone)

    def _call(
        self,
        path: str,
        serialized: Mapping[int, tuple[bytes, int]],
        response: type[AnswerT],
        deadline: Deadline,
        at: At,
        of_groups: int,
        allow_partial: bool,
        allow_gone: bool,
    ) -> dict[int, AnswerT]:
        """As `call`; of each group what is sent, and the most parts of its answer."""
        if not serialized:
            return {}
        requests = {group: request for group, (request, _) in serialized.items()}
        lacking = left_out(allow_partial=allow_partial, allow_gone=allow_gone)
        about = {"scannery.method": path, "scannery.index": at.index, "scannery.groups": len(requests)}
        with span("scannery.leaves", **about) as traced, waiting():
            answers = self._answers_of(FanOut(path, requests, at, of_groups, deadline, lacking))
            if traced is not None:
                traced.set_attribute("scannery.groups_answered", len(answers))
        return {
            group: parsed(response, answers[group], serialized[group][1], f"group {group} of the leaves")
            for group in sorted(answers)
        }

    def _answers_of(self, fan_out: FanOut) -> dict[int, bytes]:
        """Return the answers of a call by group; raises as `call`."""
        loop, permit = self._loop, current_permit()
        if loop is None or self._closed:
            raise ClosedError("the connections to the leaves are closed")
        fan_out.deadline.check()

        def cancel() -> None:
            loop.call_soon_threadsafe(fan_out.cancel)

        try:
            loop.call_soon_threadsafe(self._begin, fan_out)
            if permit is not None and permit.on_end is not None and not permit.on_end(cancel):
                cancel()
            return fan_out.outcome.result(
                min(fan_out.deadline.remaining_s + _ANSWER_WITHIN_S, threading.TIMEOUT_MAX)
            )
        except ServingError:  # DeadlineError is a TimeoutError, too
            raise
        except CancelledError as error:
            raise CallerGoneError from error
        except FutureTimeoutError as error:
            cancel()
            raise DeadlineError("the deadline passed before the leaves answered") from error
        except RuntimeError as error:  # the loop is closed
            raise ClosedError("the connections to the leaves are closed") from error

    def _begin(self, fan_out: FanOut) -> None:
        if self._closed:
            fan_out.fail(ClosedError("the connections to the leaves are closed"))
            return
        self._calls.add(fan_out)
        fan_out.outcome.add_done_callback(lambda _: self._calls.discard(fan_out))
        fan_out.begin(self._cluster)

    def _lost(self, leaf: Leaf, problem: str) -> None:
        if self._watch is not None:
            self._watch.lost(leaf, problem)

    def _view_changed(self) -> None:
        if self._cluster.view.complete:
            self._ready.set()

    def _run(self) -> None:
        assert self._loop is not None
        loop = self._loop
        asyncio.set_event_loop(loop)
        self._watch = Watch(self._config, self._cluster, self._view_changed)
        watching = loop.create_task(self._watch.run())
        try:
            loop.run_forever()
        finally:
            watching.cancel()
            for fan_out in tuple(self._calls):
                fan_out.fail(ClosedError("the connections to the leaves were closed"))
            loop.run_until_complete(asyncio.gather(watching, self._watch.close(), return_exceptions=True))
            loop.close()


def _info(leaf: Leaf, now_s: float) -> LeafInfo:
    state = leaf.state
    return LeafInfo(
        address=leaf.address,
        group=state.group if state else None,
        groups=state.groups if state else None,
        ready=leaf.ready,
        problem=leaf.problem,
        over_http=leaf.over_http,
        latency_s=leaf.average.at(now_s),
        calls=len(leaf.attempts),
        in_flight=len(leaf.attempts) + leaf.other_calls,
        in_flight_limit=leaf.limit,
        indexes=state.current if state else (),
    )


def _serialized(request: Message) -> bytes:
    try:
        return request.SerializeToString()
    except ValueError as error:  # a text that is not Unicode
        raise InvalidRequestError(str(error)) from error

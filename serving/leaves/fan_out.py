"""One call to several groups: it ends with the answers of all, or with the first error that may not be left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import (
    DeadlineError,
    OverloadedError,
    ServingError,
    StateGoneError,
    UnavailableError,
)
from scannery.serving.leaves.group_call import Call, Cluster, GroupCall
from scannery.serving.telemetry.tracing import outgoing_calls
from scannery.v1.leaf_pb2 import At

__all__ = ["FanOut", "left_out"]

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

"""Keeps track of the leaves: resolves the target every 5 s, and asks each leaf for its status every 0.5 s.

A leaf is ready from its first answer until its connection is lost, or until it has left two status calls in a row
unanswered, 2 s after its last answer. Two, since a root that was stopped finds the first one expired.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TypeVar

import grpc
import grpc.aio

from scannery.runtime.errors import ConfigError
from scannery.serving.config import LeavesConfig
from scannery.serving.leaves.connector import Headers, hint, resolved
from scannery.serving.leaves.group_call import Cluster
from scannery.serving.leaves.leaf import Leaf
from scannery.serving.leaves.view import View
from scannery.serving.status import received_detail

__all__ = ["Watch"]

_LOG = logging.getLogger(__name__)

RESOLVE_EVERY_S = 5.0
STATUS_EVERY_S = 0.5
STATUS_TIMEOUT_S = 0.75
MISSES = 2
"""Status calls without an answer after which a leaf is not ready: 0.5 + 2 × 0.75 s after its last answer."""
FORMER_S = 5.0
"""Time for which a leaf that has left the target is asked by requests that began with its number of groups."""
GRACE_S = 300.0
"""Time that calls to a leaf get to end after it has left the target: the most that a request takes."""


ResultT = TypeVar("ResultT")


class Watch:
    """Keeps the view of a cluster current. Used in the thread of the event loop."""

    def __init__(self, config: LeavesConfig, cluster: Cluster, changed: Callable[[], None]) -> None:
        """Begin with `run`.

        Args:
            config: has the target.
            cluster: its view is replaced.
            changed: called after each new view.

        """
        self._target, self._cluster, self._changed = config.target, cluster, changed
        self._leaves: dict[str, Leaf] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._former: set[Leaf] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._target_problem = ""
        self._logged: set[str] = set()

    async def run(self) -> None:
        """Resolve again and again, until it is cancelled."""
        while True:
            try:
                self._follow(await _in_thread(lambda: resolved(self._target)))
            except (OSError, ConfigError) as error:
                # The former addresses stay: a name server that fails must not end the service.
                self._target_problem = f"{self._target} cannot be resolved: {error}"
                self.renew()
            await asyncio.sleep(RESOLVE_EVERY_S)

    async def close(self) -> None:
        """Close all connections at once."""
        tasks = [*self._asking.values(), *self._closing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        leaves = (*self._leaves.values(), *self._former)
        await asyncio.gather(*(leaf.close() for leaf in leaves), return_exceptions=True)

    def lost(self, leaf: Leaf, problem: str) -> None:
        """Note that the connection to a leaf is lost."""
        if leaf.lost(problem, hung=False):
            self.renew()

    def renew(self) -> None:
        """Make a new view of what the leaves say now, and log what is wrong once."""
        view = View(self._leaves.values(), self._cluster.view.groups, former=self._former)
        if self._target_problem:
            view.problems.append(self._target_problem)
        for problem in view.problems:
            if problem not in self._logged:
                _LOG.warning("%s", problem)
        self._logged = set(view.problems)
        self._cluster.view = view
        self._changed()

    def _follow(self, addresses: list[str]) -> None:
        """Connect to new addresses, and leave those that are not there any more."""
        self._target_problem = "" if addresses else f"{self._target} has no addresses"
        for address in addresses or self._leaves:
            if address not in self._leaves:
                leaf = self._leaves[address] = Leaf(address, self._cluster.connector)
                self._asking[address] = asyncio.ensure_future(self._keep_asking(leaf))
        for address in set(self._leaves) - set(addresses) if addresses else ():
            self._asking.pop(address).cancel()
            self._close_later(self._part_with(self._leaves.pop(address)))
        self.renew()

    async def _part_with(self, leaf: Leaf) -> None:
        """Close the connection to a leaf that has left the target when no request needs it any more."""
        self._former.add(leaf)
        self.renew()
        await asyncio.sleep(FORMER_S)
        self._former.discard(leaf)
        self.renew()
        await leaf.close(GRACE_S)

    async def _keep_asking(self, leaf: Leaf) -> None:
        misses = 0
        while True:
            try:
                misses = 0 if await self._ask(leaf) else misses + 1
            except Exception as error:  # noqa: BLE001  the next status call may work
                leaf.lost(f"its status cannot be asked for: {error}", hung=False)
                self.renew()
            if misses == MISSES:
                self._hangs(leaf)
            if not 0 < misses < MISSES:
                # Not all leaves at once.
                await asyncio.sleep(STATUS_EVERY_S * random.uniform(0.9, 1.1))

    async def _ask(self, leaf: Leaf) -> bool:
        """Ask for the status once, and return whether there was any answer."""
        headers = self._cluster.connector.headers()
        try:
            status = await leaf.ask_status(STATUS_TIMEOUT_S, headers)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return False
            self._failed(leaf, error, headers)
            return True
        if leaf.heard(status):
            self.renew()
        return True

    def _failed(self, leaf: Leaf, error: grpc.aio.AioRpcError, headers: Headers) -> None:
        """Note an answer that is no status."""
        code = error.code()
        # Only leaves say when to come again: gRPC has this status for an answer that is too large.
        if leaf.ready and received_detail(error.trailing_metadata()).retry_after_ms:
            return  # it is full, and has what it had
        if code is grpc.StatusCode.UNAUTHENTICATED:
            self._cluster.connector.refused(headers)
        if code is grpc.StatusCode.UNAVAILABLE:
            self._connect_anew(leaf)
        problem = f"{code.name}: {error.details()}"
        self._not_ready(leaf, problem + hint(problem))

    def _connect_anew(self, leaf: Leaf) -> None:
        # Files that are being replaced may not fit each other for a moment.
        with suppress(ConfigError):
            former = leaf.connect_anew()
            if former is not None:
                self._close_later(former.close(GRACE_S))

    def _close_later(self, closing: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _hangs(self, leaf: Leaf) -> None:
        was_ready = leaf.ready
        self._not_ready(leaf, "it does not answer", hung=True)
        if was_ready:
            for attempt in tuple(leaf.attempts):
                attempt.owner.fail_over(leaf)

    def _not_ready(self, leaf: Leaf, problem: str, *, hung: bool = False) -> None:
        before = leaf.problem, leaf.hung
        leaf.lost(problem, hung=hung)
        if before != (leaf.problem, leaf.hung):
            self.renew()


def _in_thread(run: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
    """Return the result of a function that blocks; it must not keep the process from ending, as an executor would."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[ResultT] = loop.create_future()

    def tell(result: ResultT | None, error: Exception | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]  # it is None for functions that return None only

    def work() -> None:
        result, error = None, None
        try:
            result = run()
        except Exception as raised:  # noqa: BLE001  raised where the result is awaited
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=work, name="scannery-leaves-resolve", daemon=True).start()
    return outcome

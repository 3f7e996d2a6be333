"""What coroutines do where threads do it differently: the names of concurrency.py, with `Async`.

Only the asynchronous client imports it: asyncio takes as long to import as the rest of the SDK.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TypeVar

from typing_extensions import Self

__all__ = [
    "AsyncPermits",
    "AsyncPrefetch",
    "AsyncTask",
    "AsyncTasks",
    "async_off_loop",
    "async_owner",
    "async_sleep",
    "async_within",
]

P = ParamSpec("P")
T = TypeVar("T")

AsyncTask = asyncio.Task

async_sleep = asyncio.sleep


def async_owner() -> object:
    """Return what connections belong to: the process and the event loop."""
    return os.getpid(), asyncio.get_running_loop()


async def async_off_loop(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Return what a function returns that would hold up the event loop."""
    return await asyncio.to_thread(work, *args, **named)


async def async_within(work: Coroutine[Any, Any, T], timeout_s: float, undo: Callable[[T], object]) -> T:
    """Return what a coroutine returns within a time.

    `asyncio.wait_for` loses a cancellation that comes at the same moment as the result, before Python 3.12.

    Args:
        work: the coroutine; it is cancelled when the time is over, or the caller is cancelled.
        timeout_s: seconds.
        undo: takes a result that comes too late for the caller.

    Raises:
        TimeoutError: the time is over.

    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            raise TimeoutError
    except BaseException:
        task.add_done_callback(lambda ended: _undone(ended, undo))
        task.cancel()
        raise
    return task.result()


def _undone(task: asyncio.Task[T], undo: Callable[[T], object]) -> None:
    if not task.cancelled() and task.exception() is None:
        undo(task.result())


class AsyncTasks:
    """Coroutines that run at the same time; leaving the context cancels those that have not ended.

    Args:
        most: how many are started at once; the caller keeps to it.

    """

    def __init__(self, limit: int) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(
        self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs
    ) -> AsyncTask[T]:
        """Start a coroutine."""
        task = asyncio.create_task(work(*args, **named))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def result(task: AsyncTask[T]) -> T:
        """Return what the coroutine returned."""
        return await task


TURNS_TO_SEND = 4
"""Turns of the event loop: the coroutine starts in the first, and the task of gRPC that sends in the second."""


class AsyncPrefetch(Generic[T]):
    """A coroutine that runs before its result is wanted; cancelled if this is dropped first.

    Args:
        work: makes the coroutine.
        args: of `work`.

    """

    def __init__(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs) -> None:
        self._task = asyncio.create_task(work(*args, **named))
        self._task.add_done_callback(_ignored)

    async def sent(self) -> None:
        """Give the coroutine the turns in which it sends its request; the caller may use none for long."""
        for _ in range(TURNS_TO_SEND):
            await asyncio.sleep(0)

    async def result(self) -> T:
        """Return what the coroutine returned, or raise what it raised."""
        return await self._task

    def __del__(self) -> None:
        if not self._task.done():
            # Garbage may be collected in any thread, and after the loop was closed.
            with suppress(RuntimeError):
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)


def _ignored(task: asyncio.Task[Any]) -> None:
    # An error that nothing retrieves is reported by asyncio: here, one of a page that is not wanted any more.
    if not task.cancelled():
        task.exception()


class AsyncPermits:
    """Bounds how many coroutines do something at once."""

    def __init__(self, count: int) -> None:
        self._semaphore = asyncio.Semaphore(count)

    async def acquire(self, timeout_s: float) -> bool:
        """Take a permit; return False if none is free within the timeout."""
        if not self._semaphore.locked():
            return await self._semaphore.acquire()
        if timeout_s <= 0:
            return False
        try:
            return await async_within(
                self._semaphore.acquire(), timeout_s, lambda _: self._semaphore.release()
            )
        except TimeoutError:
            return False

    def release(self) -> None:
        """Give a permit back."""
        self._semaphore.release()

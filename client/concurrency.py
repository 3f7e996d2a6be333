"""What coroutines and threads do differently, by the same names: generated code uses those without `Async`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from typing_extensions import Self

__all__ = [
    "AsyncPermits",
    "AsyncTask",
    "AsyncTasks",
    "Permits",
    "Task",
    "Tasks",
    "async_off_loop",
    "async_owner",
    "async_sleep",
    "off_loop",
    "owner",
    "sleep",
]

P = ParamSpec("P")
T = TypeVar("T")

AsyncTask = asyncio.Task
Task = Future

async_sleep = asyncio.sleep
sleep = time.sleep


def async_owner() -> object:
    """Return what connections belong to: the process and the event loop."""
    return os.getpid(), asyncio.get_running_loop()


def owner() -> object:
    """Return what connections belong to: the process."""
    return os.getpid()


async def async_off_loop(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Return what a function returns that would hold up the event loop."""
    return await asyncio.to_thread(work, *args, **named)


def off_loop(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Return what a function returns; there is no loop to hold up."""
    return work(*args, **named)


class AsyncTasks:
    """Coroutines that run at the same time; leaving the context cancels those that have not ended.

    Args:
        most: how many are started at once; the caller keeps to it.

    """

    def __init__(self, most: int) -> None:
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


class Tasks:
    """Calls that run at the same time, in threads; leaving the context cancels those that have not begun.

    Args:
        most: threads.

    """

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, "scannery-bulk")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def start(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> Task[T]:
        """Start a call."""
        return self._pool.submit(work, *args, **named)

    @staticmethod
    def result(task: Task[T]) -> T:
        """Return what the call returned."""
        return task.result()


class AsyncPermits:
    """Bounds how many coroutines do something at once."""

    def __init__(self, count: int) -> None:
        self._semaphore = asyncio.Semaphore(count)

    @property
    def free(self) -> bool:
        """Whether a permit can be taken without waiting."""
        return not self._semaphore.locked()

    async def acquire(self, timeout_s: float) -> bool:
        """Take a permit; return False if none is free within the timeout."""
        if not self._semaphore.locked():
            return await self._semaphore.acquire()
        if timeout_s <= 0:
            return False
        try:
            return await asyncio.wait_for(self._semaphore.acquire(), timeout_s)
        except asyncio.TimeoutError:
            return False

    def release(self) -> None:
        """Give a permit back."""
        self._semaphore.release()


class Permits:
    """Bounds how many threads do something at once."""

    def __init__(self, count: int) -> None:
        # A queue in C: a semaphore of `threading` is Python, and takes ten times as long.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            self._permits.put(None)

    @property
    def free(self) -> bool:
        """Whether a permit can be taken without waiting."""
        return not self._permits.empty()

    def acquire(self, timeout_s: float) -> bool:
        """Take a permit; return False if none is free within the timeout."""
        try:
            self._permits.get(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX))
        except Empty:
            return False
        return True

    def release(self) -> None:
        """Give a permit back."""
        self._permits.put(None)

"""What coroutines and threads do differently, by the same names: generated code uses those without `Async`."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, ParamSpec, TypeVar

from typing_extensions import Self

__all__ = [
    "AsyncPermits",
    "AsyncPrefetch",
    "AsyncTask",
    "AsyncTasks",
    "Permits",
    "Prefetch",
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


class Prefetch(Generic[T]):
    """A call that runs in a thread of its own before its result is wanted. The thread ends with the call.

    Args:
        work: what is called.
        args: of `work`.

    """

    def __init__(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> None:
        self._work = partial(work, *args, **named)
        self._future: Future[T] = Future()
        self._pid: int | None = os.getpid()
        context = contextvars.copy_context()  # with the span that the call belongs to
        run = partial(context.run, _resolve, self._future, self._work)
        # The thread does not know this object. No daemon: those are ended within native code when the process exits.
        try:
            Thread(target=run, name="scannery-prefetch").start()
        except RuntimeError:  # no more threads, or the process is exiting
            self._pid = None

    def sent(self) -> None:
        """Return at once: the thread does not need the caller's to send its request."""

    def result(self) -> T:
        """Wait for the call; return what it returned, or raise what it raised."""
        # In a forked child there is no thread.
        return self._future.result() if self._pid == os.getpid() else self._work()


def _resolve(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  the reader would wait for ever
        future.set_exception(error)


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

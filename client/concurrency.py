"""What threads do where coroutines do it differently (async_concurrency.py), for generated code."""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeAlias, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Self

__all__ = [
    "Permits",
    "Prefetch",
    "Task",
    "Tasks",
    "off_loop",
    "owner",
    "sleep",
]

P = ParamSpec("P")
T = TypeVar("T")

Task: TypeAlias = "Future[T]"

sleep = time.sleep


def owner() -> object:
    """Return what connections belong to: the process."""
    return os.getpid()


def off_loop(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Return what a function returns; there is no loop to hold up."""
    return work(*args, **named)


class Tasks:
    """Calls that run at the same time, in threads; leaving the context cancels those that have not begun.

    Args:
        most: threads.

    """

    def __init__(self, limit: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(limit, "scannery-bulk")

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


class Prefetch(Generic[T]):
    """A call that runs in a thread of its own before its result is wanted. The thread ends with the call.

    Args:
        work: what is called.
        args: of `work`.

    """

    def __init__(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> None:
        from concurrent.futures import Future

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


class Permits:
    """Bounds how many threads do something at once."""

    def __init__(self, count: int) -> None:
        # A queue in C: a semaphore of `threading` is Python, and takes ten times as long.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            self._permits.put(None)

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

"""Threads that compute on one core each, or on all cores, without changing torch's settings for other threads.

Coordination of processes that compute on the same cores, such as the workers of a server.

A short text takes a quarter less time on two cores than on one. But OpenMP's threads spin while they wait for each
other, so two processes that both use all cores block each other: on two cores, a text took ten times as long as on one.
So a process that finds another one computing uses one core, for the next 50 ms too.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

__all__ = [
    "Neighbours",
    "computing",
    "counted",
    "give_back_memory",
    "in_this_thread",
    "live_with",
    "on_cores",
    "on_free_cores",
    "on_idle_cores",
    "on_one_core",
]


ONE_CORE_S = 0.05
"""Seconds for which a process uses one core after it found another one computing: under load they will meet again."""


class Neighbours:
    """A flag in shared memory for each of some processes: whether it computes. Made before these are forked."""

    def __init__(self, count: int) -> None:
        """Make the flags, all unset.

        Args:
            count: number of processes, each with a slot from 0 to `count - 1`.

        """
        self._working = mmap.mmap(-1, count)

    def work(self, number: int, *, works: bool) -> None:
        """Set whether the process in slot `number` computes."""
        self._working[number] = works

    def others_work(self, number: int) -> bool:
        """Return whether a process in another slot than `number` computes."""
        return self._working[:].count(1) > self._working[number]


class _State:
    """The neighbours and the slot of this process."""

    neighbours: Neighbours | None = None
    number = 0
    one_core_until_s = 0.0
    """Time until which one core is used, on the monotonic clock."""
    computing = 0
    """Threads of this process that do."""
    lock = threading.Lock()


def live_with(neighbours: Neighbours, number: int) -> None:
    """Register this process in slot `number`."""
    # A killed process that had this slot may have left its flag set.
    neighbours.work(number, works=False)
    _State.neighbours, _State.number = neighbours, number
    # A thread of the parent may have held the lock.
    _State.computing, _State.lock = 0, threading.Lock()


@contextmanager
def computing() -> Iterator[bool]:
    """Flag this process as computing within the context; give whether it may use all cores."""
    neighbours = _State.neighbours
    if neighbours is None:
        yield True
        return
    now_s = time.monotonic()
    _count(neighbours, 1)
    try:
        if neighbours.others_work(_State.number):
            _State.one_core_until_s = now_s + ONE_CORE_S
        yield now_s >= _State.one_core_until_s
    finally:
        _count(neighbours, -1)


def _count(neighbours: Neighbours, more: int) -> None:
    with _State.lock:
        _State.computing += more
        neighbours.work(_State.number, works=_State.computing > 0)


T = TypeVar("T")


# Held while torch's default number of threads is set to 1, so that no other call here reads it as the user's setting.
_starting = threading.Lock()


def on_cores(threads: int, work: Callable[[], None]) -> None:
    """Run `work()` in each of `threads` new threads, in which torch uses one core, and raise the first error of any."""
    errors: list[BaseException] = []
    workers = _start(threads, work, errors)
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


def _start(threads: int, work: Callable[[], None], errors: list[BaseException]) -> list[threading.Thread]:
    ready = threading.Barrier(threads + 1)

    def body() -> None:
        try:
            _use_one_core()
            ready.wait()
            work()
        except BaseException as error:  # noqa: BLE001 - carried to the caller
            errors.append(error)

    workers = [threading.Thread(target=body, name=f"scannery-embed-{i}", daemon=True) for i in range(threads)]
    with _default_threads_kept():
        try:
            for worker in workers:
                worker.start()
            ready.wait()
        except BaseException:
            ready.abort()  # a thread could not be started: end the others
            raise
    return workers


def on_one_core(work: Callable[[], T]) -> T:
    """Return `work()`, run in another thread, so that the calling thread gets no pool of OpenMP threads.

    A process that forks must not have such a pool: the child would wait for threads that a fork does not copy.
    """
    results: list[T] = []
    on_cores(1, lambda: results.append(work()))
    return results[0]


class _Executors:
    """Permanent threads: one that computes on all cores, and one that computes on one.

    Every thread that runs a parallel loop keeps a pool of OpenMP threads. If these are more than there are cores,
    GNU's OpenMP stops letting them spin between two loops (GOMP_SPINCOUNT in its manual), and waking them a hundred
    times takes longer than computing one short text: 7 to 9 ms instead of 3, measured on two cores. So a process has
    one such pool.
    """

    lock = threading.Lock()
    on_all: ThreadPoolExecutor | None = None
    on_one: ThreadPoolExecutor | None = None


def on_idle_cores(work: Callable[[], T], threads: int | None = None) -> T:
    """Return `work()`, run on `threads` cores (None: all), or on one while neighbour processes compute.

    Calls of several threads run one at a time, unless torch is set to use one core.
    """
    import torch

    seen = torch.get_num_threads()
    if seen == 1:
        return work()
    limit = threads or seen
    with _Executors.lock, computing() as undisturbed:
        if limit == 1 or not undisturbed:
            _Executors.on_one = _Executors.on_one or _one_core_executor(1, "scannery-one-core")
            return _Executors.on_one.submit(work).result()
        _Executors.on_all = _Executors.on_all or ThreadPoolExecutor(
            1, thread_name_prefix="scannery-all-cores"
        )
        return _Executors.on_all.submit(_on, limit, work).result()


class _Helpers:
    """Permanent threads that compute on one core each, besides the threads that ask, and how many compute now."""

    lock = threading.Lock()
    threads: ThreadPoolExecutor | None = None
    count = 0
    computing = 0
    """Threads of this process, those that ask among them."""


def on_free_cores(work: Callable[[], None], threads: int) -> None:
    """Run `work()` in the calling thread, and in a helper for each of the `threads` cores that is free.

    `work` takes parts until there are no more. Helpers that have not begun by then are not waited for, so a core that
    another process has holds nothing up but the part that was begun on it. A core is free if no thread of this process
    computes on it, and no neighbour process computes. Raises the first error. Only for work as of `in_this_thread`.
    """
    with computing() as undisturbed:
        helpers = _begun(threads if undisturbed else 1, work)
        try:
            in_this_thread(work)
        finally:
            errors = [each.exception() for each in helpers if not _cancelled(each)]
    for error in errors:
        if error is not None:
            raise error


def _begun(threads: int, work: Callable[[], None]) -> list[Future[None]]:
    """Have helpers begin, as many as there are free cores besides that of the calling thread."""
    with _Helpers.lock:
        helpers = threads - 1 - _Helpers.computing
        if helpers <= 0:
            return []
        if _Helpers.threads is None or _Helpers.count < helpers:
            _Helpers.threads, _Helpers.count = _one_core_executor(helpers, "scannery-helper"), helpers
        _Helpers.computing += helpers
        return [_Helpers.threads.submit(_help, work) for _ in range(helpers)]


def _help(work: Callable[[], None]) -> None:
    try:
        work()
    finally:
        _leave()


def _cancelled(helper: Future[None]) -> bool:
    """Cancel a helper unless it has begun; return whether it never will."""
    if not helper.cancel():
        return False
    _leave()
    return True


def _leave() -> None:
    with _Helpers.lock:
        _Helpers.computing -= 1


def in_this_thread(work: Callable[[], T]) -> T:
    """Return `work()`, run on one core in the calling thread, which a text need not leave and come back to.

    Only for work whose loops are all of OpenMP: MKL has its own number of threads.
    """
    import torch

    seen = torch.get_num_threads()
    if seen == 1:
        return work()
    set_threads = _omp_set_num_threads()
    if set_threads is None:
        return on_idle_cores(work, 1)

    def on_one() -> T:
        set_threads(1)  # of the calling thread only, unlike torch's own setting
        try:
            return work() if torch.get_num_threads() == 1 else on_one_core(work)
        finally:
            set_threads(seen)

    return counted(on_one)


def counted(work: Callable[[], T]) -> T:
    """Return `work()`, while the calling thread is counted among those that compute on a core."""
    with _Helpers.lock:
        _Helpers.computing += 1
    try:
        with computing():
            return work()
    finally:
        _leave()


@functools.cache
def _omp_set_num_threads() -> Callable[[int], object] | None:
    """Return the function of the OpenMP that torch loaded; None if the process shows none."""
    return getattr(ctypes.CDLL(None), "omp_set_num_threads", None)


def _on(threads: int, work: Callable[[], T]) -> T:
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return work()


def _one_core_executor(threads: int, name: str) -> ThreadPoolExecutor:
    executor = ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=_use_one_core)
    started = threading.Barrier(threads + 1)
    with _default_threads_kept():
        for _ in range(threads):
            executor.submit(started.wait)
        started.wait()
    return executor


@contextmanager
def _default_threads_kept() -> Iterator[None]:
    """Restore torch's default number of threads, which threads started within the context set to 1."""
    import torch

    with _starting:
        default = torch.get_num_threads()
        try:
            yield
        finally:
            torch.set_num_threads(default)


def _use_one_core() -> None:
    import torch

    # A thread takes over the default at its first query or parallel loop, which would overwrite the 1: so query first.
    # Setting changes the default too; `_default_threads_kept` restores it.
    torch.get_num_threads()
    torch.set_num_threads(1)


def give_back_memory() -> None:
    """Return free memory to the system; no effect if the C library is not glibc. Takes milliseconds.

    Batches have many sizes, so over a stream the heap fragments by hundreds of MiB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _after_fork() -> None:
    # A fork copies no threads: the pool of the tokenizers would hang, the executors have none, and a thread of the
    # parent may have held the lock.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _Executors.lock, _Executors.on_all, _Executors.on_one = threading.Lock(), None, None
    _Helpers.lock, _Helpers.threads, _Helpers.count, _Helpers.computing = threading.Lock(), None, 0, 0


os.register_at_fork(after_in_child=_after_fork)

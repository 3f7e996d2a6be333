"""Threads that compute on one core each, or on all of them, and leave the rest of the process as it was."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from scannery.embed.devices.busy_neighbours import computing

__all__ = ["give_back_memory", "on_cores", "on_idle_cores", "on_one_core"]

T = TypeVar("T")


# Held while torch's number for new threads is 1, so that no other call here takes that for the user's wish.
_starting = threading.Lock()


def on_cores(threads: int, work: Callable[[], None]) -> None:
    """Run `work()` in `threads` new threads in which torch uses one core, and raise the first error of any."""
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
            _keep_to_one_core()
            ready.wait()
            work()
        except BaseException as error:  # noqa: BLE001 - carried to the caller
            errors.append(error)

    workers = [threading.Thread(target=body, name=f"scannery-embed-{i}", daemon=True) for i in range(threads)]
    with _own_number_kept():
        try:
            for worker in workers:
                worker.start()
            ready.wait()
        except BaseException:
            ready.abort()  # no more threads to be had: those that started end
            raise
    return workers


def on_one_core(work: Callable[[], T]) -> T:
    """Return `work()`, run so that no pool of OpenMP threads comes to be in the calling thread.

    A process that forks must not have such a pool: the child would wait for threads that it does not have.
    """
    results: list[T] = []
    on_cores(1, lambda: results.append(work()))
    return results[0]


class _Kept:
    """Threads that stay: one that computes on all cores, and one that computes on one.

    Every thread that runs a parallel loop keeps a pool of OpenMP threads. Once they are more than there are cores,
    GNU's OpenMP no longer lets them spin between two loops (GOMP_SPINCOUNT in its manual), and waking them a hundred
    times takes longer than what they compute for one short text: 7 to 9 ms instead of 3, measured on two cores. So a
    process has one such pool.
    """

    lock = threading.Lock()
    on_all: ThreadPoolExecutor | None = None
    on_one: ThreadPoolExecutor | None = None


def on_idle_cores(work: Callable[[], T], threads: int | None = None) -> T:
    """Return `work()`, run on all cores (`threads` of them, if given); on one while other processes compute, too.

    Callers in several threads wait for each other, unless each of them uses one core anyway.
    """
    import torch

    seen = torch.get_num_threads()
    if seen == 1:
        return work()
    most = threads or seen
    with _Kept.lock, computing() as undisturbed:
        if most == 1 or not undisturbed:
            _Kept.on_one = _Kept.on_one or _started_on_one_core()
            return _Kept.on_one.submit(work).result()
        _Kept.on_all = _Kept.on_all or ThreadPoolExecutor(1, thread_name_prefix="scannery-all-cores")
        return _Kept.on_all.submit(_on, most, work).result()


def _on(threads: int, work: Callable[[], T]) -> T:
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return work()


def _started_on_one_core() -> ThreadPoolExecutor:
    executor = ThreadPoolExecutor(1, thread_name_prefix="scannery-one-core", initializer=_keep_to_one_core)
    with _own_number_kept():
        executor.submit(_begun).result()
    return executor


def _begun() -> None:
    """Nothing: the thread has begun."""


@contextmanager
def _own_number_kept() -> Iterator[None]:
    """Start threads that keep to one core, without all later ones doing so."""
    import torch

    with _starting:
        default = torch.get_num_threads()
        try:
            yield
        finally:
            torch.set_num_threads(default)


def _keep_to_one_core() -> None:
    import torch

    # Asking first: a thread takes the number that new threads begin with at its first question or parallel loop, and
    # would put it in place of the 1 then. Setting changes that number too; whoever starts the thread puts it right.
    torch.get_num_threads()
    torch.set_num_threads(1)


def give_back_memory() -> None:
    """Let the system have the memory that is free; no effect where the C library is not glibc.

    Batches are of every size, and what is free between those that are kept adds up to hundreds of MiB over a stream.
    Takes milliseconds.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _after_fork() -> None:
    # The tokenizers' own thread pool is dead in the child, and using it would hang.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Nor are there the threads that stay, and somebody may have held the lock.
    _Kept.lock, _Kept.on_all, _Kept.on_one = threading.Lock(), None, None


os.register_at_fork(after_in_child=_after_fork)

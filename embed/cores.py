"""Threads that compute on one core each, and leave the rest of the process as it was."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

__all__ = ["give_back_memory", "on_cores", "on_one_core"]

T = TypeVar("T")


# Held while torch's number for new threads is 1, so that no other call here takes that for the user's wish.
_starting = threading.Lock()

MAX_THREADS = 256
"""Of all calls that overlap; further ones wait."""


class _Cores:
    """Threads that stay: what a thread makes for its products, MKL keeps for ever, also when the thread is gone."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="scannery-embed")
        self.own = threading.local()


_cores = _Cores()


def on_cores(threads: int, work: Callable[[], None]) -> None:
    """Run `work()` in `threads` threads in which torch uses one core, and raise the first error of any."""
    runs = _start(threads, work)
    wait(runs)
    for run in runs:
        run.result()


def _start(threads: int, work: Callable[[], None]) -> list[Future[None]]:
    import torch

    own, ready = _cores.own, threading.Barrier(threads + 1)

    def body() -> None:
        if not hasattr(own, "alone"):
            # Sets this thread's number, and also the one that new threads begin with; that is put right below.
            torch.set_num_threads(1)
            own.alone = True
        ready.wait()
        work()

    with _starting:
        default = torch.get_num_threads()
        try:
            runs = [_cores.pool.submit(body) for _ in range(threads)]
            ready.wait()
        except BaseException:
            ready.abort()  # no more threads to be had: those that started end
            raise
        finally:
            torch.set_num_threads(default)
    return runs


def on_one_core(work: Callable[[], T]) -> T:
    """Return `work()`, run so that no pool of OpenMP threads comes to be in the calling thread.

    A process that forks must not have such a pool: the child would wait for threads that it does not have.
    """
    results: list[T] = []
    on_cores(1, lambda: results.append(work()))
    return results[0]


def give_back_memory() -> None:
    """Let the system have the memory that is free; no effect where the C library is not glibc.

    Batches are of every size, and what is free between those that are kept adds up to hundreds of MiB over a stream.
    Takes milliseconds.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _after_fork() -> None:
    global _cores, _starting
    _cores, _starting = _Cores(), threading.Lock()  # the threads are the parent's
    # The tokenizers' own thread pool is dead in the child, and using it would hang.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


os.register_at_fork(after_in_child=_after_fork)

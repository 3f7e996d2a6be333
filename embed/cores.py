"""Threads that compute on one core each, and leave the rest of the process as it was."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["give_back_memory", "on_cores", "on_one_core"]

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
    import torch

    ready = threading.Barrier(threads + 1)

    def body() -> None:
        try:
            # Asking first: a thread takes the number that new threads begin with at its first question or parallel
            # loop, and would put it in place of the 1 then. Setting changes that number too; it is put right below.
            torch.get_num_threads()
            torch.set_num_threads(1)
            ready.wait()
            work()
        except BaseException as error:  # noqa: BLE001 - carried to the caller
            errors.append(error)

    workers = [threading.Thread(target=body, name=f"scannery-embed-{i}", daemon=True) for i in range(threads)]
    with _starting:
        default = torch.get_num_threads()
        try:
            for worker in workers:
                worker.start()
            ready.wait()
        except BaseException:
            ready.abort()  # no more threads to be had: those that started end
            raise
        finally:
            torch.set_num_threads(default)
    return workers


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
    # The tokenizers' own thread pool is dead in the child, and using it would hang.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


os.register_at_fork(after_in_child=_after_fork)

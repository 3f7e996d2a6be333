"""Which cores threads run on.

With a worker for every core, the threads of each worker that take requests keep to one: only one of them can run Python
at a time, and each change of the core costs a wake-up there and what lay in its cache. Measured with eight callers, a
query costs a tenth to a third less processor time. Encoding and batches still have all cores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["on_all_cores", "on_core", "own_core"]

_ALL = os.sched_getaffinity(0)


def own_core(number: int, workers: int) -> int | None:
    """Return the core of a worker by its number; None if there are fewer workers than cores."""
    return sorted(_ALL)[number % len(_ALL)] if workers >= len(_ALL) > 1 else None


def on_core(core: int | None, work: Callable[[], None]) -> None:
    """Run `work` with its threads, and those that they start, bound to a core; None: unbound."""
    if core is None:
        work()
        return
    errors: list[BaseException] = []

    def bound() -> None:
        try:
            # The core may be forbidden, or offline: then the threads stay unbound.
            with suppress(OSError):
                os.sched_setaffinity(0, {core})
            work()
        except BaseException as error:  # noqa: BLE001  carried to the caller
            errors.append(error)

    thread = threading.Thread(target=bound, name="scannery-start")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@contextmanager
def on_all_cores() -> Iterator[None]:
    """Let the calling thread, and threads that it starts meanwhile, run on every core."""
    before = os.sched_getaffinity(0)
    if before == _ALL:
        yield
        return
    with suppress(OSError):
        os.sched_setaffinity(0, _ALL)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)

"""Entry point of the maintenance process, which servers and clients start: seal, merge or collect garbage."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import pyarrow as pa

from scannery.indexer import IndexerError, Store
from scannery.indexer.local.needless_imports import leave_needless_imports_out
from scannery.live.log.location import LOG_VARIABLE, log_root_of
from scannery.live.maintenance.scheduler import task_threads
from scannery.live.maintenance.tasks import run_task
from scannery.runtime.errors import ServingError

__all__ = ["main"]

NICE = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one task; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=("seal", "merge", "gc"))
    parser.add_argument("index")
    parser.add_argument("--store", required=True)
    parser.add_argument("--log", default=os.environ.get(LOG_VARIABLE, ""))
    parser.add_argument("--lock", required=True, type=int)  # descriptor, open until this process ends
    parser.add_argument("--filling", action="store_true")
    parser.add_argument("--leave-cache", action="store_true")  # no server of this machine uses it
    options = parser.parse_args(arguments)
    # A server that stops ends this process; exiting by exception removes temporary folders.
    signal.signal(signal.SIGTERM, _exit)
    # Servers block these signals, and their children inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    os.nice(NICE)
    leave_needless_imports_out()
    threads = task_threads()
    pa.set_cpu_count(threads)
    store = Store.open(options.store)
    try:
        run_task(
            options.task,
            store,
            options.index,
            log_root=log_root_of(options.log),
            threads=threads,
            filling=options.filling,
            fill_cache=not options.leave_cache,
        )
    except (IndexerError, ServingError) as error:
        print(error, file=sys.stderr)  # noqa: T201  the scheduler logs it
        return 1
    return 0


def _exit(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

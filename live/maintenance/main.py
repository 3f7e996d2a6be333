"""The maintenance process, which servers and clients start, and its tasks: seal, merge or collect garbage."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn

import pyarrow as pa

from scannery.indexer import (
    IndexerError,
    NotFoundError,
    Store,
    collect_garbage,
    latest_version,
    read_manifest,
)
from scannery.indexer.local.needless_imports import leave_needless_imports_out
from scannery.live.log.location import LOG_VARIABLE, LogRoot, log_root_of
from scannery.live.maintenance.locks import Task, TaskLocks
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.scheduler import task_threads
from scannery.live.maintenance.seal import seal
from scannery.runtime.errors import ServingError
from scannery.runtime.mirror_names import mirror_name

__all__ = ["main", "run_due"]


_LOG = logging.getLogger(__name__)


def run_task(
    task: Task,
    store: Store,
    index: str,
    *,
    log_root: LogRoot | None,
    threads: int | None = None,
    filling: bool = False,
    fill_cache: bool = True,
) -> bool:
    """Seal, merge one group, or collect garbage; return whether there is a new version. Raises as these functions.

    Args:
        task: which.
        store: with the index.
        index: its name.
        log_root: folder with the logs of the indexes, or their database; None: the folder of the store.
        threads: for building segments; None: one per available core.
        filling: whether rows are added quickly.
        fill_cache: whether new segments are unpacked into the cache of this machine, for servers.

    """
    if task == "seal":
        sealed = seal(
            store, index, log_root=log_root, threads=threads, filling=filling, fill_cache=fill_cache
        )
        return sealed is not None
    if task == "merge":
        return merge(store, index, threads=threads, filling=filling, fill_cache=fill_cache) is not None
    live = read_manifest(store, index).spec.live
    min_age = timedelta(seconds=live.gc_min_age_s)
    collect_garbage(store, index, keep=live.gc_keep, min_age=min_age)
    # A process that fills a mirror while that is abandoned may leave files of what is no index any more.
    mirror = mirror_name(index)
    if latest_version(store, mirror) is None:
        with suppress(NotFoundError):
            collect_garbage(store, mirror, min_age=min_age)
    return False


def run_due(
    store: Store, indexes: Iterable[str], *, log_root: LogRoot, threads: int | None = None, fill_cache: bool
) -> None:
    """Seal all mutations, merge what is due, and collect garbage, one index after the other.

    An index that only builds change is left as it is, unless its rows expire. Tasks that another process runs are left
    out. If one fails, the others still run, and the first error is raised at the end.

    Args:
        store: with the indexes.
        indexes: their names.
        log_root: folder with the logs of the indexes, or their database.
        threads: for building segments; None: one per available core.
        fill_cache: whether new segments are unpacked into the cache of this machine, for servers.

    Raises:
        IndexerError, ServingError, OSError: the first that a task raised.

    """
    errors: list[Exception] = []
    for index in indexes:
        locks = TaskLocks(store, index, log_root)
        tasks: tuple[Task, ...] = ("seal", "merge", "gc")
        for task in tasks:
            try:
                if task != "seal" and not _is_due(task, store, index):
                    continue
                _run_locked(task, store, index, locks, log_root, threads, fill_cache)
            except (IndexerError, ServingError, OSError) as error:
                _LOG.error("index %s: %s failed: %s", index, task, error)
                errors.append(error)
    if errors:
        raise errors[0]


def _is_due(task: Task, store: Store, index: str) -> bool:
    manifest = read_manifest(store, index)
    live = manifest.spec.live
    return (manifest.log_sequence > 0 or live.expire is not None) and (task != "gc" or live.gc_every_s > 0)


def _run_locked(
    task: Task,
    store: Store,
    index: str,
    locks: TaskLocks,
    log_root: LogRoot,
    threads: int | None,
    fill_cache: bool,
) -> None:
    lock = locks.try_lock(task)
    if lock is None:
        _LOG.info("index %s: another process runs this task (%s)", index, task)
        return
    with lock.held():
        os.utime(lock.file)  # tells when garbage was collected last
        while run_task(task, store, index, log_root=log_root, threads=threads, fill_cache=fill_cache):
            _LOG.info("index %s: version %d", index, read_manifest(store, index).version)
            if task == "seal":
                break  # what is written meanwhile can wait


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

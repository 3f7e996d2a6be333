"""When to seal, to merge and to collect garbage, and who does it: a process of its own for each, at low priority.

Workers look at their indexes now and then. Whoever finds something due takes a lock file and hands it, open, to a new
process; so there is one such process for an index however many workers and servers share it, and the kernel frees the
lock however that process ends. What it leaves behind half done is never part of the index.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Literal

from scannery.indexer import (
    IndexerError,
    Store,
    default_cache_folder,
    latest_version,
    python_command,
    python_environment,
)
from scannery.live.log.files import LOG_FILE, make_folders, open_private
from scannery.live.log.forks import held_by_this_process
from scannery.live.log.location import log_folder
from scannery.live.maintenance.merge import due
from scannery.live.memtable import LiveState
from scannery.runtime.errors import OverloadedError
from scannery.runtime.retry import Backoff

__all__ = ["PROGRAM", "Maintenance", "Task", "bounds", "locked", "seal_due", "task_threads"]

_LOG = logging.getLogger(__name__)

Task = Literal["seal", "merge", "gc"]
PROGRAM = "scannery.live.maintenance.main"
END_S = 10.0
_TAIL_BYTES = 2000


_LEFT: list[subprocess.Popen[bytes]] = []
"""Processes that go on without the client that has started them."""


def seal_due(state: LiveState, age_s: float) -> bool:
    """Return whether what is in memory should become segments; `age_s` is that of the oldest mutation there.

    The records count besides the rows: rows that were replaced and deletions take space in the log alone.
    """
    if not state.mutations:
        return False
    live = state.manifest.spec.live
    size_bytes = max(state.memory_bytes, state.log_bytes)
    full = state.memory_rows >= live.seal_rows or size_bytes >= live.seal_bytes
    return full or age_s >= live.seal_age_s


def _gc_due(lock: Path, every_s: float) -> bool:
    """Return whether garbage was last collected so long ago; the time of the lock file says when, for all servers.

    Where there is none, time begins now: a server that has just started has better things to do.
    """
    if not every_s:
        return False
    try:
        return time.time() - lock.stat().st_mtime >= every_s
    except FileNotFoundError:
        with suppress(OSError):
            lock.touch(0o600)
        return False


@dataclass(slots=True)
class _Run:
    process: subprocess.Popen[bytes]
    output: IO[bytes]


class Maintenance:
    """Starts what is due for one index. Safe to use from several threads."""

    def __init__(
        self, store: Store, index: str, log_root: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start nothing yet.

        Args:
            store: with the index.
            index: its name.
            log_root: folder with the logs of the indexes.
            clock: seconds.

        """
        self._store = store
        self._index = index
        self._log_root = log_root.absolute()
        self._cache = default_cache_folder().absolute()
        self._clock = clock
        self._runs: dict[Task, _Run] = {}
        self._backoff = defaultdict[Task, Backoff](partial(Backoff, clock=clock))
        self._first_at_s: float | None = None
        self._base = -1
        self._lock = threading.Lock()

    def look(self, state: LiveState) -> None:
        """Start what the state makes due, and take note of what has ended."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            for task in list(self._runs):
                self._reap(task)
            if not _lock_path(self._log_root, self._index, "seal").with_name(LOG_FILE).exists():
                return  # never written to: how its segments are arranged is its builds' affair
            if seal_due(state, self._age_s(state)):
                self._start("seal", state)
            if due(state.manifest):
                self._start("merge", state)
            if _gc_due(_lock_path(self._log_root, self._index, "gc"), state.manifest.spec.live.gc_every_s):
                self._start("gc", state)
        finally:
            self._lock.release()

    def close(self, *, finish: bool = False) -> None:
        """End what runs; nothing is lost by that.

        With `finish` it goes on by itself instead: short runs of embedded clients would otherwise end each seal that
        they begin, until memory is full and no write succeeds any more.
        """
        with self._lock:
            if finish:
                self._let_go()
            for run in self._runs.values():
                run.process.terminate()
            for run in self._runs.values():
                try:
                    run.process.wait(END_S)
                except subprocess.TimeoutExpired:
                    run.process.kill()
                    run.process.wait()
                run.output.close()
            self._runs.clear()

    def _let_go(self) -> None:
        _LEFT[:] = [process for process in _LEFT if process.poll() is None]  # or they stay zombies
        for run in self._runs.values():
            run.output.close()
            _LEFT.append(run.process)
        self._runs.clear()

    def _age_s(self, state: LiveState) -> float:
        if not state.mutations or state.manifest.version != self._base:
            self._first_at_s = None
            self._base = state.manifest.version
        if self._first_at_s is None:
            self._first_at_s = self._clock()
        return self._clock() - self._first_at_s

    def _start(self, task: Task, state: LiveState) -> None:
        if task in self._runs or not self._backoff[task].due:
            return
        try:
            if latest_version(self._store, self._index) != state.manifest.version:
                return  # somebody has done it, and this process is about to move there
            lock = _take(_lock_path(self._log_root, self._index, task))
        except (OSError, IndexerError) as error:
            self._failed(task, f"cannot begin: {error}")
            return
        if lock is None:
            return
        try:
            with held_by_this_process(lock):
                os.utime(lock)  # by which the next collection of garbage is told to be due
                self._runs[task] = self._begun(task, lock)
        except OSError as error:
            self._failed(task, str(error))
        finally:
            os.close(lock)

    def _begun(self, task: Task, lock: int) -> _Run:
        output = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process has ended
        try:
            arguments = [
                task,
                self._index,
                "--store",
                self._store.uri,
                "--log",
                str(self._log_root),
                "--lock",
                str(lock),
            ]
            process = subprocess.Popen(
                python_command(PROGRAM, arguments),
                env=python_environment(bounds() | {"SCANNERY_CACHE_DIR": str(self._cache)}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],
            )
        except BaseException:
            output.close()
            raise
        return _Run(process, output)

    def _reap(self, task: Task) -> None:
        run = self._runs[task]
        status = run.process.poll()
        if status is None:
            return
        del self._runs[task]
        run.output.seek(0)
        said = run.output.read()[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        run.output.close()
        if status:
            self._failed(task, f"ended with status {status}: {said}")
        else:
            self._backoff[task].reset()

    def _failed(self, task: Task, what: str) -> None:
        wait_s = self._backoff[task].back_off()
        _LOG.error("index %s: %s %s; trying again in %.0f s", self._index, task, what, wait_s)


@contextmanager
def locked(log_root: Path, index: str, task: Task) -> Iterator[None]:
    """Hold the lock of a task, for a command that is given by hand.

    Raises:
        OverloadedError: somebody is at it.

    """
    path = _lock_path(log_root, index, task)
    make_folders(path.parent)
    lock = _take(path)
    if lock is None:
        raise OverloadedError(f"index {index!r}: another process is at it ({task})", retry_after_s=5.0)
    try:
        with held_by_this_process(lock):
            yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open, too
        os.close(lock)


def task_threads() -> int:
    """Return how many threads such a process may use: queries should find a core that is free."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def bounds() -> dict[str, str]:
    """Return the environment that keeps libraries to so many threads, too; they look when they are loaded."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return dict.fromkeys(names, str(task_threads()))


def _lock_path(log_root: Path, index: str, task: Task) -> Path:
    folder = log_folder(log_root, index)
    assert folder is not None
    return folder / f"{task}.lock"


def _take(path: Path) -> int | None:
    """Return the lock file, open and locked; None if somebody has it."""
    descriptor = open_private(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

"""Schedule seals, merges, garbage collection and migrations; each runs in a process of its own, at low priority.

Workers check their indexes periodically. The worker that finds a task due locks a file and passes it, open, to a new
process (locks.py). So each task of an index has at most one process for all workers and servers, and the kernel
releases the lock however that process ends. A task that is interrupted changes no version.

Bound how many tasks of maintenance a process runs at once, in the order in which they became due.

Whether an index is being filled: rows are added so quickly that what a merge builds would soon be merged again.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias

from scannery.indexer import (
    NO_SHARDS,
    IndexerError,
    IndexSpec,
    Manifest,
    Store,
    default_cache_folder,
    latest_version,
    python_command,
    python_environment,
)
from scannery.indexer.versions.versions import republish
from scannery.live.log.files import LOG_FILE, held_by_this_process
from scannery.live.log.location import LOG_VARIABLE, DatabaseUrl, LogRoot
from scannery.live.maintenance.goals import Goal, goal_of, is_due, tell_problem
from scannery.live.maintenance.locks import SharedLock, Task, TaskLock, TaskLocks
from scannery.live.maintenance.merge_policy import due
from scannery.live.memtable import LiveState
from scannery.runtime.memory import BUILD_COPIES, TASK_BYTES, memory_text
from scannery.runtime.retry import Backoff
from scannery.runtime.times import WALL_SECONDS

__all__ = [
    "PROGRAM",
    "QUIET_S",
    "SEALED_S",
    "SWEEP_S",
    "FillDetector",
    "Maintenance",
    "Reserve",
    "TaskResult",
    "TaskSlots",
    "bounds",
    "seal_bytes",
    "seal_bytes_after",
    "seal_due",
    "task_bytes",
    "task_threads",
]


PATIENCE_S = 60.0
"""Who has not asked again for so long, as an idle client, keeps no place in the queue."""


class TaskSlots:
    """Slots for tasks. Safe to use from several threads; a forked process has all of them free."""

    def __init__(self, count: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with all slots free.

        Args:
            count: of slots.
            clock: seconds.

        """
        self._count, self._clock = count, clock
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._free = self._count
        self._waiting: dict[Hashable, float] = {}
        """When each that waits last asked, in the order of the queue."""

    def take(self, asker: Hashable) -> bool:
        """Take a slot, and return whether there was one; otherwise the asker keeps its place until it asks again."""
        with self._lock:
            now_s = self._clock()
            self._waiting[asker] = now_s
            if not self._free:
                return False
            self._waiting = {
                each: asked_s for each, asked_s in self._waiting.items() if now_s - asked_s < PATIENCE_S
            }
            if list(self._waiting).index(asker) >= self._free:
                return False
            del self._waiting[asker]
            self._free -= 1
            return True

    def leave(self, asker: Hashable) -> None:
        """Give up a place in the queue, if there is one."""
        with self._lock:
            self._waiting.pop(asker, None)

    def give_back(self, unused_by: Hashable | None = None) -> None:
        """Give back a slot; whom it was of no use to yet is the next in the queue."""
        with self._lock:
            # A forked process may give back what its parent took.
            self._free = min(self._count, self._free + 1)
            if unused_by is not None:
                self._waiting = {unused_by: self._clock()} | self._waiting


QUIET_S = 3.0
"""Seconds without a mutation after which an index is not being filled."""
SEALED_S = 15.0
"""Seconds for `seal_rows` rows, or since the last seal, up to which an index is being filled: with the default of
`seal_rows`, 1,333 rows/s and more."""


class FillDetector:
    """Observes the writes to one index. Not safe to use from several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without an observation.

        Args:
            clock: seconds.

        """
        self._clock = clock
        self._written_to: int | None = None
        self._sealed: int | None = None
        self._written_at_s = self._sealed_at_s = float("-inf")

    def filling(self, *, written_to: int, sealed: int, full: bool, behind: bool, age_s: float) -> bool:
        """Return whether the index is being filled.

        Args:
            written_to: sequence of the last mutation.
            sealed: sequence of the last mutation that is in the current version.
            full: whether the rows in memory suffice for a seal.
            behind: whether they suffice for a larger one; then writes may only have paused because they were refused.
            age_s: age of the oldest mutation in memory, in seconds.

        """
        now_s = self._clock()
        if written_to != self._written_to:
            self._written_to, self._written_at_s = written_to, now_s
        if sealed != self._sealed:
            if self._sealed is not None:  # a server that has just started does not know when that was
                self._sealed_at_s = now_s
            self._sealed = sealed
        if behind:
            return True
        if now_s - self._written_at_s >= QUIET_S:
            return False
        return (full and age_s < SEALED_S) or now_s - self._sealed_at_s < SEALED_S


_LOG = logging.getLogger(__name__)

PROGRAM = "scannery.live.maintenance.main"
COMMAND = "scannery"
"""Program of migrations: a command of the user, since encoders are not in reach of this room."""
END_S = 10.0
HELD_S = 2.0
"""Seconds until a database is asked again for a lock that another process held: each time costs it a connection."""
SWEEP_S = 10.0
"""Longest time until an index is looked at of which nothing tells that it has changed; garbage may be due."""
_TAIL_BYTES = 2000


MAX_TASKS = max(2, len(os.sched_getaffinity(0)))
"""Most seals that this process runs at once, and most other tasks: each takes 200 MB, and hundreds of indexes may have
rows of the same age."""
_OTHER_SLOTS = TaskSlots(MAX_TASKS)
_TASKS_OF_LOG: tuple[Task, ...] = ("seal", "merge", "gc")
_SLOTS: dict[Task, TaskSlots] = {
    "seal": TaskSlots(MAX_TASKS), "merge": _OTHER_SLOTS, "gc": _OTHER_SLOTS, "migrate": TaskSlots(MAX_TASKS)
}  # fmt: skip
"""Seals do not wait for merges: one may take hours, and without seals the memory fills until writes are refused. Nor
does either wait for migrations."""


_DETACHED: list[subprocess.Popen[bytes]] = []
"""Processes that outlive what started them."""


PRESSED_S = 5.0
"""Age of the oldest rows in memory at which they are sealed where memory is short: each seal takes a second."""
LARGER_SEALS = 3
"""While an index is filled, up to this many times the rows are sealed at once: each seal takes a second of processor
time whatever its rows."""
MEMORY_SHARE = 0.25
"""Share of the rows or bytes at which writes are refused that bounds these larger seals."""


LEAST_ROW_BYTES = 64
"""Bytes of a record for each of its rows, at the least, where these have no vectors."""
GOAL_S = 2.0
"""Time between two looks at what a migration still has to do: in a bucket each is four requests."""
ENCODING_BYTES = 5 * TASK_BYTES
"""Memory of a migration with a model of 100 MB, as measured."""
NO_ROOM = f"waits for {memory_text(ENCODING_BYTES)} of memory under the ceiling of the server"
MARKED_S = 10.0
"""Time after which a later version for which the log has a mark is taken to be given up: an exchange takes seconds."""


Reserve: TypeAlias = Callable[[Task, Callable[[], int]], Callable[[], None] | None]
"""Function from a task and what returns the bytes that it needs to what releases them at its end; None: it cannot start
now."""


def task_bytes(task: Task, state: LiveState, *, filling: bool = False) -> int:
    """Return about the memory that a task of an index needs, with the processes that it starts."""
    if task == "seal":
        return seal_bytes(state.manifest.spec, state.unsealed_rows, state.unsealed_bytes)
    if task == "migrate":
        return ENCODING_BYTES
    groups = due(state.manifest, filling=filling) if task == "merge" else []
    if not groups:
        return TASK_BYTES
    rows, size_bytes = (
        sum(getattr(file, name) for entry in groups[0] for file in entry.by_name.values())
        for name in ("rows", "size_bytes")
    )
    return seal_bytes(state.manifest.spec, rows, size_bytes)


def seal_bytes(spec: IndexSpec, rows: int, size_bytes: int) -> int:
    """Return about the memory for building a segment of some rows of a size, with the process that trains ScaNN."""
    processes = 2 if rows >= spec.scann.exact_below_rows else 1
    return processes * TASK_BYTES + int(BUILD_COPIES * size_bytes)


def seal_bytes_after(state: LiveState, size_bytes: int) -> int:
    """Return the most memory that a seal of an index needs after a write whose record has some bytes."""
    row_bytes = 4 * state.manifest.dimensions or LEAST_ROW_BYTES
    rows = state.unsealed_rows + size_bytes // row_bytes
    return seal_bytes(state.manifest.spec, rows, state.unsealed_bytes + size_bytes)


def seal_due(state: LiveState, age_s: float, *, filling: bool = False) -> bool:
    """Return whether the rows in memory should be sealed.

    The size of the log counts too: deletions and replaced rows take space only there.

    Args:
        state: of the index.
        age_s: age of the oldest mutation in memory, in seconds.
        filling: whether rows are added quickly.

    """
    aged = age_s >= state.manifest.spec.live.seal_age_s
    return state.mutations > 0 and (aged or _full(state, larger=filling))


def _full(state: LiveState, *, larger: bool) -> bool:
    live = state.manifest.spec.live
    rows, most_bytes = live.seal_rows, live.seal_bytes
    if larger:
        rows, most_bytes = _larger(rows, live.max_rows), _larger(most_bytes, live.max_bytes)
    return state.unsealed_rows >= rows or state.unsealed_bytes >= most_bytes


def _leave_detached() -> None:
    """Forget the processes that this one leaves behind, so that no warning says they were not waited for."""
    for process in _DETACHED:
        if process.poll() is None:
            process.returncode = 0


atexit.register(_leave_detached)


def _larger(sealed: int, refused: int) -> int:
    return max(sealed, min(LARGER_SEALS * sealed, int(MEMORY_SHARE * refused)))


def _gc_due(lock: Path, every_s: float) -> bool:
    """Return whether the last garbage collection by any server was at least `every_s` ago; 0: never due.

    The modification time of the lock file tells the time. A missing file is created, so the first collection is due
    `every_s` later: a server that has just started has more urgent work.
    """
    if not every_s:
        return False
    try:
        return time.time() - lock.stat().st_mtime >= every_s
    except FileNotFoundError:
        with suppress(OSError):
            lock.touch(0o600)
        return False


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A task that has ended."""

    index: str
    task: Task
    done: bool
    """Whether it succeeded; False: it failed, or could not begin."""
    seconds: float


def _nothing() -> None:
    pass


@dataclass(slots=True)
class _Run:
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    lock: SharedLock
    slots: TaskSlots
    since_s: float
    unreserve: Callable[[], None] = _nothing
    """Releases its memory."""

    def release(self) -> None:
        """Let go of what belongs to the run, but not of its process."""
        self.slots.give_back()
        self.unreserve()
        self.output.close()
        self.lock.release()


class Maintenance:
    """Starts what is due for one index. Safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        index: str,
        log_root: LogRoot,
        *,
        fill_cache: bool = True,
        on_end: Callable[[TaskResult], object] = lambda ended: None,
        clock: Callable[[], float] = time.monotonic,
        reserve: Reserve = lambda task, needed: _nothing,
        pressed: Callable[[], bool] = lambda: False,
        seconds: Callable[[], int] = WALL_SECONDS,
    ) -> None:
        """Start nothing yet.

        Args:
            store: with the index.
            index: its name.
            log_root: folder with the logs of the indexes, or their database.
            fill_cache: whether new segments are unpacked into the cache of this machine, for servers.
            on_end: called with each task that has ended.
            clock: seconds.
            reserve: reserves the memory of a task.
            pressed: returns whether memory is short, so that rows are sealed early.
            seconds: returns the second since 1970, by which rows have expired.

        """
        self._reserve, self._pressed, self._seconds = reserve, pressed, seconds
        self._store = store
        self._index = index
        self._log_root = log_root if isinstance(log_root, DatabaseUrl) else log_root.absolute()
        self._locks = TaskLocks(store, index, self._log_root)
        self._fill_cache, self._on_end = fill_cache, on_end
        self._cache = default_cache_folder().absolute()
        self._clock = clock
        self._runs: dict[Task, _Run] = {}
        self._backoff = defaultdict[Task, Backoff](partial(Backoff, clock=clock))
        self._held_until_s: dict[Task, float] = {}
        self._fill = FillDetector(clock)
        self._first_at_s: float | None = None
        self._expired_at_s: float | None = None
        """When rows of the version were first seen to have expired; None: they were not."""
        self._base = -1
        self._goal_at_s = float("-inf")
        self._marked = 0, 0.0
        """The version whose log was seen to go on in a later one, and when."""
        self._lock = threading.Lock()

    @property
    def running(self) -> tuple[Task, ...]:
        """The tasks that ran at the last look."""
        return tuple(self._runs)

    def look(self, state: LiveState, *, regularly: bool = False) -> float:
        """Start the tasks that the state makes due, and check the processes that have ended.

        Returns the seconds until this must be called again, if the state stays as it is.

        Args:
            state: the newest one.
            regularly: whether this is called regularly, also without writes. Only then, tasks may wait while rows are
                added quickly.

        """
        if not self._lock.acquire(blocking=False):
            return 0.0
        try:
            for task in list(self._runs):
                self._reap(task)
            if state.manifest.mirror is None:
                return self._look_at_log(state, regularly=regularly)
            self._look_at_goal(state, regularly=regularly)
            return min(GOAL_S, self._look_at_log(state, regularly=regularly))
        finally:
            self._lock.release()

    def _look_at_log(self, state: LiveState, *, regularly: bool) -> float:
        if state.manifest.spec.live.expire is None and not self._was_written(state):
            return SWEEP_S  # only builds change its segments
        age_s = self._age_s(state)
        filling = regularly and self._filling(state, age_s)
        tasks: list[Task] = []
        pressed = state.mutations > 0 and age_s >= PRESSED_S and self._pressed()
        if pressed or seal_due(state, age_s, filling=filling) or self._has_expired(state):
            tasks.append("seal")
        if due(state.manifest, filling=filling):
            tasks.append("merge")
        if _gc_due(self._locks.path("gc"), state.manifest.spec.live.gc_every_s):
            tasks.append("gc")
        for task in _TASKS_OF_LOG:
            if task in tasks:
                self._start(task, state, filling=filling and task != "gc")
            else:
                _SLOTS[task].leave((self, task))
        if tasks or self._runs:
            return 0.0
        wait_s = QUIET_S if filling else SWEEP_S  # when a fill ends, what waited for that is due
        return min(wait_s, state.manifest.spec.live.seal_age_s - age_s) if state.mutations else wait_s

    def _look_at_goal(self, state: LiveState, *, regularly: bool) -> None:
        """Start a process for a mirror whose migration has something to do."""
        if "migrate" in self._runs or (regularly and self._clock() < self._goal_at_s):
            return
        self._goal_at_s = self._clock() + GOAL_S
        if is_due(self._store, state.manifest, state.sequence):
            self._start("migrate", state)
        else:
            _SLOTS["migrate"].leave((self, "migrate"))

    def pass_mark(self, manifest: Manifest) -> None:
        """Publish a version again whose log goes on in a later one that does not appear: an exchange of contents ended.

        Until then, the index takes no writes.
        """
        if manifest.version != self._marked[0]:
            self._marked = manifest.version, self._clock()
        elif self._clock() - self._marked[1] >= MARKED_S:
            self._marked = 0, 0.0
            republish(self._store, manifest)

    def _has_expired(self, state: LiveState) -> bool:
        """Return whether rows of the version have expired that a seal should remove: by their number, or their age.

        A process without rows does not know, and has a seal look.
        """
        live, now_s = state.manifest.spec.live, self._clock()
        if live.expire is None:
            return False
        count = state.index.at(self._seconds()).expired_rows if state.index.segments else 0
        if count >= live.seal_rows:
            return True
        if not count and state.shards is not NO_SHARDS:
            self._expired_at_s = None
            return False
        if self._expired_at_s is None:
            self._expired_at_s = now_s
        if now_s - self._expired_at_s < live.seal_age_s:
            return False
        self._expired_at_s = None  # it may find none
        return True

    def _was_written(self, state: LiveState) -> bool:
        """Return whether the index has a log; for a database, as far as the state says, which costs no query."""
        if isinstance(self._log_root, DatabaseUrl):
            return state.sequence > 0
        return self._locks.path("seal").with_name(LOG_FILE).exists()

    def _filling(self, state: LiveState, age_s: float) -> bool:
        return self._fill.filling(
            written_to=state.sequence,
            sealed=state.manifest.log_sequence,
            full=_full(state, larger=False),
            behind=_full(state, larger=True),
            age_s=age_s,
        )

    def close(self, *, finish: bool = False) -> None:
        """Terminate the running tasks; nothing is lost by that.

        A migration is not waited for: what it ignores SIGTERM for, the removal of a mirror, must come to its end. The
        index may be closed since that mirror is gone.

        Args:
            finish: let them finish on their own instead. Short-lived embedded clients would otherwise terminate every
                seal that they start, until memory is full and writes fail.

        """
        with self._lock:
            for task, slots in _SLOTS.items():
                slots.leave((self, task))
            if finish:
                self._detach(*self._runs)
            for run in self._runs.values():
                run.process.terminate()
            self._detach("migrate")
            for run in self._runs.values():
                try:
                    run.process.wait(END_S)
                except subprocess.TimeoutExpired:
                    run.process.kill()
                    run.process.wait()
                run.release()
            self._runs.clear()

    def _detach(self, *tasks: Task) -> None:
        _DETACHED[:] = [process for process in _DETACHED if process.poll() is None]  # reaps those that ended
        for task in tasks:
            if (run := self._runs.pop(task, None)) is not None:
                run.release()
                _DETACHED.append(run.process)

    def _age_s(self, state: LiveState) -> float:
        if not state.mutations or state.manifest.version != self._base:
            self._first_at_s = None
            self._base = state.manifest.version
        if self._first_at_s is None:
            self._first_at_s = self._clock()
        return self._clock() - self._first_at_s

    def _start(self, task: Task, state: LiveState, *, filling: bool = False) -> None:
        if task in self._runs or not self._backoff[task].due or self._was_held(task):
            return
        if not _SLOTS[task].take((self, task)):
            return
        waits_for_seal = False
        try:
            waits_for_seal = not self._start_in_slot(task, state, filling) and task == "seal"
        finally:
            if task not in self._runs:
                # Otherwise an index that is always written to would seal again and again, and others never.
                _SLOTS[task].give_back((self, task) if waits_for_seal else None)

    def _start_in_slot(self, task: Task, state: LiveState, filling: bool) -> bool:
        """Start a task if no other process has it; False: it has to wait for memory, a seal for another seal."""
        try:
            if latest_version(self._store, self._index) != state.manifest.version:
                return True  # another process has done it; this one is about to move to that version
            lock = self._locks.try_lock(task)
        except (OSError, IndexerError) as error:
            self._failed(task, f"cannot begin: {error}")
            return True
        if lock is None:
            self._held_until_s[task] = self._clock() + HELD_S
            return True
        unreserve = None
        try:
            with held_by_this_process(lock.file):
                unreserve = self._reserve(task, partial(self._needed_bytes, task, state, filling))
                if unreserve is None and task == "migrate":
                    tell_problem(self._store, self._index, NO_ROOM)
                if unreserve is None:
                    return False
                os.utime(lock.file)  # `_gc_due` reads it
                command = self._command(task, state, lock, filling)
                self._runs[task] = replace(self._spawn(task, command, lock), unreserve=unreserve)
        except OSError as error:
            self._failed(task, str(error))
        finally:
            if task not in self._runs:
                lock.shared.release()
                if unreserve is not None:
                    unreserve()
            os.close(lock.file)
        return True

    def _needed_bytes(self, task: Task, state: LiveState, filling: bool) -> int:
        if task == "migrate" and goal_of(self._store, self._index) is Goal.ABANDON:
            return TASK_BYTES  # which encodes nothing
        return task_bytes(task, state, filling=filling)

    def _was_held(self, task: Task) -> bool:
        """Return whether another process had the lock a moment ago; a file is locked again at no cost."""
        shared = isinstance(self._log_root, DatabaseUrl)
        return shared and self._clock() < self._held_until_s.get(task, float("-inf"))

    def _command(self, task: Task, state: LiveState, lock: TaskLock, filling: bool) -> list[str]:
        log, _ = _log_arguments(self._log_root)
        options = ["--store", self._store.uri, *log]
        if task == "migrate":
            assert state.manifest.mirror is not None
            return python_command(
                COMMAND, ["index", "migrate", state.manifest.mirror.index, "--run", *options]
            )
        options += ["--lock", str(lock.file)]
        options += ["--filling"] if filling else []
        options += [] if self._fill_cache else ["--leave-cache"]
        return python_command(PROGRAM, [task, self._index, *options])

    def _spawn(self, task: Task, command: Sequence[str], lock: TaskLock) -> _Run:
        _, variables = _log_arguments(self._log_root)
        output = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process has ended
        try:
            process = subprocess.Popen(
                command,
                env=python_environment(bounds() | variables | {"SCANNERY_CACHE_DIR": str(self._cache)}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[lock.file],
            )
        except BaseException:
            output.close()
            raise
        return _Run(process, output, lock.shared, _SLOTS[task], self._clock())

    def _reap(self, task: Task) -> None:
        run = self._runs[task]
        status = run.process.poll()
        if status is None:
            return
        del self._runs[task]
        try:
            run.output.seek(0)
            output = run.output.read()[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        finally:
            run.release()
        seconds = self._clock() - run.since_s
        if status:
            self._failed(task, f"ended with status {status}: {output}", seconds)
        else:
            self._backoff[task].reset()
            self._on_end(TaskResult(self._index, task, done=True, seconds=seconds))

    def _failed(self, task: Task, what: str, seconds: float = 0.0) -> None:
        self._on_end(TaskResult(self._index, task, done=False, seconds=seconds))
        wait_s = self._backoff[task].back_off()
        _LOG.error("index %s: %s %s; trying again in %.0f s", self._index, task, what, wait_s)


def task_threads() -> int:
    """Return the threads of a task: half of the available cores, so that queries find free ones."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def bounds() -> dict[str, str]:
    """Return environment variables that limit libraries to `task_threads`; the libraries read them when loaded."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return dict.fromkeys(names, str(task_threads()))


def _log_arguments(log_root: LogRoot) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and environment variables that tell a process where the logs are."""
    if isinstance(log_root, DatabaseUrl):
        return [], {LOG_VARIABLE: log_root.url}
    return ["--log", str(log_root)], {}

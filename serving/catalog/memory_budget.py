"""What the indexes of a server take of its memory, and whether there is room for more.

Each worker counts for the whole server, with what all workers take: they have the same indexes open. What the
supervisor opened before the fork is shared, and counts once; what workers open by themselves is on the heap of each.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from scannery.indexer import (
    IndexMemory,
    MemorySegment,
    OpenIndex,
    added_memory,
    live_memory,
    open_files,
)
from scannery.indexer.segment.cache import Hold
from scannery.live.maintenance.locks import Task
from scannery.live.maintenance.scheduler import seal_bytes
from scannery.runtime.errors import MemoryCeilingError
from scannery.runtime.memory import MIB, TASK_BYTES, ProcessMemory, memory_text
from scannery.runtime.sharing import SharedReservation

__all__ = ["MemoryBudget", "MemorySamples"]

_LOG = logging.getLogger(__name__)

WRITE_COPIES = 4
"""Bytes of memory of a worker for each byte of the record of a write: the rows, scaled vectors, the copy that searches
read, and words; measured: at most 3.6."""
RECOUNT_S = 0.2
"""Seconds for which a count serves writes; what they add meanwhile is added to it."""
RETRY_S = 1.0
REOPEN_S = 10.0
"""Longest time until a version for which there was no room is tried again: seals end in seconds, and make some."""
PRESSED_SHARE, PRESSED_FOR_S = 0.95, 15.0
"""Share of the ceiling from which on rows are sealed early, and seconds for which a write that found it counts."""
SAMPLED_EVERY_S = 5.0
"""Seconds between two counts for metrics."""
SAMPLED_INDEXES = 64
"""Indexes with samples of their own, the largest ones: those of a thousand would fill what a worker publishes."""
LISTED = 5
"""Indexes that a message lists."""


@dataclass(slots=True)
class _OpenFile:
    index: str
    memory: IndexMemory
    copies: int
    """Processes that have it on their heap."""


class MemoryBudget:
    """The memory of a server, and its ceiling. Safe to use from several threads; a forked process has its own."""

    def __init__(self, processes: ProcessMemory | None = None, workers: int = 1) -> None:
        """Begin without indexes.

        Args:
            processes: the ceiling, and what the processes need of it; None: there is no ceiling.
            workers: number of workers.

        """
        self._processes, self._workers = processes, workers
        self._copies = workers
        self._files: WeakKeyDictionary[Hold, _OpenFile] = WeakKeyDictionary()
        self._models: dict[str, int] = {}
        """Bytes of the weights of encoders, of all processes, by what they are loaded by."""
        self._reserved = (
            {} if processes is None else {task: SharedReservation() for task in ("seal", "merge", "migrate")}
        )
        """What tasks of maintenance need, in any worker: seals do not wait for merges."""
        self._lock = threading.Lock()
        self._counted_bytes, self._sealing_bytes, self._counted_at_s = 0, 0, float("-inf")
        self._pressed_at_s = float("-inf")
        self._report = ""
        """The problem that was logged last."""
        self.snapshots: Callable[[], Iterable[OpenIndex]] = lambda: ()
        """Returns the open indexes with their memtables."""

    @property
    def ceiling_bytes(self) -> int | None:
        """The ceiling; None: there is none."""
        return None if self._processes is None else self._processes.ceiling_bytes

    @property
    def processes(self) -> ProcessMemory | None:
        """The ceiling, and the bounds that follow from it; None: there is no ceiling."""
        return self._processes

    def sharing(self, *, shared: bool) -> None:
        """Note whether what is opened from now on is shared: the supervisor opens it before it forks."""
        self._copies = 1 if shared else self._workers
        self._lock = threading.Lock()  # another thread of the parent may hold that of before a fork

    def opened(self, index: OpenIndex, models: Mapping[str, int]) -> None:
        """Count an index that is open from now on; files and encoders that are counted already stay so.

        Args:
            index: the version.
            models: memory of the encoders that are loaded with it, by what they are loaded by.

        """
        files = open_files(index)
        with self._lock:
            for hold, memory in files.items():
                if hold not in self._files:
                    self._files[hold] = _OpenFile(index.manifest.index, memory, self._copies)
            for model, size_bytes in models.items():
                self._models.setdefault(model, self._copies * size_bytes)

    def keep_models(self, models: Collection[str]) -> None:
        """Count no encoders any more but these, by what they are loaded by."""
        with self._lock:
            self._models = {model: self._models[model] for model in self._models.keys() & models}

    def by_index(self) -> dict[str, IndexMemory]:
        """Return what each open index takes in all processes, by its name."""
        with self._lock:
            parts = [(file.index, _times(file.memory, file.copies)) for file in self._files.values()]
        parts += [
            (index.manifest.index, _times(live_memory(index), self._workers)) for index in self.snapshots()
        ]
        by_name: dict[str, list[IndexMemory]] = {}
        for name, memory in parts:
            by_name.setdefault(name, []).append(memory)
        return {name: added_memory(each) for name, each in by_name.items()}

    def of_processes(self) -> dict[str, int]:
        """Return what the processes need besides indexes, by component; without a ceiling that of encoders alone."""
        fixed = {} if self._processes is None else self._processes.by_component
        maintenance = sum(reservation.amount for reservation in self._reserved.values())
        return fixed | {"encoders": sum(self._models.values()), "maintenance": maintenance}

    def needed_bytes(self) -> int:
        """Return what all processes need."""
        indexes = sum(map(_needed, self.by_index().values()))
        return indexes + sum(self.of_processes().values())

    @property
    def is_pressed(self) -> bool:
        """Whether writes lately came near the ceiling, so that rows should leave memory."""
        return time.monotonic() - self._pressed_at_s < PRESSED_FOR_S

    def reserve(self, task: Task, needed: Callable[[], int]) -> Callable[[], None] | None:
        """Reserve memory for a task of maintenance, and return what releases it; None: it has to wait.

        With a ceiling, one seal, one migration and one other task run at a time, in all workers. Any but a seal waits
        until there is room for it beside a seal; there is always room for that, since writes leave it.
        """
        if self._processes is None:
            return lambda: None
        size_bytes, open_bytes = needed(), self.needed_bytes()
        if task != "seal" and open_bytes + self._seal_bytes() + size_bytes > self._processes.ceiling_bytes:
            self._tell(f"there is no room for a {task} of {memory_text(size_bytes)}")
            return None
        return self._reserved["merge" if task == "gc" else task].take(size_bytes)

    def _seal_bytes(self) -> int:
        """Return what a seal of the largest memtable will need, beside what one that runs has."""
        return self._beyond_seal(max([TASK_BYTES, *map(_seal_bytes, self.snapshots())]))

    def _beyond_seal(self, size_bytes: int) -> int:
        """Return what a seal needs beside what one that runs has, which is counted: the next one has its memory."""
        return max(0, size_bytes - self._reserved["seal"].amount) if self._reserved else 0

    def check_opening(self, what: str, memory: IndexMemory, models: Mapping[str, int]) -> None:
        """Check that there is room for a version, before any of it is opened.

        Args:
            what: names it in the message.
            memory: of the segments that are not open, as of `memory_of_opening`.
            models: as of `opened`.

        Raises:
            MemoryCeilingError: there is none; the message has what is large, and what would fit.

        """
        if self._processes is None:
            return
        new, ceiling_bytes = _times(memory, self._copies), self._processes.ceiling_bytes
        weights = sum(self._copies * size for model, size in models.items() if model not in self._models)
        needed, open_bytes = _needed(new) + weights, self.needed_bytes()
        if open_bytes + needed > ceiling_bytes:
            self._tell(f"there is no room for {what}")
            raise MemoryCeilingError(
                f"{what} needs {memory_text(needed)} of memory ({_listed(new, weights)}), and of the ceiling of "
                f"{memory_text(ceiling_bytes)} (--memory) {memory_text(open_bytes)} are taken; "
                f"what would fit: {self._remedies(open_bytes + needed, new)}",
                retry_after_s=REOPEN_S,
            )

    def check_write(self, size_bytes: int, seal_bytes: int = 0) -> None:
        """Check that there is room for new rows in the memory of all workers, and count them.

        Args:
            size_bytes: of their record.
            seal_bytes: bytes that a seal of their index needs when they are written.

        Raises:
            MemoryCeilingError: there is none; nothing may be written.

        """
        if self._processes is None:
            return
        needed, now_s = WRITE_COPIES * self._workers * size_bytes, time.monotonic()
        if now_s - self._counted_at_s >= RECOUNT_S:
            self._counted_bytes, self._counted_at_s = self.needed_bytes(), now_s
            self._sealing_bytes = self._seal_bytes()
        total = self._counted_bytes + needed + max(self._sealing_bytes, self._beyond_seal(seal_bytes))
        if total > PRESSED_SHARE * self._processes.ceiling_bytes:
            self._pressed_at_s = now_s
        if total > self._processes.ceiling_bytes:
            raise MemoryCeilingError(
                f"no room for new rows: of the ceiling of {memory_text(self._processes.ceiling_bytes)} (--memory) "
                f"{memory_text(total - needed)} are taken, with what sealing needs; nothing was written. Rows "
                "that are sealed leave memory; a higher ceiling, fewer workers or fewer indexes make room, too",
                retry_after_s=RETRY_S,
            )
        self._counted_bytes += needed

    def _tell(self, problem: str) -> None:
        """Log a problem and what is taken, once: callers do not see the names of other indexes."""
        indexes = sorted(((_needed(memory), name) for name, memory in self.by_index().items()), reverse=True)
        parts = [(size, name) for name, size in self.of_processes().items()]
        parts += [(size, f"index {name}") for size, name in indexes[:LISTED]]
        if problem != self._report:
            self._report = problem
            taken = ", ".join(f"{name} {memory_text(size)}" for size, name in parts if size)
            _LOG.warning("memory: %s; needed are: %s", problem, taken)

    def _remedies(self, total: int, new: IndexMemory) -> str:
        """Return what would fit: a ceiling, fewer workers, and vectors and codes that stay in the store."""
        assert self._processes is not None
        indexes = total - sum(self._processes.by_component.values())
        remedies = [f"--memory {-(-self._processes.with_room(indexes).ceiling_bytes // MIB)}MiB"]
        if self._workers > 1:
            remedies.append("fewer --workers")
        left_out = sum(new[name].needed for name in ("codes", "quantized", "words") if name in new)
        if left_out and total - left_out <= self._processes.ceiling_bytes:
            remedies.append("--cold, which leaves vectors and codes in the store")
        return ", ".join(remedies)


class MemorySamples:
    """Samples of metrics: the memory by index and component. Counted every few seconds."""

    def __init__(self, budget: MemoryBudget) -> None:
        """Read from a budget."""
        self._budget = budget
        self._by_index: dict[str, IndexMemory] = {}
        self._counted_at_s = float("-inf")

    def needed(self) -> dict[tuple[str, ...], float]:
        """Return what is needed by index and component; what processes need has no index."""
        samples: dict[tuple[str, ...], float] = {
            ("", name): float(size) for name, size in self._budget.of_processes().items() if size
        }
        return samples | {
            (index, name): float(size.needed)
            for index, memory in self._recounted().items()
            for name, size in memory.items()
            if size.needed
        }

    def mapped(self) -> dict[tuple[str, ...], float]:
        """Return what is mapped and not needed, by index and component."""
        return {
            (index, name): float(size.mapped)
            for index, memory in self._recounted().items()
            for name, size in memory.items()
            if size.mapped
        }

    def _recounted(self) -> dict[str, IndexMemory]:
        """Return the memory of the largest indexes by their names, and that of the others together by ""."""
        if time.monotonic() - self._counted_at_s >= SAMPLED_EVERY_S:
            by_index = self._budget.by_index()
            sizes = sorted(by_index, key=lambda name: -sum(size.total for size in by_index[name].values()))
            small = added_memory([by_index[name] for name in sizes[SAMPLED_INDEXES:]])
            largest = {name: by_index[name] for name in sizes[:SAMPLED_INDEXES]}
            self._by_index = largest | ({"": small} if small else {})
            self._counted_at_s = time.monotonic()
        return self._by_index


def _seal_bytes(index: OpenIndex) -> int:
    """Return what a seal of the new rows of an index needs."""
    new = [segment for segment in index.segments if isinstance(segment, MemorySegment)]
    if not new:
        return 0
    rows, size_bytes = sum(segment.rows for segment in new), sum(segment.size_bytes for segment in new)
    return seal_bytes(index.spec, rows, size_bytes)


def _times(memory: IndexMemory, copies: int) -> IndexMemory:
    return {name: size.times(copies) for name, size in memory.items()}


def _needed(memory: IndexMemory) -> int:
    return sum(size.needed for size in memory.values())


def _listed(memory: IndexMemory, weights: int) -> str:
    sizes = {name: size.needed for name, size in memory.items()} | {"encoders": weights}
    return ", ".join(f"{name} {memory_text(size)}" for name, size in sizes.items() if size)

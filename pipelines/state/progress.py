"""Progress of a build, counted from finished files in the store, since runners report only at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

from scannery.indexer.errors import IndexerError
from scannery.indexer.store.object_store import Store
from scannery.pipelines.state.job import Job, ShardOutcome, UnitOutcome, read_stage, read_unit
from scannery.pipelines.state.work_units import WorkUnit

__all__ = ["Progress", "ProgressCallback", "watched"]

INTERVAL_S = 0.5

MOST_SHARE = 0.05
"""Most of the time that looking may take: a listing of 100,000 units takes a bucket ten seconds, so it is looked at
every three minutes."""

_READERS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of one stage of a build."""

    stage: str
    """`plan`, `embed`, `segment` or `done`."""

    done: int
    """Input bytes (plan, embed) or shards (segment); `total` has the same unit."""

    total: int
    passages: int = 0
    """Datapoints so far."""

    dead: int = 0
    """Refused records so far."""


ProgressCallback = Callable[[Progress], None]
"""Called from a separate thread, at most a few times a second."""


@contextlib.contextmanager
def watched(
    job: Job, store: Store, units: Sequence[WorkUnit], callback: ProgressCallback | None
) -> Iterator[None]:
    """Call `callback` with the workers' progress until the context ends: twice a second, or less for large builds."""
    if callback is None:
        yield
        return
    watch = _Watch(job, store, units, callback)
    thread = threading.Thread(target=watch.run, name="scannery-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.stopped.set()
        thread.join()


class _Watch:
    def __init__(self, job: Job, store: Store, units: Sequence[WorkUnit], callback: ProgressCallback) -> None:
        self.stopped = threading.Event()
        self._job, self._store, self._callback = job, store, callback
        self._waiting = {unit.key: sum(part.size_bytes for part in unit.parts) for unit in units}
        self._total = sum(self._waiting.values())
        self._done = self._passages = self._dead = 0
        self._known_segments = self._names("segments")
        self._shards: set[int] = set()

    def run(self) -> None:
        while True:
            started = time.perf_counter()
            # A short failure of the store must end neither the build nor its progress.
            with contextlib.suppress(IndexerError):
                self._look()
            took_s = time.perf_counter() - started
            if self.stopped.wait(max(INTERVAL_S, took_s * (1 / MOST_SHARE - 1))):
                return

    def _look(self) -> None:
        finished = sorted(self._names("units") & self._waiting.keys())
        if finished:
            with ThreadPoolExecutor(_READERS if self._store.local_root is None else 1) as pool:
                for key, outcome in zip(finished, pool.map(self._outcome, finished), strict=True):
                    if outcome is not None:
                        self._done += self._waiting.pop(key)
                        self._passages += outcome.counts.passages
                        self._dead += sum(outcome.counts.dead_letters.values())
        if self._waiting:
            self._tell("embed", self._done, self._total)
        else:
            self._count_shards()
            self._tell("segment", len(self._shards), self._job.shards)

    def _outcome(self, key: str) -> UnitOutcome | None:
        return None if self.stopped.is_set() else read_unit(self._store, self._job.index, key)

    def _count_shards(self) -> None:
        """Count finished shards; a shard may have two records: of the build, and of a following update."""
        new = self._names("segments") - self._known_segments
        for name in sorted(new):
            if text := read_stage(self._store, self._job.index, "segments", name):
                self._shards.add(ShardOutcome.from_json(text).shard)
        self._known_segments |= new

    def _tell(self, stage: str, done: int, total: int) -> None:
        self._callback(
            Progress(stage=stage, done=done, total=total, passages=self._passages, dead=self._dead)
        )

    def _names(self, kind: str) -> set[str]:
        paths = (PurePosixPath(item.key) for item in self._store.list(f"{self._job.index}/stage/{kind}"))
        return {path.stem for path in paths if path.suffix == ".json"}

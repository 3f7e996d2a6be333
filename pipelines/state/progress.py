"""Progress of a build, counted from finished files in the store, since runners report only at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

from scannery.indexer.errors import IndexerError
from scannery.indexer.store.object_store import Store
from scannery.pipelines.state.counts import ShardOutcome
from scannery.pipelines.state.job import Job
from scannery.pipelines.state.stage_outputs import read_stage, read_unit
from scannery.pipelines.state.work_units import WorkUnit

__all__ = ["Progress", "ProgressCallback", "watched"]

INTERVAL_S = 0.5


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
    """Call `callback` about twice a second with the workers' progress, until the context ends."""
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
            # A short failure of the store must end neither the build nor its progress.
            with contextlib.suppress(IndexerError):
                self._look()
            if self.stopped.wait(INTERVAL_S):
                return

    def _look(self) -> None:
        for key in sorted(self._names("units") & self._waiting.keys()):
            outcome = read_unit(self._store, self._job.index, key)
            if outcome is None:
                continue
            counts = outcome.counts
            self._done += self._waiting.pop(key)
            self._passages += counts.passages
            self._dead += sum(counts.dead_letters.values())
        if self._waiting:
            self._tell("embed", self._done, self._total)
        else:
            self._count_shards()
            self._tell("segment", len(self._shards), self._job.shards)

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

"""Compact an index: rewrite every shard that has several segments or deleted rows as one segment."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scannery.indexer.errors import AlreadyExistsError
from scannery.indexer.manifest import Manifest
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.leases import working
from scannery.indexer.versions.versions import hold_current, read_manifest
from scannery.pipelines.execution.run import Engine, execute
from scannery.pipelines.execution.runners import check_engine
from scannery.pipelines.job_planning import build_id, new_job
from scannery.pipelines.stages.publish import rebase
from scannery.pipelines.stages.update import ShardChange, update_shard
from scannery.pipelines.state.progress import ProgressCallback

__all__ = ["CompactReport", "compact"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompactReport:
    """Result of `compact`."""

    index: str
    """Name of the index."""

    version: int
    """The current version after the run."""

    up_to_date: bool
    """No shard had several segments or deleted rows, so no version was made."""

    shards: tuple[int, ...]
    """Shards whose segments were merged or rewritten."""

    segments_before: int
    """Number of segments of the version before."""

    segments: int
    """Number of segments of the new version."""

    rows: int
    """Live datapoints."""

    size_bytes_before: int
    """Size of the segments before."""

    size_bytes: int
    """Size of the segments of the new version."""

    recall: float | None
    """Expected recall@10 at default settings; None if not measured."""

    recall_reached: bool
    """Whether every segment has a setting that reaches the target recall."""

    seconds: float
    """Wall time of the run."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return dataclasses.asdict(self)


def compact(
    index: str,
    store_uri: str,
    *,
    runner: str | None = None,
    runner_options: Sequence[str] = (),
    progress: ProgressCallback | None = None,
) -> CompactReport:
    """Make one segment of every shard that has several or deleted rows, and commit the result as a new version.

    The datapoints are the same before and after. A killed run resumes. If other processes commit versions meanwhile,
    the result is committed on top of them; a shard that they have rewritten is left as it is.

    Args:
        index: name of the index.
        store_uri: where it lives.
        runner: which engine runs the pipeline (runners.RUNNERS); default: this process, without Beam.
        runner_options: options for that engine, as on a command line.
        progress: called from another thread as work is finished.

    Raises:
        NotFoundError: no such store or index, or a segment is missing.
        CorruptError: a segment is damaged.
        AlreadyExistsError: another process committed a version before this run did, in every attempt.
        BuildError: ScaNN failed.

    """
    started, started_at = time.perf_counter(), time.time()
    check_engine(runner, runner_options, [store_uri])
    store = Store.open(store_uri)
    read_manifest(store, index)  # raises a clear NotFoundError
    engine = Engine(runner=runner, options=runner_options)
    with working(store, index) as lease:
        before = hold_current(store, index, lease)
        assert before is not None
        shards = _shards_to_compact(before)
        after = _compacted(before, shards, store, engine, progress, started_at) if shards else before
    return _report(before, after, shards, time.perf_counter() - started)


def _shards_to_compact(manifest: Manifest) -> tuple[int, ...]:
    """Return the shards with deleted rows, or with several segments with vectors, or several without."""
    counts = Counter((entry.shard, entry.vectors) for entry in manifest.segments)
    shards = {
        entry.shard for entry in manifest.segments if entry.deleted or counts[entry.shard, entry.vectors] > 1
    }
    return tuple(sorted(shards))


def _compacted(
    before: Manifest,
    shards: Sequence[int],
    store: Store,
    engine: Engine,
    progress: ProgressCallback | None,
    started_at: float,
) -> Manifest:
    job = new_job(
        before.spec, store, vectors=before.vectors, shards=before.shards, parent=before, mode="upsert"
    )
    shard_changes = {shard: ShardChange() for shard in shards}
    job = dataclasses.replace(job, merge=True, started_at=started_at)
    job = dataclasses.replace(job, build_id=build_id(job, [], shard_changes))
    try:
        record = execute(job, store, [], shard_changes, engine, progress)
        return read_manifest(store, before.index, record.version)
    except AlreadyExistsError:
        outcomes = [update_shard(shard, [ShardChange().to_json()], before, job, store) for shard in shards]
        return rebase(outcomes, before, job, store)


def _report(before: Manifest, after: Manifest, shards: tuple[int, ...], seconds: float) -> CompactReport:
    return CompactReport(
        index=after.index,
        version=after.version,
        up_to_date=after.version == before.version,
        shards=shards,
        segments_before=len(before.segments),
        segments=len(after.segments),
        rows=after.rows,
        size_bytes_before=before.size_bytes,
        size_bytes=after.size_bytes,
        recall=after.recall.measured if after.recall else None,
        recall_reached=after.recall is None or after.recall.reached,
        seconds=round(seconds, 3),
    )

"""Last stage: commit all segments of a build as a version, or record why none was committed.

Commit a compaction on top of versions that were committed while it ran, without repeating its work.

Merging large segments takes minutes, and live mutations are committed more often: a compaction that started again for
each commit would never end. Its result holds the datapoints of its start, so later deletes are marked in its result,
and segments that were added later stay beside it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.errors import AlreadyExistsError, NotFoundError, StoreError
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.manifest import (
    Manifest,
    SegmentEntry,
    VectorMap,
    documents_in,
    marked_builds,
    stored_vectors,
)
from scannery.indexer.spec.source_spec import exceeds_limit
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import expected_recall
from scannery.indexer.versions.creation import with_query_model
from scannery.indexer.versions.leases import keeps_log
from scannery.indexer.versions.tombstones import read_deleted, with_deleted
from scannery.indexer.versions.versions import commit, read_manifest
from scannery.pipelines.dead_letters import first_of_each_reason
from scannery.pipelines.planning.compatibility import check_live_rows
from scannery.pipelines.stages.embed import observations
from scannery.pipelines.stages.old_rows import read_live_rows, removals
from scannery.pipelines.state.job import Counts, Job, ShardOutcome, dead_letters_key, read_parent, stage_key
from scannery.pipelines.state.work_units import UnitSums
from scannery.pipelines.tuning.index_tuning import with_fresh_recall, with_whole_recall
from scannery.pipelines.tuning.search_measurement import lost_measurements, with_measured_search
from scannery.pipelines.tuning.tuning_queries import NO_ENCODERS, EncoderSources, queries_of

__all__ = ["BuildRecord", "embedded_record", "publish", "read_record", "rebase"]


MOST_BUILDS = 1000
"""Most builds that a version lists as the origin of its documents, 20 KB of its manifest. gc may remove the embeddings
of older builds; their documents are embedded again when an input has them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildRecord:
    """Result of a build, which the last stage writes to the store for the launcher."""

    status: str
    """`committed`, `unchanged` (equal to the current version), `embedded` (only the units were made), `empty` or
    `too_many_dead_letters`."""

    version: int | None
    """Number of the committed or unchanged version; None without one."""

    counts: Counts
    """Sums over all units and shards."""

    statistics: Mapping[str, Any]
    """Figures for the report and the manifest."""

    units: Sequence[str]
    """Keys of the build's units."""

    segments: Sequence[str]
    """Keys of the version's segment files."""

    def to_json(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1).encode()


def publish(
    job: Job,
    store: Store,
    units: UnitSums,
    shards: Sequence[ShardOutcome],
    *,
    encoders: EncoderSources = NO_ENCODERS,
) -> BuildRecord:
    """Commit the version, unless nothing changed or too many records were refused, and write the build's record.

    Idempotent, since runners repeat a stage whose worker was lost.

    Raises:
        AlreadyExistsError: another build committed a version meanwhile.
        MissingFileError: a segment is missing from the store.

    """
    shards = sorted(shards, key=lambda shard: shard.shard)
    counts = functools.reduce(operator.add, (shard.counts for shard in shards), units.counts)
    parent = read_parent(job, store)
    entries = _entries(job, parent, shards)
    examples = _write_dead_letters(job, store, units, shards, counts)
    statistics = _statistics(job, counts, units, shards) | _coverage(job, counts, entries)
    statistics |= observations(counts, uncounted=units.uncounted) | {"dead_letter_examples": examples}
    statistics |= removals(job, store, parent, entries)
    statistics["builds"] = _builds(job, parent)
    manifest = _manifest(job, entries, parent, statistics)
    manifest = with_fresh_recall(manifest, shards)
    status, current = _decide(job, store, counts, parent, manifest, encoders)
    record = BuildRecord(
        status=status,
        version=current.version if current else None,
        counts=counts,
        statistics=current.statistics if current and status == "committed" else statistics,
        units=[key for _, key in units.keys],
        segments=[entry.key for entry in entries],
    )
    store.write(stage_key(job.index, "builds", f"{job.build_id}.json"), record.to_json())
    return record


def embedded_record(job: Job, store: Store, units: UnitSums) -> BuildRecord:
    """Return the record of a build that stops after embedding: counts of its units, and no version."""
    counts = units.counts
    examples = _write_dead_letters(job, store, units, (), counts)
    status = "embedded" if counts.documents else "empty"
    return BuildRecord(
        status="too_many_dead_letters" if _too_many(counts, job.max_dead_letters) else status,
        version=job.parent,
        counts=counts,
        statistics=_statistics(job, counts, units, ())
        | observations(counts, uncounted=units.uncounted)
        | {"dead_letter_examples": examples},
        units=[key for _, key in units.keys],
        segments=(),
    )


def read_record(job: Job, store: Store) -> BuildRecord:
    """Return the record that `publish` wrote."""
    data = json.loads(store.read(stage_key(job.index, "builds", f"{job.build_id}.json")))
    data["counts"] = Counts(**data["counts"])
    return BuildRecord(**data)


def _entries(job: Job, parent: Manifest | None, shards: Sequence[ShardOutcome]) -> tuple[SegmentEntry, ...]:
    """Return the segments of the new version; shards that an update did not change keep theirs."""
    changed = {shard.shard for shard in shards}
    entries = [entry for shard in shards for entry in shard.entries]
    if job.mode == "upsert" and parent is not None:
        entries += [entry for entry in parent.segments if entry.shard not in changed]
    return tuple(sorted(entries, key=lambda entry: (entry.shard, -entry.rows, entry.key)))


def _coverage(job: Job, counts: Counts, entries: Sequence[SegmentEntry]) -> dict[str, Any]:
    """Return counts of an update: documents changed, and documents of the index that its input does not mention."""
    if job.mode != "upsert":
        return {}
    changes = {name: counts.changes.get(name, 0) for name in ("added", "replaced", "unchanged", "removed")}
    mentioned = changes["added"] + changes["replaced"] + changes["unchanged"]
    documents = documents_in(entries)
    return changes | {
        "unknown_deletes": job.deletes - changes["removed"],
        "not_in_input": None if documents is None else documents - mentioned,
    }


def _builds(job: Job, parent: Manifest | None) -> list[str]:
    """Return the builds that the version's documents come from; gc keeps their embeddings."""
    before = parent.builds if parent is not None and job.mode == "upsert" else ()
    names = list(dict.fromkeys([*before, job.build_id]))
    return marked_builds(names, (job.parent or 0) + 1)[-MOST_BUILDS:]


def _decide(
    job: Job,
    store: Store,
    counts: Counts,
    parent: Manifest | None,
    manifest: Manifest,
    encoders: EncoderSources,
) -> tuple[str, Manifest | None]:
    has_work = job.mode == "upsert" and (counts.documents > 0 or job.deletes > 0 or job.merge)
    if not has_work and (job.mode == "upsert" or not manifest.segments):
        return "empty", None
    if _too_many(counts, job.max_dead_letters):
        return "too_many_dead_letters", None
    if (promoted := _promoted_meanwhile(manifest, parent)) is not None:
        manifest, encoders = promoted, NO_ENCODERS  # what the promotion measured is kept
    same = parent if parent is not None and _is_same(parent, manifest) else None
    if same is not None and not lost_measurements(same):
        return "unchanged", same
    manifest = _measured(manifest, parent, job, store, encoders)
    if same is not None and (manifest.fusion, manifest.relevance) == (same.fusion, same.relevance):
        return "unchanged", same
    _check_log(job, store, parent, manifest)
    # Again: the first live update may have been written during the build.
    check_live_rows(job, parent, store)
    try:
        return "committed", commit(store, manifest)
    except AlreadyExistsError:
        # It may be this build's own commit: a worker died after it, and the runner repeats the stage.
        with contextlib.suppress(NotFoundError):
            current = read_manifest(store, job.index, (job.parent or 0) + 1)
            if current.statistics.get("build_id") == job.build_id and _is_same(current, manifest):
                return "committed", current
        raise


def _promoted_meanwhile(manifest: Manifest, parent: Manifest | None) -> Manifest | None:
    """Return the manifest with the model for queries that was promoted while the build ran; None: none was."""
    if parent is None or manifest.encoder != parent.encoder:
        return None
    spec = with_query_model(manifest.spec, parent)
    if spec == manifest.spec:
        return None
    return manifest.model_copy(update={"spec": spec, "query_encoder": parent.query_encoder})


def _measured(
    manifest: Manifest, parent: Manifest | None, job: Job, store: Store, encoders: EncoderSources
) -> Manifest:
    started = time.perf_counter()
    manifest = with_whole_recall(manifest, job, store, encoders.get(""))
    measured = time.perf_counter()
    manifest = with_measured_search(manifest, parent, store, encoders)
    ended = time.perf_counter()
    spent = {"recall": round(measured - started, 3), "fusion": round(ended - measured, 3)}
    seconds = manifest.statistics["seconds"] | spent
    return manifest.model_copy(update={"statistics": manifest.statistics | {"seconds": seconds}})


def _manifest(
    job: Job, entries: tuple[SegmentEntry, ...], parent: Manifest | None, statistics: dict[str, Any]
) -> Manifest:
    return Manifest(
        index=job.index,
        index_id=job.index_id,
        version=(job.parent or 0) + 1,
        parent=job.parent,
        created_at=datetime.now(timezone.utc),
        spec=job.spec,
        **stored_vectors(job.vectors),
        shards=job.shards,
        segments=entries,
        **_log_position(job, parent),
        recall=expected_recall(entries, job.spec.target_recall, given_queries=job.queries),
        mirror=None if parent is None else parent.mirror,
        vector_maps=() if parent is None else _kept_maps(parent, job),
        switches=0 if parent is None else parent.switches,
        statistics=statistics,
    )


def _kept_maps(parent: Manifest, job: Job) -> tuple[VectorMap, ...]:
    """Return the maps that lead to the vectors of the encoders of a build."""
    return tuple(
        each
        for each in parent.vector_maps
        if each.target.digest is not None
        and each.vectors in job.vectors
        and each.is_onto(each.vectors, job.vectors[each.vectors])
    )


def _log_position(job: Job, parent: Manifest | None) -> dict[str, int]:
    """Return the version's log position: at most that of the build's start, so that later live updates win."""
    if parent is None:
        return {"log_sequence": 0}
    if job.log_after is None:
        return {"log_sequence": parent.log_sequence, "log_floor": parent.log_floor}
    position = min(parent.log_sequence, max(job.log_after, parent.log_floor))
    return {"log_sequence": position, "log_floor": position}


def _check_log(job: Job, store: Store, parent: Manifest | None, manifest: Manifest) -> None:
    """Raise StoreError if mutations that the version needs from the log may have been cut."""
    if parent is None or manifest.log_sequence >= parent.log_sequence:
        return
    if not keeps_log(store, job.lease, manifest.log_sequence):
        raise StoreError(
            f"index {job.index!r}: this build could not renew its lease in time (the machine slept, or the store did "
            "not answer), so live updates that were sealed during the build could be lost; nothing was published. "
            "Run it again"
        )


def _is_same(first: Manifest, second: Manifest) -> bool:
    names = ("vectors", "shards")
    keys = [sorted(entry.labelled_keys for entry in manifest.segments) for manifest in (first, second)]
    if keys[0] != keys[1] or any(getattr(first, name) != getattr(second, name) for name in names):
        return False
    # As stored: a default that a build has filled in may be one that a manifest leaves out.
    return first.spec.model_dump(mode="json") == second.spec.model_dump(mode="json")


def _too_many(counts: Counts, limit: float | None) -> bool:
    if limit is None:
        return False
    dead = sum(counts.dead_letters.values())
    return exceeds_limit(dead, dead + counts.documents, limit)


def _statistics(job: Job, counts: Counts, units: UnitSums, shards: Sequence[ShardOutcome]) -> dict[str, Any]:
    # With the time in which the device waited for texts: what an encoder of this host does.
    encode_s = counts.seconds.get("encode", 0.0) + counts.seconds.get("wait", 0.0)
    named_s = counts.seconds.get("encode_named", 0.0)
    computed = counts.tokens + counts.padding_tokens
    worked = units.worked
    return {
        "build_id": job.build_id,
        "mode": "compact" if job.merge and not units.keys else job.mode,
        "documents": counts.documents,
        "passages": counts.passages,
        "embedded": counts.embedded,
        # From the units' passages: duplicates were embedded too, and `passages` leaves them out.
        "reused": units.counts.passages - counts.embedded if job.embeds else 0,
        "tokens": counts.tokens,
        "padding_share": round(counts.padding_tokens / computed, 4) if computed else 0.0,
        "passages_per_s": round(counts.embedded / encode_s, 1) if encode_s else None,
        "tokens_per_s": round(counts.tokens / (encode_s + named_s), 1) if encode_s + named_s else None,
        "device": worked and worked.device,
        "dtype": worked and worked.dtype,
        "dtypes": dict(units.dtypes),
        "hardware_dtypes": dict(units.hardware_dtypes),
        "input_bytes": counts.input_bytes,
        "embeddings_bytes": counts.embeddings_bytes,
        "units": len(units.keys),
        "dead_letters": dict(counts.dead_letters),
        "record_errors": dict(counts.record_errors),
        "ignored": dict(counts.ignored),
        "dead_letters_key": dead_letters_key(job.index, job.build_id) if counts.dead_letters else None,
        "seconds": {"plan": round(job.plan_seconds, 3)}
        | {name: round(value, 3) for name, value in counts.seconds.items()}
        | {"wall": round(time.time() - job.started_at, 3)},
        "segments": [{"shard": shard.shard, **shard.statistics} for shard in shards if shard.entries],
    }


def _write_dead_letters(
    job: Job, store: Store, units: UnitSums, shards: Sequence[ShardOutcome], counts: Counts
) -> dict[str, str]:
    """Write the dead letters of all units and shards as one file, and return the first one of each reason as text."""
    keys = [stage_key(job.index, "units", f"{unit}.dead.jsonl") for _, unit in units.with_letters]
    keys += [stage_key(job.index, "segments", f"{s.key}.dead.jsonl") for s in shards if s.counts.dead_letters]
    examples: dict[str, str] = {}
    if not keys:
        return examples
    with scratch_folder("publish") as folder:
        path = folder / "dead-letters.jsonl"
        with path.open("wb") as file:
            for data in _existing(store, keys):
                file.write(data)
                if len(examples) < len(counts.dead_letters):
                    examples = first_of_each_reason(data) | examples
        store.write_file(dead_letters_key(job.index, job.build_id), path)
    return examples


def _existing(store: Store, keys: Sequence[str]) -> Iterator[bytes]:
    for key in keys:
        try:
            yield store.read(key)
        except NotFoundError:  # removed by hand; the counts are still in the record
            continue


ATTEMPTS = 10
"""An attempt takes milliseconds; a commit by another process in each of them points to another cause than chance."""


def rebase(outcomes: Sequence[ShardOutcome], base: Manifest, job: Job, store: Store) -> Manifest:
    """Commit merged shards of `base` on top of the current version, and return the version that is then current.

    Shards stay as they are if another process has replaced their segments meanwhile, or if a rollback has restored rows
    in them, which the outcomes lack. If no merged shard remains, nothing is committed.

    Raises:
        AlreadyExistsError: another process committed a version in each attempt.

    """
    for attempt in range(1, ATTEMPTS + 1):
        current = read_manifest(store, job.index)
        segments = _segments(outcomes, base, current, job, store)
        if segments == current.segments:
            return current
        recall = expected_recall(segments, current.spec.target_recall, given_queries=queries_of(current))
        update = {"parent": current.version, "segments": segments, "recall": recall}
        update["index_id"] = base.index_id or current.index_id  # another index of the name is refused
        try:
            return commit(store, current.model_copy(update=update))
        except AlreadyExistsError:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError


def _segments(
    outcomes: Sequence[ShardOutcome], base: Manifest, current: Manifest, job: Job, store: Store
) -> tuple[SegmentEntry, ...]:
    done = {outcome.shard: outcome for outcome in outcomes}
    entries: list[SegmentEntry] = [entry for entry in current.segments if entry.shard not in done]
    for shard, outcome in done.items():
        before, now = (
            [entry for entry in manifest.segments if entry.shard == shard] for manifest in (base, current)
        )
        entries += _carried(outcome, before, now, job, store)
    return tuple(sorted(entries, key=lambda entry: (entry.shard, -entry.rows, entry.key)))


def _carried(
    outcome: ShardOutcome,
    before: Sequence[SegmentEntry],
    now: Sequence[SegmentEntry],
    job: Job,
    store: Store,
) -> Sequence[SegmentEntry]:
    """Return the segments of a shard: the merged one and later ones, or the current ones if it stays as it is."""
    merged = {entry.content for entry in before}
    entries = {entry.content: entry for entry in now}
    if not merged <= entries.keys() or any(
        _has_restored_rows(entry, entries[entry.content], job, store) for entry in before
    ):
        return now
    gone: set[str] = set()
    for entry in before:
        gone |= _deleted_since(entry, entries[entry.content], job, store)
    added = [entry for entry in now if entry.content not in merged]
    marked = [_without(entry, gone, job, store) for entry in outcome.entries] if gone else outcome.entries
    return [*(entry for entry in marked if entry.live_rows), *added]


def _has_restored_rows(before: SegmentEntry, now: SegmentEntry, job: Job, store: Store) -> bool:
    """Return whether a rollback has restored rows that were deleted when the compaction began."""
    if before.deleted == now.deleted:
        return False
    then_R, now_R = (read_deleted(store, job.index, entry) for entry in (before, now))
    return len(np.setdiff1d(then_R, now_R)) > 0


def _deleted_since(before: SegmentEntry, now: SegmentEntry, job: Job, store: Store) -> set[str]:
    """Return the ids of rows that were deleted since the compaction began."""
    if before.labelled_keys == now.labelled_keys:
        return set()
    table, rows_N = read_live_rows(before, job, store, ["id"])
    gone_N = np.isin(rows_N, read_deleted(store, job.index, now))
    return set(table.column("id").filter(pa.array(gone_N)).to_pylist())


def _without(entry: SegmentEntry, gone: set[str], job: Job, store: Store) -> SegmentEntry:
    table, rows_N = read_live_rows(entry, job, store, ["id", "document_id"])
    gone_N = pc.is_in(table.column("id"), value_set=pa.array(sorted(gone), pa.string())).to_numpy()
    documents = table.column("document_id").filter(pa.array(~gone_N))
    return with_deleted(
        store, job.index, entry, rows_N[gone_N], documents=pc.count_distinct(documents).as_py()
    )

"""Maintenance of stored indexes: verify one, measure its recall, roll it back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scannery.indexer.errors import CorruptError, IndexerError, InUseError
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.manifest import Manifest, marked_builds
from scannery.indexer.planning.planner import SegmentHits
from scannery.indexer.reader import OpenIndex, live_rows_of
from scannery.indexer.segment.cache import SegmentCache
from scannery.indexer.segment.named_vectors import NamedVectors
from scannery.indexer.segment.opening import open_segment
from scannery.indexer.segment.segment import Segment
from scannery.indexer.segment.segment_writer import is_sound
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import (
    FRESH_QUERIES,
    TUNED_K,
    magnitudes,
    near,
    pick_settings,
    recall_by_score,
)
from scannery.indexer.vectors.vector_maps import read_map
from scannery.indexer.versions.versions import (
    commit,
    list_versions,
    read_manifest,
    segment_key,
)
from scannery.runtime.errors import ConditionError

__all__ = [
    "VerifyReport",
    "lost_since",
    "measure_recall",
    "near_stored",
    "rollback",
    "verify",
]

VerifyCallback = Callable[[int, int], None]
"""Called with the bytes read so far and the total bytes of the version."""
# By chance alone, the recall of about one sample in a hundred lies this far below the target.
_RECALL_SLACK = 0.02
SPARE = 16
"""Vectors drawn per query, since some may be zero vectors."""


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """Result of `verify`."""

    version: int
    segments: int
    """Number of segments."""
    rows: int
    """Datapoints; deleted rows do not count."""
    recall: float | None
    """Recall@10 of a sample of queries at the default settings; None if a segment could not be opened."""
    named_recall: Mapping[str, float]
    """The same for the vectors of each name; names that no datapoint has are left out."""
    exact_segments: int
    """Number of ScaNN segments that are searched exactly, because no setting reaches the target recall."""
    problems: tuple[str, ...]
    """One sentence per problem; empty if there is none."""


def verify(
    store: Store, index: str, version: int | None = None, *, progress: VerifyCallback | None = None
) -> VerifyReport:
    """Read a whole version from the store, bypassing the local cache, and check it.

    Checked are the hashes of all files, row counts, unique ids, and the recall of a sample of queries, for the vectors
    of each name too.

    Args:
        store: the store.
        index: name of the index.
        version: None: the current one.
        progress: called before each segment, and at the end.

    Raises:
        NotFoundError: no such index or version.
        CorruptError, FormatError: the manifest cannot be read.

    """
    manifest = read_manifest(store, index, version)
    problems: list[str] = []
    with scratch_folder("verify") as folder:
        opened = _open_all(store, manifest, folder, problems, progress)
        wrong = _wrong_counts(opened)
        problems += wrong + _repeated_ids(opened) + _wrong_rows(opened)
        problems += [] if wrong else _wrong_documents(opened)
        complete = len(opened.segments) == len(manifest.segments) and not wrong
        names = manifest.vectors if complete else ()
        recalls = {name: measure_recall(opened.space(name).index) for name in names}
    problems += _low_recalls(recalls, manifest.spec.target_recall)
    return VerifyReport(
        version=manifest.version,
        segments=len(manifest.segments),
        rows=manifest.rows,
        recall=recalls.get(""),
        named_recall={name: value for name, value in recalls.items() if name and value is not None},
        exact_segments=_exact_segments(manifest),
        problems=tuple(problems),
    )


def _low_recalls(recalls: Mapping[str, float | None], target: float) -> list[str]:
    return [
        f"recall@{TUNED_K} of a sample{f' of vectors {name!r}' if name else ''} is {recall:.3f}, the target is {target}"
        for name, recall in recalls.items()
        if recall is not None and recall < target - _RECALL_SLACK
    ]


def _exact_segments(manifest: Manifest) -> int:
    """Return the number of ScaNN segments of which no setting reaches the target recall."""
    target = manifest.spec.target_recall
    entries = [each for entry in manifest.segments for each in entry.by_name.values()]
    return sum(bool(entry.curve) and pick_settings(entry, target) is None for entry in entries)


def measure_recall(index: OpenIndex, queries_QD: np.ndarray | None = None) -> float | None:
    """Return recall@10 of the merged hits of all segments at the default settings; None without rows with vectors.

    Args:
        index: the open index.
        queries_QD: float32; None: vectors near stored ones.

    """
    index = index.space("").index
    # Not by the manifest, where named vectors of deleted rows count.
    if not any(len(rows_R) for _, rows_R in index.live_rows()):
        return None
    if queries_QD is None:
        queries_QD = near_stored(index)
    parts = list(zip(index.segments, index.alive, index.settings_for(), strict=True))
    target = index.spec.target_recall
    best_rows = [
        segment.find(queries_QD, TUNED_K, settings=knobs, allowed=alive, target_recall=target).scores_QK
        for segment, alive, knobs in parts
    ]
    truth = [segment.find(queries_QD, TUNED_K, allowed=alive) for segment, alive, _ in parts]
    best_QK, lengths_Q = _best_of(index, truth)
    magnitude_Q1 = magnitudes(queries_QD, index.spec.distance, lengths_Q)
    found_QK = np.sort(np.concatenate(best_rows, axis=1), axis=1)[:, ::-1][:, :TUNED_K]
    return float(recall_by_score(found_QK, best_QK, magnitude_Q1).mean())


def _best_of(index: OpenIndex, truth: Sequence[SegmentHits]) -> tuple[np.ndarray, np.ndarray]:
    """Return the best scores over all segments, best first (Q, K), and the vector length of the last row (Q,)."""
    scores_QM = np.concatenate([each.scores_QK for each in truth], axis=1)
    order_QK = np.argsort(-scores_QM, axis=1, kind="stable")[:, :TUNED_K]
    lengths_QM = np.concatenate(
        [
            np.linalg.norm(segment.searched_ND[each.rows_QK].astype(np.float64), axis=2)
            for segment, each in zip(index.segments, truth, strict=True)
        ],
        axis=1,
    )
    last_Q1 = order_QK[:, -1:]
    return np.take_along_axis(scores_QM, order_QK, axis=1), np.take_along_axis(lengths_QM, last_Q1, axis=1)[
        :, 0
    ]


def near_stored(index: OpenIndex) -> np.ndarray:
    """Return queries near stored vectors other than zero vectors, float32, as `settings_choice.near` makes them."""
    index = index.space("").index
    generator, stored = np.random.default_rng(1), []
    live = [(segment, rows_R) for segment, rows_R in index.live_rows() if len(rows_R)]
    rows = sum(len(rows_R) for _, rows_R in live)
    for segment, rows_R in live:
        count = round(FRESH_QUERIES * len(rows_R) / rows) + 1
        drawn_XD = segment.vectors(rows_R[generator.integers(0, len(rows_R), SPARE * count)])
        # All rows score the same for a zero vector.
        nonzero_XD = drawn_XD[drawn_XD.any(axis=1)]
        stored.append((nonzero_XD if len(nonzero_XD) else drawn_XD)[:count])
    return near(np.concatenate(stored), generator)


def rollback(
    store: Store,
    index: str,
    version: int,
    *,
    if_version: int = 0,
    log_after: int | None = None,
    has_log: bool = False,
) -> Manifest:
    """Publish the content of an earlier version as a new version, which servers then open.

    No file is copied or removed, so a rollback can itself be rolled back. The new version has the log position of the
    current one: mutations that only later versions have in their segments are undone, and not applied again. Exception:
    if the current version is damaged and the log has all mutations since the earlier version, the new version has the
    log position of the earlier one, so that these mutations are applied again.

    Args:
        store: the store.
        index: name of the index.
        version: the earlier version.
        if_version: refuse if the current version is another one; 0: any.
        log_after: the log has all mutations after this sequence; None: unknown.
        has_log: whether the index has a log. It may have rows without a vector then, so `vectors: optional` stays.

    Raises:
        NotFoundError: no such index or version, or a file of the version is missing.
        AlreadyExistsError: another process published a version meanwhile.
        ConditionError: the current version is not `if_version`.
        InUseError: the contents were exchanged with those of a mirror since.
        FormatError: a later release made the current version, so its log position is not known here.

    """
    old = read_manifest(store, index, version)
    for key in (key for entry in old.segments for key in entry.keys):
        store.size(segment_key(index, key))
    current = list_versions(store, index)[-1]
    if if_version not in (0, current):
        raise ConditionError(
            f"if_version: index {index!r} is at version {current}, not {if_version}", field="if_version"
        )
    newest = _newest(store, index) or old
    if old.switches != newest.switches or newest.mirror is not None:
        raise InUseError(
            f"version {version} of index {index!r} is of before its contents were exchanged with those of a mirror, or "
            "the index is a mirror: `scannery index migrate INDEX --undo` exchanges them again",
            field="version",
        )
    position = newest.log_sequence
    if log_after is not None and log_after <= old.log_sequence and lost_since(store, old):
        position = old.log_sequence
    builds = marked_builds(old.builds, current + 1)
    statistics = old.statistics | {"mode": "rollback", "content_of": version, "builds": builds}
    update: dict[str, Any] = {
        "parent": current,
        "log_sequence": position,
        "log_floor": position,
        "statistics": statistics,
    }
    if has_log and newest.spec.vectors == "optional":
        update["spec"] = old.spec.model_copy(update={"vectors": "optional"})
    return commit(store, old.model_copy(update=update | {"log_reached": newest.log_reached}))


def lost_since(store: Store, old: Manifest) -> bool:
    """Return whether mutations were sealed after the version `old`, and the current version is damaged."""
    newest = _newest(store, old.index) or old
    current = list_versions(store, old.index)[-1]
    return old.log_sequence < newest.log_sequence and _is_damaged(store, old, current)


def _newest(store: Store, index: str) -> Manifest | None:
    """Return the newest version whose manifest is not damaged, or None."""
    for version in reversed(list_versions(store, index)):
        with contextlib.suppress(CorruptError):
            return read_manifest(store, index, version)
    return None


def _is_damaged(store: Store, old: Manifest, current: int) -> bool:
    """Return whether the manifest of the version `current` is damaged, or a file that only it names and not `old`."""
    try:
        manifest = read_manifest(store, old.index, current)
    except CorruptError:
        return True
    shared = {key for entry in old.segments for key in entry.keys}
    return any(
        not is_sound(store, segment_key(old.index, file.key), file.size_bytes, file.sha256)
        for file in manifest.files
        if file.key not in shared
    )


def _open_all(
    store: Store,
    manifest: Manifest,
    folder: Path,
    problems: list[str],
    progress: VerifyCallback | None,
) -> OpenIndex:
    """Return an index of the segments that can be opened; append the errors of the others to `problems`."""
    cache = SegmentCache(folder)
    entries, segments, alive = [], [], []
    read = 0
    for entry in manifest.segments:
        if progress is not None:
            progress(read, manifest.size_bytes)
        read += sum(file.size_bytes for file in entry.files)
        try:
            segment = open_segment(store, manifest.index, entry, cache)
            alive.append(live_rows_of(store, manifest.index, entry, segment))
        except IndexerError as error:
            problems.append(error.message)
            continue
        entries.append(entry)
        segments.append(segment)
    for vector_map in manifest.vector_maps:
        try:
            read_map(store, manifest.index, vector_map)
        except IndexerError as error:
            problems.append(error.message)
    if progress is not None:
        progress(manifest.size_bytes, manifest.size_bytes)
    return OpenIndex(manifest.model_copy(update={"segments": entries}), tuple(segments), tuple(alive))


def _wrong_counts(index: OpenIndex) -> list[str]:
    return [
        f"{segment.entry.key} has {len(segment.table)} rows, {segment.entry.rows} in the manifest"
        for segment in index.segments
        if not len(segment.table) == len(segment.searched_ND) == segment.entry.rows
    ]


def _wrong_rows(index: OpenIndex) -> list[str]:
    """Return a sentence for each file of named vectors that do not belong to the datapoints beside it."""
    return [
        f"{named.segment.entry.key} has vectors {name!r} of other datapoints than {segment.entry.key}"
        for segment in index.segments
        for name, named in segment.named.items()
        if not _belongs(named, segment)
    ]


def _belongs(named: NamedVectors, segment: Segment) -> bool:
    """Return whether each vector has a datapoint of its own, with the same id."""
    rows_V = named.rows_V
    outside = (rows_V < 0) | (rows_V >= len(segment.table))
    if outside.any() or len(np.unique(rows_V)) < len(rows_V):
        return False
    ids = segment.take(rows_V, ["id"]).column(0).to_pylist()
    return bool(ids == named.segment.ids.to_pylist())


def _wrong_documents(index: OpenIndex) -> list[str]:
    counts = [
        (segment, entry.documents, segment.documents_without(np.flatnonzero(~alive.mask_N) if alive else ()))
        for segment, entry, alive in zip(index.segments, index.manifest.segments, index.alive, strict=True)
        if entry.documents is not None
    ]
    return [
        f"{segment.entry.key} has rows of {counted} documents, {expected} in the manifest"
        for segment, expected, counted in counts
        if counted != expected
    ]


def _repeated_ids(index: OpenIndex) -> list[str]:
    """Return a sentence for each id that several live rows have, in one segment or in several."""
    seen: dict[str, str] = {}
    repeated = []
    for segment, rows_R in index.live_rows():
        key = segment.entry.key
        ids = segment.take(rows_R[rows_R < len(segment.table)], ["id"]).column(0)
        for identifier in ids.to_pylist():
            if identifier in seen:
                repeated.append(f"id {identifier!r} is in {seen[identifier]} and in {key}")
            seen[identifier] = key
    return repeated

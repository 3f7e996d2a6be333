"""Measure the recall of a stored index again with queries of its users, and publish the new curves as a version.

Nothing is rebuilt: the version has the same segment files, with other curves in its manifest. Builds, seals and merges
may publish versions meanwhile; then the curves are taken over into the newest version, and only segments that are new
there are measured.

The recall of a whole version is measured before its commit, by searches over all segments. The tuner measures each
segment with the queries that choose its settings. Here all segments are searched together with queries that no segment
was tuned for: the other half of the user's queries, else questions made from other passages, else vectors near stored
ones. For an index of one new segment the tuner has made the last measurement already, while ScaNN trained.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints.schema import MAX_MAGNITUDE
from scannery.indexer.errors import AlreadyExistsError, ReplacedError
from scannery.indexer.maintenance import measure_recall, near_stored
from scannery.indexer.manifest import Manifest, SegmentEntry
from scannery.indexer.reader import OpenIndex, open_manifest
from scannery.indexer.segment.measuring_again import with_new_curves
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import FRESH_QUERIES, expected_recall
from scannery.indexer.versions.leases import working
from scannery.indexer.versions.versions import commit, read_manifest
from scannery.pipelines.errors import CollectionError, NothingToTuneError
from scannery.pipelines.state.job import Job, ShardOutcome
from scannery.pipelines.tuning.tuning_queries import (
    MOST_QUERIES,
    EncoderSource,
    load_queries,
    measuring_half,
    questions_of,
    tuning_half,
    write_queries,
)

__all__ = [
    "MOST_BYTES",
    "TuneReport",
    "check_tunable",
    "tune_index",
    "with_fresh_recall",
    "with_whole_recall",
]


MOST_BYTES = 2 << 30
"""Larger versions are not measured: one worker opens all segments, which takes seconds per gigabyte. The opened
segments stay in the machine's cache, so a server on the same machine opens them faster."""

_SEED = 1
"""Differs from the tuner's seed, so that the questions come from other passages."""

_LOG = logging.getLogger(__name__)


def with_fresh_recall(manifest: Manifest, shards: Sequence[ShardOutcome]) -> Manifest:
    """Return the manifest with the recall measured while its only segment with vectors was built, if that is new."""
    recall = manifest.recall
    searched = [entry for entry in manifest.segments if entry.vectors]
    if recall is None or recall.whole is not None or len(searched) != 1 or recall.target >= 1:
        return manifest
    for shard in shards:
        fresh = shard.statistics.get("fresh")
        if (
            [entry for entry in shard.entries if entry.vectors] == searched
            and fresh
            and fresh["target"] == recall.target
        ):
            return _with_recall(manifest, fresh["recall"], FRESH_QUERIES)
    return manifest


def with_whole_recall(manifest: Manifest, job: Job, store: Store, encoder: EncoderSource | None) -> Manifest:
    """Return the manifest with the recall of all its segments together, if it is known or can be measured.

    Raises:
        CorruptError, NotFoundError: a segment cannot be opened, so the version could not be served.

    """
    recall = manifest.recall
    if recall is None or recall.whole is not None or manifest.size_bytes > MOST_BYTES:
        return manifest
    try:
        index = open_manifest(store, manifest)
    except OSError as error:  # no space for the cache, which is no fault of the version
        _LOG.warning("the recall of the whole index was not measured: %s", error)
        return manifest
    queries_QD = _queries(index, job, store, encoder)
    if queries_QD is None:
        queries_QD = near_stored(index)
    return _with_recall(manifest, measure_recall(index, queries_QD), len(queries_QD))


def _with_recall(manifest: Manifest, whole: float | None, queries: int) -> Manifest:
    assert manifest.recall is not None
    update = {"whole": None if whole is None else round(whole, 5), "whole_queries": queries}
    return manifest.model_copy(update={"recall": manifest.recall.model_copy(update=update)})


def _queries(index: OpenIndex, job: Job, store: Store, encoder: EncoderSource | None) -> np.ndarray | None:
    if job.queries is not None:
        return measuring_half(load_queries(store, job.index, job.queries))
    return None if encoder is None else questions_of(_sample(index).column("text"), encoder, seed=_SEED)


def _sample(index: OpenIndex) -> pa.Table:
    """Return the texts of sampled rows with vectors, from each segment in proportion to its share of them."""
    index = index.space("").index
    generator, rows = np.random.default_rng(_SEED), index.manifest.rows
    samples = []
    for segment, rows_R in index.live_rows():
        count = min(len(rows_R), round(FRESH_QUERIES * len(rows_R) / rows) + 1)
        samples.append(segment.take(np.sort(generator.choice(rows_R, count, replace=False)), ["text"]))
    return pa.concat_tables(samples)


MAX_ATTEMPTS = 20
"""Attempts to commit while other processes commit versions."""


@dataclass(frozen=True, kw_only=True)
class TuneReport:
    """A version with new curves."""

    index: str
    version: int
    queries: int
    """Queries given: half of them chose settings, the others measured `recall`."""
    segments: int
    """Segments that were measured."""
    before: float | None
    """Recall@10 of the default settings before, for the queries that measure; None: not measured."""
    recall: float | None
    """The same with the new curves."""
    target: float
    seconds: float


def tune_index(
    store: Store,
    index: str,
    queries_QD: np.ndarray,
    *,
    on_progress: Callable[[int, int], object] | None = None,
) -> TuneReport:
    """Publish a version of an index whose curves are measured for given queries.

    The queries are stored in the index, so that later builds and merges tune for them too.

    Args:
        store: the store.
        index: name of the index.
        queries_QD: float32; of more than MOST_QUERIES, an even sample is used.
        on_progress: called with the number of segments that are measured, and of those to measure; None: not called.

    Raises:
        NotFoundError: there is no such index.
        CollectionError: no search could ask the queries, they have other dimensions, or there are none.
        NothingToTuneError: no segment of the index has ScaNN data, so all searches are exact.
        BuildError: the process that measures failed.
        CorruptError, FormatError, StoreError: the index cannot be read or written.
        AlreadyExistsError: in each of MAX_ATTEMPTS attempts, another version was published meanwhile.

    """
    started, tell = time.monotonic(), on_progress or (lambda done, total: None)
    parent = read_manifest(store, index)
    check_tunable(parent)
    queries_QD = _checked(queries_QD, parent)
    measured: dict[str, SegmentEntry] = {}
    for attempt in range(MAX_ATTEMPTS):
        with working(store, index, parent=parent.version):
            todo = [entry for entry in _tunable(parent) if entry.sha256 not in measured]
            for number, entry in enumerate(todo):
                tell(number, len(todo))
                measured[entry.sha256] = with_new_curves(
                    store, index, entry, tuning_half(queries_QD), rescore=parent.spec.scann.rescore
                )
            tell(len(todo), len(todo))
            tuned, before = _tuned(store, parent, measured, queries_QD)
            try:
                published = commit(store, tuned)
            except ReplacedError:
                raise
            except AlreadyExistsError:
                if attempt + 1 == MAX_ATTEMPTS:
                    raise
                parent = read_manifest(store, index)
                check_tunable(parent)
                _checked(queries_QD, parent)  # a build may have changed the encoder
                continue
        return TuneReport(
            index=index,
            version=published.version,
            queries=len(queries_QD),
            segments=len(measured),
            before=before,
            recall=published.recall.whole if published.recall else None,
            target=published.spec.target_recall,
            seconds=time.monotonic() - started,
        )
    raise AssertionError


def check_tunable(manifest: Manifest) -> None:
    """Raise NothingToTuneError if all searches of a version are exact."""
    if not manifest.dimensions:
        raise NothingToTuneError(
            f"index {manifest.index!r} has no unnamed vector, the only one that is tuned"
        )
    if not _tunable(manifest):
        raise NothingToTuneError(
            f"no segment of index {manifest.index!r} has ScaNN data: its searches are exact, and there is nothing to "
            "tune"
        )


def _tunable(manifest: Manifest) -> list[SegmentEntry]:
    return [entry for entry in manifest.segments if entry.kind == "scann"]


def _checked(queries_QD: np.ndarray, manifest: Manifest) -> np.ndarray:
    if queries_QD.ndim != 2 or not len(queries_QD):
        raise CollectionError("queries: there are none", field="queries")
    if queries_QD.shape[1] != manifest.dimensions:
        raise CollectionError(
            f"queries: have {queries_QD.shape[1]} dimensions, the index has {manifest.dimensions}",
            field="queries",
        )
    if not np.isfinite(queries_QD).all():
        raise CollectionError("queries: must have finite vectors, one for each query", field="queries")
    largest_Q = np.abs(queries_QD).max(axis=1)
    if largest_Q.max() > MAX_MAGNITUDE:
        raise CollectionError(f"queries: vectors must be within ±{MAX_MAGNITUDE:g}", field="queries")
    if manifest.spec.distance == "cosine" and not largest_Q.all():
        raise CollectionError(
            "queries: a vector is all zero, which an index with distance `cosine` cannot be asked with",
            field="queries",
        )
    step = -(-len(queries_QD) // MOST_QUERIES)
    return np.ascontiguousarray(queries_QD[::step], np.float32)


def _tuned(
    store: Store, parent: Manifest, measured: dict[str, SegmentEntry], queries_QD: np.ndarray
) -> tuple[Manifest, float | None]:
    """Return the version to publish, and the recall of the version before for the queries that measure."""

    def with_curves(entry: SegmentEntry) -> SegmentEntry:
        entry_measured = measured.get(entry.sha256)
        if entry_measured is None:
            return entry
        return entry.model_copy(
            update={"curve": entry_measured.curve, "depth_curves": entry_measured.depth_curves}
        )

    entries = tuple(with_curves(entry) for entry in parent.segments)
    key = write_queries(store, parent.index, queries_QD, parent.dimensions)
    recall = expected_recall(entries, parent.spec.target_recall, given_queries=key)
    tuned = parent.model_copy(
        update={
            "parent": parent.version,
            "segments": entries,
            "recall": recall,
            "statistics": {"mode": "tune", "builds": parent.builds, "queries": len(queries_QD)},
        }
    )
    if parent.size_bytes > MOST_BYTES:
        return tuned, None
    try:
        opened = open_manifest(store, parent)
        test_QD = measuring_half(queries_QD)
        before = measure_recall(opened, test_QD)
        whole = measure_recall(open_manifest(store, tuned, reuse=opened), test_QD)
    except OSError as error:  # no space for the cache, which is no fault of the version
        _LOG.warning("the recall of the whole index was not measured: %s", error)
        return tuned, None
    update = {"whole": None if whole is None else round(whole, 5), "whole_queries": len(test_QD)}
    return tuned.model_copy(update={"recall": recall.model_copy(update=update)}), before

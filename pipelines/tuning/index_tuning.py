"""Measure the recall of a stored index again with queries of its users, and publish the new curves as a version.

Nothing is rebuilt: the version has the same segment files, with other curves in its manifest. Builds, seals and merges
may publish versions meanwhile; then the curves are taken over into the newest version, and only segments that are new
there are measured.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scannery.indexer.datapoints.schema import MAX_MAGNITUDE
from scannery.indexer.errors import AlreadyExistsError, ReplacedError
from scannery.indexer.maintenance import measure_recall
from scannery.indexer.manifest import Manifest, SegmentEntry
from scannery.indexer.reader import open_manifest
from scannery.indexer.segment.measuring_again import with_new_curves
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import expected_recall
from scannery.indexer.versions.leases import working
from scannery.indexer.versions.versions import commit, read_manifest
from scannery.pipelines.errors import CollectionError, NothingToTuneError
from scannery.pipelines.tuning.tuning_queries import (
    MOST_QUERIES,
    measuring_half,
    tuning_half,
    write_queries,
)
from scannery.pipelines.tuning.whole_recall import MOST_BYTES

__all__ = ["TuneReport", "check_tunable", "tune_index"]

MAX_ATTEMPTS = 20
"""Attempts to commit while other processes commit versions."""

_LOG = logging.getLogger(__name__)


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
        raise NothingToTuneError(f"index {manifest.index!r} has no vectors; there is nothing to tune")
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

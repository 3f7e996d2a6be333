"""Recall of a whole version, measured before its commit by searches over all segments, merged.

The tuner measures each segment with the queries that choose its settings. Here all segments are searched together with
queries that no segment was tuned for: the other half of the user's queries, else questions made from other passages,
else vectors near stored ones. For an index of one new segment the tuner has made the last measurement already, while
ScaNN trained.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from scannery.indexer.maintenance import measure_recall, near_stored
from scannery.indexer.manifest import Manifest
from scannery.indexer.reader import OpenIndex, open_manifest
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import FRESH_QUERIES
from scannery.pipelines.state.job import Job, ShardOutcome
from scannery.pipelines.tuning.tuning_queries import EncoderSource, load_queries, measuring_half, questions_of

__all__ = ["MOST_BYTES", "with_fresh_recall", "with_whole_recall"]

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
    return None if encoder is None else questions_of(_sample(index), encoder, seed=_SEED)


def _sample(index: OpenIndex) -> pa.Table:
    """Return the texts of sampled rows with vectors, from each segment in proportion to its share of them."""
    index = index.with_vectors()
    generator, rows = np.random.default_rng(_SEED), index.manifest.rows
    samples = []
    for segment, rows_R in index.live_rows():
        count = min(len(rows_R), round(FRESH_QUERIES * len(rows_R) / rows) + 1)
        samples.append(segment.take(np.sort(generator.choice(rows_R, count, replace=False)), ["text"]))
    return pa.concat_tables(samples)

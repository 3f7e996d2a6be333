"""Recall of a whole version, measured before it is committed: what a search finds over all segments, merged.

The tuner measures each segment for queries that it then chooses the settings by. Here all segments are asked together,
for queries that none was tuned for: the half of the user's that was kept back, else questions made of other passages,
else vectors near stored ones.
"""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa

from scannery.indexer.maintenance import measure_recall, near_stored
from scannery.indexer.manifest import Manifest
from scannery.indexer.reader import OpenIndex, open_manifest
from scannery.indexer.store import Store
from scannery.pipelines.job import Job
from scannery.pipelines.questions import EncoderSource, questions_of
from scannery.pipelines.tuning_queries import load_queries, measuring_half

__all__ = ["MOST_BYTES", "with_whole_recall"]

MOST_BYTES = 2 << 30
"""Larger versions are not measured: one worker opens all segments for it, in seconds for each gigabyte. Opening is not
lost where this machine also serves, since segments stay in its cache."""

QUERIES = 200
"""Questions that are made: their recall has a standard error of about a hundredth."""

_SEED = 1
"""Another one than the tuner's, so that questions come from other passages."""

_LOG = logging.getLogger(__name__)


def with_whole_recall(manifest: Manifest, job: Job, store: Store, encoder: EncoderSource | None) -> Manifest:
    """Return the manifest with the recall of all its segments together, where that is known or can be measured.

    Raises:
        CorruptError, NotFoundError: a segment cannot be opened, so nobody could serve the version.

    """
    recall = manifest.recall
    if recall is None or recall.whole is not None or manifest.size_bytes > MOST_BYTES:
        return manifest
    try:
        index = open_manifest(store, manifest)
    except OSError as error:  # no room for the cache, which says nothing about the version
        _LOG.warning("the recall of the whole index was not measured: %s", error)
        return manifest
    queries_QD = _queries(index, job, store, encoder)
    if queries_QD is None:
        queries_QD = near_stored(index)
    whole = measure_recall(index, queries_QD)
    update = {"whole": None if whole is None else round(whole, 5), "whole_queries": len(queries_QD)}
    measured = recall.model_copy(update=update)
    return manifest.model_copy(update={"recall": measured})


def _queries(index: OpenIndex, job: Job, store: Store, encoder: EncoderSource | None) -> np.ndarray | None:
    if job.queries is not None:
        return measuring_half(load_queries(store, job.index, job.queries))
    return None if encoder is None else questions_of(_sample(index), encoder, seed=_SEED)


def _sample(index: OpenIndex) -> pa.Table:
    """Return the texts of some rows of each segment, as many as its share of all rows."""
    generator, rows = np.random.default_rng(_SEED), index.manifest.rows
    samples = []
    for segment, rows_R in index.live_rows():
        count = min(len(rows_R), round(QUERIES * len(rows_R) / rows) + 1)
        samples.append(segment.take(np.sort(generator.choice(rows_R, count, replace=False)), ["text"]))
    return pa.concat_tables(samples)

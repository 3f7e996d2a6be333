"""Whether vectors that callers give are of the model whose vectors an index has, where nobody has named it.

They are compared with a sample of the index (indexer/vectors/strangeness.py), which is read when vectors are first
compared, and again when the index has twice as many, or other files. Batches of few vectors are judged together with
those before them.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from scannery.indexer import MemorySegment, OpenIndex, VectorSpace
from scannery.indexer.vectors.strangeness import VectorDistribution, foreign_rows, least_sample, most_sample

__all__ = ["ForeignBatch", "VectorChecks"]

WINDOW = 256
"""Vectors that were written last, with which a smaller batch is judged; of a larger one, as many are compared."""
GROWTH = 2
"""Factor by which an index grows until its sample is read again."""


class ForeignBatch(NamedTuple):
    """Vectors of a batch that seem to be of another model."""

    row: int
    """Row of the first one."""
    foreign: int
    """Number of such vectors."""
    compared: int
    """Number of vectors that were compared."""


@dataclass(slots=True)
class _Sample:
    """What is known of the vectors of a name."""

    rows: int
    """Rows of the index when the sample was read."""
    model: tuple[str | None, str | None, int]
    """Id of the index, digest of the encoder, and number of components."""
    files: frozenset[str]
    """Hashes of the segments that the sample was read from, without those in memory."""
    distribution: VectorDistribution | None
    """Distribution of the sample; None: nothing can be told from it."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Strangeness of the vectors that were written last."""


class VectorChecks:
    """The comparisons of one index, shared by its snapshots. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: dict[str, _Sample] = {}
        self.foreign_batches = 0
        """Number of batches that seemed to be of another model."""
        self.strange_queries = 0
        """Number of compared queries whose vector does not look like those of the index."""

    def strangeness(self, index: OpenIndex, name: str, vectors_ND: np.ndarray) -> np.ndarray | None:
        """Return how unlike those of an index vectors are, float32 (N,); None if that cannot be told.

        Args:
            index: with its live rows.
            name: of the vectors; empty: the unnamed ones.
            vectors_ND: as they are searched, float32.

        """
        sample = self._sample_of(index, name)
        if sample is None or sample.distribution is None:
            return None
        return sample.distribution.strangeness(vectors_ND)

    def foreign(self, index: OpenIndex, name: str, vectors_ND: np.ndarray) -> ForeignBatch | None:
        """Return which vectors of a batch to be written seem to be of another model; None if none do.

        Arguments are those of `strangeness`.
        """
        sample = self._sample_of(index, name)
        if sample is None or sample.distribution is None or not len(vectors_ND):
            return None
        compared = np.arange(len(vectors_ND))
        if len(compared) > WINDOW:
            compared = np.linspace(0, len(vectors_ND) - 1, WINDOW).astype(np.int64)
        strangeness = sample.distribution.strangeness(vectors_ND[compared])
        with self._lock:
            sample.recent.extend(strangeness.tolist())
            recent = np.array(sample.recent, np.float32)
        rows = foreign_rows(recent) - (len(recent) - len(compared))
        rows = compared[rows[rows >= 0]]
        if not len(rows):
            return None
        self.foreign_batches += 1
        return ForeignBatch(int(rows[0]), len(rows), len(compared))

    def _sample_of(self, index: OpenIndex, name: str) -> _Sample | None:
        """Return what is known of the vectors of a name; None: nothing, or another thread reads the sample just now."""
        manifest = index.manifest
        dimensions, rows = manifest.vectors[name].dimensions, sum(segment.rows for segment in index.segments)
        model = (manifest.index_id, (manifest.vectors[name].encoder or {}).get("digest"), dimensions)
        files = frozenset(each.entry.sha256 for each in index.segments if not isinstance(each, MemorySegment))
        if rows < least_sample(dimensions):
            return None
        sample = self._samples.get(name)
        # A full build, or a migration to another model, leaves none of the files; merges and seals leave some, mostly.
        if sample is not None and (sample.model != model or sample.files.isdisjoint(files) != (not files)):
            sample = None
        if sample is not None and rows < GROWTH * sample.rows:
            return sample
        if not self._lock.acquire(blocking=False):
            return sample
        try:
            sample_ND = _sampled_vectors(index.space(name))
            sample = _Sample(rows, model, files, VectorDistribution.of(sample_ND))
            self._samples[name] = sample
        finally:
            self._lock.release()
        return sample


def _sampled_vectors(space: VectorSpace) -> np.ndarray:
    """Return vectors of live rows in random order, without those that would be read from the store, float32 (N, D)."""
    random, index = np.random.default_rng(0), space.index
    dimensions = index.manifest.dimensions
    parts = [
        (segment, alive)
        for segment, alive in zip(index.segments, index.alive, strict=True)
        if segment.has_vectors and not segment.is_cold
    ]
    total, limit = sum(segment.rows for segment, _ in parts), most_sample(dimensions)
    if total < least_sample(dimensions):
        return np.empty((0, dimensions), np.float32)
    vectors = []
    for segment, alive in parts:
        count = min(segment.rows, round(limit * segment.rows / total))
        rows = np.sort(random.choice(segment.rows, count, replace=False, shuffle=False))
        vectors.append(segment.searched(rows if alive is None else rows[alive.mask_N[rows]]))
    return random.permutation(np.concatenate(vectors))

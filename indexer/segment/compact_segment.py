"""A segment that is searched by its vectors in 8 bits a number; the full ones stay in the store.

Its local files and its memory have a quarter of the bytes for vectors. All searches, also exact ones, are those of a
segment whose vectors are what the quantized ones stand for: scores differ from those of the full vectors in the third
or fourth digit. What that costs of the true hits is measured when the file is unpacked. Vectors that callers ask for,
or that a write keeps, are read from the store by ranges of bytes, as of cold segments, and are those that were given.

Shapes: Q queries, N rows of the segment, D dimensions, K hits.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.planning.planner import SegmentHits
from scannery.indexer.segment import segment_files as files
from scannery.indexer.segment.cold.cold_files import PAGES
from scannery.indexer.segment.cold.cold_segment import SegmentInStore
from scannery.indexer.segment.cold.cold_vectors import ColdReads, ColdVectors
from scannery.indexer.segment.pages import Pages, find_pages, read_tail
from scannery.indexer.spec.spec import Distance
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import SearchSettings, near
from scannery.indexer.vectors.arrays import mapped
from scannery.indexer.vectors.exact_search import exact_search, search_ready
from scannery.indexer.vectors.page_advice import mapped_vectors
from scannery.indexer.vectors.quantized_vectors import ScoredVectors

__all__ = ["LEAST_KEPT", "MEASURED_K", "CompactSegment", "is_compact", "make_compact"]

_LOG = logging.getLogger(__name__)

MEASURED_QUERIES = 64
MEASURED_K = 10
LEAST_KEPT = 0.9
"""Share of the true hits that quantized vectors must keep. Vectors that are much longer than they are far apart differ
by less than a step: nearly none is kept of those."""


def make_compact(store: Store, key: str, entry: SegmentEntry, folder: Path) -> None:
    """Leave the quantized vectors alone in the folder of an unpacked segment.

    Does nothing if it has none, or if these would lose more than LEAST_KEPT allows.

    Args:
        store: with the file.
        key: of the file.
        entry: of the segment in a manifest, which `has_cold_data`.
        folder: of `segment_files.unpack`.

    Raises:
        NotFoundError, StoreError, CorruptError: the end of the file cannot be read.

    """
    if not (folder / files.QUANTIZED).exists():
        return
    assert entry.tail is not None
    info = json.loads((folder / files.INFO).read_text())
    vectors_ND = mapped(folder / files.VECTORS)
    with COMPILING:
        kept = _kept_recall(vectors_ND, mapped(folder / files.QUANTIZED), info["distance"])
    if kept < LEAST_KEPT:
        _LOG.warning("%s stays in full: vectors in 8 bits a number keep %.3f of its true hits", key, kept)
        return
    info["kept_recall"] = kept
    info["dimensions"], info["unit"] = vectors_ND.shape[1], not (folder / files.UNSCALED).exists()
    find_pages(read_tail(store, key, entry), entry.tail.start, key, entry.rows).save(folder / PAGES)
    (folder / files.INFO).write_text(json.dumps(info))
    (folder / files.VECTORS).unlink()
    (folder / files.UNSCALED).unlink(missing_ok=True)


def is_compact(folder: Path) -> bool:
    """Return whether the folder of a segment is one of `make_compact`."""
    return not (folder / files.VECTORS).exists() and (folder / PAGES).exists()


def _kept_recall(vectors_ND: np.ndarray, quantized_NB: np.ndarray, distance: Distance) -> float:
    """Return the share of the true hits of queries near stored vectors that the quantized vectors find exactly."""
    generator = np.random.default_rng(0)
    drawn_Q = np.sort(
        generator.choice(len(vectors_ND), min(MEASURED_QUERIES, len(vectors_ND)), replace=False)
    )
    queries_QD = search_ready(near(vectors_ND[drawn_Q], generator), distance)
    true_QK, _ = exact_search(vectors_ND, queries_QD, MEASURED_K, distance)
    rows_QK, _ = exact_search(ScoredVectors(vectors_ND[:0], quantized_NB), queries_QD, MEASURED_K, distance)
    return float(
        np.mean([np.isin(true_K, rows_K).mean() for true_K, rows_K in zip(true_QK, rows_QK, strict=True)])
    )


class CompactSegment(SegmentInStore):
    """Datapoints of one shard, with vectors in 8 bits a number."""

    def __init__(self, entry: SegmentEntry, folder: Path, store: Store, key: str, reads: ColdReads) -> None:
        """Map the files, and compile the kernels; arguments and errors as of `ColdSegment`."""
        info = json.loads((folder / files.INFO).read_text())
        self.kept_recall: float = info["kept_recall"]
        """Share of the true hits by full vectors that an exact search finds, 0 to 1, measured with a sample."""
        self._dimensions: int = info["dimensions"]
        self._is_scaled = not info["unit"]
        super().__init__(entry, folder)
        pages = Pages.map(folder / PAGES)
        self._open_given(ColdVectors(store, key, pages, self._dimensions, reads, scaled=False), reads)
        _LOG.info("%s: vectors in 8 bits a number keep %.3f of the true hits", key, self.kept_recall)

    def _map_vectors(self, folder: Path) -> None:
        no_rows_0D = np.zeros((0, self._dimensions), np.float32)
        no_rows_0D.setflags(write=False)
        self.searched_ND = self.given_ND = no_rows_0D
        self._quantized_NB = mapped_vectors(folder / files.QUANTIZED)

    @property
    def is_scaled(self) -> bool:
        """As `Segment.is_scaled`."""
        return self._is_scaled

    def settings_for(self, target_recall: float) -> SearchSettings | None:
        """Return `Segment.settings_for` of a target that is higher by what the quantized vectors lose."""
        return super().settings_for(min(1.0, target_recall / self.kept_recall))

    def _find(
        self,
        queries_QD: np.ndarray,
        k: int,
        settings: SearchSettings | None,
        allowed: AllowedRows | None,
        target_recall: float,
    ) -> SegmentHits:
        hits = super()._find(queries_QD, k, settings, allowed, min(1.0, target_recall / self.kept_recall))
        return replace(hits, recall_Q=self.kept_recall * hits.recall_Q)

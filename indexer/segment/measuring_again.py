"""Measure the curves of a stored segment again, for given queries."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.scann.build import measured_again
from scannery.indexer.segment import segment_files as files
from scannery.indexer.segment.cache import SegmentCache
from scannery.indexer.segment.opening import unpacked_segment
from scannery.indexer.store.object_store import Store

__all__ = ["with_new_curves"]


def with_new_curves(
    store: Store,
    index: str,
    entry: SegmentEntry,
    queries_QD: np.ndarray,
    *,
    rescore: int | None = None,
    cache: SegmentCache | None = None,
) -> SegmentEntry:
    """Return the entry of a ScaNN segment with curves measured for given queries, by a process of low priority.

    Args:
        store: the store.
        index: name of the index.
        entry: of the segment in a manifest.
        queries_QD: float32, finite, of any length.
        rescore: the only number of candidates to try; None: several.
        cache: where segments are unpacked; None: the default folder.

    Raises:
        BuildError: the process failed or was killed.
        NotFoundError, CorruptError, FormatError, StoreError: the segment cannot be opened.

    """
    with (
        unpacked_segment(store, index, entry, cache or SegmentCache()) as folder,
        tempfile.TemporaryDirectory(prefix="tune-") as parent,
    ):
        info = json.loads((folder / files.INFO).read_text())
        tuning = measured_again(
            folder / "scann",
            folder / files.VECTORS,
            info["distance"],
            folder=Path(parent),
            queries_QD=queries_QD,
            leaves=info["leaves"],
            name=f"segment {entry.sha256[:12]}",
            rescore=rescore,
        )
    return entry.model_copy(update={"curve": tuning.curve, "depth_curves": tuning.depth_curves})

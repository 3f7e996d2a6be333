"""FAISS: a file of an index, and a file with the ids (`.npy`, or text with one on each line)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from scannery.bridges.importers.collection import (
    PeerCollection,
    PeerOptions,
    PeerRecord,
    as_identifier,
    distance_of,
    loaded,
)
from scannery.indexer import Distance
from scannery.pipelines.errors import InputNotFoundError, PeerError

__all__ = ["open_faiss"]

DISTANCES: dict[str, Distance] = {"METRIC_INNER_PRODUCT": "dot", "METRIC_L2": "squared_l2"}
SAMPLED = 1_000
"""Vectors whose length is looked at."""
UNIT_TOLERANCE = 1e-3


def open_faiss(source: str, options: PeerOptions, _: ExitStack) -> PeerCollection:
    """Return an index of a file."""
    faiss = loaded("faiss", system="faiss")
    for name in filter(None, (source, options.ids)):
        if not Path(name).is_file():
            raise InputNotFoundError(f"{name}: no such file")
    if options.vector is not None or options.collection is not None:
        raise PeerError("--vector, --collection: a FAISS file has one index, without a name; leave them out")
    try:
        # The file of lists on disk is looked for beside the index, and not where the index says.
        index = faiss.read_index(source, faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY)
    except RuntimeError as error:
        raise PeerError(f"{source}: FAISS cannot read it: {error}") from error
    metric = _name_of(faiss, index.metric_type)
    vectors, own_ids = _readable(faiss, index)
    ids = _ids(options.ids, own_ids, index.ntotal)
    notes = (
        []
        if isinstance(vectors.part, faiss.IndexFlat)
        else ["vectors are those that the index rebuilds from its codes"]
    )
    if metric == "METRIC_INNER_PRODUCT" and options.distance is None and _are_units(vectors, index.ntotal):
        notes.append("all vectors that were looked at have length 1: inner products are cosines")
    return PeerCollection(
        name=Path(source).name,
        dimensions=index.d,
        distance=distance_of(metric, DISTANCES, options.distance),
        rows=index.ntotal,
        records=lambda size: _records(vectors, ids, size),
        notes=notes,
    )


def _name_of(faiss: Any, metric: int) -> str:
    names = [name for name in dir(faiss) if name.startswith("METRIC_") and getattr(faiss, name) == metric]
    return names[0] if names else str(metric)


class _Vectors:
    """The vectors of an index by their numbers."""

    def __init__(self, part: Any, owner: Any) -> None:
        # A part of an index does not keep the whole alive, whose memory would be freed.
        self.part, self._owner = part, owner

    def read(self, start: int, count: int) -> np.ndarray:
        """Return some of them, float32 (count, D)."""
        return np.asarray(self.part.reconstruct_n(start, count), np.float32)


def _readable(faiss: Any, index: Any) -> tuple[_Vectors, np.ndarray | None]:
    """Return the vectors of an index, and the ids that it maps their numbers to."""
    owner = index
    index = faiss.downcast_index(index)
    ids = None
    if isinstance(index, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        ids = faiss.vector_to_array(index.id_map)
        index = faiss.downcast_index(index.index)
    if isinstance(index, faiss.IndexIVF):
        try:
            index.make_direct_map()
        except RuntimeError as error:
            raise PeerError(
                f"the ids of this IVF index are not 0, 1, …: export its vectors as .npy ({error})"
            ) from error
    try:
        if index.ntotal:
            index.reconstruct(0)
    except RuntimeError as error:
        raise PeerError(f"{type(index).__name__} does not give its vectors: {str(error)[-120:]}") from error
    return _Vectors(index, owner), ids


def _ids(file: str | None, stored_ids: np.ndarray | None, rows: int) -> Sequence[str]:
    if file is None:
        return [str(each) for each in (range(rows) if stored_ids is None else stored_ids.tolist())]
    if file.endswith(".npy"):
        ids = [as_identifier(each) for each in np.load(file, allow_pickle=False).tolist()]
    else:
        ids = Path(file).read_text(encoding="utf-8").split("\n")
        ids = ids[:-1] if ids[-1] == "" else ids
    if len(ids) != rows:
        raise PeerError(f"--ids: {file} has {len(ids)} ids, the index has {rows} vectors")
    return ids


def _are_units(vectors: _Vectors, rows: int) -> bool:
    sample_ND = vectors.read(0, min(rows, SAMPLED)) if rows else np.zeros((0, 1))
    return bool(rows) and bool(np.all(np.abs(np.linalg.norm(sample_ND, axis=1) - 1) < UNIT_TOLERANCE))


def _records(vectors: _Vectors, ids: Sequence[str], size: int) -> Iterator[list[PeerRecord]]:
    for start in range(0, len(ids), size):
        count = min(size, len(ids) - start)
        vectors_ND = vectors.read(start, count)
        yield [PeerRecord(ids[start + i], vectors_ND[i], {}) for i in range(count)]

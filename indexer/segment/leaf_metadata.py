"""What the metadata of a segment file says of its vectors, so that servers need not read them to open it (cold/)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa

from scannery.indexer.datapoints.schema import vectors_of
from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.planning.leaves import measure_leaves, pack_leaves
from scannery.indexer.scann.assets import LEAF_COLUMN
from scannery.indexer.spec.spec import Distance
from scannery.indexer.vectors.arrays import mapped
from scannery.indexer.vectors.vector_files import blocks_of, is_unit, unit_blocks, write_vectors

__all__ = ["are_searched_as_given", "leaf_metadata"]

_VECTORS_FILE = "vectors.npy"


def are_searched_as_given(table: pa.Table, distance: Distance) -> bool:
    """Return whether vectors are searched without being scaled: for cosine, whether all have length 1."""
    return distance != "cosine" or all(map(is_unit, blocks_of(table)))


def leaf_metadata(table: pa.Table, distance: Distance, directory: Path, *, unit: bool) -> dict[str, str]:
    """Return the packed statistics of the leaves.

    Args:
        table: in leaf order, with the column of leaves.
        distance: of the index.
        directory: for a temporary file.
        unit: of `are_searched_as_given`.

    """
    leaf_N = table.column(LEAF_COLUMN).to_numpy()
    given_ND = vectors_of(table)
    if unit:
        with COMPILING:
            return pack_leaves(measure_leaves(given_ND, leaf_N, distance, seed=0))
    with tempfile.TemporaryDirectory(prefix="leaves-", dir=directory) as place:  # not a copy in memory
        path = Path(place) / _VECTORS_FILE
        write_vectors(path, unit_blocks(given_ND), *given_ND.shape)
        with COMPILING:
            return pack_leaves(measure_leaves(mapped(path), leaf_N, distance, seed=0))

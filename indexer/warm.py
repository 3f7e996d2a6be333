"""Compile the kernels of segments into numba's cache; `python -m scannery.cli.warm` compiles all.

Otherwise the first index that a new machine opens waits about eight seconds for it. Kernels are compiled for the array
types of a segment, so this builds and opens a small one. Compiled code is for one kind of processor, and is stored in
`NUMBA_CACHE_DIR`, else beside the source, else in the user's cache folder.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints import dynamic
from scannery.indexer.datapoints.schema import datapoint_schema
from scannery.indexer.datapoints.sparse import INDICES_COLUMN, VALUES_COLUMN
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.segment.build import build_segment, store_segment
from scannery.indexer.segment.cache import SegmentCache
from scannery.indexer.segment.opening import open_segment
from scannery.indexer.spec.spec_files import parse_spec
from scannery.indexer.store.object_store import Store

__all__ = ["warm_kernels"]

_ROWS, _DIMENSIONS = 1000, 8
_SPEC = {
    "index": "warm",
    "source": {"text": "text", "vector": "vector", "sparse_vector": "sparse"},
    "lexical": True,
    "scann": {"exact_below_rows": _ROWS},
}


def warm_kernels() -> None:
    """Compile the kernels that are not in the cache."""
    with scratch_folder("warm") as folder:
        _open_small(folder)
    dynamic.warm_up()


def _open_small(folder: Path) -> None:
    """Build a small segment with all optional parts, and open it, which compiles its kernels."""
    spec, store = parse_spec(_SPEC), Store.open(folder / "store", create=True)
    built = build_segment(_rows(datapoint_schema(spec, _DIMENSIONS)), spec=spec, shard=0, directory=folder)
    store_segment(store, spec.index, built)
    open_segment(store, spec.index, built.entry, SegmentCache(folder / "cache"))


def _rows(schema: pa.Schema) -> pa.Table:
    vectors_ND = np.random.default_rng(0).standard_normal((_ROWS, _DIMENSIONS)).astype(np.float32)
    columns = {
        "id": [f"{row}" for row in range(_ROWS)],
        "document_id": [f"{row}" for row in range(_ROWS)],
        "embedding": list(vectors_ND),
        "text": ["a word"] * _ROWS,
        INDICES_COLUMN: [[1]] * _ROWS,
        VALUES_COLUMN: [[1.0]] * _ROWS,
    }
    return pa.table(
        [pa.array(columns.get(field.name, [None] * _ROWS), field.type) for field in schema], schema=schema
    )

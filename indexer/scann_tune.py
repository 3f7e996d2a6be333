"""The process that tunes a ScaNN build: `python -m scannery.indexer.scann_tune FOLDER`.

The folder has what `scann_child` read and left there, and perhaps `queries.npy`; this adds `tuned.json`. It is a
process of its own, so that whoever started it can write the segment meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from scannery.indexer.curve import held_out_queries, measure_curve
from scannery.indexer.manifest import CurvePoint
from scannery.indexer.scann_build import QUERIES_FILE, VECTORS_FILE
from scannery.indexer.scann_search import load_searcher
from scannery.indexer.spec import Distance
from scannery.indexer.tuning import TUNED_K

__all__ = ["main"]


def main(folder: Path) -> None:
    """Measure recall over settings, and write the curve."""
    started = time.perf_counter()
    job = json.loads((folder / "job.json").read_text())
    curve = _tuned(
        folder, job["distance"], leaves=job["config"]["leaves"], threads=job["threads"], seed=job["seed"]
    )
    result = {"curve": [point.model_dump() for point in curve], "seconds": time.perf_counter() - started}
    (folder / "tuned.json").write_text(json.dumps(result))


def _tuned(
    folder: Path, distance: Distance, *, leaves: int, threads: int, seed: int
) -> tuple[CurvePoint, ...]:
    vectors_ND = np.load(folder / VECTORS_FILE, mmap_mode="r")
    searcher = load_searcher(folder / "scann", vectors_ND, distance)
    given = folder / QUERIES_FILE
    held_out = held_out_queries(
        vectors_ND, distance, seed=seed, apart_QD=np.load(given) if given.exists() else None
    )
    # Compiles the kernel, which no point should pay for.
    searcher.search(held_out.apart_QD, TUNED_K, rescore=2 * TUNED_K, leaves=1)
    return measure_curve(searcher, held_out, leaves=leaves, threads=threads)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

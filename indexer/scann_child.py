"""The child process of a ScaNN build: `python -m scannery.indexer.scann_child FOLDER`.

ScaNN ends its process on some bad input, and keeps memory after a build. In a child the first becomes an exit
status, and the second goes back to the system. The folder has `job.json`, `vectors.npy` and perhaps `queries.npy`; the
child adds `scann/` (ScaNN's own files) and, last, `result.json`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from scannery.indexer.manifest import CurvePoint
from scannery.indexer.scann_build import QUERIES_FILE, VECTORS_FILE
from scannery.indexer.scann_config import SOAR_LAMBDA, ScannConfig
from scannery.indexer.scann_search import ScannSearcher
from scannery.indexer.spec import Distance
from scannery.indexer.curve import held_out_queries, measure_curve
from scannery.indexer.tuning import TUNED_K

__all__ = ["main"]


def main(folder: Path) -> None:
    """Build, serialize and tune the searcher that `folder/job.json` asks for."""
    job = json.loads((folder / "job.json").read_text())
    config = ScannConfig.from_dict(job["config"])
    distance: Distance = job["distance"]
    vectors_ND = np.load(folder / VECTORS_FILE, mmap_mode="r")
    started = time.perf_counter()
    searcher = _build(vectors_ND, config, distance, threads=job["threads"])
    built = time.perf_counter()
    (folder / "scann").mkdir()
    searcher.serialize(str(folder / "scann"), relative_path=True)
    given = folder / QUERIES_FILE
    queries_QD = np.load(given) if given.exists() else None
    wrapped = ScannSearcher(searcher, vectors_ND, distance)
    curve = _tune(wrapped, vectors_ND, config, distance, queries_QD, seed=job["seed"])
    result = {
        "seconds": {"scann": built - started, "tune": time.perf_counter() - built},
        "curve": [point.model_dump() for point in curve],
    }
    (folder / "result.json").write_text(json.dumps(result))


def _build(vectors_ND: np.ndarray, config: ScannConfig, distance: Distance, *, threads: int) -> Any:
    from scann.scann_ops.py import scann_ops_pybind

    measure = "squared_l2" if distance == "squared_l2" else "dot_product"
    builder = scann_ops_pybind.builder(vectors_ND, TUNED_K, measure)
    builder = builder.tree(
        config.leaves,
        max(1, config.leaves // 20),
        training_sample_size=config.training_rows,
        soar_lambda=SOAR_LAMBDA if config.soar else None,
    )
    builder = builder.score_ah(
        config.dimensions_per_block, anisotropic_quantization_threshold=config.anisotropic_threshold
    )
    # No reorder: candidates are rescored from the segment's own vectors (scann_search).
    return builder.set_n_training_threads(threads).build()


def _tune(
    searcher: ScannSearcher,
    vectors_ND: np.ndarray,
    config: ScannConfig,
    distance: Distance,
    queries_QD: np.ndarray | None,
    *,
    seed: int,
) -> tuple[CurvePoint, ...]:
    held_out = held_out_queries(vectors_ND, distance, seed=seed, apart_QD=queries_QD)

    def search(asked_QD: np.ndarray, k: int, rescore: int, leaves: int) -> tuple[np.ndarray, np.ndarray]:
        return searcher.search(asked_QD, k, rescore=rescore, leaves=leaves)

    search(held_out.apart_QD, TUNED_K, 2 * TUNED_K, 1)  # compiles the kernel, which no point should pay for
    return measure_curve(search, held_out, leaves=config.leaves)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

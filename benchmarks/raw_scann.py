"""Baseline of a build of vectors: read them, build with ScaNN alone, write both.

The parameters are those from which Scannery's builds start, before a trial; ScaNN uses its SSE4 kernels.

`python -m benchmarks.raw_scann FOLDER` reads `vectors.npy` and `job.json`, and writes to `raw/`. It imports nothing of
Scannery, which would add to its time and memory.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
from scann.scann_ops.py import scann_ops_pybind


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    config, threshold = job["config"], job["config"]["anisotropic_threshold"]
    vectors_ND = np.load(folder / "vectors.npy")
    measure = "squared_l2" if job["distance"] == "squared_l2" else "dot_product"
    builder = scann_ops_pybind.builder(vectors_ND, 10, measure).tree(
        config["leaves"],
        10,
        training_sample_size=config["training_rows"],
        soar_lambda=job["soar_lambda"] if config["soar"] else None,
    )
    searcher = builder.score_ah(
        config["dimensions_per_block"],
        anisotropic_quantization_threshold=math.nan if threshold is None else threshold,
    ).build()
    (folder / "raw").mkdir()
    searcher.serialize(str(folder / "raw"), relative_path=True)
    np.save(folder / "raw" / "vectors.npy", vectors_ND)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

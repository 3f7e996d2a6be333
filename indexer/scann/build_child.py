"""The process of a ScaNN build, a script that reads `FOLDER/job.json` and `vectors.npy` and leaves `scann/` there.

ScaNN ends its process on some bad input, and keeps memory after a build. In a child the first becomes an exit
status, and the second goes back to the system. It imports nothing of Scannery: that would be 130 MiB beside what
ScaNN needs. What tunes the result (tuning/tune_process.py) is a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scann.scann_ops.py import scann_ops_pybind


def main(folder: Path) -> None:
    """Build and serialize the searcher that the job asks for."""
    job = json.loads((folder / "job.json").read_text())
    _end_with(job["parent"])
    # A build that runs away should end as its own error, before it takes the memory of others.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = job["most_bytes"] if hard == resource.RLIM_INFINITY else min(job["most_bytes"], hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    started = time.perf_counter()
    searcher = _build(folder / job["vectors"], job)
    (folder / "scann").mkdir()
    searcher.serialize(str(folder / "scann"), relative_path=True)
    (folder / "trained.json").write_text(json.dumps({"seconds": time.perf_counter() - started}))


def _end_with(parent: int) -> None:
    """Have the kernel end this process with the thread that waits for it: a killed build leaves nothing running."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        sys.exit("the process that wants the result is gone")


def _build(vectors: Path, job: dict[str, Any]) -> Any:
    # Unmapped when this returns: serializing takes memory of its own, and the pages that were read would count too.
    vectors_ND = np.load(vectors, mmap_mode="r")
    config, threshold = job["config"], job["config"]["anisotropic_threshold"]
    builder = scann_ops_pybind.builder(
        vectors_ND, 10, "squared_l2" if job["distance"] == "squared_l2" else "dot_product"
    )
    builder = builder.tree(
        config["leaves"],
        max(1, config["leaves"] // 20),
        training_sample_size=config["training_rows"],
        soar_lambda=job["soar_lambda"] if config["soar"] else None,
    )
    builder = builder.score_ah(
        config["dimensions_per_block"],
        anisotropic_quantization_threshold=math.nan if threshold is None else threshold,
    )
    # No reorder: candidates are rescored from the segment's own vectors (search.py).
    return builder.set_n_training_threads(job["threads"]).build()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

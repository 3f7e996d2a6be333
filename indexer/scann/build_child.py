"""The process of a ScaNN build: a script that reads `FOLDER/job.json` and `vectors.npy` and writes `scann/` there.

ScaNN aborts its process on some bad input, and does not free all memory after a build. A child process turns the first
into an exit status, and frees the memory. It does not import Scannery, which would take 130 MiB, but for one module
that it runs by its path. Another process tunes the result (tuning/tune_process.py).
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scann.scann_ops.py import scann_ops_pybind

__all__ = ["main", "trained"]


def main(folder: Path) -> None:
    """Build and serialize the searcher of the job."""
    job = json.loads((folder / "job.json").read_text())
    _end_with(job["parent"])
    # A build that needs too much memory should fail, before it takes the memory of other processes.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = job["most_bytes"] if hard == resource.RLIM_INFINITY else min(job["most_bytes"], hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    started = time.perf_counter()
    # Training takes 0.75 to 0.85 of the processor time with AVX-512.
    runpy.run_path(str(Path(__file__).with_name("instructions.py")))["use_vector_instructions"]()
    searcher = _built(folder / job["vectors"], job)
    (folder / "scann").mkdir()
    searcher.serialize(str(folder / "scann"), relative_path=True)
    (folder / "trained.json").write_text(json.dumps({"seconds": time.perf_counter() - started}))


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends: it must not outlive its parent."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before prctl
        sys.exit("the parent process has ended")


def _built(vectors: Path, job: dict[str, Any]) -> Any:
    # Unmapped when this returns: otherwise its pages would add to the memory that serializing needs.
    return trained(np.load(vectors, mmap_mode="r"), job)


def trained(vectors_ND: np.ndarray, job: dict[str, Any]) -> Any:
    """Return a searcher of the vectors, float32 (rows, dimensions), with the configuration of the job.

    `iterations` of the job, if there are any, are those of training the tree and the codes; ScaNN's are 12 and 10.
    """
    iterations = {"training_iterations": job["iterations"]} if "iterations" in job else {}
    config, threshold = job["config"], job["config"]["anisotropic_threshold"]
    builder = scann_ops_pybind.builder(
        vectors_ND, 10, "squared_l2" if job["distance"] == "squared_l2" else "dot_product"
    )
    builder = builder.tree(
        config["leaves"],
        max(1, config["leaves"] // 20),
        training_sample_size=config["training_rows"],
        soar_lambda=job["soar_lambda"] if config["soar"] else None,
        **iterations,
    )
    builder = builder.score_ah(
        config["dimensions_per_block"],
        anisotropic_quantization_threshold=math.nan if threshold is None else threshold,
        training_sample_size=job["codebook_rows"],
        **iterations,
    )
    # No reorder: candidates are rescored from the segment's own vectors (search.py).
    return builder.set_n_training_threads(job["threads"]).build()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The process that tunes a ScaNN build, or tries configurations before it, forked by a server (local/fork_server.py).

With TRIAL_FILE in its folder, it chooses a configuration (config_trial.py). Otherwise its folder has the input of
`scann/build_child.py`, and optionally `queries.npy`; this process writes `tuned.json`. It starts together with
training, and first finds the true hits of its queries by exact search: in a thread of the lowest priority, since
training would take a sixth longer otherwise. End of standard input means that `scann/` is complete.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np

from scannery.indexer.local.needless_imports import leave_needless_imports_out
from scannery.indexer.scann.build import QUERIES_FILE, TRIAL_FILE, TRIED_FILE, VECTORS_FILE
from scannery.indexer.scann.config import ScannConfig
from scannery.indexer.scann.instructions import use_vector_instructions
from scannery.indexer.scann.search import ScannSearcher, load_kernels, load_searcher
from scannery.indexer.spec.spec import Distance
from scannery.indexer.tuning.config_trial import (
    TRIAL_CODEBOOK_ROWS,
    TRIAL_ITERATIONS,
    TRIAL_QUERIES,
    SearchCost,
    affordable,
    choose_by_trial,
    sample_rows,
)
from scannery.indexer.tuning.held_out_queries import FreshQueries, held_out_queries
from scannery.indexer.tuning.recall_curve import DEEPER, Curves, measure_curves
from scannery.indexer.tuning.settings_choice import TUNED_K, pick_point
from scannery.indexer.vectors.arrays import mapped
from scannery.indexer.vectors.exact_search import BY_ROW
from scannery.indexer.vectors.quantized_vectors import ScoredVectors

__all__ = ["main", "warm"]

_LOWEST = 19
"""Niceness of the lowest priority."""
_DEEP_QUERIES = 90
"""Queries of each kind for up to 1,000 hits: fewer than for ten hits, since each has more hits to measure."""
_DEEPEST_SHARE = 0.125
"""Largest share of a segment's rows to measure as hits: servers search for more exactly."""


def main(folder: Path) -> None:
    """Choose a configuration, or measure a build with one."""
    use_vector_instructions()  # as servers do, and before the first searcher is made
    if (folder / TRIAL_FILE).exists():
        _try_configs(folder)
    else:
        _tune(folder)


def _try_configs(folder: Path) -> None:
    """Choose a configuration on a sample, and write it to TRIED_FILE with what was tried."""
    job = json.loads((folder / TRIAL_FILE).read_text())
    vectors_ND, distance = mapped(folder / VECTORS_FILE), job["distance"]
    path = folder / QUERIES_FILE
    apart_QD = mapped(path) if path.exists() else None
    if apart_QD is not None:
        apart_QD = apart_QD[:: -(-len(apart_QD) // (2 * TRIAL_QUERIES))]
    queries = held_out_queries(vectors_ND, distance, seed=job["seed"], apart_QD=apart_QD, count=TRIAL_QUERIES)
    config = ScannConfig.from_dict(job["config"])

    def train(vectors_SD: np.ndarray, tried: ScannConfig) -> ScannSearcher:
        from scannery.indexer.scann.build_child import trained

        less = {"iterations": TRIAL_ITERATIONS, "codebook_rows": TRIAL_CODEBOOK_ROWS}
        made = trained(vectors_SD, job | less | {"config": tried.to_dict()})
        return ScannSearcher(made, ScoredVectors(vectors_SD), distance, BY_ROW)

    sample = sample_rows(vectors_ND, queries, config.leaves, seed=job["seed"])
    count = affordable(sample.rows, len(sample.rows_S), len(job["changes"]))
    outcome: dict[str, object] = {"config": None, "trial": None}
    if count is not None:
        chosen, trial = choose_by_trial(
            sample, queries, config, job["changes"][:count], train, target=job["target"]
        )
        outcome = {"config": chosen.to_dict(), "trial": trial.model_dump()}
    (folder / TRIED_FILE).write_text(json.dumps(outcome))


def _tune(folder: Path) -> None:
    """Measure the recall of settings, and write the curves to `tuned.json`."""
    job = json.loads((folder / "job.json").read_text())
    if job.get("low_priority"):
        os.nice(_LOWEST)
    vectors_ND = mapped(folder / VECTORS_FILE)
    path = folder / QUERIES_FILE
    queries_QD = mapped(path) if path.exists() else None
    rows = len(vectors_ND)
    deepest = max([k for k in DEEPER if k <= _DEEPEST_SHARE * rows], default=TUNED_K)
    ask = partial(held_out_queries, vectors_ND, job["distance"], seed=job["seed"], apart_QD=queries_QD)
    with ThreadPoolExecutor(1, initializer=_lower_priority) as pool:
        held_out = pool.submit(ask).result()
        deep = pool.submit(ask, k=deepest, count=_DEEP_QUERIES).result()
        fresh = (
            job["measured_for"]
            and pool.submit(FreshQueries, vectors_ND, job["distance"], seed=job["seed"]).result()
        )
    load_kernels(vectors_ND, job["distance"])  # before any time is measured
    sys.stdin.read()
    if not (folder / "trained.json").exists():  # the parent process has ended
        return
    started = time.perf_counter()
    searcher = load_searcher(folder / "scann", ScoredVectors(vectors_ND), job["distance"])
    curves = measure_curves(
        searcher,
        held_out,
        deep,
        cost=_search_cost(folder / "scann", job["config"]["leaves"], vectors_ND),
        threads=job["threads"],
        rescore=job["rescore"],
    )
    result = {
        "fresh_recall": fresh and _fresh_recall(fresh, searcher, curves, job["measured_for"]),
        "curve": [point.model_dump() for point in curves.ten],
        "depth_curves": [curve.model_dump() for curve in curves.depth_curves],
        "seconds": time.perf_counter() - started,
    }
    (folder / "tuned.json").write_text(json.dumps(result))


def _search_cost(scann: Path, leaves: int, vectors_ND: np.ndarray) -> SearchCost:
    """Return the cost of searches of a trained searcher, from its files: they are all that is known of an old one."""
    rows, dimensions = vectors_ND.shape
    second = scann / "hashed_dataset_soar.npy"
    blocks = np.load(scann / "hashed_dataset.npy", mmap_mode="r").shape[1]
    config = ScannConfig(
        leaves=leaves,
        training_rows=rows,
        dimensions_per_block=math.ceil(dimensions / max(1, blocks)),
        anisotropic_threshold=math.nan,
        soar=second.exists() and len(np.load(second, mmap_mode="r")) > 0,
    )
    return SearchCost(config=config, rows=rows, dimensions=dimensions)


def warm() -> None:
    """Import ScaNN and load the kernels, which each tuner would do otherwise."""
    leave_needless_imports_out()
    import scann.scann_ops.py.scann_ops_pybind  # noqa: F401

    vectors_ND = np.zeros((2, 1), np.float32)
    vectors_ND.setflags(write=False)  # as those of a file are
    for distance in get_args(Distance):
        held_out_queries(vectors_ND, distance, seed=0, k=1, count=1)
        load_kernels(vectors_ND, distance)


def _fresh_recall(fresh: FreshQueries, searcher: ScannSearcher, curves: Curves, target: float) -> float:
    """Return the recall of the default setting; 1 if none reaches the target, since searches are exact then."""
    point, reached = pick_point(curves.ten, target)
    return fresh.recall(searcher, point) if reached else 1.0


def _lower_priority() -> None:
    with contextlib.suppress(OSError):  # some systems do not allow a priority per thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)

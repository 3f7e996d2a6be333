"""The process that tunes a ScaNN build: `python -m scannery.indexer.scann_tune FOLDER`.

The folder has what `scann_child.py` reads, and perhaps `queries.npy`; this adds `tuned.json`. When standard input ends,
`scann/` is there too. Before that it looks up what exact searches find, in the time that training leaves idle: in a
thread of the lowest priority, since training would be a sixth slower for it otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scannery.indexer.arrays import mapped
from scannery.indexer.curve import held_out_queries, measure_curve
from scannery.indexer.scann_build import QUERIES_FILE, VECTORS_FILE
from scannery.indexer.scann_search import load_kernels, load_searcher

__all__ = ["main"]

_LOWEST = 19
"""Of a thread's niceness."""


def main(folder: Path) -> None:
    """Measure recall over settings, and write the curve."""
    job = json.loads((folder / "job.json").read_text())
    vectors_ND = mapped(folder / VECTORS_FILE)
    given = folder / QUERIES_FILE
    queries_QD = mapped(given) if given.exists() else None
    with ThreadPoolExecutor(1, initializer=_give_way) as pool:
        held_out = pool.submit(
            held_out_queries, vectors_ND, job["distance"], seed=job["seed"], apart_QD=queries_QD
        ).result()
    load_kernels(vectors_ND, job["distance"])  # which no point should pay for
    sys.stdin.read()
    if not (folder / "trained.json").exists():  # whoever waits for us is gone
        return
    started = time.perf_counter()
    searcher = load_searcher(folder / "scann", vectors_ND, job["distance"])
    curve = measure_curve(
        searcher,
        held_out,
        leaves=job["config"]["leaves"],
        threads=job["threads"],
        rescore=job["rescore"],
    )
    result = {"curve": [point.model_dump() for point in curve], "seconds": time.perf_counter() - started}
    (folder / "tuned.json").write_text(json.dumps(result))


def _give_way() -> None:
    with contextlib.suppress(OSError):  # not everywhere may threads have priorities of their own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

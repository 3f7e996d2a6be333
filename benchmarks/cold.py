"""What an index costs that is served cold, beside the same unpacked: bytes, memory, disk, time and recall of a query.

    python -m benchmarks.cold [fashion] [generated] [--rows 200000] [--dimensions 384] [--queries 100]
                              [--first-byte-ms 30] [--mb-per-s 25] [--folder FOLDER]

The store is a folder that a slow S3 server (slow_bucket.py) shows as a bucket. `fashion` are the real images of
vec-fashion-mnist; `generated` are vectors of 24 latent dimensions and noise, of length 1. Each line is a process that
opens the index with an empty cache and asks the queries one after the other: `cold` without kept pages, so that every
query pays all of its reads; `kept` the same queries again, with the default of 256 MiB. Recall is that of ten hits by
score against an exact search. Memory is what the process has beyond its imports: `anonymous` is its own, `mapped` are
pages of cache files that it touched. With `--folder` the indexes are kept there, and not built again.

Shapes: N vectors, Q queries, D dimensions, K hits.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bucket_open import slow_bucket
from benchmarks.live_runbook import fashion
from benchmarks.report import environment, table
from benchmarks.scale import ROOT
from benchmarks.slow_bucket import ENVIRONMENT
from scannery.indexer import Distance, Store, exact_search, parse_spec, read_manifest, search_ready
from scannery.indexer.tuning.settings_choice import recall_by_score
from tests.data import datapoints, publish

TARGETS = (0.9, 0.95, 0.99)
K = 10
ASK = """
import json, os, sys, time, urllib.request
import numpy as np
from pathlib import Path
from scannery.indexer import ColdReads, SegmentCache, Store, open_index
kind, name, queries, target, rows = sys.argv[1:]
def memory():
    with open("/proc/self/smaps_rollup") as file:
        found = dict(line.split()[:2] for line in list(file)[1:])
    anonymous = int(found["Anonymous:"]) / 1024
    return anonymous, int(found["Pss:"]) / 1024 - anonymous
def counts():
    with urllib.request.urlopen(os.environ["AWS_ENDPOINT"] + "/-/counts") as answer:
        return json.load(answer)
store, queries_QD, before = Store.open("s3://bucket/store"), np.load(queries), memory()
counts()
started = time.perf_counter()
cold = None if kind == "warm" else ColdReads(max_bytes=0 if kind == "cold" else None)
[segment] = open_index(store, name, 1, cold=cold).segments
found = {"open_s": time.perf_counter() - started, "opened": counts()}
allowed = None
if int(rows):
    allowed = segment.allow(np.sort(np.random.default_rng(7).choice(segment.rows, int(rows), replace=False)))
settings = segment.settings_for(float(target))
def ask():
    seconds, scores = [], []
    for query_D in queries_QD:
        began = time.perf_counter()
        hits = segment.find(query_D[None], 10, settings=settings, allowed=allowed, target_recall=float(target))
        seconds.append(time.perf_counter() - began)
        scores.append(hits.scores_QK[0].tolist())
    return seconds, scores
seconds, scores = ask()
if kind == "kept":
    counts()
    seconds, scores = ask()
found |= {"asked": counts(), "seconds": seconds, "scores": scores}
after = memory()
found |= {"anonymous": after[0] - before[0], "mapped": after[1] - before[1]}
cache = Path(os.environ["SCANNERY_CACHE_DIR"])
found["disk"] = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
print(json.dumps(found))
"""


def vectors_of(name: str, given: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, Distance]:
    """Return vectors, queries and the distance of a collection."""
    if name == "fashion":
        vectors_ND, queries_QD = fashion()
        return vectors_ND, queries_QD[: given.queries], "squared_l2"
    generator = np.random.default_rng(11)
    mixing = generator.standard_normal((24, given.dimensions), np.float32)
    latent = generator.standard_normal((given.rows + given.queries, 24), np.float32)
    whole_ND = latent @ mixing + 0.5 * generator.standard_normal((len(latent), given.dimensions), np.float32)
    whole_ND = search_ready(whole_ND, "cosine")
    return whole_ND[: given.rows], whole_ND[given.rows :], "cosine"


def published(folder: Path, name: str, vectors_ND: np.ndarray, distance: Distance) -> None:
    """Commit the index unless the folder has it."""
    store = Store.open(folder / "store", create=True)
    if name in store.folders():
        return
    spec = parse_spec({"index": name, "source": {"id": "id", "vector": "v"}, "distance": distance})
    publish(store, spec, datapoints(spec, vectors_ND), folder)


def asked(
    address: str, folder: Path, kind: str, name: str, target: float, rows: int = 0
) -> Mapping[str, Any]:
    """Return what a process found that opened the index and asked the queries."""
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-c", ASK, kind, name, str(folder / f"{name}.npy"), str(target), str(rows)],
        env=os.environ
        | ENVIRONMENT
        | {"AWS_ENDPOINT": address, "SCANNERY_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def row_of(kind: str, about: str, found: Mapping[str, Any], true_QK: np.ndarray | None) -> tuple[str, ...]:
    """Return a line of the table."""
    seconds, scores_QK = np.array(found["seconds"]), np.array(found["scores"])
    opened, searched = found["opened"], found["asked"]
    count = len(seconds)
    recall = "" if true_QK is None else f"{recall_by_score(scores_QK, true_QK).mean():.3f}"
    return (
        kind, about, f"{found['open_s']:.1f}", f"{opened['requests']}", f"{opened['bytes'] / 1e6:.1f}",
        f"{found['disk'] / 1e6:.1f}", f"{found['anonymous']:.0f}", f"{found['mapped']:.0f}",
        f"{searched['requests'] / count:.1f}", f"{searched['bytes'] / count / 1e6:.2f}",
        f"{np.median(seconds) * 1e3:.1f}", f"{np.quantile(seconds, 0.95) * 1e3:.1f}", recall,
    )  # fmt: skip


def measure(folder: Path, name: str, given: argparse.Namespace) -> None:
    """Print the table of one collection."""
    vectors_ND, queries_QD, distance = vectors_of(name, given)
    published(folder, name, vectors_ND, distance)
    np.save(folder / f"{name}.npy", queries_QD)
    ready_QD = search_ready(queries_QD, distance)
    true_QK = exact_search(vectors_ND, ready_QD, K, distance)[1]
    [entry] = read_manifest(Store.open(folder / "store"), name, 1).segments
    print(f"### {name}: {vectors_ND.shape[0]:,} x {vectors_ND.shape[1]}, {entry.size_bytes / 1e6:.0f} MB\n")
    lines = []
    with slow_bucket(folder, given.first_byte_ms, given.mb_per_s) as address:
        for target in TARGETS:
            for kind in ("warm", "cold"):
                found = asked(address, folder, kind, name, target)
                lines.append(row_of(kind, f"target {target:g}", found, true_QK))
        found = asked(address, folder, "kept", name, 0.95)
        lines.append(row_of("kept", "target 0.95", found, true_QK))
        lines.append(
            row_of("cold", "100 rows allowed", asked(address, folder, "cold", name, 0.95, 100), None)
        )
        lines.append(row_of("cold", "exact", asked(address, folder, "cold", name, 1.0), true_QK))
    titles = (
        "", "queries", "open s", "GETs", "MB", "disk MB", "anonymous MiB", "mapped MiB", "GETs a query",
        "MB a query", "p50 ms", "p95 ms", "recall",
    )  # fmt: skip
    print(table(titles, lines), "\n", flush=True)


def main() -> None:
    """Print one table for each collection."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", nargs="*", default=["fashion", "generated"])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--first-byte-ms", type=float, default=30)
    parser.add_argument("--mb-per-s", type=float, default=25, help="speed of a connection")
    parser.add_argument("--folder", type=Path, help="for the indexes; default: a temporary one")
    given = parser.parse_args()
    print(
        f"{given.first_byte_ms:g} ms, {given.mb_per_s:g} MB/s a connection; {environment('obstore', 'pyarrow')}\n"
    )
    with tempfile.TemporaryDirectory() as place:
        folder = given.folder or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        for name in given.collections:
            measure(folder, name, given)


if __name__ == "__main__":
    main()

"""An index in a bucket: how long it takes to open, and what it costs where it is served cold.

    python -m benchmarks.buckets open [--rows 400000] [--dimensions 128] [--shards 1,8] [--rounds 3]
    python -m benchmarks.buckets cold [--rows 200000] [--dimensions 384] [--queries 100]

Both with `--first-byte-ms 30 --mb-per-s 25`: a slow S3 server shows a folder as a bucket. Each opening is a process of
its own. Memory is what it has beyond its imports: its own, and pages of cache files that it touched.

`open`: random vectors without ScaNN data, with an empty cache and a filled one.

`cold`: Fashion-MNIST, and generated vectors of 24 latent dimensions, one segment each. A process opens the index
with an empty cache and asks the queries one after the other: `warm` has unpacked it; `cold` keeps no pages, so that
every query pays all of its reads; `kept` asks the same queries again, with the default of 256 MiB. Recall is that of
ten hits by score against an exact search.

Shapes: N vectors, Q queries, D dimensions, K hits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import fashion_mnist, latent
from benchmarks.harness import ROOT, K, environment, folder_of, in_turns, options, publish, table
from scannery.indexer import Store, exact_search, parse_spec, read_manifest, search_ready
from scannery.indexer.tuning.settings_choice import recall_by_score
from tests.object_server import ObjectServer


@contextlib.contextmanager
def slow_bucket(folder: Path, arguments: argparse.Namespace) -> Iterator[ObjectServer]:
    """Serve a folder as a bucket, by threads of this process."""
    with ObjectServer() as server:
        server.show(folder)
        server.first_byte_s, server.bytes_per_s = arguments.first_byte_ms / 1e3, arguments.mb_per_s * 1e6
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def counts(bucket: ObjectServer) -> dict[str, int]:
    """Return the numbers of requests and of bytes."""
    return {"requests": len(bucket.requests), "bytes": sum(size for *_, size in bucket.requests)}


# --- processes that open an index

OPEN = """
import json, sys, time
import numpy as np
from scannery.indexer import ColdReads, SegmentCache, Store, open_index
kind, name, queries, target, rows = sys.argv[1:]
def memory():
    with open("/proc/self/smaps_rollup") as file:
        found = dict(line.split()[:2] for line in list(file)[1:])
    own = int(found["Anonymous:"]) / 1024
    return own, int(found["Pss:"]) / 1024 - own
store, before = Store.open("s3://bucket/store"), memory()
print("ready", flush=True)
sys.stdin.readline()
began, used = time.perf_counter(), time.process_time()
cold = None if kind in ("open", "warm") else ColdReads(max_bytes=0 if kind == "cold" else None)
index = open_index(store, name, 1, cold=cold)
found = {"open_s": time.perf_counter() - began, "cpu_s": time.process_time() - used, "seconds": [], "scores": []}
print("opened", flush=True)
sys.stdin.readline()
if kind != "open":
    queries_QD, [segment] = np.load(queries), index.segments
    allowed = None
    if int(rows):
        chosen = np.random.default_rng(7).choice(segment.rows, int(rows), replace=False)
        allowed = segment.allow(np.sort(chosen))
    settings = segment.settings_for(float(target))
    def ask():
        seconds, scores = [], []
        for query_D in queries_QD:
            began = time.perf_counter()
            hits = segment.find(query_D[None], 10, settings=settings, allowed=allowed, target_recall=float(target))
            seconds.append(time.perf_counter() - began)
            scores.append(hits.scores_QK[0].tolist())
        return seconds, scores
    found["seconds"], found["scores"] = ask()
    if kind == "kept":
        print("asked", flush=True)
        sys.stdin.readline()
        found["seconds"], found["scores"] = ask()
after = memory()
found |= {"own_mib": after[0] - before[0], "mapped_mib": after[1] - before[1]}
print(json.dumps(found))
"""


def opened(
    bucket: ObjectServer, cache: Path, kind: str, name: str, queries: Path | str = "",
    target: float = 0.95, rows: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Open an index in a process, and ask its queries; return what it took, with the requests of both parts."""
    environ = os.environ | bucket.environment | {"PYTHONPATH": str(ROOT / "src")}
    found: dict[str, Any] = {}
    with subprocess.Popen(
        [sys.executable, "-c", OPEN, kind, name, str(queries), str(target), str(rows)],
        env=environ | {"SCANNERY_CACHE_DIR": str(cache), "TMPDIR": str(cache.parent)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                found |= json.loads(line)
                break
            if line.strip() == "opened":
                found["opened"] = counts(bucket)
            bucket.requests.clear()
            process.stdin.write("\n")
            process.stdin.flush()
    if process.returncode:
        raise SystemExit("opening failed")
    disk = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    return found | {"asked": counts(bucket), "disk": disk}


def open_cases(arguments: argparse.Namespace, folder: Path) -> None:
    """Print one table for each number of shards."""
    rows, dimensions = arguments.rows or 400_000, arguments.dimensions or 128
    vectors_ND = np.random.default_rng(3).standard_normal((rows, dimensions), np.float32)
    for shards in arguments.shards:
        place, cache = folder / str(shards), folder / "cache"
        keys = {"distance": "squared_l2", "shards": shards, "scann": {"exact_below_rows": 10_000_000}}
        spec = parse_spec({"index": "opened", "source": {"id": "id", "vector": "v"}, **keys})
        manifest = publish(Store.open(place / "store", create=True), spec, vectors_ND, folder)
        with slow_bucket(place, arguments) as bucket:

            def emptied(bucket: ObjectServer = bucket, cache: Path = cache) -> dict[str, Any]:
                shutil.rmtree(cache, ignore_errors=True)
                return opened(bucket, cache, "open", "opened")

            ways: dict[str, Callable[[], dict[str, Any]]] = {
                "empty": emptied,
                "filled": partial(opened, bucket, cache, "open", "opened"),
            }
            turns = in_turns(ways, arguments.rounds, warm=1)  # which compiles the kernels
        print(f"### {rows:,} x {dimensions}, {shards} shards, {manifest.size_bytes / 1e6:.0f} MB\n")
        lines = []
        for name, runs in turns.items():
            middle = [float(np.median([run[key] for run in runs])) for key in ("open_s", "cpu_s", "own_mib")]
            requests, size = (
                np.median([run["opened"][key] for run in runs]) for key in ("requests", "bytes")
            )
            open_s, cpu_s, own_mib = middle
            cells = f"{open_s:.2f}", f"{cpu_s:.2f}", f"{own_mib:.0f}", f"{requests:.0f}", f"{size / 1e6:.0f}"
            lines.append([name, *cells])
        print(table(("cache", "seconds", "processor s", "memory MiB", "requests", "MB"), lines), flush=True)


TITLES = (
    "", "queries", "open s", "GETs", "MB", "disk MB", "own MiB", "mapped MiB", "GETs a query", "MB a query", "p50 ms",
    "p95 ms", "recall",
)  # fmt: skip


def cold_cases(arguments: argparse.Namespace, folder: Path) -> None:
    """Print one table for each collection."""
    queries = arguments.queries
    for name in ("fashion", "generated"):
        shape = arguments.rows or 200_000, arguments.dimensions or 384
        data = fashion_mnist() if name == "fashion" else latent(*shape, queries)
        source = {"id": "id", "vector": "v"}
        spec = parse_spec({"index": name, "source": source, "shards": 1, "distance": data.distance})
        store = Store.open(folder / "store", create=True)
        publish(store, spec, data.vectors_ND, folder)
        np.save(folder / f"{name}.npy", data.queries_QD[:queries])
        ready_QD = search_ready(data.queries_QD[:queries], data.distance)
        true_QK = exact_search(data.vectors_ND, ready_QD, K, data.distance)[1]
        [entry] = read_manifest(store, name, 1).segments
        print(f"### {name}: {entry.rows:,} x {data.vectors_ND.shape[1]}, {entry.size_bytes / 1e6:.0f} MB\n")
        cases = [(kind, target, 0) for target in (0.9, 0.95, 0.99) for kind in ("warm", "cold")]
        lines = []
        with slow_bucket(folder, arguments) as bucket:
            for kind, target, rows in [*cases, ("kept", 0.95, 0), ("cold", 0.95, 100), ("cold", 1.0, 0)]:
                shutil.rmtree(folder / "cache", ignore_errors=True)
                found = opened(bucket, folder / "cache", kind, name, folder / f"{name}.npy", target, rows)
                recall = "" if rows else f"{recall_by_score(np.array(found['scores']), true_QK).mean():.3f}"
                about = f"{rows} rows allowed" if rows else "exact" if target == 1.0 else f"target {target:g}"
                lines.append([kind, about, *_cold_cells(found, len(ready_QD)), recall])
        print(table(TITLES, lines), flush=True)


def _cold_cells(found: dict[str, Any], count: int) -> list[str]:
    first, later = found["opened"], found["asked"]
    p50, p95 = (f"{np.quantile(found['seconds'], share) * 1e3:.1f}" for share in (0.5, 0.95))
    return [
        f"{found['open_s']:.1f}", str(first["requests"]), f"{first['bytes'] / 1e6:.1f}", f"{found['disk'] / 1e6:.1f}",
        f"{found['own_mib']:.0f}", f"{found['mapped_mib']:.0f}", f"{later['requests'] / count:.1f}",
        f"{later['bytes'] / count / 1e6:.2f}", p50, p95,
    ]  # fmt: skip


CASES = {"open": open_cases, "cold": cold_cases}


def main() -> None:
    arguments = options(
        __doc__, cases=CASES, rows=0, dimensions=0, shards=[1, 8], rounds=3, queries=100, first_byte_ms=30.0,
        mb_per_s=25.0,
    )  # fmt: skip
    print(
        f"{arguments.first_byte_ms:g} ms, {arguments.mb_per_s:g} MB/s a connection; {environment('obstore', 'pyarrow')}"
    )
    for name in arguments.cases:
        with folder_of() as folder:
            CASES[name](arguments, folder)


if __name__ == "__main__":
    main()

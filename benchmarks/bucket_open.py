"""How long an index in a bucket takes to open, with an empty cache and a filled one. docs/benchmarks/buckets.md.

    python -m benchmarks.bucket_open [--rows 400000] [--dimensions 128] [--shards 1,8] [--rounds 3]
                                     [--first-byte-ms 30] [--mb-per-s 25] [--other CHECKOUT] [--profile]

Random vectors without ScaNN data, in a folder that a slow S3 server (slow_bucket.py) shows as a bucket. Each opening is
a process of its own. With another checkout of the project, its processes take turns with ours. The kernels are compiled
before. Memory is the most that the process had beyond its imports.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.report import environment, table
from benchmarks.scale import ROOT, free_port, listens, until
from benchmarks.slow_bucket import ENVIRONMENT
from scannery.indexer import Store, parse_spec
from tests.data import datapoints, publish

INDEX = "opened"
OPEN = """
import json, resource, sys, time
from scannery.indexer import SegmentCache, Store, open_index, read_manifest
from scannery.indexer.segment.opening import open_segment
profile = None
if len(sys.argv) > 1:
    import cProfile
    profile = cProfile.Profile()
def peak():
    with open("/proc/self/status") as file:
        return [int(line.split()[1]) / 1024 for line in file if line.startswith("RssAnon")][0]
import threading
most, ended = [peak()], threading.Event()
def watch():
    while not ended.wait(0.02):
        most.append(peak())
threading.Thread(target=watch, daemon=True).start()
store = Store.open("s3://bucket/store")
before, cpu, wall = most[0], time.process_time(), time.perf_counter()
if profile:  # one segment after the other, in this thread, since a profile is of one thread
    for entry in read_manifest(store, "opened", 1).segments:
        profile.runcall(open_segment, store, "opened", entry, SegmentCache())
else:
    open_index(store, "opened", 1)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
ended.set()
print(json.dumps({"wall": wall, "cpu": cpu, "mib": max(most) - before}))
if profile:
    import pstats
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)
"""


def publish_random(folder: Path, rows: int, dimensions: int, shards: int) -> float:
    """Commit an index of random vectors to the store in a folder; return the size of its segments in MB."""
    spec = parse_spec(
        {
            "index": INDEX,
            "source": {"id": "id", "vector": "v"},
            "shards": shards,
            "distance": "squared_l2",
            "scann": {"exact_below_rows": 10_000_000},
        }
    )
    vectors_ND = np.random.default_rng(3).standard_normal((rows, dimensions), np.float32)
    store = Store.open(folder / "store", create=True)
    manifest = publish(store, spec, datapoints(spec, vectors_ND), folder, shards=shards)
    return manifest.size_bytes / 1e6


@contextmanager
def slow_bucket(folder: Path, first_byte_ms: float, mb_per_s: float) -> Iterator[str]:
    """Run the server over a folder, and give its address."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.slow_bucket", str(folder), str(port)]
    with subprocess.Popen([*command, f"--first-byte-ms={first_byte_ms}", f"--mb-per-s={mb_per_s}"]) as server:
        try:
            until(lambda: listens(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def opened(checkout: Path, address: str, cache: Path, *options: str) -> dict[str, float]:
    """Open the index in a process of a checkout, and return what it took."""
    urllib.request.urlopen(f"{address}/-/counts").close()
    done = subprocess.run(
        [sys.executable, "-c", OPEN, *options],
        env=os.environ
        | ENVIRONMENT
        | {
            "AWS_ENDPOINT": address,
            "SCANNERY_CACHE_DIR": str(cache),
            "PYTHONPATH": str(checkout / "src"),
            "TMPDIR": str(cache.parent),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    with urllib.request.urlopen(f"{address}/-/counts") as answer:
        found: dict[str, float] = json.loads(done.stdout) | json.load(answer)
    return found


def measured(
    folder: Path, checkouts: Mapping[str, Path], given: argparse.Namespace
) -> dict[tuple[str, str], list[dict[str, float]]]:
    """Return what openings took, by state of the cache and checkout, which take turns."""
    found = defaultdict(list)
    with slow_bucket(folder, given.first_byte_ms, given.mb_per_s) as address:
        for _ in range(given.rounds):
            for name, checkout in checkouts.items():
                cache = folder / "cache"
                shutil.rmtree(cache, ignore_errors=True)
                for state in ("empty", "filled"):
                    options = ["profile"] if given.profile else []
                    found[state, name].append(opened(checkout, address, cache, *options))
    return found


def main() -> None:
    """Print one table for each number of shards."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--shards", default="1,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first-byte-ms", type=float, default=30)
    parser.add_argument("--mb-per-s", type=float, default=25, help="speed of a connection")
    parser.add_argument("--other", type=Path, metavar="CHECKOUT", help="a checkout to compare with")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    given = parser.parse_args()
    checkouts = {"this": ROOT} | ({"other": given.other.resolve()} if given.other else {})
    print(
        f"{given.first_byte_ms:g} ms, {given.mb_per_s:g} MB/s a connection; {environment('obstore', 'pyarrow')}\n"
    )
    for shards in map(int, given.shards.split(",")):
        with tempfile.TemporaryDirectory() as place:
            size_mb = publish_random(Path(place), given.rows, given.dimensions, shards)
            found = measured(Path(place), checkouts, given)
        print(f"### {given.rows:,} x {given.dimensions}, {shards} shards, {size_mb:.0f} MB\n")
        titles = ("cache", "checkout", "seconds", "processor s", "memory MiB", "requests", "at once", "MB")
        print(table(titles, [_row(key, runs) for key, runs in found.items()]), "\n", flush=True)


def _row(key: tuple[str, str], runs: list[dict[str, float]]) -> tuple[str, ...]:
    middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return (
        *key, f"{middle['wall']:.2f}", f"{middle['cpu']:.2f}", f"{middle['mib']:.0f}", f"{middle['requests']:.0f}",
        f"{middle['most']:.0f}", f"{middle['bytes'] / 1e6:.0f}",
    )  # fmt: skip


if __name__ == "__main__":
    main()

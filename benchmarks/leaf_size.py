"""What a leaf needs for its rows: bytes in the store, memory, and the time until it serves.

    python -m benchmarks.leaf_size [--rows 100000] [--dimensions 384] [--store FOLDER] [--json FILE]

An index of four shards, with 40 words and three attributes a row. Leaves of 0/4, 0/2 and 0/1 have one, two and four
of them, so that the slope between the first and the last is what a row costs without what a process costs. The first
start also times plans; the later one finds what it left in the cache. Memory is PSS: private pages, and the share in
those of files that were read; `searched` is after 500 searches by a root.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.cluster import INDEX, publish, rows_of
from benchmarks.report import environment, table
from benchmarks.serve_load import children, served
from scannery.client import connect
from scannery.indexer import Store, read_manifest

SHARDS, GROUPS = 4, (4, 2, 1)
"""Shards of 20,000 rows and more have ScaNN's data, as large ones do."""
SEARCHES = 500
TITLES = ("rows", "MB in the store", "MB of memory", "MB searched", "first start s", "later start s")


def main() -> None:
    """Print what leaves of different sizes need, and the slopes between them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--store", help="folder that keeps the index for the next run")
    parser.add_argument("--json", help="file for the slopes, which benchmarks.cluster_sim reads")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(given.store or folder)
        if not (home / "store").exists():
            publish(home, given.rows, given.dimensions, SHARDS)
        os.environ["SCANNERY_CACHE_DIR"] = str(Path(folder) / "cache")
        print(f"{given.rows} x {given.dimensions}; {environment('scann')}\n", flush=True)
        measured = [leaf(home / "store", groups, given.rows, given.dimensions) for groups in GROUPS]
    print(table(TITLES, [[f"{value:,.1f}" for value in row] for row in measured]), end="\n\n")
    found = slopes(measured, given.dimensions)
    print(json.dumps(found))
    if given.json:
        Path(given.json).write_text(json.dumps(found) + "\n")


def leaf(store: Path, groups: int, rows: int, dimensions: int) -> tuple[float, ...]:
    """Return rows, megabytes in the store, of memory, and of it after searches, and seconds until it serves."""
    options = ("--role", "leaf", "--group", f"0/{groups}")
    segments = read_manifest(Store.open(store), INDEX, 1).segments
    own = [segment for segment in segments if segment.shard % groups == 0]
    with served(str(store), *options) as (_, _, first_s):
        pass
    with served(str(store), *options) as (pid, address, later_s):
        opened = memory_bytes(pid)
        if groups == 1:
            ask(str(store), address, rows, dimensions)
        searched = memory_bytes(pid)
    stored = sum(segment.size_bytes for segment in own)
    return sum(each.rows for each in own), stored / 1e6, opened / 1e6, searched / 1e6, first_s, later_s


def ask(store: str, leaf_address: str, rows: int, dimensions: int) -> None:
    """Search by a root of one leaf."""
    vectors_ND, _ = rows_of(rows, dimensions)
    with (
        served(store, "--role", "root", "--leaves", leaf_address) as (_, address, _),
        connect(address) as client,
    ):
        for number in np.random.default_rng(1).integers(0, rows, SEARCHES):
            client.index(INDEX).search(vectors_ND[number], 10)


def memory_bytes(pid: int) -> int:
    """Return the memory of a process and its children: private, and their share in what others use too."""
    return sum(
        1024 * int(re.findall(r"^Pss: +(\d+) kB", Path(f"/proc/{each}/smaps_rollup").read_text(), re.M)[0])
        for each in (pid, *children(pid))
    )


def slopes(measured: Sequence[Sequence[float]], dimensions: int) -> dict[str, float]:
    """Return what a row costs: bytes on disk and in memory, and rows per second that are opened."""
    (few, *small), (many, *large) = measured[0], measured[-1]
    stored, memory, _, first_s, later_s = (
        (high - low) / (many - few) for low, high in zip(small, large, strict=True)
    )
    searched = (large[2] - large[1]) / many
    return {
        "dimensions": dimensions,
        "disk_bytes": round(1e6 * stored),
        "memory_bytes": round(1e6 * (memory + searched)),
        "first_rows_per_s": round(1 / first_s) if first_s > 0 else 0,
        "later_rows_per_s": round(1 / later_s) if later_s > 0 else 0,
    }


if __name__ == "__main__":
    main()

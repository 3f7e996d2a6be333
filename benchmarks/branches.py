"""What a branch of a large index takes: time, new bytes, and memory of a server. Results: docs/benchmarks/live.md.

    python -m benchmarks.branches [files served] [--rows 1000000] [--dimensions 96] [--rounds 5]

`files`: a branch in a folder store beside a backup and its restore, of one index with 8 segments, of the same with live
updates that are in the log alone, and of one with a thousand small segments. `served`: a branch that a server of two
workers makes, until its first answer, and the memory of the server before and after.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import scannery
from benchmarks.harness import (
    children,
    environment,
    folder_of,
    options,
    pss_bytes,
    random_vectors,
    served,
    table,
    timed,
)
from scannery.indexer import IndexSpec, Store, build_segment, commit, parse_spec, store_segment
from scannery.indexer.manifest import Manifest
from scannery.indexer.versions.dropping import drop_index
from scannery.live.maintenance.copies import branch, restore, snapshot
from tests.data import datapoints

SEGMENTS, SMALL_SEGMENTS, SMALL_ROWS, LIVE_ROWS = 8, 1_000, 10, 1_000


def published(store: Store, name: str, vectors_ND: np.ndarray, segments: int, folder: Path) -> None:
    """Commit vectors as the first version of an index with so many segments, which are searched exactly."""
    spec: IndexSpec = parse_spec({"index": name, "source": {"vector": "v"}, "shards": segments})
    entries = []
    for shard, rows_N in enumerate(np.array_split(np.arange(len(vectors_ND)), segments)):
        rows = datapoints(spec, vectors_ND[rows_N], ids=[f"d{row}" for row in rows_N])
        built = build_segment(rows, spec=spec, shard=shard, directory=folder, effort="none")
        store_segment(store, name, built)
        entries.append(built.entry)
    commit(
        store,
        Manifest.model_validate(
            {
                "index": name, "version": 1, "created_at": "2026-01-01T00:00:00Z", "spec": spec,
                "dimensions": vectors_ND.shape[1], "shards": segments, "segments": entries,
            }
        ),
    )  # fmt: skip


def stored_bytes(folder: Path) -> int:
    """Return the bytes that a folder takes of the disk: of each file once, whatever its names."""
    found = [path.stat() for path in folder.rglob("*")]
    return sum({status.st_ino: status.st_blocks * 512 for status in found}.values())


def files(arguments: argparse.Namespace, folder: Path) -> None:
    """Print time and new bytes of branches beside those of backups."""
    store = Store.open(folder / "store", create=True)
    published(store, "large", random_vectors(arguments.rows, arguments.dimensions), SEGMENTS, folder)
    published(store, "many", random_vectors(SMALL_SEGMENTS * SMALL_ROWS, 8), SMALL_SEGMENTS, folder)
    rows = [
        measured(
            store,
            "large",
            f"{arguments.rows:,} × {arguments.dimensions}, 8 segments",
            folder,
            arguments.rounds,
        )
    ]
    with scannery.connect(folder / "store") as client:
        index, generator = client.index("large"), random.Random(1)
        for start in range(0, LIVE_ROWS, 100):
            index.upsert(
                [
                    {
                        "id": f"new{start + row}",
                        "vector": [generator.random() for _ in range(arguments.dimensions)],
                    }
                    for row in range(100)
                ]
            )
    rows += [
        measured(store, "large", f"the same, and {LIVE_ROWS:,} rows in the log", folder, arguments.rounds),
        measured(
            store, "many", f"{SMALL_SEGMENTS:,} segments of {SMALL_ROWS} rows", folder, arguments.rounds
        ),
    ]
    header = ("index", "MB", "branch, s (least to most)", "new KB", "backup and restore, s", "new MB")
    print(table(header, rows), flush=True)


def measured(store: Store, name: str, what: str, folder: Path, rounds: int) -> list[str]:
    """Return a row of the table: branches in turns with a backup and its restore."""
    root = folder / "store"
    seconds, grown = [], []
    for number in range(rounds):
        before = stored_bytes(root)
        seconds.append(timed(lambda: branch(store, name, f"{name}-{number}")))  # noqa: B023
        grown.append(stored_bytes(root) - before)
    for number in range(rounds):
        drop_index(store, f"{name}-{number}")
    copies = folder / "copies"

    def copied() -> None:
        backup = Store.open(copies / "backup", create=True)
        snapshot(store, name, backup)
        restore(backup, name, Store.open(copies / "restored", create=True))

    copy_s, copied_bytes = timed(copied), stored_bytes(copies)
    for place in ("backup", "restored"):
        drop_index(Store.open(copies / place), name)
    size_bytes = sum(item.size_bytes for item in store.list(name))
    return [
        what, f"{size_bytes / 1e6:.0f}", f"{np.median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f})",
        f"{max(grown) / 1e3:.0f}", f"{copy_s:.1f}", f"{copied_bytes / 1e6:.0f}",
    ]  # fmt: skip


def serving(arguments: argparse.Namespace, folder: Path) -> None:
    """Print what a branch takes on a server until its first answer."""
    vectors_ND = random_vectors(arguments.rows, arguments.dimensions)
    published(Store.open(folder / "store", create=True), "large", vectors_ND, SEGMENTS, folder)
    rows = []
    with served(folder / "store", "--workers", "2") as (pid, address, _), scannery.connect(address) as client:
        client.index("large").search(vectors_ND[0], 10)
        for number in range(arguments.rounds):
            before = memory(pid)
            began_s = time.perf_counter()
            made = client.branch_index("large", f"trial{number}")
            made_s = time.perf_counter() - began_s
            made.search(vectors_ND[number], 10)
            answer_s = time.perf_counter() - began_s
            time.sleep(3)  # the other worker opens it, too
            rows.append([f"{made_s:.3f}", f"{answer_s:.3f}", f"{before:.0f}", f"{memory(pid) - before:+.1f}"])
    print(
        table(("branch, s", "with the first answer, s", "memory before, MB", "change, MB"), rows), flush=True
    )


def memory(pid: int) -> float:
    """Return the memory of a server and its workers in MB, of shared pages their share."""
    return sum(map(pss_bytes, [pid, *children(pid)])) / 1e6


CASES: dict[str, Callable[[argparse.Namespace, Path], None]] = {"files": files, "served": serving}


def main() -> None:
    """Run the cases."""
    arguments = options(__doc__, cases=CASES, rows=1_000_000, dimensions=96, rounds=5)
    print(environment("pyarrow"), flush=True)
    for name in arguments.cases:
        print(f"## {name}\n", flush=True)
        with folder_of() as folder:
            CASES[name](arguments, folder)


if __name__ == "__main__":
    main()

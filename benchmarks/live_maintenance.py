"""Processor time of sealing and merging while an index is filled, for rows that come in equal parts between two seals.

Unlike the time of a fill, it hardly depends on what else the machine does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from benchmarks.live_setup import random_vectors
from benchmarks.report import table
from scannery.indexer import Store, python_command, python_environment, read_manifest
from scannery.live.maintenance.locks import locked
from scannery.live.maintenance.merge_policy import due
from scannery.live.maintenance.scheduler import PROGRAM, bounds

__all__ = ["measure_maintenance"]

INDEX = "filled"


def measure_maintenance(folder: Path, rows: int, dimensions: int, part: int) -> None:
    """Print the processor time of all seals and merges, the builds of a row, and the segments at the end.

    Args:
        folder: of the store.
        rows: in total.
        dimensions: of the vectors.
        part: rows that are written between two seals.

    """
    vectors_ND = random_vectors(rows, dimensions)
    store_folder = folder / "store"
    with scannery.connect(store_folder, create=True) as client:
        client.create_index(INDEX, dimensions=dimensions, attributes={"n": "int"})
    store = Store.open(store_folder)
    worked_s: dict[str, float] = {}
    runs: Counter[str] = Counter()
    trained: dict[str, int] = {}
    most = 0

    def run(task: str, *options: str) -> None:
        nonlocal most
        worked_s[task] = worked_s.get(task, 0.0) + _run(task, store_folder, *options)
        runs[task] += 1
        entries = read_manifest(store, INDEX).segments
        trained.update({entry.key: entry.rows for entry in entries if entry.kind == "scann"})
        most = max(most, len(entries))

    for start in range(0, rows, part):
        _write(store_folder, vectors_ND[start : start + part], start)
        run("seal", "--filling")
        while due(read_manifest(store, INDEX), filling=True):
            run("merge", "--filling")
    while due(read_manifest(store, INDEX)):
        run("merge")
    total_s = sum(worked_s.values())
    print(
        f"{rows:,} rows of {dimensions} dimensions, {part:,} of them between two seals; load {os.getloadavg()[0]:.1f}\n"
    )
    lines = [
        [task, str(runs[task]), f"{worked_s[task]:.0f}", f"{worked_s[task] / rows * 1e6:.0f}"]
        for task in runs
    ]
    lines.append(["all", str(sum(runs.values())), f"{total_s:.0f}", f"{total_s / rows * 1e6:.0f}"])
    print(table(["task", "runs", "processor time, s", "per row, µs"], lines), "\n")
    sizes = sorted(entry.rows for entry in read_manifest(store, INDEX).segments)
    print(
        f"A row was trained {sum(trained.values()) / rows:.2f} times; at most {most} segments, at the end "
        f"{', '.join(f'{size:,}' for size in sizes)} rows"
    )


def _write(store: Path, vectors_ND: np.ndarray, start: int) -> None:
    with ExitStack() as stack:
        for task in ("seal", "merge", "gc"):  # so that the client starts none
            stack.enter_context(locked(store, INDEX, task))
        client = stack.enter_context(scannery.connect(store))
        points: Iterator[Any] = (
            {"id": f"p{number}", "vector": vector_D, "attributes": {"n": number}}
            for number, vector_D in enumerate(vectors_ND, start)
        )
        client.index(INDEX).upsert_many(points, batch_size=500)


def _run(task: str, store: Path, *options: str) -> float:
    """Run a maintenance process, and return its processor time and that of its children, in seconds."""
    command = python_command(
        PROGRAM, [task, INDEX, "--store", str(store), "--log", str(store), "--lock", "0", *options]
    )
    process = subprocess.Popen(command, env=python_environment(bounds()))
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{task} failed with status {process.returncode}")
    return used.ru_utime + used.ru_stime

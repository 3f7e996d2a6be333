"""What is planned, counted and measured of the memory of indexes and servers. Results: docs/benchmarks/memory.md.

    python -m benchmarks.memory [plans opening processes] [--rows 60000]

`plans`: a plan from a sample of the input beside what is counted after the build, in bytes a row. `opening`: what is
counted on the heap beside what the allocator gives while a process opens an index again. `processes`: memory of the
processes of a server without large indexes, before and after searches and writes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import scannery
from benchmarks.harness import anonymous_mib, children, random_vectors, run_cases, served, table
from scannery.indexer import MemoryBytes, Store, index_memory, open_index
from scannery.pipelines import build, plan_memory

TYPES = {"show": "string", "year": "int", "rating": "float"}


def words(rows: int, count: int) -> list[str]:
    """Return texts of so many words, which are as frequent as those of a language."""
    ranks_NW = np.minimum(np.random.default_rng(2).zipf(1.3, (rows, count)), 50_000)
    return [" ".join(f"w{rank}" for rank in ranks_W) for ranks_W in ranks_NW.tolist()]


def settings(rows: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return columns and keys of a spec by the name of a setting."""
    random = np.random.default_rng(3)
    attributes: dict[str, Any] = {
        "show": [f"show {row % 100}" for row in range(rows)],
        "year": random.integers(1990, 2026, rows),
        "rating": random.random(rows),
    }
    image = {"named_vectors": {"image": {"vector": "image", "dimensions": 64}}}
    return {
        "128": ({"vector": vectors(rows, 128)}, {}),
        "384, words, attributes": (
            {"vector": vectors(rows // 2, 384), "text": words(rows // 2, 60)}
            | {name: values[: rows // 2] for name, values in attributes.items()},
            {"lexical": True, "attributes": TYPES},
        ),
        "64, a name of 64": ({"vector": vectors(rows, 64), "image": vectors(rows, 64)}, image),
        "64, attributes": ({"vector": vectors(rows, 64)} | attributes, {"attributes": TYPES}),
    }


def vectors(rows: int, dimensions: int) -> pa.Array:
    """Return vectors of length 1."""
    vectors_ND = random_vectors(rows, dimensions)
    vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), dimensions)


def built(
    folder: Path, columns: Mapping[str, Any], keys: Mapping[str, Any]
) -> tuple[Store, Path, dict[str, Any]]:
    """Build an index `talks` of columns, and return its store, its input and its spec."""
    rows = len(columns["vector"])
    path, store = folder / "rows.parquet", Store.open(folder / "store", create=True)
    pq.write_table(pa.table({"id": [f"row-{row}" for row in range(rows)], **columns}), path)
    source = {name: name for name in ("vector", "text") if name in columns}
    spec = {"index": "talks", "source": source, **keys}
    build(spec, [str(path)], store.uri)
    return store, path, spec


def plans(arguments: argparse.Namespace, folder: Path) -> None:
    """Compare plans with what is counted after builds."""
    lines = []
    for number, (name, (columns, keys)) in enumerate(settings(arguments.rows).items()):
        own = folder / str(number)
        own.mkdir()
        store, path, spec = built(own, columns, keys)
        plan, index = plan_memory(spec, inputs=[str(path)]), open_index(store, "talks")
        counted, rows = index_memory(index), len(columns["vector"])
        planned_bytes, counted_bytes = (
            sum(size.total for size in memory.values()) for memory in (plan.components, counted)
        )
        lines += [
            (
                f"{rows:,} × {name}",
                component,
                of_row(plan.components.get(component), rows),
                of_row(size, rows),
            )
            for component, size in counted.items()
        ]
        off = planned_bytes / counted_bytes - 1
        lines.append(
            (
                f"{rows:,} × {name}",
                "**in all**",
                f"{planned_bytes / rows:,.0f}",
                f"{counted_bytes / rows:,.0f} ({off:+.1%})",
            )
        )
    print(table(("rows × dimensions", "component", "planned", "counted"), lines))


def of_row(size: MemoryBytes | None, rows: int) -> str:
    """Return needed and mapped bytes of a row."""
    return "" if size is None else f"{size.needed / rows:,.1f} / {size.mapped / rows:,.1f}"


GROWTH = """
import ctypes, gc, json, sys
from scannery.indexer import Store, index_memory, open_index

class Blocks(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]

blocks = ctypes.CDLL("libc.so.6").mallinfo2
blocks.restype = Blocks

def allocated():
    gc.collect()
    return blocks().uordblks + blocks().hblkhd

store = Store.open(sys.argv[1])
kept = [open_index(store, "talks") for _ in range(2)]
before = allocated()
kept += [open_index(store, "talks") for _ in range(8)]
print(json.dumps([sum(size.heap for size in index_memory(kept[0]).values()), (allocated() - before) / 8]))
"""


def opening(arguments: argparse.Namespace, folder: Path) -> None:
    """Compare what is counted on the heap with what opening an index again takes."""
    lines = []
    for number, (name, (columns, keys)) in enumerate(settings(arguments.rows).items()):
        own = folder / str(number)
        own.mkdir()
        store, _, _ = built(own, columns, keys)
        done = subprocess.run(
            [sys.executable, "-c", GROWTH, store.uri], stdout=subprocess.PIPE, text=True, check=True
        )
        counted, measured = json.loads(done.stdout)
        lines.append(
            (f"{len(columns['vector']):,} × {name}", f"{counted / 2**20:.2f}", f"{measured / 2**20:.2f}")
        )
    print(table(("rows × dimensions", "counted, MiB", "measured, MiB"), lines))


def processes(arguments: argparse.Namespace, folder: Path) -> None:
    """Print the memory of the processes of a server of a small index."""
    store, _, _ = built(folder, {"vector": vectors(2000, 64)}, {})
    lines = []
    for workers in (1, 2):
        options = ("--workers", str(workers), "--metrics-listen", "127.0.0.1:0", "--memory", "none")
        with served(store.uri, *options) as (pid, address, _), scannery.connect(address) as client:
            index = client.index("talks")
            lines.append((workers, "at the start", *measured(pid, workers)))
            for number in range(200):
                vectors_ND = random_vectors(50, 64) + number
                rows: list[Any] = [
                    {"id": f"{number}-{row}", "vector": each} for row, each in enumerate(vectors_ND)
                ]
                index.upsert(rows)
                index.search(vectors_ND[0], 10)
            lines.append((workers, "after 200 writes and searches", *measured(pid, workers)))
    print(table(("workers", "", "supervisor, MiB", "a worker's own, MiB", "metrics, MiB"), lines))


def measured(pid: int, workers: int) -> tuple[str, str, str]:
    """Return the memory of the supervisor, the private memory of workers, and that of the process for metrics."""
    own = sorted((private_mib(child) for child in children(pid)), reverse=True)
    return (
        f"{anonymous_mib(pid):.0f}",
        ", ".join(f"{size:.0f}" for size in own[:workers]),
        f"{own[workers]:.0f}",
    )


def private_mib(pid: int) -> float:
    """Return the private memory of a process, in MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"^Private_Dirty: +(\d+) kB", text, re.M)) / 1024


CASES = {"plans": plans, "opening": opening, "processes": processes}


def main() -> None:
    """Run the cases that the command line names."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    run_cases(__doc__, CASES, "scann numpy numba", own_cache=True, rows=60_000)


if __name__ == "__main__":
    main()

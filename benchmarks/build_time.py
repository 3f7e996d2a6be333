"""Time of a build from Parquet, against ScaNN alone with a plain read and write of the same columns.

    python -m benchmarks.build_time [--rows 1000000] [--dimensions 96] [--rounds 3]

Generated vectors with an id and a number, as pyarrow writes them. In each round, one after the other and each from the
start of a process to its end: *plain* reads the columns with pyarrow, trains ScaNN with the configuration that the
build chose, on all cores and with the same vector instructions, and writes ScaNN's files and the columns; `scannery
build` is the whole pipeline from a shell to a published version. Processor time is that of all processes. The first
round, which also fills caches of compiled kernels, does not count. The second table has the phases of the last build.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import embeddings, generated
from benchmarks.harness import environment, folder_of, in_turns, options, table
from benchmarks.index import Run, run
from scannery.indexer import Store, read_manifest
from scannery.indexer.scann import build_child
from scannery.indexer.scann.config import CODEBOOK_ROWS, SOAR_LAMBDA

INDEX = "bench"
SPEC: Mapping[str, Any] = {
    "index": INDEX,
    "source": {"id": "id", "vector": "vector"},
    "distance": "cosine",
    "attributes": {"part": "int"},
}

# It imports nothing of Scannery but the two modules that a build's trainer runs by their paths, and prints its phases.
_PLAIN = """
import json, pathlib, resource, runpy, sys, time
import pyarrow.parquet as pq
laps = {}
def lap(name):
    used = resource.getrusage(resource.RUSAGE_SELF)
    now = time.perf_counter(), used.ru_utime + used.ru_stime
    laps[name] = [each - before for each, before in zip(now, lap.before)]
    lap.before = now
lap.before = time.perf_counter(), 0.0
source, place, modules = map(pathlib.Path, sys.argv[1:4])
trained = runpy.run_path(str(modules / "build_child.py"))["trained"]
runpy.run_path(str(modules / "instructions.py"))["use_vector_instructions"]()
lap("start")
rows = pq.read_table(source)
vectors_ND = rows["vector"].combine_chunks().flatten().to_numpy().reshape(len(rows), -1)
lap("read")
searcher = trained(vectors_ND, json.loads(sys.argv[4]))
place.mkdir()
searcher.serialize(str(place), relative_path=True)
lap("ScaNN")
pq.write_table(rows, place / "rows.parquet")
lap("write")
print(json.dumps(laps))
"""


def main() -> None:
    """Take both ways in turns, and print their times and the phases of the last runs."""
    arguments = options(__doc__, rows=1_000_000, dimensions=96, rounds=3)
    print(environment("scann", "numpy", "pyarrow", "numba"))
    with folder_of() as folder:
        source, spec = folder / "rows.parquet", folder / "spec.json"
        _write(source, arguments.rows, arguments.dimensions)
        spec.write_text(json.dumps(SPEC))
        stores = iter(folder / f"store-{number}" for number in range(arguments.rounds + 1))
        places = iter(folder / f"plain-{number}" for number in range(arguments.rounds + 1))
        job: dict[str, Any] = {}
        loads: list[float] = []

        def whole() -> Run:
            store = next(stores)
            command = ("build", str(spec), "--input", str(source), "--store", str(store), "--json")
            built = run("-m", "scannery.cli.main", *command, cache=folder / "cache")
            job.update(_job(store))
            loads.append(os.getloadavg()[0])
            return built

        def plain() -> Run:
            modules = Path(build_child.__file__).parent
            return run("-c", _PLAIN, str(source), str(next(places)), str(modules), json.dumps(job))

        turns = in_turns({"`scannery build`": whole, "plain": plain}, arguments.rounds, warm=1)
        _show(turns, job, f"{arguments.rows:,} × {arguments.dimensions}", loads)


def _write(path: Path, rows: int, dimensions: int) -> None:
    columns = {
        "id": [f"r{row:09d}" for row in range(rows)],
        "vector": embeddings(generated(rows, dimensions).vectors_ND),
        "part": np.random.default_rng(1).permutation(rows),
    }
    pq.write_table(pa.table(columns), path)


def _job(store: Path) -> dict[str, Any]:
    """Return the job of the build's trainer, which `trained` takes."""
    (segment,) = read_manifest(Store.open(str(store)), INDEX).statistics["segments"]
    return {
        "distance": SPEC["distance"],
        "threads": len(os.sched_getaffinity(0)),
        "soar_lambda": SOAR_LAMBDA,
        "codebook_rows": CODEBOOK_ROWS,
        "config": segment["scann"],
        "segment_seconds": segment["seconds"],
    }


def _show(turns: Mapping[str, list[Run]], job: Mapping[str, Any], size: str, loads: list[float]) -> None:
    print(f"{size}, {json.dumps(job['config'])}, load {min(loads):.0f} to {max(loads):.0f}\n")
    rows: list[list[object]] = []
    for name in ("plain", "`scannery build`"):
        cells = []
        for key in ("seconds", "processor_s"):
            figures = [getattr(one, key) for one in turns[name]]
            pairs = zip(figures, turns["plain"], strict=True)
            ratio = median(figure / getattr(alone, key) for figure, alone in pairs)
            cells.append(f"{median(figures):.1f} ({ratio:.2f})")
        rows.append([name, *cells, f"{median(one.peak_mib for one in turns[name]):.0f}"])
    print(table(["way", "s (/ plain)", "processor s (/ plain)", "largest process, MiB"], rows))
    plain = json.loads(turns["plain"][-1].output)
    phases = [[name, f"{wall:.1f}", f"{cpu:.1f}"] for name, (wall, cpu) in plain.items()]
    print(table(["phase of plain", "s", "processor s"], phases))
    stages = json.loads(turns["`scannery build`"][-1].output)["seconds"] | job["segment_seconds"]
    shown = [[name, f"{seconds:.1f}"] for name, seconds in stages.items() if seconds >= 0.05]
    print(table(["phase of `scannery build`", "s"], shown))


if __name__ == "__main__":
    main()

"""Builds and opens of the index benchmark (index.py), each timed in separate processes.

Three builds of the same file, one after the other in each round: ScaNN alone (raw_scann.py), a segment
(`build_segment`), and `scannery build` from a shell, which also starts Beam, stores embeddings files for later builds,
hashes, commits, and measures recall.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer import (
    Distance,
    IndexSpec,
    SegmentCache,
    Store,
    build_segment,
    datapoint_schema,
    open_index,
    parse_spec,
)
from scannery.indexer.scann.config import SOAR_LAMBDA, choose_config

INDEX = "bench"
MIB = 2**20

# A forked process inherits its parent's peak memory until it executes a program: so this small process starts it.
_LAUNCH = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(json.dumps({"status": done.returncode, "seconds": seconds, "peak_mib": peak, "output": done.stdout.decode()}))
"""


@dataclass(frozen=True)
class Run:
    """Wall time of a command, and the peak memory of its largest process."""

    seconds: float
    peak_mib: float
    output: str


def run(*command: str, cache: Path | None = None) -> Run:
    environment = os.environ | ({"SCANNERY_CACHE_DIR": str(cache)} if cache else {})
    launch = [sys.executable, "-c", _LAUNCH, *command]
    done = subprocess.run(launch, check=True, stdout=subprocess.PIPE, env=environment)
    result = json.loads(done.stdout)
    if status := result.pop("status"):
        raise SystemExit(f"{' '.join(command)} failed with status {status}")
    return Run(**result)


def ours(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.index_build", *arguments]


def spec_of(distance: Distance) -> dict[str, Any]:
    return {"index": INDEX, "source": {"vector": "vector"}, "distance": distance}


def prepare(folder: Path, vectors_ND: np.ndarray, distance: Distance) -> None:
    """Write the input of all builds.

    ScaNN alone trains at the parameters from which a build starts; the build may choose others by trial.
    """
    spec = spec_of(distance)
    rows, dimensions = vectors_ND.shape
    config = choose_config(rows, dimensions, distance, parse_spec(spec).scann)
    assert config is not None
    job = {"distance": distance, "config": config.to_dict(), "soar_lambda": SOAR_LAMBDA}
    np.save(folder / "vectors.npy", vectors_ND)
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "spec.json").write_text(json.dumps(spec))


def build_round(folder: Path, number: int) -> dict[str, Run]:
    """Build three times; the last store is `folder / "store"`."""
    store = folder / f"store-{number}"
    place = folder / f"segment-{number}"
    place.mkdir()
    raw = run(sys.executable, "-m", "benchmarks.raw_scann", str(folder))
    segment = run(*ours("--segment", str(folder), str(place)))
    command = ["build", str(folder / "spec.json"), "--input", str(folder / "vectors.npy")]
    whole = run(*scannery(*command, "--store", str(store), "--json"), cache=folder / f"own-{number}")
    (folder / "raw").rename(folder / f"raw-{number}")
    return {"raw": raw, "segment": segment, "build": whole}


def scannery(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from scannery.cli.main import run; run()", *arguments]


def table_of(spec: IndexSpec, vectors_ND: np.ndarray) -> pa.Table:
    schema = datapoint_schema(spec, vectors_ND.shape[1])
    ids = pa.array([f"{row}" for row in range(len(vectors_ND))])
    columns = {"id": ids, "document_id": ids}
    embedding = schema.field("embedding").type
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), type=embedding)
    arrays = [columns.get(field.name, pa.nulls(len(ids), field.type)) for field in schema]
    return pa.table(arrays, schema=schema)


def segment_from(folder: Path, place: Path) -> None:
    """Child process: read the vectors, build a segment, and print the measurements."""
    spec = parse_spec(json.loads((folder / "spec.json").read_text()))
    table = table_of(spec, np.load(folder / "vectors.npy"))
    segment = build_segment(table, spec=spec, shard=0, directory=place)
    print(json.dumps({"size_bytes": segment.entry.size_bytes, **segment.statistics}))


def open_once(store: str, cache: str) -> None:
    """Child process: open the index, answer a query, and print the times."""
    before = anonymous_mib()
    started = time.perf_counter()
    index = open_index(Store.open(store), INDEX, cache=SegmentCache(Path(cache)))
    opened_s = time.perf_counter() - started
    query_1D = np.random.default_rng(9).standard_normal((1, index.dimensions)).astype(np.float32)
    for segment in index.segments:
        segment.search(query_1D, 10, settings=segment.settings_for(0.95))
    seconds = time.perf_counter() - started
    print(json.dumps({"opened_s": opened_s, "seconds": seconds, "heap_mib": anonymous_mib() - before}))


def anonymous_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


def build_rows(name: str, runs: Sequence[dict[str, Run]], raw_bytes: int) -> list[list[object]]:
    """Return a row for each kind of build: the medians of all rounds, against ScaNN alone in the same round."""
    rows: list[list[object]] = []
    kinds = {"raw": "ScaNN alone", "segment": "a segment", "build": "`scannery build`"}
    for kind, title in kinds.items():
        seconds = statistics.median(one[kind].seconds for one in runs)
        ratio = statistics.median(one[kind].seconds / one["raw"].seconds for one in runs)
        peak = statistics.median(one[kind].peak_mib for one in runs)
        memory = f"{peak:.0f} ({peak * MIB / raw_bytes:.1f})"
        rows.append([name, title, f"{seconds:.1f}", f"{ratio:.2f}", memory])
    return rows


def opened(folder: Path, store: Path, vectors_ND: np.ndarray) -> list[object]:
    """Return times of cold and warm opens and of reading, their ratio, and bytes per vector by place, and raw."""
    cache = folder / "cache"
    child = ours("--open", str(store), str(cache))
    cold = json.loads(run(*child).output)
    warm = [json.loads(run(*child).output) for _ in range(3)]
    (segment,) = (store / INDEX / "segments").glob("*.parquet")
    started = time.perf_counter()
    pq.read_table(segment)
    read_s = time.perf_counter() - started
    warm_s, heap_mib = (statistics.median(one[key] for one in warm) for key in ("seconds", "heap_mib"))
    mapped = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    count = len(vectors_ND)
    sizes = [segment.stat().st_size / count, mapped / count, heap_mib * MIB / count]
    times = [f"{cold['seconds']:.2f}", f"{warm_s:.2f}", f"{read_s:.2f}", f"{cold['seconds'] / read_s:.1f}"]
    return [*times, *(f"{size:.0f}" for size in sizes), vectors_ND.nbytes // count]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--segment", nargs=2)
    parser.add_argument("--open", nargs=2)
    arguments = parser.parse_args()
    if arguments.segment:
        segment_from(*map(Path, arguments.segment))
    else:
        open_once(*arguments.open)


if __name__ == "__main__":
    main()

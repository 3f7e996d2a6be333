"""Index engine: build time and memory against raw ScaNN, opening time, size, recall on target; memory of a shard.

    python -m benchmarks.index [fashion] [large] [norms] [podcasts] [--rounds 2] [--store STORE]
    python -m benchmarks.index shard [--sizes 100000x384x600,250000x384x600,100000x1024x600,200000x96x0,250000x384x0]

Each data set takes some minutes. `podcasts` is the index of that name in --store (see docs/podcasts.md), queried with
questions from TREC Podcasts. Three builds of the same file, one after the other in each round, each in processes of its
own: ScaNN alone, at the parameters from which a build starts, with its SSE4 kernels; a segment (`build_segment`); and
`scannery build` from a shell.

`shard`: what `scannery build --plan` promises. Each size is rows × dimensions × bytes of text. A process of its own
builds the shard from embeddings files in a local store, as a worker does. Memory is the sum over the process and its
children, each shared page counted once (PSS), sampled ten times a second; disk is that of its temporary folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import Vectors, embeddings, fashion_mnist, topics, varying_norms
from benchmarks.harness import (
    anonymous_mib,
    environment,
    folder_of,
    in_turns,
    options,
    pss_bytes,
    table,
    timed,
)
from scannery.indexer import (
    OpenIndex,
    SegmentCache,
    Store,
    build_segment,
    open_index,
    parse_spec,
    unit_length,
)
from scannery.indexer.scann.config import SOAR_LAMBDA, choose_config
from scannery.indexer.tuning.settings_choice import recall_by_score
from scannery.pipelines import build
from scannery.pipelines.planning.worker_resources import RowSize, segment_disk, segment_memory

INDEX = "bench"
MIB = 2**20
TARGETS = (0.8, 0.9, 0.95, 0.99)

# A forked process inherits its parent's peak memory until it executes a program: so this small process starts it.
_LAUNCH = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)
seconds = time.perf_counter() - started
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"status": done.returncode, "seconds": seconds, "processor_s": used.ru_utime + used.ru_stime,
                  "peak_mib": used.ru_maxrss / 1024, "output": done.stdout.decode()}))
"""
# It imports nothing of Scannery, which would add to its time and memory.
_SCANN = """
import json, math, pathlib, sys
import numpy as np
from scann.scann_ops.py import scann_ops_pybind
folder, place = map(pathlib.Path, sys.argv[1:])
job = json.loads((folder / "job.json").read_text())
config, threshold = job["config"], job["config"]["anisotropic_threshold"]
vectors_ND = np.load(folder / "vectors.npy")
builder = scann_ops_pybind.builder(vectors_ND, 10, job["measure"]).tree(
    config["leaves"], 10, training_sample_size=config["training_rows"],
    soar_lambda=job["soar_lambda"] if config["soar"] else None,
)
searcher = builder.score_ah(
    config["dimensions_per_block"], anisotropic_quantization_threshold=math.nan if threshold is None else threshold
).build()
place.mkdir()
searcher.serialize(str(place), relative_path=True)
np.save(place / "vectors.npy", vectors_ND)
"""


@dataclasses.dataclass(frozen=True)
class Run:
    """Wall time of a command, processor time of all its processes, and the peak memory of the largest one."""

    seconds: float
    processor_s: float
    peak_mib: float
    output: str


def run(*command: str, cache: Path | None = None) -> Run:
    """Run `python COMMAND`."""
    environ = os.environ | ({"SCANNERY_CACHE_DIR": str(cache)} if cache else {})
    launch = [sys.executable, "-c", _LAUNCH, sys.executable, *command]
    result = json.loads(subprocess.run(launch, check=True, stdout=subprocess.PIPE, env=environ).stdout)
    if status := result.pop("status"):
        raise SystemExit(f"{' '.join(command)} failed with status {status}")
    return Run(**result)


def ours(case: str, *arguments: object) -> list[str]:
    return ["-m", "benchmarks.index", f"--{case}", *map(str, arguments)]


# --- builds


def builds(folder: Path, data: Vectors, rounds: int) -> tuple[list[list[object]], Path]:
    """Return a row for each kind of build, the medians of all rounds against ScaNN alone; and the last store."""
    spec: dict[str, Any] = {"index": INDEX, "source": {"vector": "vector"}, "distance": data.distance}
    count, dimensions = data.vectors_ND.shape
    config = choose_config(count, dimensions, data.distance, parse_spec(spec).scann)
    assert config is not None
    measure = "squared_l2" if data.distance == "squared_l2" else "dot_product"
    job = {"measure": measure, "config": config.to_dict(), "soar_lambda": SOAR_LAMBDA}
    np.save(folder / "vectors.npy", data.vectors_ND)
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "spec.json").write_text(json.dumps(spec))
    places = iter(folder / f"place-{number}" for number in range(3 * rounds))
    stores: list[Path] = []

    def whole() -> Run:
        stores.append(next(places))
        files = ("--input", str(folder / "vectors.npy"), "--store", str(stores[-1]))
        command = ("build", str(folder / "spec.json"), *files, "--json")
        return run("-m", "scannery.cli.main", *command, cache=folder / f"own-{len(stores)}")

    ways: dict[str, Callable[[], Run]] = {
        "ScaNN alone": lambda: run("-c", _SCANN, str(folder), str(next(places))),
        "a segment": lambda: run(*ours("segment", folder, next(places))),
        "`scannery build`": whole,
    }
    turns, rows = in_turns(ways, rounds), list[list[object]]()
    for name, runs in turns.items():
        ratio = median(one.seconds / raw.seconds for one, raw in zip(runs, turns["ScaNN alone"], strict=True))
        seconds, peak = (median(getattr(one, key) for one in runs) for key in ("seconds", "peak_mib"))
        memory = f"{peak:.0f} ({peak * MIB / data.vectors_ND.nbytes:.1f})"
        rows.append([size_of(data), name, f"{seconds:.1f}", f"{ratio:.2f}", memory])
    return rows, stores[-1]


def size_of(data: Vectors) -> str:
    return f"{data.vectors_ND.shape[0]:,} × {data.vectors_ND.shape[1]}, {data.distance}"


def segment_from(folder: Path, place: Path) -> None:
    """Child process: read the vectors, and build a segment."""
    from tests.data import datapoints

    place.mkdir()
    spec = parse_spec(json.loads((folder / "spec.json").read_text()))
    build_segment(datapoints(spec, np.load(folder / "vectors.npy")), spec=spec, shard=0, directory=place)


# --- opening


def opened(folder: Path, store: Path, vectors_ND: np.ndarray) -> list[object]:
    """Return times of cold and warm opens and of reading, their ratio, and bytes per vector by place, and raw."""
    cache, child = folder / "cache", ours("open", store, folder / "cache")
    cold, *warm = (json.loads(run(*child).output) for _ in range(4))
    (segment,) = (store / INDEX / "segments").glob("*.parquet")
    read_s = timed(lambda: pq.read_table(segment))
    warm_s, heap_mib = (median(one[key] for one in warm) for key in ("seconds", "heap_mib"))
    mapped = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    sizes = [
        each / len(vectors_ND) for each in (segment.stat().st_size, mapped, heap_mib * MIB, vectors_ND.nbytes)
    ]
    times = [cold["seconds"], warm_s, read_s, cold["seconds"] / read_s]
    return [*(f"{each:.2f}" for each in times), *(f"{size:.0f}" for size in sizes)]


def open_once(store: str, cache: str) -> None:
    """Child process: open the index, answer a query, and print the times."""
    before, started = anonymous_mib(), time.perf_counter()
    index = open_index(Store.open(store), INDEX, cache=SegmentCache(Path(cache)))
    query_1D = np.random.default_rng(9).standard_normal((1, index.dimensions)).astype(np.float32)
    for segment in index.segments:
        segment.search(query_1D, 10, settings=segment.settings_for(0.95))
    print(json.dumps({"seconds": time.perf_counter() - started, "heap_mib": anonymous_mib() - before}))


# --- recall


def recalls(name: str, index: OpenIndex, queries_QD: np.ndarray) -> Iterator[list[object]]:
    """Measure each target recall over all segments, merged as in a search."""
    truth = _best([segment.search(queries_QD, 10)[1] for segment in index.segments])
    for target in TARGETS:
        settings = [segment.settings_for(target) for segment in index.segments]
        pairs, started = list(zip(index.segments, settings, strict=True)), time.perf_counter()
        found = [segment.search(queries_QD, 10, settings=chosen)[1] for segment, chosen in pairs]
        elapsed_us = (time.perf_counter() - started) / len(queries_QD) * 1e6
        recall, chosen = recall_by_score(_best(found), truth).mean(), settings[0]
        knobs = f"{chosen.leaves}, {chosen.rescore}" if chosen else "exact"
        yield [name, len(queries_QD), target, f"{recall:.4f}", knobs, f"{elapsed_us:.0f}"]


def _best(scores: list[np.ndarray]) -> np.ndarray:
    merged: np.ndarray = np.sort(np.concatenate(scores, axis=1), axis=1)[:, ::-1]
    return merged[:, :10]


# --- memory of building a shard


def shard(size: str, folder: Path) -> dict[str, Any]:
    """Return the figures of one size, with those planned."""
    rows, dimensions, text = map(int, size.split("x"))
    _write_input(folder / "input", rows, dimensions, text)
    build(_shard_spec(text), [str(folder / "input")], str(folder / "store"), until="embed")
    (folder / "scratch").mkdir()
    environ = os.environ | {"TMPDIR": str(folder / "scratch")}
    command = [sys.executable, *ours("shard", folder, text)]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
    planned = RowSize(dimensions, text)
    return {
        "size": size,
        **json.loads(done.stdout.splitlines()[-1]),
        "planned_memory_mib": segment_memory(rows, planned) // MIB,
        "planned_disk_mib": segment_disk(rows, planned) // MIB,
    }


def _shard_spec(text: int) -> Any:
    source = {"id": "id", "vector": "vector", "text": "text"}
    return parse_spec({"index": "shard", "source": source, "shards": 1, "lexical": text > 0})


def _write_input(folder: Path, rows: int, dimensions: int, text: int) -> None:
    """Write vectors in clusters, and texts of random words."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    centres_CD = rng.standard_normal((200, dimensions)).astype(np.float32)
    words = np.array([f"w{i:05d}" for i in range(20_000)])
    for first in range(0, rows, 25_000):
        count = min(25_000, rows - first)
        noise_ND = rng.standard_normal((count, dimensions)).astype(np.float32)
        vectors = embeddings(centres_CD[rng.integers(0, 200, count)] + 0.7 * noise_ND)
        texts = [" ".join(line) for line in words[rng.integers(0, len(words), (count, text // 7))]]
        columns = {"id": [f"r{first + i}" for i in range(count)], "vector": vectors, "text": texts}
        pq.write_table(pa.table(columns), folder / f"{first:09d}.parquet")


def build_here(folder: Path, text: int) -> None:
    """Child process: build the shard, from units that exist, and print what it needed."""
    peak, ended = {"memory": 0, "disk": 0}, threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            peak["memory"] = max(peak["memory"], pss_bytes(os.getpid()))
            peak["disk"] = max(peak["disk"], _folder_bytes(folder / "scratch"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        report = build(_shard_spec(text), [str(folder / "input")], str(folder / "store"))
    finally:
        ended.set()
        thread.join()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    figures: dict[str, float] = {f"{name}_mib": size // MIB for name, size in peak.items()}
    figures |= {"segment_mib": report.index_bytes // MIB}
    figures |= {"cpu_s": round(sum(use.ru_utime + use.ru_stime for use in used), 1)}
    print(json.dumps(figures))


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # removed meanwhile
            total += path.stat().st_size
    return total


DATA: dict[str, Callable[[], Vectors]] = {
    "fashion": fashion_mnist,
    "large": lambda: unit_vectors(varying_norms(500_000)),
    "norms": varying_norms,
}
SIZES = "100000x384x600,250000x384x600,100000x1024x600,200000x96x0,250000x384x0"


def unit_vectors(data: Vectors) -> Vectors:
    vectors_ND = unit_length(data.vectors_ND)
    return dataclasses.replace(data, name="generated, length 1", distance="cosine", vectors_ND=vectors_ND)


def podcasts(store: str) -> Iterator[list[object]]:
    from scannery.embed import Encoder

    index = open_index(Store.open(store), "podcasts")
    assert index.spec.encoder is not None
    queries_QD = Encoder.load(index.spec.encoder.model, device="cpu").encode_queries(topics())
    name = f"podcasts, TREC topics: {index.manifest.rows:,} × {index.dimensions}, {index.spec.distance}"
    return recalls(name, index, queries_QD)


CHILDREN: dict[str, Callable[..., None]] = {
    "--segment": lambda folder, place: segment_from(Path(folder), Path(place)),
    "--open": open_once,
    "--shard": lambda folder, text: build_here(Path(folder), int(text)),
}


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in CHILDREN:
        CHILDREN[sys.argv[1]](*sys.argv[2:])
        return
    given = options(__doc__, cases=[*DATA, "podcasts", "shard"], rounds=2, store=str, sizes=SIZES)
    print(environment("scann", "numpy", "pyarrow", "numba"))
    built, opens, recalled = list[list[object]](), list[list[object]](), list[list[object]]()
    for name in given.cases:
        with folder_of() as folder:
            if name == "shard":
                for number, size in enumerate(given.sizes.split(",")):
                    (folder / str(number)).mkdir()
                    print(json.dumps(shard(size, folder / str(number))), flush=True)
            elif name in DATA:
                data = DATA[name]()
                rows, store = builds(folder, data, given.rounds)
                built += rows
                opens.append([size_of(data), *opened(folder, store, data.vectors_ND)])
                index = open_index(Store.open(store), INDEX, cache=SegmentCache(folder / "cache"))
                recalled += recalls(f"{data.name}: {size_of(data)}", index, data.queries_QD)
            elif given.store:
                recalled += podcasts(given.store)
            else:
                print("podcasts: needs --store")
    print("## Build from vectors\n")
    print(table(["data", "build", "s", "/ ScaNN alone", "largest process, MiB (/ raw vectors)"], built))
    print("## Open, first query, size\n")
    times = ["data", "cache empty, s", "warm, s", "reading the file, s", "cold / read"]
    print(table([*times, "bytes a vector: segment", "cache, mapped", "heap", "raw float32"], opens))
    print("## Recall@10 against exact search, queries the tuner has not seen\n")
    print(
        table(["data", "queries", "target", "recall@10", "leaves, candidates", "µs a query, batch"], recalled)
    )


if __name__ == "__main__":
    main()

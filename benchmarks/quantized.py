"""Memory and searches with vectors in 8 bits a number: beside the full ones, and alone; and those of other engines.

    python -m benchmarks.quantized [sizes] [limits] [peers] [--collections passages,images,generated,million]
        [--folder FOLDER] [--searches 2000] [--shares 100,50,30,20,10] [--rows N]

`passages`: 39,133 real passages × 384 with questions about other shows; `images`: Fashion-MNIST, 60,000 × 784, squared
L2; `generated`: 500,000 × 128; `million`: the passages with noise, 1,000,000 × 384. Each is an index of one segment,
tuned with half of the queries, and searched in a process of its own through `Segment`, for 10 hits at target recall
0.95; each query is asked once, and the second half of them is measured. Ways to search: *full*: by the full vectors
alone; *beside*: by vectors in 8 bits beside the full ones; *compact*: by those in 8 bits alone. *Own*: memory of the
process itself after the searches, beyond what it had before it opened the index (ScaNN's codes are there, and compiled
code); *mapped*: the pages of the index's files that it has in memory.

`limits`: each process in a memory control group with a limit, which is what the process has without the index, and a
share of the bytes of the full vectors. Its files are not in the kernel's cache at first. Needs the right to make
groups. *Unadvised*: as *full*, without telling the kernel that vectors are read at random (vectors/page_advice.py).

`peers`: engines of `benchmarks.quantized_peers` with the same vectors and queries (not squared L2), each opened and
asked in a process of its own, at the fastest of its settings that reaches recall@10 of 0.95 with 200 queries, or at
that with the highest recall. Scannery has its tuned settings. *Disk*: what the searches need, in bytes a row as the
others; of Scannery without the Parquet files of its store. *Own* and *mapped* as above; of PostgreSQL *own* is the
growth of all its processes with their shared buffers, and the kernel's cache of its files is left out. Recall@100 is
that of the same setting. `--rows`: so many rows of each collection at most.

Shapes: N rows, Q queries, D dimensions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import Vectors, fashion_mnist, generated, real_questions, with_noise
from benchmarks.harness import BATCH, ROOT, K, environment, folder_of, options, publish, table, timed
from benchmarks.peer_engines import built, installed
from benchmarks.quantized_peers import COMPRESSED
from benchmarks.query import TARGET
from scannery.indexer import ColdReads, SegmentCache, Store, exact_search, open_index, parse_spec

PASSAGES, MILLION = 39_133, 1_000_000
WAYS = ("full", "beside", "compact")
FORMER = "unadvised"
ScoresOf = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(rows, query) → scores."""
TRUTH_QUERIES, CHOICE_QUERIES = 500, 200
DEEP = 100


def passages(folder: Path) -> Vectors:
    real = real_questions(folder / "real")
    vectors_ND = np.ascontiguousarray(real.vectors_ND[:PASSAGES])
    return Vectors(f"{PASSAGES:,} passages × 384", "cosine", vectors_ND, real.held_QD, real.asked_QD)


def million(folder: Path) -> Vectors:
    real = passages(folder)
    parts = [
        with_noise(real.vectors_ND, min(PASSAGES, MILLION - start), 0.5, seed=start)
        for start in range(0, MILLION, PASSAGES)
    ]
    return Vectors(f"{MILLION:,} × 384", "cosine", np.concatenate(parts), real.queries_QD, real.tuned_QD)


COLLECTIONS: dict[str, Callable[[Path], Vectors]] = {
    "passages": passages,
    "images": lambda folder: fashion_mnist(),
    "generated": lambda folder: generated(500_000),
    "million": million,
}


def collection_of(name: str, folder: Path, rows: int | None = None) -> Vectors:
    """Return a collection, of its first rows at most so many."""
    collection = COLLECTIONS[name](folder)
    return replace(collection, vectors_ND=collection.vectors_ND[:rows])


def prepared(name: str, folder: Path, rows: int | None = None) -> Path:
    """Return the folder of a collection with its index, its queries and their true scores, made if it is missing."""
    path = folder / (f"{name}-{rows}" if rows else name)
    if (path / "about.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    collection = collection_of(name, folder, rows)
    tuned_QD = collection.queries_QD[1::2] if collection.tuned_QD is None else collection.tuned_QD
    spec = parse_spec({"index": "bench", "source": {"vector": "v"}, "distance": collection.distance})
    publish(Store.open(path / "store", create=True), spec, collection.vectors_ND, path, queries_QD=tuned_QD)
    held_QD = collection.queries_QD[::2] if collection.tuned_QD is None else collection.queries_QD
    queries_QD = np.ascontiguousarray(held_QD)
    truth_QD = queries_QD[:TRUTH_QUERIES]
    _, scores_QK = exact_search(collection.vectors_ND, truth_QD, DEEP, collection.distance)
    np.save(path / "queries.npy", queries_QD)
    np.save(path / "truth.npy", scores_QK)
    count, dimensions = collection.vectors_ND.shape
    about = {
        "name": collection.name, "rows": count, "dimensions": dimensions, "distance": collection.distance,
    }  # fmt: skip
    (path / "about.json").write_text(json.dumps(about))
    return path


# --- the process that searches


def memory() -> dict[str, int]:
    """Return bytes of this process: its own, and mapped from files."""
    status = Path("/proc/self/status").read_text()
    sizes = {name: 1024 * int(size) for name, size in re.findall(r"^Rss(\w+):\s+(\d+) kB", status, re.M)}
    return {"own": sizes["Anon"], "mapped": sizes["File"]}


def mapped_of(folder: Path) -> int:
    """Return the bytes of the files of a folder that this process has in memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
            inside = str(folder) in line
        elif inside and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


def search_alone(path: Path, way: str, searches: int, group: str) -> dict[str, Any]:
    """Open an index and search it; return what was measured."""
    if group:
        Path(group).write_text(str(os.getpid()))
    from scannery.indexer.segment import segment_files
    from scannery.indexer.vectors import page_advice

    if way == FORMER:
        page_advice.SHARE = float("inf")
    if way in ("full", FORMER):
        segment_files.QUANTIZED = "absent"  # as in the folders of releases before there were any
    import scann.scann_ops.py.scann_ops_pybind  # noqa: F401  so that it does not count as the index's

    before = memory()
    cache = path / "cache"
    reads = ColdReads(compact=True) if way == "compact" else None
    [segment] = open_index(
        Store.open(path / "store"), "bench", cache=SegmentCache(cache), cold=reads
    ).segments
    queries_QD = np.load(path / "queries.npy")
    settings = segment.settings_for(0.95)
    search, deep = segment.searching(K, settings), segment.searching(DEEP, settings)
    took_s: list[float] = []
    for query_1D in np.split(queries_QD[:searches], min(searches, len(queries_QD))):
        started_s = time.perf_counter()
        search(query_1D)
        took_s.append(time.perf_counter() - started_s)
    half_s = np.array(took_s[len(took_s) // 2 :])
    result = {
        "p50": float(np.quantile(half_s, 0.5)), "p99": float(np.quantile(half_s, 0.99)),
        "rate": float(1 / half_s.mean()), "own": memory()["own"] - before["own"], "mapped": mapped_of(cache),
    }  # fmt: skip
    if group:
        return result
    started_s = time.perf_counter()
    batches = [search(queries_QD[start : start + BATCH]) for start in range(0, len(queries_QD), BATCH)]
    result["batch_rate"] = len(queries_QD) / (time.perf_counter() - started_s)
    result["10"] = np.concatenate([rows_QK for rows_QK, _ in batches])[:TRUTH_QUERIES].tolist()
    result["100"] = np.concatenate(
        [deep(query_D[None])[0] for query_D in queries_QD[:TRUTH_QUERIES]]
    ).tolist()
    return result


def searched(path: Path, way: str, searches: int, group: str = "") -> dict[str, Any]:
    """Return what `search_alone` measures in a process of its own."""
    return in_process("search_alone", path, way, searches, group)


def in_process(function: str, path: Path, *arguments: str | int) -> dict[str, Any]:
    """Return what a function of this module measures in a process of its own."""
    code = (
        "import json, sys; from pathlib import Path; from benchmarks import quantized; "
        "print(json.dumps(getattr(quantized, sys.argv[1])(Path(sys.argv[2]), *json.loads(sys.argv[3]))))"
    )
    done = _run("-c", code, function, str(path), json.dumps(arguments))
    if done.returncode:
        return {"failed": done.returncode}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=environ
    )


def recall(path: Path, rows_QK: list[list[int]], k: int) -> float:
    """Return the share of true hits among the rows of a segment, by their scores with the full vectors."""
    [segment] = open_index(Store.open(path / "store"), "bench", cache=SegmentCache(path / "cache")).segments
    return _recall(path, rows_QK, k, segment.scores_of)


def _recall(
    path: Path,
    rows_QK: Sequence[Sequence[int]],
    k: int,
    scores_of: ScoresOf,
) -> float:
    """Return the share of true hits among the rows of the first queries, by what scores rows and a query."""
    queries_QD, least_Q = np.load(path / "queries.npy"), np.load(path / "truth.npy")[:, k - 1]
    hits = [
        (scores_of(np.array(rows_K, int), query_D) >= least - 1e-6 * abs(least)).sum()
        for rows_K, query_D, least in zip(rows_QK, queries_QD, least_Q, strict=False)
    ]
    return float(np.sum(hits) / (k * len(hits)))


def forget(folder: Path) -> None:
    """Let the kernel drop the pages of all files of a folder that no process maps."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@contextmanager
def memory_group(limit: int) -> Iterator[str]:
    """Yield the file that adds a process to a new control group with a limit of memory, in bytes."""
    [own] = re.findall(r"^(?:\d+:memory:|0::)(/.*)$", Path("/proc/self/cgroup").read_text(), re.M)[:1]
    root = Path("/sys/fs/cgroup/memory") if Path("/sys/fs/cgroup/memory").exists() else Path("/sys/fs/cgroup")
    group = Path(f"{root}{own}") / f"bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise SystemExit(f"limits: needs the right to make control groups ({error})") from error
    try:
        names = ("memory.limit_in_bytes", "memory.max")
        next(group / name for name in names if (group / name).exists()).write_text(str(limit))
        yield str(group / "cgroup.procs")
    finally:
        for _ in range(50):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


# --- the tables


def sizes(given: argparse.Namespace, folder: Path) -> None:
    """Print what each way takes, and finds."""
    rows = []
    for name in given.collections.split(","):
        path = prepared(name, folder)
        about = json.loads((path / "about.json").read_text())
        for way in ("beside", "compact"):
            searched(path, way, 1)  # unpacks, and times plans
        for way in WAYS:
            result = searched(path, way, given.searches)
            stored = {
                part: _bytes_of(path / "cache", part, compact=way == "compact") / about["rows"]
                for part in ("vectors.npy", "given.npy", "quantized.npy", "scann")
            }
            if way == "full":
                stored["quantized.npy"] = 0.0
            vectors = sum(stored[part] for part in ("vectors.npy", "given.npy", "quantized.npy"))
            rows.append([
                about["name"], way, f"{vectors:,.0f}", f"{stored['scann']:,.0f}",
                f"{result['own'] / about['rows']:,.0f}", f"{result['mapped'] / about['rows']:,.0f}",
                f"{recall(path, result['10'], K):.3f}", f"{recall(path, result['100'], DEEP):.3f}",
                f"{result['rate']:,.0f}", f"{result['batch_rate']:,.0f}",
            ])  # fmt: skip
    header = (
        "collection", "way", "vectors on disk, bytes a row", "ScaNN's files", "own", "mapped", "recall@10",
        "recall@100", "searches/s", "in batches",
    )  # fmt: skip
    print(table(header, rows), flush=True)


def _bytes_of(cache: Path, part: str, *, compact: bool) -> int:
    """Return the bytes of a file, or of those of a folder, of the only segment."""
    [segment] = [
        path for path in (cache / "segments").glob("*/*") if path.is_dir() and path.name.endswith("-compact") == compact
    ]  # fmt: skip
    path = segment / part
    paths: Sequence[Path] = [*path.rglob("*")] if path.is_dir() else [path]
    return sum(each.stat().st_size for each in paths if each.is_file())


# --- other engines


def search_peer(path: Path, name: str, effort: int, factor: int, searches: int) -> dict[str, Any]:
    """Open the index of a peer and search it; return what was measured."""
    engine, queries_QD = COMPRESSED[name].make(), np.load(path / "queries.npy")
    folder, before = path / "peers" / name, memory()["own"]
    with ExitStack() as stack:
        engine.open(folder, stack)
        server_bytes = engine.server_bytes()
        ask = engine.searcher(effort, factor, K)
        took_s = [timed(partial(ask, query_D)) for query_D in queries_QD[:searches]]
        own = memory()["own"] - before + engine.server_bytes() - server_bytes
        result: dict[str, Any] = {
            "rate": float(1 / np.mean(took_s[len(took_s) // 2 :])), "own": own, "mapped": mapped_of(folder),
            "disk": engine.disk_bytes(folder),
        }  # fmt: skip
        for k in (K, DEEP):
            ask = engine.searcher(effort, factor, k)
            result[str(k)] = [[*ask(query_D)] for query_D in queries_QD[:TRUTH_QUERIES]]
    return result


def chosen_setting(path: Path, name: str, scores_of: ScoresOf) -> tuple[int, int]:
    """Return the fastest setting of a peer that reaches the recall, or that with the highest recall."""
    engine, queries_QD = COMPRESSED[name].make(), np.load(path / "queries.npy")[:CHOICE_QUERIES]
    settings = []
    with ExitStack() as stack:
        engine.open(path / "peers" / name, stack)
        for factor in engine.factors:
            for effort in engine.efforts:
                ask = engine.searcher(effort, factor, K)
                started_s = time.perf_counter()
                rows_QK = [ask(query_D) for query_D in queries_QD]
                took_s = time.perf_counter() - started_s
                reached = _recall(path, rows_QK, K, scores_of)
                settings.append((min(reached, TARGET), -took_s, effort, factor))
                if reached >= TARGET:
                    break
    return max(settings)[2:]


def peers(given: argparse.Namespace, folder: Path) -> None:
    """Print what other engines take beside ours, and find."""
    names = installed({name: each.packages for name, each in COMPRESSED.items()})
    packages = dict.fromkeys(package for name in names for package in COMPRESSED[name].packages)
    print(environment(*packages), flush=True)
    for case in given.collections.split(","):
        path = prepared(case, folder, given.rows)
        about = json.loads((path / "about.json").read_text())
        vectors_ND = collection_of(case, folder, given.rows).vectors_ND
        scores_of: ScoresOf = partial(_dot_scores, vectors_ND)
        rows = []
        for way in ("beside", "compact"):
            searched(path, way, 1)  # unpacks, and times plans
            result = searched(path, way, given.searches)
            recalls = [recall(path, result[str(k)], k) for k in (K, DEEP)]
            disk = _bytes_of(path / "cache", "", compact=way == "compact")
            rows.append(
                _line(f"scannery, {way}", "as tuned", result | {"disk": disk}, recalls, about["rows"])
            )
            print(*rows[-1], flush=True)
        for name in names:
            built(path / "peers" / name, partial(COMPRESSED[name].make().build, vectors_ND))
            effort, factor = chosen_setting(path, name, scores_of)
            result = in_process("search_peer", path, name, effort, factor, given.searches)
            if "failed" in result:
                print(f"- {name} failed ({result['failed']})", flush=True)
                continue
            recalls = [_recall(path, result[str(k)], k, scores_of) for k in (K, DEEP)]
            rows.append(_line(name, f"{effort}, {factor} ×", result, recalls, about["rows"]))
            print(*rows[-1], flush=True)
        header = (
            about["name"], "setting", "disk", "own", "mapped", "recall@10", "recall@100", "searches/s",
        )  # fmt: skip
        print("\n" + table(header, rows), flush=True)


def _dot_scores(vectors_ND: np.ndarray, rows_K: np.ndarray, query_D: np.ndarray) -> np.ndarray:
    return vectors_ND[rows_K] @ query_D


def _line(name: str, setting: str, result: dict[str, Any], recalls: Sequence[float], rows: int) -> list[str]:
    sizes = (f"{result[part] / rows:,.0f}" for part in ("disk", "own", "mapped"))
    return [name, setting, *sizes, *(f"{each:.3f}" for each in recalls), f"{result['rate']:,.0f}"]


def limits(given: argparse.Namespace, folder: Path) -> None:
    """Print latencies at limits of memory."""
    rows = []
    for name in given.collections.split(","):
        path = prepared(name, folder)
        about = json.loads((path / "about.json").read_text())
        for way in ("beside", "compact"):
            searched(path, way, 1)
        base = _base_bytes()
        full = 4 * about["rows"] * about["dimensions"]
        for share in given.shares:
            cells = []
            for way in (FORMER, *WAYS):
                forget(path / "cache")
                with memory_group(base + full * share // 100) as group:
                    result = searched(path, way, given.searches, group)
                cells += (
                    [f"failed ({result['failed']})", "", ""]
                    if "failed" in result
                    else [
                        f"{1e6 * result['p50']:,.0f}",
                        f"{1e6 * result['p99']:,.0f}",
                        f"{result['rate']:,.0f}",
                    ]
                )
            rows.append([about["name"], f"{share} %", f"{(base + full * share // 100) >> 20} MiB", *cells])
    header = [
        "collection", "share", "limit",
        *(f"{way}: {what}" for way in (FORMER, *WAYS) for what in ("p50, µs", "p99", "searches/s")),
    ]  # fmt: skip
    print(table(header, rows), flush=True)


def _base_bytes() -> int:
    """Return the memory of a process that has imported what a search needs, without an index."""
    code = (
        "import scann.scann_ops.py.scann_ops_pybind; from benchmarks.quantized import memory; "
        "from scannery.indexer.kernels import leaf_kernels; print(sum(memory().values()))"
    )
    return int(_run("-c", code).stdout.split()[-1])


def main() -> None:
    """Print the tables."""
    given = options(
        __doc__, cases=("sizes", "limits", "peers"), collections="passages", folder=Path, searches=2000,
        shares=[100, 50, 30, 20, 10], rows=int,
    )  # fmt: skip
    print(environment("scann", "numba"), flush=True)
    with folder_of(given.folder) as folder:
        for case in given.cases:
            {"sizes": sizes, "limits": limits, "peers": peers}[case](given, folder)


if __name__ == "__main__":
    main()

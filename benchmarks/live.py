"""Live updates: how fast writes are, how soon they are seen, and what queries notice of them.

    python -m benchmarks.live writes      upserts/s, single upserts against one fsync, visibility in another process
    python -m benchmarks.live queries     latency of queries: quiet, during writes, a seal, a merge, a new version
    python -m benchmarks.live runbook final_runbook.yaml [--points 60000] [--every 10]

Servers are processes of their own, with two workers, on loopback. The runbooks are those of the streaming track of
NeurIPS'23, with their point numbers scaled to Fashion-MNIST, whose images are put in the order of their classes: the
runbooks that go by cluster then go by class.
"""

from __future__ import annotations

import argparse
import gzip
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

import scannery
from benchmarks.report import environment, shared_data, table
from scannery.indexer import (
    IndexSpec,
    Manifest,
    Store,
    build_segment,
    commit,
    datapoint_schema,
    expected_recall,
    list_versions,
    parse_spec,
    read_manifest,
    rollback,
    segment_key,
)
from scannery.serving.live.maintenance import bounds, locked
from scannery.serving.live.sqlite_log import SqliteLog

BATCH = 100
K = 10
SERVER = """
import sys
from scannery.serving import ServerConfig, serve
config = ServerConfig(store=sys.argv[1], listen="127.0.0.1:0", check_every_s=0.5)
serve(config, workers=int(sys.argv[2]), ready=lambda address: print(address, flush=True))
"""


def spec_of(name: str, distance: str, **live: Any) -> IndexSpec:
    return parse_spec(
        {
            "index": name,
            "source": {"id": "id", "vector": "v"},
            "distance": distance,
            "attributes": {"n": "int"},
            "live": live,
        }
    )


def publish(store: Store, spec: IndexSpec, vectors_ND: np.ndarray, folder: Path) -> None:
    schema = datapoint_schema(spec, vectors_ND.shape[1])
    ids = [f"b{i}" for i in range(len(vectors_ND))]
    given: dict[str, list[Any]] = {"id": ids, "document_id": ids, "n": list(range(len(ids)))}
    arrays = [
        pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.reshape(-1)), type=field.type)
        if field.name == "embedding"
        else pa.array(given.get(field.name, [None] * len(ids)), field.type)
        for field in schema
    ]
    built = build_segment(pa.table(arrays, schema=schema), spec=spec, shard=0, directory=folder)
    store.write_file(segment_key(spec.index, built.entry.key), built.path)
    manifest = Manifest(
        index=spec.index,
        version=1,
        created_at=datetime.now(timezone.utc),
        spec=spec,
        dimensions=vectors_ND.shape[1],
        shards=1,
        segments=(built.entry,),
        recall=expected_recall([built.entry], spec.target_recall),
    )
    commit(store, manifest)


@contextmanager
def serving(store: Path, workers: int = 2) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(store), str(workers)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def fashion() -> tuple[np.ndarray, np.ndarray]:
    """Return 60,000 × 784 images in the order of their classes, and 10,000 others."""
    folder = shared_data("vec-fashion-mnist")

    def read(name: str, offset: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=offset)

    labels_N = read("train-labels-idx1-ubyte.gz", 8)
    images_ND = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype(np.float32)
    queries_QD = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype(np.float32)
    return images_ND[np.argsort(labels_N, kind="stable")], queries_QD


def random_vectors(rows: int, dimensions: int = 128) -> np.ndarray:
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((200, dimensions))
    noise = 0.6 * generator.standard_normal((rows, dimensions))
    return (centres[generator.integers(0, 200, rows)] + noise).astype(np.float32)


def milliseconds(seconds: Sequence[float], share: float) -> float:
    return float(np.quantile(seconds, share) * 1e3) if len(seconds) else float("nan")


def timed(action: Callable[[int], Any], count: int) -> list[float]:
    took = []
    for number in range(count):
        started = time.perf_counter()
        action(number)
        took.append(time.perf_counter() - started)
    return took


def fsyncs(folder: Path, size_bytes: int, count: int = 200) -> list[float]:
    """Return how long it takes to append so many bytes to a file and sync it."""
    data = os.urandom(size_bytes)
    with (folder / "probe").open("wb", buffering=0) as file:

        def once(_: int) -> None:
            file.write(data)
            os.fsync(file.fileno())

        return timed(once, count)


def measure_writes(folder: Path) -> None:
    vectors_ND = random_vectors(20_000)
    spec = spec_of("writes", "cosine", seal_rows=1_000_000, max_rows=2_000_000, max_bytes=1 << 34)
    store = Store.open(folder / "store", create=True)
    publish(store, spec, vectors_ND, folder)
    rows = []
    single_fsync = fsyncs(folder, 4096)
    batch_fsync = fsyncs(folder, BATCH * 512)
    rows.append(["fsync of 4 KiB", "", f"{1 / statistics.median(single_fsync):,.0f}/s",
                 f"{milliseconds(single_fsync, 0.5):.2f}", f"{milliseconds(single_fsync, 0.99):.2f}"])  # fmt: skip
    rows.append(["fsync of 50 KiB", "", f"{1 / statistics.median(batch_fsync):,.0f}/s",
                 f"{milliseconds(batch_fsync, 0.5):.2f}", f"{milliseconds(batch_fsync, 0.99):.2f}"])  # fmt: skip
    (folder / "bare" / "index").mkdir(parents=True)
    log = SqliteLog(folder / "bare" / "index" / "log", create=True)

    def append(_: int, data: bytes = os.urandom(600)) -> None:
        with log.turn(after=0) as turn:
            turn.append(data)

    took = timed(append, 500)
    rows.append(["log alone, one record of 600 B", "", f"{1 / statistics.median(took):,.0f}/s",
                 f"{milliseconds(took, 0.5):.2f}", f"{milliseconds(took, 0.99):.2f}"])  # fmt: skip
    with scannery.connect(folder / "store") as client:
        rows.append(_batches("embedded, 1 thread", client.index("writes"), vectors_ND, threads=1))
        rows.append(_singles("embedded", client.index("writes"), vectors_ND))
    with serving(folder / "store") as address:
        for threads in (1, 4):
            clients = [scannery.connect(address) for _ in range(threads)]
            name = f"server, 2 workers, {threads} clients"
            rows.append(_batches(name, [c.index("writes") for c in clients], vectors_ND, threads=threads))
            for client in clients:
                client.close()
        with scannery.connect(address) as client:
            rows.append(_singles("server", client.index("writes"), vectors_ND))
    print(table(["what", "upserts/s", "calls/s", "p50, ms", "p99, ms"], rows), "\n")
    _visibility(folder, vectors_ND)


def _batches(name: str, index: Any, vectors_ND: np.ndarray, *, threads: int, seconds: float = 8) -> list[str]:
    indexes = index if isinstance(index, list) else [index]
    took: list[float] = []
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        batch = 0
        while time.perf_counter() < end:
            started = time.perf_counter()
            first = (batch * BATCH) % (len(vectors_ND) - BATCH)
            indexes[number].upsert(
                [
                    {
                        "id": f"{name}{number}-{batch}-{i}",
                        "vector": vectors_ND[first + i],
                        "attributes": {"n": i},
                    }
                    for i in range(BATCH)
                ]
            )
            took.append(time.perf_counter() - started)
            batch += 1

    started = time.perf_counter()
    pool = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    wall = time.perf_counter() - started
    return [f"{name}, batches of {BATCH}", f"{len(took) * BATCH / wall:,.0f}", f"{len(took) / wall:,.0f}/s",
            f"{milliseconds(took, 0.5):.2f}", f"{milliseconds(took, 0.99):.2f}"]  # fmt: skip


def _singles(name: str, index: Any, vectors_ND: np.ndarray) -> list[str]:
    took = timed(lambda i: index.upsert([{"id": f"s-{i}", "vector": vectors_ND[i]}]), 500)
    return [f"{name}, one by one", f"{len(took) / sum(took):,.0f}", f"{len(took) / sum(took):,.0f}/s",
            f"{milliseconds(took, 0.5):.2f}", f"{milliseconds(took, 0.99):.2f}"]  # fmt: skip


def _visibility(folder: Path, vectors_ND: np.ndarray, count: int = 300) -> None:
    """Measure from the acknowledgement of a write to its first sight through another server of the same store."""
    took, own = [], 0
    with (
        serving(folder / "store", 1) as one,
        serving(folder / "store", 1) as two,
        scannery.connect(one) as writer,
        scannery.connect(two) as reader,
    ):
        for number in range(count):
            name = f"seen-{number}"
            writer.index("writes").upsert([{"id": name, "vector": vectors_ND[number]}])
            started = time.perf_counter()
            while reader.index("writes").get([name], fields=[]) == [None]:
                pass
            took.append(time.perf_counter() - started)
            own += writer.index("writes").get([name], fields=[]) != [None]
            time.sleep(0.02)
    print(
        f"Visible in another process after p50 {milliseconds(took, 0.5):.1f} ms, p99 {milliseconds(took, 0.99):.1f} ms "
        f"({count} writes; one look costs about a millisecond); to the writer itself at once: {own} of {count}.\n"
    )


def measure_queries(folder: Path) -> None:
    vectors_ND = random_vectors(70_000)
    spec = spec_of("queries", "cosine", seal_rows=500_000, max_rows=1_000_000, merge_segments=2)
    store = Store.open(folder / "store", create=True)
    publish(store, spec, vectors_ND[:50_000], folder)
    rows: list[list[str]] = []
    with (
        # So that merges happen when they are measured, and not before.
        locked(folder / "store", "queries", "merge"),
        serving(folder / "store") as address,
        scannery.connect(address) as client,
    ):
        index = client.index("queries")
        probe = _Probe(address, vectors_ND)
        for _ in range(2):  # the first one warms up
            quiet = probe.during(lambda: time.sleep(6))
        rows.append(_phase("quiet", quiet, quiet))

        def write(seconds: float = 10, pause_s: float = 0.0) -> int:
            done, end = 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                first = (done * BATCH) % 20_000
                index.upsert(
                    [
                        {"id": f"w{first + i}", "vector": vectors_ND[50_000 + (first + i) % 20_000]}
                        for i in range(BATCH)
                    ]
                )
                done += 1
                time.sleep(pause_s)
            return done

        rows.append(_phase("1,000 upserts/s", probe.during(lambda: write(10, 0.09)), quiet))
        rows.append(_phase("as many upserts as it takes", probe.during(lambda: write(10)), quiet))
        rows.append(_phase("20,000 rows in memory, no writes", probe.during(lambda: time.sleep(5)), quiet))
        rows.append(
            _phase("seal and the move to its version", probe.during(lambda: _nicely("seal", folder)), quiet)
        )
        write(3)
        _nicely("seal", folder)
        rows.append(
            _phase("merge and the move to its version", probe.during(lambda: _nicely("merge", folder)), quiet)
        )
        rows.append(_phase("a rollback", probe.during(lambda: _back(store)), quiet))
        rows.append(_phase("quiet again", probe.during(lambda: time.sleep(6)), quiet))
        probe.close()
    print(table(["during", "queries", "p50, ms", "p99, ms", "p99 × quiet", "failures"], rows), "\n")


def _nicely(task: str, folder: Path) -> None:
    # The very process that a server starts.
    with locked(folder / "store", "queries", "seal"):
        command = ["-m", "scannery.serving.live.maintenance", task, "queries"]
        places = ["--store", str(folder / "store"), "--log", str(folder / "store"), "--lock", "0"]
        environment = (
            os.environ | bounds() | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        )
        subprocess.run([sys.executable, *command, *places], check=True, env=environment)
    time.sleep(3)


def _back(store: Store) -> None:
    rollback(store, "queries", list_versions(store, "queries")[-1])
    time.sleep(3)


class _Probe:
    """Asks single queries, one after the other, and notes what each took."""

    def __init__(self, address: str, vectors_ND: np.ndarray) -> None:
        self._client = scannery.connect(address)
        self._vectors_ND = vectors_ND
        self._generator = np.random.default_rng(3)

    def during(self, action: Callable[[], Any]) -> tuple[list[float], int]:
        thread = threading.Thread(target=action)
        thread.start()
        took, failures = [], 0
        while thread.is_alive():
            query_D = self._vectors_ND[self._generator.integers(50_000)]
            started = time.perf_counter()
            try:
                self._client.index("queries").search(query_D, K)
            except scannery.ScanneryError:
                failures += 1
            took.append(time.perf_counter() - started)
            time.sleep(0.002)
        thread.join()
        return took, failures

    def close(self) -> None:
        self._client.close()


def _phase(name: str, result: tuple[list[float], int], quiet: tuple[list[float], int]) -> list[str]:
    took, failures = result
    ratio = milliseconds(took, 0.99) / milliseconds(quiet[0], 0.99)
    return [name, f"{len(took):,}", f"{milliseconds(took, 0.5):.2f}", f"{milliseconds(took, 0.99):.2f}",
            f"{ratio:.1f}", str(failures)]  # fmt: skip


def measure_runbook(folder: Path, name: str, points: int, every: int, dataset: str | None) -> None:
    vectors_ND, queries_QD = fashion()
    vectors_ND, queries_QD = vectors_ND[:: max(1, len(vectors_ND) // points)][:points], queries_QD[:200]
    books = yaml.safe_load((shared_data("vec-bigann-streaming-runbooks") / name).read_text())
    title = dataset or next(iter(books))
    book = books[title]
    steps = [book[key] for key in sorted(key for key in book if isinstance(key, int))]
    most = book.get("max_pts") or max(step.get("end", 0) for step in steps)
    most = max(most, *(step.get("ids_end", step.get("end", 0)) for step in steps))
    scale = len(vectors_ND) / most
    spec = spec_of("runbook", "squared_l2", seal_rows=5_000, max_rows=40_000)
    store = Store.open(folder / "store", create=True)
    # An index needs a row; this one is far from everything, and deleted at once.
    publish(store, spec, np.full((1, vectors_ND.shape[1]), 1e4, np.float32), folder)
    recalls, where, searches, started = [], np.full(len(vectors_ND), -1), 0, time.perf_counter()
    with serving(folder / "store") as address, scannery.connect(address, timeout_s=120) as client:
        index = client.index("runbook")
        index.delete(["b0"])
        for step in steps:
            kind = step["operation"]
            low, high = (int(step.get(key, 0) * scale) for key in ("start", "end"))
            if kind == "search":
                searches += 1
                if searches % every == 0 and (where >= 0).any():
                    recalls.append((searches, *_recall(index, vectors_ND, queries_QD, where)))
            elif kind == "delete":
                _delete(index, np.arange(low, high))
                where[low:high] = -1
            else:
                ids = np.arange(low, high)
                if kind == "replace":
                    low, high = (int(step[key] * scale) for key in ("tags_start", "tags_end"))
                    first = int(step["ids_start"] * scale)
                    ids, rows = np.arange(low, high), np.arange(first, first + high - low)
                else:
                    rows = ids
                _insert(index, ids, vectors_ND[np.minimum(rows, len(vectors_ND) - 1)])
                where[ids] = np.minimum(rows, len(vectors_ND) - 1)
        stats = index.stats()
    manifest = read_manifest(store, "runbook")
    values = np.array([recall for _, recall, _ in recalls])
    print(
        f"{name}, {title}, scaled to {len(vectors_ND):,} points: {len(steps)} steps in "
        f"{time.perf_counter() - started:.0f} s, {len(recalls)} searches measured; recall@{K} mean "
        f"{values.mean():.3f}, "
        f"least {values.min():.3f}, below {spec.target_recall}: {(values < spec.target_recall).sum()}; "
        f"p99 of a batch of 200 queries {milliseconds([took for *_, took in recalls], 0.99):.0f} ms; at the end "
        f"version {stats.version}, {len(manifest.segments)} segments with "
        f"{sum(entry.rows for entry in manifest.segments):,} rows for {stats.rows:,} datapoints.\n"
    )


def _insert(index: Any, ids: np.ndarray, vectors: np.ndarray) -> None:
    for first in range(0, len(ids), BATCH):
        some = range(first, min(first + BATCH, len(ids)))
        _patiently(index.upsert, [{"id": f"p{ids[i]}", "vector": vectors[i]} for i in some])


def _delete(index: Any, ids: np.ndarray) -> None:
    for first in range(0, len(ids), 1000):
        _patiently(index.delete, [f"p{i}" for i in ids[first : first + 1000]])


def _patiently(call: Callable[[Any], Any], argument: Any) -> None:
    while True:
        try:
            call(argument)
            return
        except scannery.ResourceExhaustedError as error:
            time.sleep(error.retry_after_s or 0.1)


def _recall(
    index: Any, vectors_ND: np.ndarray, queries_QD: np.ndarray, where: np.ndarray
) -> tuple[float, float]:
    ids = np.flatnonzero(where >= 0)
    live_ND = vectors_ND[where[ids]]
    distances_QN = (live_ND**2).sum(axis=1) - 2 * queries_QD @ live_ND.T
    k = min(K, len(ids))
    cut_Q = np.partition(distances_QN, k - 1, axis=1)[:, k - 1]
    started = time.perf_counter()
    found = index.search_many(queries_QD, K, fields=[])
    took = time.perf_counter() - started
    place = {f"p{identifier}": position for position, identifier in enumerate(ids.tolist())}
    # By distance, so that ties count; without the queries' own lengths, distances may be negative.
    allowed_Q = cut_Q + 1e-6 * np.abs(cut_Q)
    right = [
        sum(distances_QN[q, place[hit.id]] <= allowed_Q[q] for hit in hits) / k
        for q, hits in enumerate(found)
    ]
    return float(np.mean(right)), took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("writes", "queries", "runbook"))
    parser.add_argument("name", nargs="?", default="final_runbook.yaml")
    parser.add_argument("--points", type=int, default=60_000)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--dataset")
    given = parser.parse_args()
    print(environment("scann", "numpy", "pyarrow", "grpcio"), "\n")
    with tempfile.TemporaryDirectory(dir=os.environ.get("SCANNERY_BENCH_DIR")) as place:
        os.environ["SCANNERY_CACHE_DIR"] = str(Path(place) / "cache")
        folder = Path(place)
        if given.what == "writes":
            measure_writes(folder)
        elif given.what == "queries":
            measure_queries(folder)
        else:
            measure_runbook(folder, given.name, given.points, given.every, given.dataset)


if __name__ == "__main__":
    main()

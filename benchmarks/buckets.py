"""An index in a bucket: how long it takes to open, and what it costs where it is served cold.

    python -m benchmarks.buckets open [--rows 400000] [--dimensions 128] [--shards 1,8] [--rounds 3]
    python -m benchmarks.buckets cold [--rows 200000] [--dimensions 384] [--queries 100]

Both with `--first-byte-ms 30 --mb-per-s 25`: a slow S3 server shows a folder as a bucket. Each opening is a process of
its own. Memory is what it has beyond its imports: its own, and pages of cache files that it touched.

`open`: random vectors without ScaNN data, with an empty cache and a filled one.

`cold`: Fashion-MNIST, and generated vectors of 24 latent dimensions, one segment each. A process opens the index
with an empty cache and asks the queries one after the other: `warm` has unpacked it; `cold` keeps no pages, so that
every query pays all of its reads; `kept` asks the same queries again, with the default of 256 MiB. Recall is that of
ten hits by score against an exact search.

Shapes: N vectors, Q queries, D dimensions, K hits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from benchmarks.data import Vectors, fashion_mnist, latent
from benchmarks.harness import ROOT, K, environment, folder_of, free_port, in_turns, options, publish, table
from scannery.indexer import Store, exact_search, parse_spec, read_manifest, search_ready
from scannery.indexer.tuning.settings_choice import recall_by_score

ENVIRONMENT = {"AWS_ALLOW_HTTP": "true", "AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "us-east-1"}
_BLOCK = 1 << 18
Counts = dict[str, int]


# --- the server


class _Handler(BaseHTTPRequestHandler):
    """A read-only S3 server over a folder, whose answers begin after a delay, at the speed of one stream."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(
        self, folder: Path, first_byte_s: float, bytes_per_s: float, counts: dict[str, int], *rest: Any
    ) -> None:
        self._folder, self._first_byte_s, self._bytes_per_s, self._counts = (
            folder,
            first_byte_s,
            bytes_per_s,
            counts,
        )
        super().__init__(*rest)

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        query = urlsplit(self.path).query
        if "list-type" in query:
            self._send(200, _listing(self._folder, query))
        else:
            self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self._folder / unquote(urlsplit(self.path).path).removeprefix("/bucket/")
        if not path.is_file():
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>" if with_body else b"")
            return
        size = path.stat().st_size
        start, end, headers = 0, size, {"ETag": f'"{path.stat().st_mtime_ns}"'}
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(part[1]), min(int(part[2] or size - 1) + 1, size)
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._counts["requests"] += 1
        self._counts["bytes"] += end - start if with_body else 0
        time.sleep(self._first_byte_s)
        self._head(206 if part else 200, end - start, headers)
        if with_body:
            self._send_range(path, start, end)

    def _send_range(self, path: Path, start: int, end: int) -> None:
        began_s, first = time.monotonic(), start
        with path.open("rb") as file, contextlib.suppress(OSError):  # the client has given up
            while start < end:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, min(_BLOCK, end - start))
                time.sleep(max(0.0, (start - first) / self._bytes_per_s - (time.monotonic() - began_s)))

    def _send(self, status: int, data: bytes) -> None:
        self._head(status, len(data), {})
        self.wfile.write(data)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.flush()
        # The sockets must not hold what is not sent yet, or the speed would be that of their buffers.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BLOCK)


def _listing(folder: Path, query: str) -> bytes:
    """Return all objects below a prefix, as one page."""
    match = re.search(r"(?:^|&)prefix=([^&]*)", query)
    prefix, items = unquote(match[1]) if match else "", []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        key = path.relative_to(folder).as_posix()
        if key.startswith(prefix):
            about = f"<Size>{path.stat().st_size}</Size><LastModified>2026-11-01T00:00:00.000Z</LastModified>"
            items.append(f"<Contents><Key>{key}</Key>{about}</Contents>")
    head = (
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated>'
    )
    return f"{head}{''.join(items)}</ListBucketResult>".encode()


@contextlib.contextmanager
def slow_bucket(folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, Counts]]:
    """Serve a folder by threads of this process; yield the address, and counts of requests and bytes."""
    counts = {"requests": 0, "bytes": 0}
    handler: Any = partial(_Handler, folder, given.first_byte_ms / 1e3, given.mb_per_s * 1e6, counts)
    server = ThreadingHTTPServer(("127.0.0.1", free_port()), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", counts
    finally:
        server.shutdown()
        server.server_close()


# --- processes that open an index

OPEN = """
import json, sys, time
import numpy as np
from scannery.indexer import ColdReads, SegmentCache, Store, open_index
kind, name, queries, target, rows = sys.argv[1:]
def memory():
    with open("/proc/self/smaps_rollup") as file:
        found = dict(line.split()[:2] for line in list(file)[1:])
    own = int(found["Anonymous:"]) / 1024
    return own, int(found["Pss:"]) / 1024 - own
store, before = Store.open("s3://bucket/store"), memory()
print("ready", flush=True)
sys.stdin.readline()
began, used = time.perf_counter(), time.process_time()
cold = None if kind in ("open", "warm") else ColdReads(max_bytes=0 if kind == "cold" else None)
index = open_index(store, name, 1, cold=cold)
found = {"open_s": time.perf_counter() - began, "cpu_s": time.process_time() - used, "seconds": [], "scores": []}
print("opened", flush=True)
sys.stdin.readline()
if kind != "open":
    queries_QD, [segment] = np.load(queries), index.segments
    allowed = None
    if int(rows):
        chosen = np.random.default_rng(7).choice(segment.rows, int(rows), replace=False)
        allowed = segment.allow(np.sort(chosen))
    settings = segment.settings_for(float(target))
    def ask():
        seconds, scores = [], []
        for query_D in queries_QD:
            began = time.perf_counter()
            hits = segment.find(query_D[None], 10, settings=settings, allowed=allowed, target_recall=float(target))
            seconds.append(time.perf_counter() - began)
            scores.append(hits.scores_QK[0].tolist())
        return seconds, scores
    found["seconds"], found["scores"] = ask()
    if kind == "kept":
        print("asked", flush=True)
        sys.stdin.readline()
        found["seconds"], found["scores"] = ask()
after = memory()
found |= {"own_mib": after[0] - before[0], "mapped_mib": after[1] - before[1]}
print(json.dumps(found))
"""


def opened(
    bucket: tuple[str, Counts], cache: Path, kind: str, name: str, queries: Path | str = "",
    target: float = 0.95, rows: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Open an index in a process, and ask its queries; return what it took, with the requests of both parts."""
    address, counts = bucket
    environ = os.environ | ENVIRONMENT | {"AWS_ENDPOINT": address, "PYTHONPATH": str(ROOT / "src")}
    found: dict[str, Any] = {}
    with subprocess.Popen(
        [sys.executable, "-c", OPEN, kind, name, str(queries), str(target), str(rows)],
        env=environ | {"SCANNERY_CACHE_DIR": str(cache), "TMPDIR": str(cache.parent)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                found |= json.loads(line)
                break
            if line.strip() == "opened":
                found["opened"] = dict(counts)
            counts.update(requests=0, bytes=0)
            process.stdin.write("\n")
            process.stdin.flush()
    if process.returncode:
        raise SystemExit("opening failed")
    disk = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    return found | {"asked": dict(counts), "disk": disk}


def open_cases(given: argparse.Namespace, folder: Path) -> None:
    """Print one table for each number of shards."""
    rows, dimensions = given.rows or 400_000, given.dimensions or 128
    vectors_ND = np.random.default_rng(3).standard_normal((rows, dimensions), np.float32)
    for shards in given.shards:
        place, cache = folder / str(shards), folder / "cache"
        keys = {"distance": "squared_l2", "shards": shards, "scann": {"exact_below_rows": 10_000_000}}
        spec = parse_spec({"index": "opened", "source": {"id": "id", "vector": "v"}, **keys})
        manifest = publish(Store.open(place / "store", create=True), spec, vectors_ND, folder)
        with slow_bucket(place, given) as bucket:

            def emptied(bucket: tuple[str, Counts] = bucket, cache: Path = cache) -> dict[str, Any]:
                shutil.rmtree(cache, ignore_errors=True)
                return opened(bucket, cache, "open", "opened")

            ways: dict[str, Callable[[], dict[str, Any]]] = {
                "empty": emptied,
                "filled": partial(opened, bucket, cache, "open", "opened"),
            }
            turns = in_turns(ways, given.rounds, warm=1)  # which compiles the kernels
        print(f"### {rows:,} x {dimensions}, {shards} shards, {manifest.size_bytes / 1e6:.0f} MB\n")
        lines = []
        for name, runs in turns.items():
            middle = [float(np.median([run[key] for run in runs])) for key in ("open_s", "cpu_s", "own_mib")]
            requests, size = (
                np.median([run["opened"][key] for run in runs]) for key in ("requests", "bytes")
            )
            cells = (
                f"{middle[0]:.2f}",
                f"{middle[1]:.2f}",
                f"{middle[2]:.0f}",
                f"{requests:.0f}",
                f"{size / 1e6:.0f}",
            )
            lines.append([name, *cells])
        print(table(("cache", "seconds", "processor s", "memory MiB", "requests", "MB"), lines), flush=True)


TITLES = (
    "", "queries", "open s", "GETs", "MB", "disk MB", "own MiB", "mapped MiB", "GETs a query", "MB a query", "p50 ms",
    "p95 ms", "recall",
)  # fmt: skip


def cold_cases(given: argparse.Namespace, folder: Path) -> None:
    """Print one table for each collection."""
    queries = given.queries
    for name in ("fashion", "generated"):
        data: Vectors = (
            fashion_mnist()
            if name == "fashion"
            else latent(given.rows or 200_000, given.dimensions or 384, queries)
        )
        spec = parse_spec(
            {"index": name, "source": {"id": "id", "vector": "v"}, "shards": 1, "distance": data.distance}
        )
        store = Store.open(folder / "store", create=True)
        publish(store, spec, data.vectors_ND, folder)
        np.save(folder / f"{name}.npy", data.queries_QD[:queries])
        ready_QD = search_ready(data.queries_QD[:queries], data.distance)
        true_QK = exact_search(data.vectors_ND, ready_QD, K, data.distance)[1]
        [entry] = read_manifest(store, name, 1).segments
        print(f"### {name}: {entry.rows:,} x {data.vectors_ND.shape[1]}, {entry.size_bytes / 1e6:.0f} MB\n")
        cases = [(kind, target, 0) for target in (0.9, 0.95, 0.99) for kind in ("warm", "cold")]
        lines = []
        with slow_bucket(folder, given) as bucket:
            for kind, target, rows in [*cases, ("kept", 0.95, 0), ("cold", 0.95, 100), ("cold", 1.0, 0)]:
                shutil.rmtree(folder / "cache", ignore_errors=True)
                found = opened(bucket, folder / "cache", kind, name, folder / f"{name}.npy", target, rows)
                recall = "" if rows else f"{recall_by_score(np.array(found['scores']), true_QK).mean():.3f}"
                about = f"{rows} rows allowed" if rows else "exact" if target == 1.0 else f"target {target:g}"
                lines.append([kind, about, *_cold_cells(found, len(ready_QD)), recall])
        print(table(TITLES, lines), flush=True)


def _cold_cells(found: dict[str, Any], count: int) -> list[str]:
    first, later = found["opened"], found["asked"]
    p50, p95 = (f"{np.quantile(found['seconds'], share) * 1e3:.1f}" for share in (0.5, 0.95))
    return [
        f"{found['open_s']:.1f}", str(first["requests"]), f"{first['bytes'] / 1e6:.1f}", f"{found['disk'] / 1e6:.1f}",
        f"{found['own_mib']:.0f}", f"{found['mapped_mib']:.0f}", f"{later['requests'] / count:.1f}",
        f"{later['bytes'] / count / 1e6:.2f}", p50, p95,
    ]  # fmt: skip


CASES = {"open": open_cases, "cold": cold_cases}


def main() -> None:
    given = options(
        __doc__, cases=CASES, rows=0, dimensions=0, shards=[1, 8], rounds=3, queries=100, first_byte_ms=30.0,
        mb_per_s=25.0,
    )  # fmt: skip
    print(
        f"{given.first_byte_ms:g} ms, {given.mb_per_s:g} MB/s a connection; {environment('obstore', 'pyarrow')}"
    )
    for name in given.cases:
        with folder_of() as folder:
            CASES[name](given, folder)


if __name__ == "__main__":
    main()

"""A good caller beside strangers and a key holder who take all that they can get.

python -m benchmarks.hostile_callers [--rounds 3] [--seconds 5]

A server of one worker has two indexes: 20,000 small vectors, and 61 rows with texts of 1 MB. Phases take turns: the
good caller alone, beside the others, whose process has a lower priority, since it stands for other machines, and beside
a process of that priority that only computes: what that costs is not the server's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

import scannery
from benchmarks.harness import children, free_port, options, served, table
from scannery.serving.security import KeyFile

DIMENSIONS = 16
ROWS, LARGE_ROWS, LARGE_BYTES = 20_000, 61, 1_000_000
STRANGERS, UNREAD, BODIES, HEAVY = 3, 12, 12, 8
"""Strangers without credentials; connections that do not read; bodies without an end; threads with heavy requests."""
PHASES = ("alone", "beside a process that computes", "beside all of them")
PATH = "/scannery.v1.SearchService/Search"


def build(store: Path, rows: int = ROWS, large_bytes: int = LARGE_BYTES) -> None:
    """Make the two indexes, `small` and `large`."""
    rng = np.random.default_rng(0)
    with scannery.connect(store, create=True) as client:
        small = client.create_index("small", dimensions=DIMENSIONS, attributes={"n": "int"})
        vectors = rng.normal(size=(rows, DIMENSIONS)).astype(np.float32)
        small.upsert_many({"id": i, "vector": vectors[i], "attributes": {"n": i}} for i in range(rows))
        large = client.create_index("large", dimensions=DIMENSIONS, lexical=True)
        text = ("word " * (large_bytes // 5))[:large_bytes]
        for i in range(LARGE_ROWS):
            large.upsert([{"id": i, "vector": vectors[i], "text": text}])


def _post(path: str, body: bytes, key: str, length: int | None = None) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(body) if length is None else length}",
        *([f"authorization: Bearer {key}"] if key else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _search(index: str, k: int, **options: object) -> bytes:
    query = {"vector": {"values": [1.0] * DIMENSIONS}}
    return json.dumps({"index": index, "query": query, "options": {"k": k, **options}}).encode()


def _dialled(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def stranger(port: int, key: str) -> None:
    """Ask without credentials, as fast as it goes."""
    with _dialled(port) as connection:
        while True:
            connection.sendall(_post(PATH, _search("small", 10), ""))
            if not connection.recv(1 << 16):
                return


def unread(port: int, key: str) -> None:
    """Ask for 57 MB, and read nothing."""
    with _dialled(port) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(_post(PATH, _search("large", LARGE_ROWS), key))
        time.sleep(25)


def body(port: int, key: str) -> None:
    """Send 60 MiB of a body, and not the end."""
    with _dialled(port) as connection:
        head = _post(PATH, b"", key, 60 << 20).replace(b"application/json", b"application/proto")
        connection.sendall(head)
        for _ in range((60 << 4) - 1):
            connection.sendall(bytes(1 << 16))
        time.sleep(25)


def heavy(port: int, key: str, number: int = 0) -> None:
    """Ask for counts, batches, highlights and pages of scans."""
    query = np.ones(DIMENSIONS, np.float32)
    with scannery.connect(f"http://127.0.0.1:{port}", api_key=key, retries=False) as client:
        small, large = client.index("small"), client.index("large")
        kinds: tuple[Callable[[], object], ...] = (
            lambda: small.search_many(np.tile(query, (1000, 1)), k=100),
            lambda: large.search("word", k=40, mode="lexical", highlight=True, timeout_s=30),
            lambda: next(iter(small.scan(order_by="n", page_size=1000))),
            lambda: small.count(where={"$or": [{"n": {"$gt": i}} for i in range(200)]}),
        )
        while True:
            with suppress(scannery.ScanneryError):
                kinds[number % len(kinds)]()
            number += 1


KINDS: dict[str, tuple[int, Callable[..., None]]] = {
    "strangers": (STRANGERS, stranger),
    "unread answers": (UNREAD, unread),
    "bodies": (BODIES, body),
    "heavy requests": (HEAVY, heavy),
}


def hostile(port: int, key: str) -> None:
    """Do all of it at once, again and again, until the process is ended."""
    os.nice(15)

    def again(kind: Callable[..., None], *arguments: object) -> None:
        while True:
            with suppress(OSError, scannery.ScanneryError):
                kind(port, key, *arguments)
            time.sleep(0.05)

    for count, kind in KINDS.values():
        for number in range(count):
            extra = (number,) if kind is heavy else ()
            threading.Thread(target=again, args=(kind, *extra), daemon=True).start()
    time.sleep(3600)


def compute() -> None:
    """Use a core, until the process is ended."""
    os.nice(15)
    while True:
        pass


@contextmanager
def _beside(*arguments: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.hostile_callers", *arguments])
    try:
        time.sleep(3)  # until it is under way
        yield
    finally:
        process.kill()
        process.wait()


def resident_mb(pid: int) -> float:
    """Return the memory of the largest process among a server and its workers, in MB of a million bytes."""
    sizes = []
    for each in (pid, *children(pid)):
        lines = Path(f"/proc/{each}/status").read_text().splitlines()
        sizes += [int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS")]
    return max(sizes)


def _asked(address: str, key: str, seconds: float, pid: int) -> tuple[list[float], float, int]:
    """Return latencies of the good caller, the most memory of the server in MB, and failed calls."""
    latencies, failed, memory = list[float](), 0, 0.0
    with scannery.connect(address, api_key=key, retries=False) as client:
        index, until_s = client.index("small"), time.monotonic() + seconds
        query = np.random.default_rng(1).normal(size=DIMENSIONS)
        while time.monotonic() < until_s:
            started_s = time.perf_counter()
            try:
                index.search(query, k=10)
                latencies.append(time.perf_counter() - started_s)
            except scannery.ScanneryError:
                failed += 1
            memory = max(memory, resident_mb(pid))
            time.sleep(0.005)
    return latencies, memory, failed


def main() -> None:
    if sys.argv[1:2] == ["--compute"]:
        compute()
    if sys.argv[1:2] == ["--hostile"]:
        hostile(int(sys.argv[2]), sys.argv[3])
    arguments = options(__doc__, rounds=3, seconds=5.0, rows=ROWS)
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder) / "store", arguments.rows)
        keys = KeyFile(Path(folder) / "keys.json")
        good, bad = (keys.create(name, scopes=("read",))[1] for name in ("good", "bad"))
        port = free_port()
        chosen = ("--keys", str(keys.path), "--workers", "1", "--http", f"127.0.0.1:{port}")
        with served(Path(folder) / "store", *chosen) as (pid, address, _):
            with scannery.connect(address, api_key=good) as client:
                for _ in range(5):
                    client.index("small").search([1.0] * DIMENSIONS)
            quiet, computed, beside = list[float](), list[float](), list[float]()
            before_mb, most_mb, failures = resident_mb(pid), 0.0, 0
            for _ in range(arguments.rounds):
                quiet += _asked(address, good, arguments.seconds, pid)[0]
                with _beside("--compute"):
                    computed += _asked(address, good, arguments.seconds, pid)[0]
                with _beside("--hostile", str(port), bad):
                    latencies, memory, failed = _asked(address, good, arguments.seconds, pid)
                beside, most_mb, failures = beside + latencies, max(most_mb, memory), failures + failed
                time.sleep(1)
    rows = [
        (name, len(each), *(f"{1000 * float(np.quantile(each, share)):.1f}" for share in (0.5, 0.99)))
        for name, each in zip(PHASES, (quiet, computed, beside), strict=True)
    ]
    print(table(("good caller", "searches", "p50 ms", "p99 ms"), rows))
    computing, ratio = (
        float(np.quantile(each, 0.99) / np.quantile(quiet, 0.99)) for each in (computed, beside)
    )
    print(f"\np99 beside / alone: {ratio:.1f}, of computing: {computing:.1f}; refused or failed: {failures}")
    print(f"memory of the server: {before_mb:.0f} MB before, at most {most_mb:.0f} MB")


if __name__ == "__main__":
    main()

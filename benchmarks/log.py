"""The mutation log in SQLite and in PostgreSQL, side by side in one run: turns, and upserts through a server.

    python -m benchmarks.log FOLDER [--url postgresql://…]

Without a URL, a server of PostgreSQL is started here, whose commits are synced.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scannery
from benchmarks.live_setup import BATCH, milliseconds, publish, random_vectors, spec_of
from benchmarks.report import environment, table
from scannery.indexer import Store, read_manifest
from scannery.live.log.homes import log_home
from scannery.live.log.location import DatabaseUrl, LogRoot
from scannery.live.log.mutation_log import MutationLog
from tests.live.log.postgres_server import postgres_or_skip

ROUNDS = 300
UPSERT_S = 5.0
CLIENTS = 4
SERVER = """
import sys
from scannery.serving import ServerConfig, serve
config = ServerConfig(store=sys.argv[1], listen="127.0.0.1:0", log=sys.argv[2])
serve(config, workers=2, ready=lambda address: print(address, flush=True))
"""


def store_at(folder: Path) -> Store:
    """Return a new store with an index that is never sealed."""
    store = Store.open(folder, create=True)
    spec = spec_of("writes", "cosine", seal_rows=1_000_000, max_rows=2_000_000, max_bytes=1 << 34)
    publish(store, spec, random_vectors(2000), folder.parent)
    return store


def measure_turns(logs: dict[str, MutationLog]) -> None:
    """Print the time of turns with one record, alternating: the speed of a disk changes by the minute."""
    rows = []
    for size_bytes in (600, 50_000):
        data, took = os.urandom(size_bytes), {name: list[float]() for name in logs}
        for _ in range(ROUNDS):
            for name, log in logs.items():
                started = time.perf_counter()
                with log.transaction(after=0) as transaction:
                    transaction.append(data)
                took[name].append(time.perf_counter() - started)
        for name, times in took.items():
            rate = f"{1 / statistics.median(times):,.0f}"
            p50, p99 = (f"{milliseconds(times, share):.2f}" for share in (0.5, 0.99))
            rows.append([f"{name}, {size_bytes:,} bytes", rate, p50, p99])
    print(table(["one writer", "turns/s", "p50, ms", "p99, ms"], rows), flush=True)


@contextlib.contextmanager
def serving(store: Path, log: str) -> Iterator[str]:
    """Run a server of two workers, and give its address."""
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(store), log],
        env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def upserts(address: str, clients: int, batch: int) -> list[str]:
    """Return upserts/s, calls/s, p50 and p99 of clients that write for UPSERT_S."""
    vectors_ND, took, end_s = random_vectors(2000), list[float](), time.perf_counter() + UPSERT_S

    def work(number: int) -> None:
        with scannery.connect(address) as client:
            index, call = client.index("writes"), 0
            while time.perf_counter() < end_s:
                rows: Any = [
                    {"id": f"{number}-{call}-{i}", "vector": vectors_ND[(call * batch + i) % len(vectors_ND)]}
                    for i in range(batch)
                ]
                started = time.perf_counter()
                index.upsert(rows)
                took.append(time.perf_counter() - started)
                call += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = len(took) / UPSERT_S
    return [
        f"{calls * batch:,.0f}",
        f"{calls:,.0f}",
        f"{milliseconds(took, 0.5):.1f}",
        f"{milliseconds(took, 0.99):.1f}",
    ]


def measure_upserts(folder: Path, url: str) -> None:
    """Print upserts through a server with each log."""
    rows = []
    for name, log in (("SQLite", ""), ("PostgreSQL", url)):
        place = folder / f"served-{name}"
        place.mkdir()
        store_at(place / "store")
        with serving(place / "store", log) as address:
            for clients, batch in ((1, 1), (CLIENTS, 1), (CLIENTS, BATCH)):
                rows.append(
                    [f"{name}, {clients} clients, batches of {batch}", *upserts(address, clients, batch)]
                )
    print(table(["server with 2 workers", "upserts/s", "calls/s", "p50, ms", "p99, ms"], rows), flush=True)


def claimed(store: Store, root: LogRoot | None) -> MutationLog:
    """Return a new log of the index."""
    return log_home(store, "writes", root).claim(None, read_manifest(store, "writes"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", default="")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = given.url
        if not url:
            server = postgres_or_skip(durable=True)
            stack.callback(server.stop)
            url = server.new_database()
        print(environment("apsw", "psycopg", "numpy"), flush=True)
        given.folder.mkdir(parents=True, exist_ok=True)
        roots: dict[str, LogRoot | None] = {"SQLite": None, "PostgreSQL": DatabaseUrl(url)}
        logs = {}
        for name, root in roots.items():
            (given.folder / name).mkdir()
            logs[name] = claimed(store_at(given.folder / name / "store"), root)
        measure_turns(logs)
        measure_upserts(given.folder, url)


if __name__ == "__main__":
    main()

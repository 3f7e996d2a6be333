"""PostgreSQL is killed and started again while clients write through a server: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scannery
from tests.data import ROOT
from tests.live.log.postgres_server import PostgresServer, postgres_or_skip
from tests.live.model import DIMENSIONS, make_store, random_row
from tests.tools.prepared_process import PreparedProcess

pytestmark = pytest.mark.long

KILLS = 10
CLIENTS = 2
PROGRAM = """
import sys
from scannery.serving import ServerConfig, serve
config = ServerConfig(store=sys.argv[1], listen="127.0.0.1:0", log=sys.argv[2])
serve(config, workers=2, ready=lambda address: print(address, flush=True))
"""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    server = postgres_or_skip(durable=True)
    yield server
    server.stop()


class Writer(threading.Thread):
    """Writes rows of its own, each with a request id that it repeats until it has an answer."""

    def __init__(self, address: str, number: int, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._address, self._number, self._ended = address, number, ended
        self.acknowledged: dict[str, int] = {}
        """The sequence of each row."""
        self.retried = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            with scannery.connect(self._address, timeout_s=30) as client:
                while not self._ended.is_set():
                    name = f"w{self._number}-{len(self.acknowledged)}"
                    self.acknowledged[name] = self._written(client, name)
        except BaseException as error:  # noqa: BLE001  the test tells
            self.problem = error

    def _written(self, client: scannery.Client, name: str) -> int:
        row: Any = {"id": name, "vector": [1.0] * DIMENSIONS}
        request_id, end_s = uuid.uuid4().hex, time.monotonic() + 120
        while True:
            try:
                return client.index("live").upsert([row], request_id=request_id).sequence
            except (scannery.UnavailableError, scannery.DeadlineExceededError):
                if time.monotonic() > end_s:
                    raise
                self.retried += 1
                time.sleep(0.05)


class Searcher(threading.Thread):
    """Searches all the time; no search may fail."""

    def __init__(self, address: str, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._address, self._ended = address, ended
        self.searches = 0
        self.problems: list[str] = []

    def run(self) -> None:
        with scannery.connect(self._address, timeout_s=30) as client:
            while not self._ended.is_set():
                try:
                    client.index("live").search([1.0] * DIMENSIONS, k=3)
                    self.searches += 1
                except scannery.ScanneryError as error:
                    self.problems.append(str(error))


def test_nothing_acknowledged_is_lost_and_no_request_is_done_twice(
    server: PostgresServer, tmp_path: Path
) -> None:
    rng = random.Random(0)
    path = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(50)])
    url = server.new_database()
    process = PreparedProcess(
        [sys.executable, "-c", PROGRAM, str(path), url],
        env=_environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    ended = threading.Event()
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address
        writers = [Writer(address, number, ended) for number in range(CLIENTS)]
        searcher = Searcher(address, ended)
        for thread in (*writers, searcher):
            thread.start()
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.2, 1.5))
            server.kill()
            time.sleep(rng.uniform(0.0, 0.5))
            server.start()
        time.sleep(1.0)
        ended.set()
        for thread in (*writers, searcher):
            thread.join(150)
        written = {name: sequence for writer in writers for name, sequence in writer.acknowledged.items()}
        print(
            f"{len(written)} writes, {sum(writer.retried for writer in writers)} repeated, {searcher.searches} searches"
        )
        assert [writer.problem for writer in writers] == [None] * CLIENTS
        assert searcher.problems == []
        with scannery.connect(address) as client:
            index = client.index("live")
            # The worker that answers may not have asked the database yet what the other one wrote.
            index.search([1.0] * DIMENSIONS, k=1, min_sequence=max(written.values()))
            found = index.get([*written])
            assert [hit.id for hit in found if hit is not None] == [*written]
            # Each acknowledged request has one sequence, and there are no others.
            assert sorted(written.values()) == list(range(1, len(written) + 1))
            assert client.index("live").stats().sequence == len(written)
    finally:
        ended.set()
        process.terminate()
        process.communicate(timeout=60)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)])}

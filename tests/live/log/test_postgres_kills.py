"""PostgreSQL is killed and started again while clients write through a server: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data import ROOT, repeated
from tests.live.log.postgres_server import PostgresServer, postgres_or_skip
from tests.live.log.traffic import Searcher, Writer, check_written
from tests.live.model import make_store, random_row
from tests.tools.prepared_process import PreparedProcess

pytestmark = pytest.mark.long

KILLS = repeated(10)
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
        written = check_written(address, writers)
        print(f"{len(written)} writes, {searcher.searches} searches")
        assert searcher.problems == []
    finally:
        ended.set()
        process.terminate()
        process.communicate(timeout=60)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)])}

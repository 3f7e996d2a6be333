"""The database of the log fails while clients write and search at two roots: real processes, real PostgreSQL."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import scannery
from tests.cluster.processes import Process, often, wait_until
from tests.data import repeated
from tests.live.log.postgres_server import PostgresServer, postgres_or_skip
from tests.live.log.traffic import Searcher, Writer, check_written
from tests.live.model import DIMENSIONS, make_store, random_row
from tests.tools.ports import free_ports

pytestmark = pytest.mark.long

GROUPS, ROOTS, CLIENTS = 2, 2, 4
KILLS = repeated(often(15, 50))
QUERY = [1.0] * DIMENSIONS


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    server = postgres_or_skip(durable=True)
    yield server
    server.stop()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = random.Random(0)
    return make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(50)])


@contextmanager
def roots_of(store: Path, log: str) -> Iterator[list[Process]]:
    """Give two roots over one leaf of each group, which follow a log."""
    with ExitStack() as stack:
        ports = iter(free_ports(GROUPS + ROOTS))
        leaves = [
            Process(store, next(ports), "--role", "leaf", "--group", f"{group}/{GROUPS}", "--log", log)
            for group in range(GROUPS)
        ]
        target = ",".join(leaf.address for leaf in leaves)
        roots = [
            Process(store, next(ports), "--role", "root", "--leaves", target, "--log", log)
            for _ in range(ROOTS)
        ]
        for process in (*leaves, *roots):
            stack.callback(process.kill)
            process.start()
        for process in (*leaves, *roots):
            process.wait()
        yield roots


@contextmanager
def traffic(roots: Sequence[Process]) -> Iterator[tuple[list[Writer], list[Searcher]]]:
    """Write and search at all roots until the end of the block."""
    ended = threading.Event()
    writers = [Writer(roots[number % ROOTS].address, number, ended) for number in range(CLIENTS)]
    searchers = [Searcher(root.address, ended) for root in roots]
    for thread in (*writers, *searchers):
        thread.start()
    try:
        yield writers, searchers
    finally:
        ended.set()
        for thread in (*writers, *searchers):
            thread.join(150)


def wait_for_writes(writers: Sequence[Writer]) -> None:
    """Return when each writer has an answer to some further writes, or has failed."""
    before = [len(writer.acknowledged) for writer in writers]
    for writer, count in zip(writers, before, strict=True):
        wait_until(lambda: len(writer.acknowledged) > count + 5 or writer.problem is not None, 120)  # noqa: B023


def test_the_database_is_killed_and_started_again(database: PostgresServer, store: Path) -> None:
    rng = random.Random(KILLS)
    with roots_of(store, database.new_database()) as roots:
        with traffic(roots) as (writers, searchers):
            for _ in range(KILLS):
                time.sleep(rng.uniform(0.2, 1.0))
                database.kill()
                time.sleep(rng.uniform(0.0, 1.0))
                database.start()
            wait_for_writes(writers)
        assert [searcher.problems for searcher in searchers] == [[]] * ROOTS
        for root in roots:
            assert len(check_written(root.address, writers)) > 20


def test_a_synchronous_standby_takes_over(database: PostgresServer, store: Path) -> None:
    standby = database.standby(synchronous=True)
    try:
        with roots_of(store, both_of(database, standby)) as roots:
            with traffic(roots) as (writers, searchers):
                time.sleep(2)
                database.kill()
                time.sleep(0.5)
                standby.promote()
                wait_for_writes(writers)
            assert [searcher.problems for searcher in searchers] == [[]] * ROOTS
            for root in roots:
                assert len(check_written(root.address, writers)) > 20
    finally:
        standby.stop()


def test_each_process_notices_that_a_standby_lacks_the_last_writes(
    database: PostgresServer, store: Path
) -> None:
    standby = database.standby(synchronous=False)
    try:
        with roots_of(store, both_of(database, standby)) as roots:
            clients = [scannery.connect(root.address, timeout_s=30) for root in roots]
            indexes = [client.index("live") for client in clients]
            kept = indexes[0].upsert([{"id": "kept", "vector": QUERY}]).sequence
            wait_until(lambda: _position_at(standby) == kept)
            standby.kill()
            lost = indexes[0].upsert([{"id": f"lost{n}", "vector": QUERY} for n in range(40)]).sequence
            assert len(indexes[1].search(QUERY, 60, where={"id": {"$ne": "kept"}}, min_sequence=lost)) > 40
            database.kill()
            standby.start()
            standby.promote()
            # The same sequence is another batch now: no leaf may answer with rows of the former one.
            wait_until(lambda: is_written(indexes[1], "after"))
            for index in indexes:
                # Each leaf notices by itself.
                wait_until(lambda: _ids(index) == ["kept", "after"])  # noqa: B023  it is called in this round
                assert index.stats().rows == 52
            for client in clients:
                client.close()
    finally:
        standby.stop()


def _ids(index: scannery.Index) -> list[str]:
    hits = index.get(["kept", "after", *(f"lost{n}" for n in range(40))])
    return [hit.id for hit in hits if hit is not None]


def is_written(index: scannery.Index, name: str) -> bool:
    """Write a datapoint; return whether that succeeded, and not whether it was written."""
    try:
        index.upsert([{"id": name, "vector": QUERY}])
    except (scannery.UnavailableError, scannery.DeadlineExceededError, scannery.DataLossError):
        return False
    return True


def _position_at(standby: PostgresServer) -> int | None:
    """Return the last mutation that a standby has; None: it does not even have the tables."""
    from psycopg.errors import UndefinedTable

    try:
        [(position,)] = standby.execute("SELECT max(position) FROM scannery.logs", database="postgres")
    except UndefinedTable:
        return None
    return int(position or 0)


def both_of(primary: PostgresServer, standby: PostgresServer) -> str:
    """Return a URL that finds the primary among both."""
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

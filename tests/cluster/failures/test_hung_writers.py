"""A root that is stopped in its turn, and a machine that is lost with a lock: others go on, nothing is half written."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.live.log.location import DatabaseUrl
from scannery.live.log.postgres.task_lock import try_task_lock
from tests.cluster.failures.test_log_failures import is_written, roots_of
from tests.cluster.machines import SERVICE, machines_or_skip
from tests.cluster.processes import Process, often, wait_until
from tests.data import ROOT, repeated
from tests.live.log.postgres_server import PostgresServer, postgres_or_skip
from tests.live.model import DIMENSIONS, make_store, random_row

pytestmark = pytest.mark.long

STOPS = repeated(often(4, 20))
BATCH = 500
OTHERS_WRITE_S = 7.0
"""5 s until a writer that hangs is ended, and the time to notice it."""
IN_TURN = """
SELECT count(*) FROM pg_stat_activity AS session JOIN pg_locks AS held USING (pid)
WHERE held.relation = 'scannery.logs'::regclass AND mode = 'RowShareLock' AND granted AND wait_event_type = 'Client'
"""


class Upserts(threading.Thread):
    """Writes batches, each of which replaces all datapoints of the one before."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self.ended = threading.Event()
        self.written, self.sequence, self.failed = 0, 0, 0
        self.unexpected: list[Exception] = []

    def run(self) -> None:
        """Count the batches that were acknowledged; those that fail must say that they can be repeated."""
        number, text = 0, "word " * 4000
        with scannery.connect(self._address, retries=False, timeout_s=60) as client:
            while not self.ended.is_set():
                number += 1
                rows: list[Any] = [
                    {"id": f"b{row}", "vector": np.full(DIMENSIONS, number), "payload": {"n": number, "text": text}}
                    for row in range(BATCH)
                ]  # fmt: skip
                try:
                    self.sequence = client.index("live").upsert(rows).sequence
                    self.written = number
                except scannery.UnavailableError:
                    self.failed += 1
                except Exception as error:  # noqa: BLE001  the test fails with it
                    self.unexpected.append(error)


def stopped_in_its_turn(root: Process, database: PostgresServer, name: str) -> None:
    """Stop a root that writes, at a random moment between the lock of the log and the commit."""
    rng = random.Random(0)
    for _ in range(1000):
        time.sleep(rng.uniform(0, 0.2))
        root.send(signal.SIGSTOP)
        time.sleep(0.02)  # what it has sent is read
        if database.execute(IN_TURN, database=name) == [(1,)]:
            return
        root.send(signal.SIGCONT)
    raise AssertionError("it was never in its turn")


def test_others_write_while_a_root_is_stopped_in_its_turn(postgres: PostgresServer, tmp_path: Path) -> None:
    rng = random.Random(0)
    store = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(50)])
    url = postgres.new_database()
    with roots_of(store, url) as (root, other), scannery.connect(other.address, timeout_s=60) as client:
        index = client.index("live")
        wait_until(lambda: is_written(index, "mine0"))
        upserts = Upserts(root.address)
        waited_s: list[float] = []
        upserts.start()
        try:
            for number in range(1, STOPS + 1):
                stopped_in_its_turn(root, postgres, url.rpartition("/")[2])
                began_s = time.monotonic()
                index.upsert([{"id": f"mine{number}", "vector": [1.0] * DIMENSIONS}])
                waited_s.append(time.monotonic() - began_s)
                failed = upserts.failed
                root.send(signal.SIGCONT)
                wait_until(lambda: upserts.failed > failed)  # noqa: B023  it is called in this round
                check_whole(index)
        finally:
            with suppress(ProcessLookupError):
                root.send(signal.SIGCONT)
            upserts.ended.set()
            upserts.join(120)
        print(f"others waited {', '.join(f'{each:.1f}' for each in waited_s)} s")
        assert max(waited_s) < OTHERS_WRITE_S
        assert upserts.unexpected == []
        assert upserts.written > 0
        assert None not in index.get([f"mine{number}" for number in range(STOPS + 1)])
        index.search([1.0] * DIMENSIONS, 1, min_sequence=upserts.sequence)  # the other root has read it then
        assert check_whole(index) >= upserts.written


def check_whole(index: scannery.Index) -> int:
    """Return the number of the newest batch, all datapoints of which must be there and no others."""
    points = index.scan(where={"id": {"$prefix": "b"}})
    numbers = [point.payload["n"] for point in points if point.payload is not None]
    assert len(numbers) in {0, BATCH}
    assert len(set(numbers)) <= 1
    return numbers[0] if numbers else 0


def is_free(log: DatabaseUrl) -> bool:
    """Take the lock of a task, and give it back; return whether it was free."""
    lock = try_task_lock(log, "log", "seal")
    if lock is not None:
        lock.release()
    return lock is not None


def test_a_lost_machine_does_not_keep_its_locks() -> None:
    program = (
        "import sys; from scannery.live.log.location import DatabaseUrl\n"
        "from scannery.live.log.postgres.task_lock import try_task_lock\n"
        "lock = try_task_lock(DatabaseUrl(sys.argv[1]), 'log', 'seal')\n"
        "print(lock is not None, flush=True); sys.stdin.readline()\n"
    )
    with machines_or_skip(1) as [machine], ExitStack() as stack:
        database = postgres_or_skip(host=SERVICE)
        stack.callback(database.stop)
        url = database.new_database()
        own = DatabaseUrl(url)
        holder = subprocess.Popen(
            [*machine.enter, sys.executable, "-c", program, url.replace("127.0.0.1", SERVICE)],
            env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/sbin"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "True\n"
            assert not is_free(own)
            machine.cut(SERVICE)
            wait_until(lambda: is_free(own))
        finally:
            holder.kill()
            holder.communicate()

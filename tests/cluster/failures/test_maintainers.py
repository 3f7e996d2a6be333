"""`scannery maintain`, twice on one store in a bucket with its logs in PostgreSQL: as on two machines."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import (
    IndexSpec,
    LiveSpec,
    Store,
    latest_version,
    list_versions,
    parse_spec,
    read_manifest,
    verify,
)
from scannery.live.log.location import DatabaseUrl
from scannery.live.log.postgres.task_lock import try_task_lock
from scannery.live.log.registry import registered
from scannery.live.maintenance.locks import TaskLocks
from scannery.live.maintenance.main import run_due
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.roles import server_catalog
from scannery.serving.services.write import Writes
from scannery.v1 import index_pb2, types_pb2
from tests.cluster.processes import wait_until
from tests.data import ROOT, datapoints, publish, repeated
from tests.live.log.postgres_server import PostgresServer, postgres_or_skip
from tests.object_server import ObjectServer, object_server
from tests.tools.prepared_process import PreparedProcess

pytestmark = pytest.mark.system

SEAL_ROWS = 100
KILLS = 2 * repeated(3)
"""Of either of two processes, as it comes."""
DIMENSIONS = 4
SPEC = parse_spec(
    {
        "index": "live",
        "source": {"id": "id", "vector": "vector", "document_id": "doc"},
        "shards": 2,
        "live": {"seal_rows": SEAL_ROWS, "merge_segments": 20, "merge_deleted_share": 0.9},
    }
)
MERGING = SPEC.model_copy(update={"live": LiveSpec(seal_rows=SEAL_ROWS, merge_segments=3)})
URI = "s3://bucket/store"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with object_server(monkeypatch) as server:
        yield server


class Writer:
    """Writes to the index as a server does that starts no maintenance, and knows the revision of each row."""

    def __init__(self, catalog: Catalog, rows: int) -> None:
        self.catalog = catalog
        self.revisions: dict[str, int | None] = {f"id{n}": None for n in range(rows)}
        self.sequence = 0
        self._rng = random.Random(5)
        catalog.refresh()

    def write(self, rows: int = 40) -> None:
        """Replace or add rows, which may move to another shard, and delete one."""
        self.catalog.refresh()  # follows the versions of others
        names = self._rng.sample([f"id{n}" for n in range(300)], rows)
        upserts = [index_pb2.Upsert(datapoint=self._point(name)) for name in names[1:]]
        writes, deadline = Writes(self.catalog), Deadline.after(30)
        done = writes.upsert(index_pb2.UpsertRequest(index="live", upserts=upserts), deadline)
        self.revisions |= dict.fromkeys(names[1:], int(done.sequence))
        deletion = index_pb2.DeleteRequest(index="live", ids=names[:1])
        self.sequence = int(writes.delete(deletion, deadline).sequence)
        self.revisions.pop(names[0], None)

    def _point(self, name: str) -> types_pb2.Datapoint:
        vector = types_pb2.Vector(values=[self._rng.gauss(0, 1) for _ in range(DIMENSIONS)])
        return types_pb2.Datapoint(id=name, document_id=f"doc{self._rng.randrange(60)}", vector=vector)

    def check(self) -> None:
        """Check the rows, and that each mutation was sealed once."""
        self.catalog.refresh()
        found: dict[str, int | None] = {}
        for segment, rows_R in self.catalog.snapshot("live", min_sequence=self.sequence).index.live_rows():
            rows = segment.take(rows_R).to_pydict()
            revisions = rows.get("_revision", [None] * len(rows_R))
            found |= dict(zip(rows["id"], revisions, strict=True))
        assert found == self.revisions
        store = self.catalog.store
        assert verify(store, "live").problems == ()
        manifests = [read_manifest(store, "live", version) for version in list_versions(store, "live")]
        seals = [each for each in manifests if each.statistics.get("mode") == "live"]
        ends = [0, *(each.log_sequence for each in seals)]
        assert [each.statistics["mutations"] for each in seals] == np.diff(ends).tolist()
        assert min(np.diff(ends)) > 0


class Maintainer:
    """A process of the command, as on a machine of its own: with a cache and locks that no other has."""

    def __init__(self, folder: Path, name: str, url: DatabaseUrl) -> None:
        self._output = folder / f"{name}.log"
        self._environment = os.environ | {
            "PYTHONPATH": str(ROOT / "src"), "SCANNERY_LOG": url.url, "SCANNERY_CACHE_DIR": str(folder / name),
        }  # fmt: skip
        self._process: subprocess.Popen[str] | None = None
        self._starts = 0

    def start(self, *options: str) -> None:
        self._starts += 1
        with self._output.open("ab") as output:
            self._process = PreparedProcess(
                [sys.executable, "-m", "scannery.cli.main", "maintain", "--store", URI, *options], text=True,
                env=self._environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._output.read_text() if self._output.exists() else ""

    def wait_ready(self) -> None:
        wait_until(lambda: self.output.count("Maintaining") == self._starts, 60)

    def seals(self) -> bool:
        """Return whether a task of it seals now."""
        return any(" seal live" in command for command in self._commands())

    def _commands(self) -> Iterator[str]:
        assert self._process is not None
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.getpgid(int(folder.name)) == self._process.pid:
                    yield (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()

    def kill(self) -> None:
        """End it and its tasks at once, as when its machine stops."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Return its exit code after a signal."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(30)


@pytest.fixture
def spec() -> IndexSpec:
    return SPEC


@pytest.fixture
def store(bucket: ObjectServer, spec: IndexSpec, tmp_path: Path) -> Store:
    opened = Store.open(URI)
    vectors = np.random.default_rng(0).standard_normal((150, DIMENSIONS), np.float32)
    table = datapoints(spec, vectors, ids=[f"id{n}" for n in range(150)])
    publish(opened, spec, table, tmp_path, shards=2)
    return opened


@pytest.fixture
def url(postgres: PostgresServer) -> DatabaseUrl:
    return DatabaseUrl(postgres.new_database())


@pytest.fixture
def writer(store: Store, url: DatabaseUrl) -> Iterator[Writer]:
    with closing(server_catalog(store, log=url)) as catalog:
        yield Writer(catalog, 150)


@pytest.fixture
def pair(tmp_path: Path, url: DatabaseUrl) -> Iterator[list[Maintainer]]:
    machines = [Maintainer(tmp_path, name, url) for name in "ab"]
    yield machines
    for machine in machines:
        machine.kill()


def sealed_up_to(store: Store, sequence: int) -> Callable[[], bool]:
    return lambda: read_manifest(store, "live").log_sequence >= sequence


def test_two_seal_each_mutation_once(store: Store, writer: Writer, pair: list[Maintainer]) -> None:
    for machine in pair:
        machine.start("--metrics-listen", "127.0.0.1:0")
    for machine in pair:
        machine.wait_ready()
    for _ in range(2):
        for _ in range(3):
            writer.write()
        wait_until(sealed_up_to(store, writer.sequence - 1), 60)
    address = re.search(r"metrics on (\S+);", pair[0].output)
    assert address is not None
    with urllib.request.urlopen(f"http://{address[1]}/metrics") as answer:
        assert 'scannery_maintenance_unsealed_rows{index="live"}' in answer.read().decode()
    assert [
        machine.end(number) for machine, number in zip(pair, (signal.SIGTERM, signal.SIGINT), strict=True)
    ] == [0, 0]
    assert not any("ERROR" in machine.output for machine in pair)
    writer.check()


def test_a_task_that_another_machine_runs_is_left_to_it(
    store: Store, writer: Writer, url: DatabaseUrl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path / "cache"))
    writer.write()
    known = registered(store, "live")
    assert known is not None
    held = try_task_lock(url, known.log_id, "seal")
    assert held is not None
    assert try_task_lock(url, known.log_id, "seal") is None
    merging = try_task_lock(url, known.log_id, "merge")
    assert merging is not None  # each task has its own
    merging.release()
    run_due(store, ["live"], log_root=url, fill_cache=False)
    assert list_versions(store, "live") == [1]
    held.release()
    run_due(store, ["live"], log_root=url, fill_cache=False)
    assert latest_version(store, "live") != 1
    assert not (tmp_path / "cache" / "segments").exists()
    writer.check()


@pytest.mark.long
@pytest.mark.parametrize("spec", [MERGING])
def test_what_a_killed_one_leaves_the_other_seals(
    store: Store, writer: Writer, pair: list[Maintainer]
) -> None:
    for machine in pair:
        machine.start()
    for killed in range(KILLS):
        until_s = time.monotonic() + 120
        # Whichever takes the lock first; the other finds it held.
        while not (sealing := [machine for machine in pair if machine.seals()]):
            assert time.monotonic() < until_s, [machine.output for machine in pair]
            if writer.sequence - read_manifest(store, "live").log_sequence < 6:
                writer.write()
            time.sleep(0.02)
        time.sleep(random.Random(killed).random())  # anywhere in the task, which takes seconds
        machine = sealing[0]
        machine.kill()
        for _ in range(3):
            writer.write()
        wait_until(sealed_up_to(store, writer.sequence - 3), 120)  # by the other
        machine.start()
        machine.wait_ready()
    assert [machine.end() for machine in pair] == [0, 0]
    writer.check()


@pytest.mark.long
def test_it_waits_for_a_bucket_and_a_database_that_are_away(
    store: Store, bucket: ObjectServer, tmp_path: Path
) -> None:
    server = postgres_or_skip()
    machine = Maintainer(tmp_path, "a", url := DatabaseUrl(server.new_database()))
    try:
        with closing(server_catalog(store, log=url)) as catalog:
            writer = Writer(catalog, 150)
            for _ in range(3):
                writer.write()
            server.kill()
            machine.start()
            machine.wait_ready()
            wait_until(lambda: "its versions" in machine.output or "cannot be opened" in machine.output, 60)
            server.start()
            wait_until(sealed_up_to(store, writer.sequence), 120)
            bucket.failing = True
            time.sleep(5)
            bucket.failing = False
            for _ in range(3):
                writer.write()
            wait_until(sealed_up_to(store, writer.sequence), 180)
            writer.check()
            # A lock whose session is lost: the task goes on.
            lock = TaskLocks(store, "live", url).try_lock("gc")
            assert lock is not None
            server.kill()
            lock.shared.release()
            os.close(lock.file)
            bucket.failing = True
            assert machine.end() == 0
        assert "Traceback" not in machine.output
    finally:
        bucket.failing = False
        machine.kill()
        server.stop()

"""Writes of every kind at two roots, compared with a model, while processes are killed and files are collected."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from scannery.indexer import LiveSpec, Store, list_versions, read_manifest, verify
from tests.cluster.failures.storm_writers import StormWriter
from tests.cluster.processes import Process, often, wait_until
from tests.data import ROOT, repeated
from tests.live.log.postgres_server import PostgresServer
from tests.live.model import LIVE, make_store, random_row
from tests.tools.ports import free_ports
from tests.tools.prepared_process import PreparedProcess

pytestmark = pytest.mark.long

GROUPS, ROWS, ROOTS, WRITERS = 2, 2, 2, 4
SEED = 5
SECONDS = max(20, repeated(often(60, 600)))
# Versions are removed as soon as no process leases them.
SPEC = LIVE.model_copy(
    update={
        "live": LiveSpec(
            seal_rows=100, seal_age_s=2, merge_segments=3, gc_every_s=3, gc_keep=1, gc_min_age_s=0
        )
    }
)
KNOWN_AFTER_S, SEALED_WITHIN_S = 2.0, 120.0


class Maintainer:
    """A process of the command, as on a machine of its own."""

    def __init__(self, store: Path, folder: Path, log: str) -> None:
        self._command = [
            sys.executable, "-m", "scannery.cli.main", "maintain", "--store", str(store), "--log", log,
        ]  # fmt: skip
        self._environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "SCANNERY_CACHE_DIR": str(folder)}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = PreparedProcess(
            self._command, text=True, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        """End it and its tasks at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Bed:
    """A cluster, two maintainers, and what happens to them."""

    def __init__(self, store: Path, folder: Path, log: str, stack: ExitStack) -> None:
        ports = iter(free_ports(GROUPS * ROWS + ROOTS))
        self._leaves = [
            [
                Process(store, next(ports), "--role", "leaf", "--group", f"{group}/{GROUPS}", "--log", log)
                for group in range(GROUPS)
            ]
            for _ in range(ROWS)
        ]
        target = ",".join(leaf.address for row in self._leaves for leaf in row)
        self.roots = [
            Process(store, next(ports), "--role", "root", "--leaves", target, "--log", log)
            for _ in range(ROOTS)
        ]
        self.maintainers = [Maintainer(store, folder / f"cache{number}", log) for number in range(2)]
        self._rng = random.Random(SEED)
        self.happened: Counter[str] = Counter()
        servers = [*(leaf for row in self._leaves for leaf in row), *self.roots]
        started: list[Process | Maintainer] = [*servers, *self.maintainers]
        for process in started:
            stack.callback(process.kill)
            process.start()
        for server in servers:
            server.wait()

    def trouble(self) -> None:
        """Kill or stop a process; another of its kind goes on."""
        kinds = [self._kill_leaf, self._kill_root, self._stop, self._kill_maintainer]
        kind = self._rng.choice(kinds)
        kind()
        self.happened[kind.__name__.strip("_")] += 1

    def _kill_leaf(self) -> None:
        row, group = self._rng.randrange(ROWS), self._rng.randrange(GROUPS)
        self._killed(self._leaves[row][group], self._leaves[1 - row][group])

    def _kill_root(self) -> None:
        number = self._rng.randrange(ROOTS)
        self._killed(self.roots[number], self.roots[1 - number])

    @staticmethod
    def _killed(process: Process, partner: Process) -> None:
        wait_until(lambda: (partner.serves_for_s() or 0) > KNOWN_AFTER_S)
        process.kill()
        process.start()

    def _stop(self) -> None:
        process = self._rng.choice([*(leaf for row in self._leaves for leaf in row), *self.roots])
        process.wait()
        process.send(signal.SIGSTOP)
        time.sleep(self._rng.choice([0.5, 3, 8]))
        process.send(signal.SIGCONT)

    def _kill_maintainer(self) -> None:
        machine = self._rng.choice(self.maintainers)
        machine.kill()
        machine.start()


def test_no_write_is_lost_or_done_twice(postgres: PostgresServer, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    path = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(50)], spec=SPEC)
    ended = threading.Event()
    with ExitStack() as stack:
        bed = Bed(path, tmp_path, postgres.new_database(), stack)
        addresses = [root.address for root in bed.roots]
        writers = [StormWriter(addresses, number, SEED, ended) for number in range(WRITERS)]
        stack.callback(ended.set)
        for writer in writers:
            writer.start()
        store, began_s = Store.open(path), time.monotonic()
        # On a busy machine, no maintainer may live for long enough to seal.
        while time.monotonic() < began_s + SECONDS or not (
            read_manifest(store, "live").log_sequence
            or time.monotonic() > began_s + SECONDS + SEALED_WITHIN_S
        ):
            if ended.wait(rng.uniform(0.5, 2)):
                break
            bed.trouble()
        for root in bed.roots:
            root.wait()
        ended.set()
        for writer in writers:
            writer.join(150)
    done = sum((writer.done for writer in writers), Counter())
    print(f"{dict(bed.happened)}; {dict(done)}; versions {list_versions(store, 'live')}")
    assert [writer.problem for writer in writers] == [None] * WRITERS
    assert (
        min(done[kind] for kind in ("upsert", "conditional", "update", "delete_ids", "filtered", "read")) > 20
    )
    assert verify(store, "live").problems == ()
    assert read_manifest(store, "live").log_sequence > 0

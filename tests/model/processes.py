"""The machine with real servers: two of them, each with two workers, beside an embedded client; and with kills.

Servers seal and merge by themselves, so versions come at any time. A write whose answer is lost was done as a whole or
not at all: the log tells which, and the model follows it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import scannery
from scannery.indexer import Store, list_versions
from scannery.live.maintenance.copies import restore, snapshot
from scannery.live.maintenance.scheduler import PROGRAM
from tests.data import ROOT
from tests.live.torture import ServerProcess
from tests.model.actors import Actor
from tests.model.errors import check
from tests.model.machine import Machine
from tests.model.operations import Op, operation
from tests.model.rows import INDEX, random_row
from tests.model.world import Entry, after_build
from tests.tools.prepared_process import PreparedProcess

__all__ = ["LIVE", "PROCESS_WEIGHTS", "ProcessMachine"]

LIVE = {"seal_rows": 100, "seal_age_s": 0.7, "max_rows": 5000, "merge_segments": 2}
"""So little that maintenance runs all the time."""
LOST = (scannery.UnavailableError, scannery.DeadlineExceededError, scannery.CancelledError)
PATIENCE_S = 60.0
SEAL_S = 40.0
TIMEOUT_S = 30.0
PROCESS_WEIGHTS = {
    **dict.fromkeys(("look", "disk_full", "no_files", "cache_lost", "replaced", "recreated"), 0.0),
    **dict.fromkeys(("compacted", "built", "merged", "sealed", "collected", "rolled_back"), 0.15),
    "snapshotted": 0.1,
    "during": 0.0,
    "reopen": 0.1,
    "look_all": 0.1,
    "killed": 0.6,
    "maintenance_killed": 0.2,
    "build_killed": 0.05,
    "writer_killed": 0.1,
    "changed_folder": 0.02,
}


@dataclass
class ServedActor(Actor):
    """A client of a server."""

    server: ServerProcess = field(kw_only=True)

    def look(self) -> None:
        """Nothing: servers look by themselves."""

    def close(self) -> None:
        """End the server, too, at once."""
        super().close()
        self.server.end()


class ProcessMachine(Machine):
    """A machine whose actors are processes."""

    actor_names = ("p1", "p2", "e1")

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        """Make a store whose servers seal and merge by themselves."""
        super().__init__(folder, config | {"live": LIVE})

    def open_actor(self, name: str) -> Actor:
        """Start a server, or open the store in this process."""
        if name == "e1":
            return Actor(name, scannery.connect(self.path, timeout_s=TIMEOUT_S), INDEX, many=True)
        server = ServerProcess(self.path, 2)
        client = scannery.connect(server.address, timeout_s=TIMEOUT_S)
        return ServedActor(name, client, INDEX, many=True, server=server)

    def look_all(self) -> None:
        """Wait until all have moved to a version that was committed."""
        self.sync()
        wanted, end_s = self.world.current, time.monotonic() + PATIENCE_S
        for actor in self.actors.values():
            # Each worker answers some of these.
            seen = 0
            while seen < 6:
                seen = seen + 1 if actor.version() >= wanted else 0
                check(time.monotonic() < end_s, f"{actor.name} does not move to version {wanted}")
                time.sleep(0.02)

    def unknown(self, entry: Entry) -> None:
        """Find out whether a write was done."""
        with scannery.connect(self.path, timeout_s=TIMEOUT_S) as client:
            position = client.index(INDEX).stats().sequence
            check(position - self.world.position in (0, 1), f"after a lost answer the log is at {position}")
            if position > self.world.position:
                self.world.append(entry)
            self.sync()
            self.checker.whole(Actor("beside", client, INDEX, many=True), self.world.now)


def _entry(machine: Machine, rng: random.Random, counts: list[int]) -> Entry:
    rows = [machine.random_row(rng, name) for name in machine.some_ids(rng, counts)]
    return Entry(tuple(replace(row, revision=machine.world.position + 1) for row in rows))


def _write(machine: Machine, actor: Actor, entry: Entry, **options: Any) -> bool:
    """Write; return whether it is known to be done."""
    try:
        done = actor.index.upsert([row.to_upsert() for row in entry.rows], **options)  # type: ignore[misc]
    except LOST:
        return False
    sequence = machine.world.append(entry)
    check(done.sequence == sequence, f"{actor.name} wrote {done.sequence} instead of {sequence}")
    actor.acknowledged = sequence
    return True


@operation(0)
def killed(machine: Machine, rng: random.Random, op: Op) -> None:
    """Kill a worker, a supervisor or a whole server while it is written to."""
    assert isinstance(machine, ProcessMachine)
    actor = machine.actors[rng.choice(["p1", "p2"])]
    assert isinstance(actor, ServedActor)
    victim, there = rng.choice(["worker", "worker", "supervisor", "server"]), [True]
    wait_s = rng.choice([0.0, rng.uniform(0, 0.01), rng.uniform(0, 0.1)])

    def kill() -> None:
        time.sleep(wait_s)
        there[0] = actor.server.kill(victim, rng)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for _ in range(40):
            entry = _entry(machine, rng, [1, 5, 30])
            options = {"request_id": f"k{op['seed']}-{machine.world.position}"} if rng.random() < 0.3 else {}
            if not _write(machine, actor, entry, timeout_s=10.0, **options):
                killer.join()
                machine.unknown(entry)
                break
    finally:
        killer.join()
    if not there[0]:
        machine.reopen(actor.name)
    _back(machine, machine.actors[actor.name])


def _back(machine: Machine, actor: Actor) -> None:
    """Wait until a server answers again, and compare."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            machine.checker.everything(actor)
            return
        except LOST:
            check(time.monotonic() < end_s, f"{actor.name} does not come back")
            time.sleep(0.1)


@operation(0)
def maintenance_killed(machine: Machine, rng: random.Random, op: Op) -> None:
    """Kill what seals and merges."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if PROGRAM.encode() in words and str(machine.path).encode() in words:
                os.kill(int(path.parent.name), signal.SIGKILL)


@operation(0)
def build_killed(machine: Machine, rng: random.Random, op: Op) -> None:
    """Kill a build; its version is there as a whole or not at all."""
    rows = [machine.random_row(rng, name) for name in machine.some_ids(rng, [10, 60])]
    rows = machine.as_built(rows)
    program = (
        "import sys, json; from scannery.pipelines import build; from tests.model.rows import make_spec\n"
        "from scannery.live.maintenance.seal import seal\n"
        "build(make_spec(**json.loads(sys.argv[1])), [sys.argv[2]], sys.argv[3], before=seal)"
    )
    arguments = [
        json.dumps(machine.config | {"documents": machine.grouped}),
        machine.input_of(rows),
        str(machine.path),
    ]
    _run_and_kill(program, arguments, rng.uniform(1.5, 6))
    machine.sync(lambda parent: after_build(parent, rows))
    machine.look_all()
    machine.checker.everything(machine.some_actor(rng))


@operation(0)
def writer_killed(machine: Machine, rng: random.Random, op: Op) -> None:
    """Kill an embedded client that writes one batch after the other; it says which were acknowledged."""
    assert isinstance(machine, ProcessMachine)
    seed = rng.randrange(1 << 30)
    program = (
        "import sys, random, scannery; from tests.model.processes import batch_of\n"
        "index = scannery.connect(sys.argv[1], timeout_s=30).index('modelled')\n"
        "for number in range(200):\n"
        "    done = index.upsert([row.to_upsert() for row in batch_of(int(sys.argv[2]), number)])\n"
        "    print(done.sequence, flush=True)\n"
    )
    said = _run_and_kill(program, [str(machine.path), str(seed)], rng.uniform(1.0, 5))
    for number, line in enumerate(said.split()):
        revision = machine.world.position + 1
        check(int(line) == revision, f"an embedded client wrote {line} instead of {revision}")
        machine.world.append(Entry(tuple(replace(row, revision=revision) for row in batch_of(seed, number))))
    revision = machine.world.position + 1
    rows = batch_of(seed, len(said.split()))
    machine.unknown(Entry(tuple(replace(row, revision=revision) for row in rows)))


def batch_of(seed: int, number: int) -> list[Any]:
    """Return the rows of a batch that another process writes."""
    rng = random.Random(f"{seed}-{number}")
    names = sorted({f"id{rng.randrange(220)}" for _ in range(rng.choice([1, 10, 40]))})
    return [random_row(rng, name) for name in names]


def _run_and_kill(program: str, arguments: list[str], after_s: float) -> str:
    """Run a program, kill it after a while, and return what it said."""
    process = PreparedProcess(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    # A line that was cut off was not read by anybody.
    return said if said.endswith("\n") else said[: said.rfind("\n") + 1]


@operation(0)
def changed_folder(machine: Machine, rng: random.Random, op: Op) -> None:
    """Open a copy by a relative path, go to a folder with another one, and write until something is sealed."""
    place, before = machine.folder / "relative", Path.cwd()
    shutil.rmtree(place, ignore_errors=True)
    backup = Store.open(place / "backup", create=True)
    snapshot(machine.store, INDEX, backup)
    stores = [Store.open(place / name / "store", create=True) for name in ("home", "elsewhere")]
    for store in stores:
        restore(backup, INDEX, store)
    first = list_versions(backup, INDEX)
    os.chdir(place / "home")
    try:
        with scannery.connect("./store", timeout_s=TIMEOUT_S) as client:
            client.index(INDEX).stats()
            os.chdir(place / "elsewhere")
            end_s = time.monotonic() + SEAL_S
            while all(list_versions(store, INDEX) == first for store in stores) and time.monotonic() < end_s:
                client.index(INDEX).upsert([row.to_upsert() for row in batch_of(op["seed"], 1)])
                time.sleep(0.2)
    finally:
        os.chdir(before)
    check(
        list_versions(stores[1], INDEX) == first,
        "what a relative path led to when it was sealed got the rows",
    )
    check(
        list_versions(stores[0], INDEX) != first, "a store that was opened by a relative path is never sealed"
    )

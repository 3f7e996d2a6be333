"""Operations that go wrong outside of the product: full disks, no more files, forks, damaged caches, other stores.

What fails may fail, with an error that says why. What it may not do: lose what was acknowledged, do something by
halves, answer wrongly, or stay broken once the trouble is over.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scannery
from scannery.indexer import Store
from scannery.indexer.errors import IndexerError
from scannery.live.maintenance.copies import restore, snapshot
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.seal import seal
from scannery.runtime.errors import ServingError
from tests.model.actors import Actor, LocalActor
from tests.model.errors import check
from tests.model.operations import Op, operation
from tests.model.rows import INDEX
from tests.model.world import Entry, World
from tests.model.writing import acknowledge, upserted

if TYPE_CHECKING:
    from tests.model.machine import Machine

__all__: list[str] = []

FORK_WRITES = 12
FORK_DEADLINE_S = 8.0


@contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """Lower a limit of this process."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


@contextmanager
def full_disk(size_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a size: writes fail as on a full disk."""
    with limited(resource.RLIMIT_FSIZE, size_bytes):
        yield


@contextmanager
def few_files(spare: int) -> Iterator[None]:
    """Let only some more files be opened."""
    used = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    first = next(number for number in range(max(used) + 2) if number not in used)
    with limited(resource.RLIMIT_NOFILE, first - 1 + spare):  # the listing itself had one
        yield


def _tried(call: Callable[[], object], trouble: str) -> bool:
    """Return whether a call was done; errors that are no defects may come."""
    try:
        call()
    except scannery.ScanneryError as error:
        defect = isinstance(error, scannery.InternalError)
        check(not defect, f"{trouble}: a defect: {error}")
        gone = isinstance(error, scannery.NotFoundError) and "there is no index" in str(error)
        check(not gone, f"{trouble}: {error}")
        return False
    except (IndexerError, ServingError):
        return False
    return True


def _settle(machine: Machine, actor: Actor, entry: Entry) -> None:
    """Find out whether a write was done that failed: wholly or not at all."""
    fresh = machine.reopen(actor.name)
    position = fresh.index.stats().sequence
    check(position - machine.world.position in (0, 1), f"after a failed write the log is at {position}")
    if position > machine.world.position:
        machine.world.append(entry)
    machine.checker.everything(fresh)


def _entry(machine: Machine, rng: random.Random) -> Entry:
    rows = [machine.random_row(rng, name) for name in machine.some_ids(rng, [1, 5])]
    return Entry(tuple(replace(row, revision=machine.world.position + 1) for row in rows))


@operation(0.3)
def disk_full(machine: Machine, rng: random.Random, op: Op) -> None:
    """Write, seal or merge while files cannot grow."""
    limit = rng.choice([0, 4096, 40_000, 200_000])
    kind = rng.choice(["write", "write", "seal", "merge"])
    if kind == "write":
        actor, entry = machine.some_actor(rng), _entry(machine, rng)
        with full_disk(limit):
            points: list[Any] = [row.to_upsert() for row in entry.rows]
            done = _tried(
                lambda: acknowledge(machine, actor, upserted(machine, actor, points), entry), "disk full"
            )
        if not done:
            _settle(machine, actor, entry)
        return
    call = partial(seal, log_root=machine.log_root) if kind == "seal" else merge
    with full_disk(limit):
        _tried(lambda: call(machine.store, INDEX, cache=machine.cache), f"disk full at a {kind}")
    machine.sync()
    machine.look_all()


@operation(0.2)
def no_files(machine: Machine, rng: random.Random, op: Op) -> None:
    """Read and write while few files can be opened."""
    actor, entry = machine.some_actor(rng), _entry(machine, rng)
    known = isinstance(actor, LocalActor) and INDEX in actor.catalog.states()
    with few_files(rng.choice([0, 0, 1, 2, 4, 8])):
        _tried(actor.look, "no files")
        _tried(lambda: machine.checker.get(actor, rng), "no files")
        forgotten = known and isinstance(actor, LocalActor) and INDEX not in actor.catalog.states()
        check(not forgotten, f"{actor.name} has forgotten the index")
        points: list[Any] = [row.to_upsert() for row in entry.rows]
        done = _tried(
            lambda: acknowledge(machine, actor, upserted(machine, actor, points), entry), "no files"
        )
    if not done:
        _settle(machine, actor, entry)
    machine.look_all()


@operation(0.05)
def cache_lost(machine: Machine, rng: random.Random, op: Op) -> None:
    """Damage a cached segment, or take the cache away; who opens the index anew must not notice."""
    files = sorted(path for path in machine.cache.folder.rglob("*") if path.is_file())
    if rng.random() < 0.3:
        shutil.rmtree(machine.cache.folder)
    elif files:
        # A new file, since others may have mapped the old one.
        path = rng.choice(files)
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[: len(content) // 2])
    machine.checker.everything(machine.reopen(rng.choice(sorted(machine.actors))))


@operation(0.04)
def forked(machine: Machine, rng: random.Random, op: Op) -> None:
    """Fork while another thread writes; the children live on, and nobody waits for them."""
    actor = machine.some_actor(rng)
    entries = [_entry(machine, rng) for _ in range(FORK_WRITES)]
    writing = threading.Thread(target=_write_all, args=(machine, actor, entries))
    children: list[int] = []
    try:
        writing.start()
        while writing.is_alive() and len(children) < FORK_WRITES:
            children.append(_child())
            time.sleep(0.001)
        writing.join(FORK_DEADLINE_S)
        check(not writing.is_alive(), "a writer waits for a child that was forked during a commit")
        other, entry = machine.some_actor(rng), _entry(machine, rng)
        points: list[Any] = [row.to_upsert() for row in entry.rows]
        # Not the client's own patience: a turn that a child keeps never comes.
        done = machine.moved(other, lambda: other.index.upsert(points, timeout_s=FORK_DEADLINE_S))
        acknowledge(machine, other, done, entry)
    except scannery.DeadlineExceededError as error:
        check(False, f"a writer waits for a child that was forked during a commit: {error}")
    finally:
        _end(children)
        writing.join()


def _write_all(machine: Machine, actor: Actor, entries: list[Entry]) -> None:
    with suppress(scannery.DeadlineExceededError):  # it is said by the next writer
        for entry in entries:
            rows = tuple(replace(row, revision=machine.world.position + 1) for row in entry.rows)
            done = upserted(machine, actor, [row.to_upsert() for row in rows])
            acknowledge(machine, actor, done, Entry(rows))


def _child() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    return pid


def _end(children: list[int]) -> None:
    while children:
        pid = children.pop()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@operation(0.02)
def log_gone(machine: Machine, rng: random.Random, op: Op) -> None:
    """Take the database of the log away: who opens the index must say so, if something is lost."""
    sealed = machine.world.versions[machine.world.current].log_sequence
    if sealed == machine.world.position or machine.log_root is not None:
        return
    place = machine.folder / "logless"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(machine.path, place)
    for path in (place / INDEX / "log").glob("log.sqlite*"):
        path.unlink()
    with scannery.connect(place) as client:
        try:
            info = client.index(INDEX).stats()
        except scannery.ScanneryError:
            return
        check(False, f"the log is gone, and the index opens at {info.sequence} of {machine.world.position}")


@operation(0.02)
def restored_over_log(machine: Machine, rng: random.Random, op: Op) -> None:
    """Restore where the log of the lost index is still there: refused, or just what was backed up."""
    if machine.log_root is not None:
        return
    places = backup, lost = machine.folder / "backup", machine.folder / "lost"
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    snapshot(machine.store, INDEX, Store.open(backup, create=True))
    wanted = machine.world.now
    entry = _entry(machine, rng)
    actor = machine.some_actor(rng)
    acknowledge(machine, actor, upserted(machine, actor, [row.to_upsert() for row in entry.rows]), entry)
    shutil.copytree(machine.path, lost)
    for folder in ("versions", "segments", "deletes"):
        shutil.rmtree(lost / INDEX / folder, ignore_errors=True)
    try:
        restore(Store.open(backup), INDEX, Store.open(lost))
    except (IndexerError, ServingError):
        return
    with scannery.connect(lost) as client:
        machine.checker.whole(Actor("restored", client, INDEX), wanted)


@operation(0.02)
def replaced(machine: Machine, rng: random.Random, op: Op) -> None:
    """Put a restored copy in the place of the store while an actor has it open: it moves there, or refuses."""
    places = backup, other = machine.folder / "backup", machine.folder / "other"
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    snapshot(machine.store, INDEX, Store.open(backup, create=True), log_root=machine.log_root)
    copied = machine.world.copied()
    copied.stored = {copied.current}
    entry, actor = _entry(machine, rng), machine.some_actor(rng)
    acknowledge(machine, actor, upserted(machine, actor, [row.to_upsert() for row in entry.rows]), entry)
    restore(Store.open(backup), INDEX, Store.open(other, create=True))
    old, aside = machine.actors.pop(actor.name), machine.folder / "aside"
    machine.path.rename(aside)
    other.rename(machine.path)
    # A restored log lies in the store; whoever looks for it elsewhere finds the old one, and reads what it has open.
    readable, machine.log_root = machine.log_root is None, None
    machine.other = machine.aliased = None
    machine.world = machine.checker.world = copied
    try:
        _use_replaced(machine, old, rng, readable=readable)
    finally:
        old.close()
        for name in [*machine.actors, old.name]:
            machine.reopen(name)
        shutil.rmtree(aside)
    for each in machine.actors.values():
        machine.checker.everything(each)


@operation(0.02)
def recreated(machine: Machine, rng: random.Random, op: Op) -> None:
    """Remove the index and build another one of its name while an actor has it open: it moves there, or refuses."""
    old = machine.actors.pop(machine.some_actor(rng).name)
    shutil.rmtree(machine.path / INDEX)
    if isinstance(machine.log_root, Path):
        shutil.rmtree(machine.log_root / INDEX, ignore_errors=True)
    machine.world = machine.checker.world = World()
    machine.begin_index(rng)
    try:
        _use_replaced(machine, old, rng)
    finally:
        old.close()
        for name in [*machine.actors, old.name]:
            machine.reopen(name)
    for each in machine.actors.values():
        machine.checker.everything(each)


def _use_replaced(machine: Machine, old: Actor, rng: random.Random, *, readable: bool = True) -> None:
    """Write and read through an actor whose index was exchanged."""
    entry = _entry(machine, rng)
    _tried(old.look, "replaced store")
    old.acknowledged, old.seen_version, old.seen_sequence = 0, 0, 0
    old.client._sequences.forget(old.index_name)
    points: list[Any] = [row.to_upsert() for row in entry.rows]
    done = None
    with suppress(scannery.ScanneryError):
        done = machine.moved(old, lambda: old.index.upsert(points))
    if done is not None:
        acknowledge(machine, old, done, entry)
    if readable:
        with suppress(scannery.ScanneryError):
            machine.checker.everything(old)

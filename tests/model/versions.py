"""Operations that make versions, collect them, and copy them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import scannery
from scannery.indexer import (
    AlreadyExistsError,
    Store,
    collect_garbage,
    leased_versions,
    read_manifest,
    rollback,
    verify,
)
from scannery.live.maintenance.copies import restore, snapshot
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.seal import seal
from scannery.pipelines import build, compact, export
from tests.model.actors import Actor
from tests.model.errors import check
from tests.model.operations import Op, operation
from tests.model.rows import DOCUMENTS, INDEX, Row
from tests.model.world import Rows, after_build

if TYPE_CHECKING:
    from tests.model.machine import Machine

__all__: list[str] = []

ResultT = TypeVar("ResultT")
TRIES = 5
INPUTS = 12
"""Different inputs of builds: what a build has made once is taken up by a later one."""


@operation(0.5, nests=0.3, inner=2)
def sealed(machine: Machine, rng: random.Random, op: Op) -> None:
    """Bring the log into a version."""
    with machine.during(op.get("during", []), op.get("at", "")):
        report = seal(machine.store, INDEX, log_root=machine.log_root, cache=machine.cache)
    machine.sync()
    current = machine.world.versions[machine.world.current]
    check(
        "during" in op or current.log_sequence == machine.world.position,
        f"sealed up to {current.log_sequence} of {machine.world.position}: {report}",
    )
    _noticed(machine, rng)


@operation(0.4, nests=0.3, inner=1)
def merged(machine: Machine, rng: random.Random, op: Op) -> None:
    """Merge some segments."""
    with machine.during(op.get("during", []), op.get("at", "")):
        merge(machine.store, INDEX, cache=machine.cache)
    machine.sync()
    _noticed(machine, rng)


@operation(0.15, nests=0.4)
def compacted(machine: Machine, rng: random.Random, op: Op) -> None:
    """Make one segment of each shard."""
    with machine.during(op.get("during", []), op.get("at", "")):
        compact(INDEX, str(machine.path))
    machine.sync()
    _noticed(machine, rng)


@operation(0.15, nests=0.3)
def built(machine: Machine, rng: random.Random, op: Op) -> None:
    """Update the index from files, of which some come again, and remove documents."""
    rng = random.Random(op["seed"] % INPUTS)
    rows = [machine.random_row(rng, name) for name in machine.some_ids(rng, [1, 10, 60])]
    deletes = [f"doc{rng.randrange(DOCUMENTS)}"] if rng.random() < 0.3 else []
    _build(machine, rng, op, rows, deletes=deletes)


@operation(0.05, nests=0.3)
def built_full(machine: Machine, rng: random.Random, op: Op) -> None:
    """Build the index anew, from half of what there is and something else."""
    now = sorted(machine.world.now.items())
    own = [row for _, row in rng.sample(now, len(now) // 2)]
    fresh = [machine.random_row(rng, name) for name in machine.some_ids(rng, [10, 60])]
    names = {row.id for row in fresh}
    _build(machine, rng, op, [*fresh, *(row for row in own if row.id not in names)], mode="full")


def _build(machine: Machine, rng: random.Random, op: Op, rows: list[Row], **options: Any) -> None:
    plain, began_at = machine.as_built(rows), [0]

    def sealed_before(store: Store, index: str) -> None:
        seal(store, index, log_root=machine.log_root, cache=machine.cache)
        began_at[0] = read_manifest(store, index).log_sequence

    def effect(parent: Rows) -> Rows:
        return after_build(
            parent, plain, full=options.get("mode") == "full", deletes=options.get("deletes", ()),
            newer_than=began_at[0], whole=not machine.grouped,
        )  # fmt: skip

    with machine.during(op.get("during", []), op.get("at", "")):
        report = build(
            machine.spec, [machine.input_of(plain)], str(machine.path), before=sealed_before, **options
        )
    if report.up_to_date:
        machine.sync()
        content = machine.world.versions[report.version].rows
        check(effect(content) == content, f"a build that changes something made no version: {report.version}")
    else:
        machine.sync(effect, at=report.version)
        check(report.version in machine.world.stored, f"version {report.version} is not there")
    if "during" not in op:
        served = machine.world.now
        gone = options.get("deletes", ())
        wanted = {row.id: row for row in plain if row.document_id not in gone}
        older = [
            name for name, row in wanted.items() if name not in served or not row.same_content(served[name])
        ]
        check(not older, f"older live writes stand before a build: {older[:5]}")
    _noticed(machine, rng)


@operation(0.15, inner=4)
def rolled_back(machine: Machine, rng: random.Random, op: Op) -> None:
    """Go back to an earlier version."""
    target = rng.choice(sorted(machine.world.stored))
    old = machine.world.versions[target].rows
    manifest = _again(lambda: rollback(machine.store, INDEX, target))
    machine.sync(lambda rows: old, at=manifest.version)
    check(manifest.version in machine.world.stored, f"version {manifest.version} is not there")
    assert manifest.parent is not None
    position = machine.world.versions[manifest.parent].log_sequence
    check(manifest.log_sequence == position, f"a rollback is at {manifest.log_sequence}, not {position}")
    _noticed(machine, rng)


def _again(call: Callable[[], ResultT]) -> ResultT:
    """Return the result of a call that others may overtake."""
    for _ in range(TRIES):
        with suppress(AlreadyExistsError):
            return call()
    return call()


@operation(0.3, inner=1)
def collected(machine: Machine, rng: random.Random, op: Op) -> None:
    """Collect garbage; what servers have open stays."""
    nested = op.get("nested", False)
    machine.sync()
    leased, _ = leased_versions(machine.store, INDEX)
    keep = rng.choice([1, 1, 3])
    # What servers commit right now must be seen before it goes.
    others = any(actor.many for actor in machine.actors.values())
    age = timedelta(days=1) if nested else timedelta(seconds=5 if others else 0)
    report = collect_garbage(machine.store, INDEX, keep=keep, min_age=age)
    stored = sorted(machine.world.stored)
    check(set(report.versions) <= set(stored[:-keep]) - leased, f"gc removed {report.versions} of {stored}")
    open_now = {actor.seen_version for actor in machine.actors.values() if getattr(actor, "server", False)}
    check(not set(report.versions) & open_now & leased, "gc removed a version that a server has open")
    machine.world.stored -= set(report.versions)
    machine.sync()
    machine.check_files()
    machine.forget()


@operation(0.08)
def verified(machine: Machine, rng: random.Random, op: Op) -> None:
    """Read everything again."""
    problems = verify(machine.store, INDEX).problems
    check(not problems, f"verify says {problems}")


@operation(0.1)
def exported(machine: Machine, rng: random.Random, op: Op) -> None:
    """Export the current version, and compare it."""
    path = machine.folder / "export.jsonl"
    report = export(INDEX, str(machine.path), str(path), overwrite=True)
    machine.sync()  # servers may have sealed before it
    rows = machine.world.versions[report.version].rows
    found = [json.loads(line) for line in path.read_text().splitlines()]
    names = [row["id"] for row in found]
    check(sorted(names) == sorted(rows), "an export has other datapoints than the version")
    for line in found:
        vector = rows[line["id"]].vector
        check(
            line.get("embedding") == (None if vector is None else list(vector)),
            f"{line['id']} is exported with another vector",
        )
        named = {name: list(own) for name, own in rows[line["id"]].vectors.items()}
        found_named = {name: own for name, own in (line.get("vectors") or {}).items() if own is not None}
        check(found_named == named, f"{line['id']} is exported with the vectors {found_named}, not {named}")


@operation(0.1)
def snapshotted(machine: Machine, rng: random.Random, op: Op) -> None:
    """Back up, restore beside, and compare with what there was."""
    places = [machine.folder / name for name in ("backup", "restored")]
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    backup, restored = (Store.open(place, create=True) for place in places)
    report = snapshot(machine.store, INDEX, backup, log_root=machine.log_root)
    world, current = machine.world, machine.world.current
    machine.sync()  # servers may have sealed meanwhile
    check(report.sequence == world.position, f"a snapshot is {report}, not up to {world.position}")
    check(current <= report.version <= world.current, f"a snapshot is {report}")
    restore(backup, INDEX, restored)
    try:
        restore(backup, INDEX, restored)
    except AlreadyExistsError:
        pass
    else:
        check(False, "a restore over an index is not refused")
    copied = world.copied()
    copied.stored, copied.versions = {report.version}, {report.version: world.versions[report.version]}
    for place in places:
        with scannery.connect(place) as client:
            info = client.index(INDEX).stats()
            check(info.sequence == world.position, f"a copy is at {info.sequence}, not {world.position}")
            machine.checker.whole(Actor("copy", client, INDEX), world.now)
    if rng.random() < 0.3:
        machine.replace_store(places[1], copied)


def _noticed(machine: Machine, rng: random.Random) -> None:
    """Let some actors look, and compare one of them; others stay where they are."""
    if any(actor.many for actor in machine.actors.values()):
        machine.look_all()  # no answer says which version each worker has
    for actor in machine.actors.values():
        if rng.random() < 0.5:
            actor.look()
    if rng.random() < 0.3:
        machine.checker.everything(machine.some_actor(rng))

"""Operations that write and read through the actors."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import scannery
from scannery.client.response.results import Deleted, Written
from tests.model.actors import Actor
from tests.model.errors import check
from tests.model.fusing import search_both
from tests.model.operations import Op, operation
from tests.model.rows import DOCUMENTS, NAMED, random_dynamic, random_values, random_vectors
from tests.model.world import Entry, Rows

if TYPE_CHECKING:
    from tests.model.machine import Machine

__all__: list[str] = []


def acknowledge(machine: Machine, actor: Actor, done: Written | Deleted, entry: Entry) -> None:
    """Take note of a write that was answered."""
    sequence = machine.world.append(entry)
    check(done.sequence == sequence, f"{actor.name} wrote sequence {done.sequence} instead of {sequence}")
    actor.acknowledged = sequence


def state_of(machine: Machine, actor: Actor) -> Rows:
    """Return what a write of an actor comes upon: its version, with all of the log."""
    version = actor.version()
    if version not in machine.world.versions:
        machine.sync()
    return machine.world.state(version, machine.world.position)


def upserted(machine: Machine, actor: Actor, points: list[Any], **options: Any) -> Written:
    """Return the answer of an upsert."""
    return machine.moved(actor, lambda: actor.index.upsert(points, **options))


@operation(30, inner=8)
def upsert(machine: Machine, rng: random.Random, op: Op) -> None:
    """Insert or replace some datapoints."""
    actor = machine.some_actor(rng)
    rows = [machine.random_row(rng, name) for name in machine.some_ids(rng, [1, 1, 3, 10, 30])]
    done = upserted(machine, actor, [row.to_upsert() for row in rows])
    check(done.written == len(rows), f"{done.written} of {len(rows)} were written")
    revision = machine.world.position + 1
    acknowledge(machine, actor, done, Entry(tuple(replace(row, revision=revision) for row in rows)))


@operation(10, inner=2)
def update(machine: Machine, rng: random.Random, op: Op) -> None:
    """Change some fields."""
    actor = machine.some_actor(rng)
    changes = {
        name: random_change(rng, machine.shape.dynamic, machine.shape.named)
        for name in machine.some_ids(rng, [1, 1, 2, 4])
    }
    points: list[Any] = [{"id": name, **change} for name, change in changes.items()]

    def write() -> tuple[Rows, Written | None]:
        rows = state_of(machine, actor)
        try:
            return rows, actor.index.update(points)
        except scannery.NotFoundError:
            return rows, None

    rows, done = machine.moved(actor, write)
    there = changes.keys() <= rows.keys()
    check(there == (done is not None), f"{actor.name}: an update of {sorted(changes)} is {done}")
    if done is not None:
        revision = machine.world.position + 1
        changed = tuple(rows[name].changed(change, revision) for name, change in changes.items())
        acknowledge(machine, actor, done, Entry(changed))


def random_change(rng: random.Random, dynamic: bool = False, named: bool = False) -> dict[str, Any]:
    """Return some fields to change."""
    values = random_values(rng) | (random_dynamic(rng) if dynamic else {})
    names = rng.sample(sorted(values), rng.randrange(3))
    change: dict[str, Any] = {"attributes": {name: values[name] for name in names}} if names else {}
    if not names or rng.random() < 0.3:
        change |= rng.choice([{"title": None}, {"title": "tax moon"}, {"payload": None}, {"payload": 3}])
    if named and rng.random() < 0.4:
        given: dict[str, Any] = {name: list(vector) for name, vector in random_vectors(rng).items()}
        removed = {name: None for name in NAMED if name not in given and rng.random() < 0.5}
        change["vectors"] = given | removed if rng.random() < 0.8 else None
    return change


@operation(8, inner=3)
def delete(machine: Machine, rng: random.Random, op: Op) -> None:
    """Delete by id, by document, or both."""
    actor = machine.some_actor(rng)
    names = machine.some_ids(rng, [1, 3, 12])
    documents = [f"doc{rng.randrange(DOCUMENTS)}"] if rng.random() < 0.25 else []

    def write() -> tuple[Rows, Deleted]:
        return state_of(machine, actor), actor.index.delete(names, document_ids=documents)

    rows, done = machine.moved(actor, write)
    entry = Entry((), tuple(names), tuple(documents))
    gone = len(rows) - len(entry.applied(rows))
    check(done.deleted == gone, f"{actor.name} deleted {done.deleted} instead of {gone}")
    acknowledge(machine, actor, done, entry)


@operation(6, inner=2)
def conditional(machine: Machine, rng: random.Random, op: Op) -> None:
    """Write if a condition holds, with another datapoint beside it that must share its lot."""
    actor = machine.some_actor(rng)
    name, other = rng.sample([f"id{number}" for number in range(machine.ids)], 2)
    row, beside = machine.random_row(rng, name), machine.random_row(rng, other)
    absent, shift = rng.random() < 0.5, rng.choice([0, 0, 1])

    def write() -> tuple[bool, Written | None]:
        rows = state_of(machine, actor)
        revision = (rows[name].revision if name in rows else 0) + shift
        condition: dict[str, Any] = {"if_absent": True} if absent else {"if_revision": revision}
        holds = name not in rows if absent else name in rows and not shift
        batch: list[Any] = [{**row.to_upsert(), **condition}, beside.to_upsert()]
        try:
            return holds, actor.index.upsert(batch)
        except scannery.FailedPreconditionError:
            return holds, None

    holds, done = machine.moved(actor, write)
    check(holds == (done is not None), f"{actor.name}: a condition that holds: {holds}, and got {done}")
    if done is not None:
        revision = machine.world.position + 1
        acknowledge(
            machine, actor, done, Entry((replace(row, revision=revision), replace(beside, revision=revision)))
        )


@operation(2)
def repeated(machine: Machine, rng: random.Random, op: Op) -> None:
    """Write with a request id, and again through another actor: the same answer, and nothing is done."""
    request = f"r{op['seed']}-{machine.world.position}"
    row = machine.random_row(rng, f"id{rng.randrange(machine.ids)}")
    first, second = machine.some_actor(rng), machine.some_actor(rng)
    done = upserted(machine, first, [row.to_upsert()], request_id=request)
    acknowledge(machine, first, done, Entry((replace(row, revision=machine.world.position + 1),)))
    again = upserted(machine, second, [row.to_upsert()], request_id=request)
    check(again == done, f"a repetition answers {again} after {done}")
    machine.world.answers[request] = done.sequence, done.written
    other = machine.random_row(rng, "id0")
    refused = _refused(lambda: upserted(machine, second, [other.to_upsert()], request_id=request))
    check(refused, "another batch with a request id that was used is acknowledged")


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except scannery.ScanneryError:
        return True
    return False


@operation(26, inner=2)
def search(machine: Machine, rng: random.Random, op: Op) -> None:
    """Ask one query."""
    actor = machine.some_actor(rng)
    if machine.shape.named and rng.random() < 0.15:
        search_both(machine.checker, actor, rng)
    else:
        machine.checker.search(actor, rng)


@operation(2)
def search_many(machine: Machine, rng: random.Random, op: Op) -> None:
    """Ask several at once."""
    machine.checker.search_many(machine.some_actor(rng), rng)


@operation(2)
def pages(machine: Machine, rng: random.Random, op: Op) -> None:
    """Page through an answer."""
    machine.checker.pages(machine.some_actor(rng), rng)


@operation(6, inner=2)
def get(machine: Machine, rng: random.Random, op: Op) -> None:
    """Read some datapoints."""
    machine.checker.get(machine.some_actor(rng), rng)


@operation(3)
def stats(machine: Machine, rng: random.Random, op: Op) -> None:
    """Count."""
    machine.checker.stats(machine.some_actor(rng))


@operation(0.4)
def everything(machine: Machine, rng: random.Random, op: Op) -> None:
    """Compare all that an actor has."""
    machine.checker.everything(machine.some_actor(rng))


@operation(2, inner=1)
def look(machine: Machine, rng: random.Random, op: Op) -> None:
    """Have an actor look for new versions."""
    machine.some_actor(rng).look()


@operation(0.3)
def look_all(machine: Machine, rng: random.Random, op: Op) -> None:
    """Have all look for new versions, and find them."""
    machine.look_all()


@operation(0.5)
def reopen(machine: Machine, rng: random.Random, op: Op) -> None:
    """Close an actor and open it anew: it has everything."""
    actor = machine.reopen(rng.choice(sorted(machine.actors)))
    info = actor.index.stats()
    found, before = (info.version, info.sequence), machine.world.current
    machine.sync()  # servers may have sealed since
    last, position = machine.world.current, machine.world.position
    check(
        before <= info.version <= last and info.sequence == position,
        f"{actor.name} opens at {found}, not {(last, position)}",
    )
    if rng.random() < 0.3:
        machine.checker.everything(actor)

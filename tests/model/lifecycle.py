"""Operations that create and drop another index beside the model's, and move an alias between the two."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import scannery
from tests.model.actors import Actor
from tests.model.errors import WrongError, check
from tests.model.operations import Op, operation
from tests.model.rows import INDEX

if TYPE_CHECKING:
    from tests.model.machine import Machine

__all__: list[str] = []

OTHER, ALIAS = "other", "named"
NOTICED_S = 5.0


@operation(0.4)
def other_index(machine: Machine, rng: random.Random, op: Op) -> None:
    """Create another index, or drop it; all actors see that, and the model's index is as it was."""
    actor = machine.some_actor(rng)
    if machine.other is None:
        handle = actor.client.create_index(OTHER, dimensions=2, attributes={"n": "int"}, dynamic=True)
        machine.other = {f"o{op['seed']}-{number}": number for number in range(rng.randrange(1, 6))}
        handle.upsert([_point(name, number) for name, number in machine.other.items()])
        _refused(lambda: actor.client.create_index(OTHER, dimensions=2), "created a second time")
    elif machine.aliased == OTHER:
        _refused(lambda: actor.client.drop_index(OTHER), "dropped while an alias stands for it")
        return
    else:
        # An embedded client refuses while another process has the index open.
        server = next(one for one in machine.actors.values() if one.many or getattr(one, "server", False))
        server.client.drop_index(OTHER)
        machine.other = None
    for one in machine.actors.values():
        one.look()
        _patiently(one, partial(compare_other, machine, one.client))


def _point(name: str, number: int) -> Any:
    return {"id": name, "vector": [1.0, float(number)], "attributes": {"n": number, "free": str(number)}}


def compare_other(machine: Machine, client: scannery.Client) -> None:
    """Compare the other index with what it should be."""
    names = [info.name for info in client.indexes()]
    check((OTHER in names) == (machine.other is not None), f"the indexes are {names}")
    if machine.other is None:
        _refused(lambda: client.index(OTHER).count(), "counted although it is gone")
        return
    found = {point.id: point.attributes for point in client.index(OTHER).scan()}
    wanted = {name: {"n": number, "free": str(number)} for name, number in machine.other.items()}
    check(found == wanted, f"the other index has {found}, not {wanted}")


@operation(0.4)
def alias_moved(machine: Machine, rng: random.Random, op: Op) -> None:
    """Move an alias; all actors read the index that it stands for."""
    actor = machine.some_actor(rng)
    target = rng.choice([INDEX, *([OTHER] if machine.other is not None else [])])
    actor.client.alias(ALIAS, target)
    machine.aliased = target
    for one in machine.actors.values():
        one.look()
        _patiently(one, partial(_compare_alias, machine, one, target))


def _compare_alias(machine: Machine, actor: Actor, target: str) -> None:
    aliases = actor.client.aliases()
    check(aliases == {ALIAS: target}, f"{actor.name} has the aliases {aliases}")
    wanted = len(machine.other or {}) if target == OTHER else len(machine.checker.readable(actor))
    found = actor.client.index(ALIAS).count()
    check(found == wanted, f"{actor.name} counts {found} of {wanted} rows of {target} by its alias")


def _patiently(actor: Actor, compare: Callable[[], None]) -> None:
    """Compare until it is right, where the workers of a server follow within a second."""
    end = time.monotonic() + (NOTICED_S if actor.many else 0.0)
    while True:
        try:
            return compare()
        except (WrongError, scannery.ScanneryError):
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)


def _refused(call: Any, what: str) -> None:
    try:
        call()
    except scannery.ScanneryError:
        return
    check(False, f"the other index was {what}")

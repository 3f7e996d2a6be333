"""Random operations of callers who see parts of an index, one after the other, checked against a model."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from scannery.indexer import Store
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.seal import seal
from scannery.v1 import index_pb2
from tests.cluster.questions import DIMENSIONS
from tests.rights.paging import scan
from tests.rights.principals import CALLERS, TENANTS
from tests.rights.questions import INDEX, any_datapoint, any_read, spec
from tests.rights.wires import served
from tests.rights.world import Engine, LeakError, Refusal, Wire, World
from tests.rights.writes import write

__all__ = ["KINDS", "run"]

KINDS = ("engine", "server", "cluster")
"""Where the index is: in this process, behind the wires of a server, or behind those of a root with two leaves."""
ROWS = 90
WRITES, PAGES, UPKEEP = 0.08, 0.02, 0.02
"""Shares of the operations."""
GROUPS_EVERY = 300
"""Operations between two changes of groups; behind wires, they are seen a second later."""


def run(
    folder: Path,
    operations: int,
    seed: int,
    *,
    kind: str = "engine",
    until: Callable[[], bool] = lambda: False,
) -> Counter[str]:
    """Do random operations; return how many of each method.

    Args:
        folder: empty.
        operations: number of them.
        seed: of the random numbers.
        kind: of `KINDS`.
        until: ends the run when it returns true.

    Raises:
        LeakError: a caller got what it may not see, or not what it sees.

    """
    store = folder / "store"
    engine = Engine(store)
    request = index_pb2.CreateIndexRequest(spec_json=json.dumps(spec(INDEX)), dimensions=DIMENSIONS)
    created = engine.ask(None, "CreateIndex", request)
    assert not isinstance(created, Refusal), created
    if kind == "engine":
        return _run(engine, Engine(folder / "twins"), store, operations, seed, GROUPS_EVERY, until)
    engine.close()
    with served(folder, store, leaves=2 * (kind == "cluster")) as wire:
        return _run(wire, Engine(folder / "twins"), store, operations, seed, 2 * GROUPS_EVERY, until)


def _run(
    wire: Wire,
    twins: Engine,
    store: Path,
    operations: int,
    seed: int,
    groups_every: int,
    until: Callable[[], bool],
) -> Counter[str]:
    chosen, done, opened = random.Random(seed), Counter[str](), Store.open(store)
    world = World(wire, twins, chosen, ROWS)
    points = [any_datapoint(chosen, f"d{row}", chosen.choice(TENANTS)) for row in range(ROWS)]
    upserts = [index_pb2.Upsert(datapoint=point) for point in points]
    answer = wire.ask(None, "Upsert", index_pb2.UpsertRequest(index=INDEX, upserts=upserts))
    assert not isinstance(answer, Refusal), answer
    world.change({point.id: point for point in points})
    for number in range(operations):
        try:
            if number % groups_every == 0:
                world.change_groups()
            done[_one(world, opened)] += 1
        except LeakError as fault:
            raise LeakError(f"operation {number} of seed {seed}: {fault}") from fault
        if until():
            break
    twins.close()
    return done


def _one(world: World, store: Store) -> str:
    chosen, caller = world.chosen, world.chosen.choice(CALLERS)
    share = chosen.random()
    if share < WRITES:
        return write(world, caller if caller.writes else None)
    if share < WRITES + PAGES:
        return scan(world, caller)
    if share < WRITES + PAGES + UPKEEP:
        # New segments, with the same rows: no answer changes.
        name = chosen.choice(["seal", "seal", "merge"])
        _UPKEEP[name](store, INDEX)
        return name
    method, request = any_read(chosen, world.rows)
    world.check(caller, method, request, world.wire.ask(caller, method, request))
    return method


_UPKEEP: dict[str, Callable[[Store, str], object]] = {"seal": seal, "merge": merge}

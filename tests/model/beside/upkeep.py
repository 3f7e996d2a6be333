"""Operations on an index as a whole, and kills."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scannery.indexer import (
    AlreadyExistsError,
    BuildError,
    InUseError,
    alter_index,
    altered_spec,
    collect_garbage,
    read_manifest,
)
from scannery.live.log.location import DatabaseUrl
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.scheduler import PROGRAM
from scannery.live.maintenance.seal import seal
from scannery.pipelines import build
from scannery.pipelines.errors import SpecConflictError
from tests.model.beside.rows import ALIAS, INDEX, Row, new_point, vector_of

if TYPE_CHECKING:
    from tests.model.beside.writer import Writer

__all__ = ["UPKEEP", "Weights"]

BUILT_IDS = 20
MAX_COLUMNS = 16
"""Attributes and named vectors that a round adds."""


class Weights(NamedTuple):
    """Weights of an operation, beside those of the operations on rows, which are 100 in all."""

    servers: float
    roots: float


def alter(writer: Writer, rng: random.Random) -> None:
    """Add an attribute or a named vector."""
    world = writer.world
    if len(world.columns) >= MAX_COLUMNS:
        return
    kind = rng.choice(["int", "vector"])
    name = f"{kind[0]}{next(world.numbers)}"
    changes: dict[str, Any] = (
        {"attributes": {name: "int"}} if kind == "int" else {"named_vectors": {name: {"dimensions": 2}}}
    )
    if world.roots:  # which leave it to others
        alter_index(world.store, INDEX, lambda manifest: altered_spec(manifest.spec, changes))
    else:
        writer.answered(lambda client: client.index(INDEX).alter(**changes))
    world.columns.append((name, kind))
    world.done(1, compared=True)


def alias(writer: Writer, rng: random.Random) -> None:
    """Write by an alias."""
    writer.answered(lambda client: client.alias(ALIAS, INDEX))
    writer.world.done(1, compared=True)
    [name], row = writer.some_ids(rng, 1), writer.row(rng, writer.columns(rng))
    writer.write(
        "alias",
        lambda client, own: client.index(ALIAS).upsert([new_point(name, row)], request_id=own),
        lambda _: {name: row},
        [name],
        rng,
        index=ALIAS,
    )


def other_index(writer: Writer, rng: random.Random) -> None:
    """Create another index, and drop it."""
    name = f"other{rng.getrandbits(60):x}"
    writer.answered(lambda client: client.create_index(name, dimensions=2, if_exists="keep"))
    writer.world.done(1, compared=True)
    if writer.place.name == "embedded":
        return  # servers have it open
    writer.answered(lambda client: client.drop_index(name, missing_ok=True))


def kill(writer: Writer, rng: random.Random) -> None:
    """Kill a worker or the whole server."""
    writer.place.kill(rng)


def kill_maintenance(writer: Writer, rng: random.Random) -> None:
    """Kill what seals and merges."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if PROGRAM.encode() in words and str(writer.world.path).encode() in words:
                os.kill(int(path.parent.name), signal.SIGKILL)


def maintain(writer: Writer, rng: random.Random) -> None:
    """Seal or merge, where no server does."""
    with suppress(AlreadyExistsError):
        if rng.random() < 0.6:
            seal(writer.world.store, INDEX, log_root=DatabaseUrl(writer.world.log))
        else:
            merge(writer.world.store, INDEX)


def collect(writer: Writer, rng: random.Random) -> None:
    """Remove what no version needs."""
    with suppress(InUseError):
        collect_garbage(writer.world.store, INDEX, keep=rng.choice([1, 3]))


def built(writer: Writer, rng: random.Random) -> None:
    """Build rows that nobody else writes, with the columns that there are."""
    if not writer.world.building.acquire(blocking=False):
        return
    try:
        _build(writer, rng)
    finally:
        writer.world.building.release()


def _build(writer: Writer, rng: random.Random) -> None:
    world, columns = writer.world, list(writer.world.columns)
    rows = {f"b{rng.randrange(BUILT_IDS)}": Row(writer.row(rng, columns).attributes, {}) for _ in range(6)}
    for row in rows.values():
        row.attributes["kind"] = "built"
    lines = [
        json.dumps({"id": name, "vector": vector_of(name)} | row.attributes) for name, row in rows.items()
    ]
    path = world.path.parent / f"{rng.getrandbits(60):x}.jsonl"
    path.write_text("\n".join(lines))
    spec = read_manifest(world.store, INDEX).spec
    if any(name not in spec.attributes for row in rows.values() for name in row.attributes if name[0] == "i"):
        return
    with suppress(AlreadyExistsError, BuildError, SpecConflictError):  # others have published a version
        build(spec, [str(path)], str(world.path), before=seal)
        world.built.append(world.built[-1] | rows)
        world.done(1, compared=True)


UPKEEP: dict[str, tuple[Callable[[Writer, random.Random], None], Weights]] = {
    "alter": (alter, Weights(servers=3.0, roots=3.0)),
    "alias": (alias, Weights(servers=1.0, roots=0.0)),
    "other_index": (other_index, Weights(servers=0.4, roots=0.0)),
    "kill": (kill, Weights(servers=1.0, roots=0.0)),
    "kill_maintenance": (kill_maintenance, Weights(servers=0.3, roots=0.0)),
    "build": (built, Weights(servers=0.5, roots=0.0)),
    "collect": (collect, Weights(servers=0.5, roots=0.5)),
    "maintain": (maintain, Weights(servers=0.0, roots=2.0)),
}
"""Operations by name, with the weights that bound their share of the time."""

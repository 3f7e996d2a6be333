"""A client that does one operation after the other, drawn from the seed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import scannery
from scannery.client import Client
from scannery.client.request import filtered_writes
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
from tests.model.beside.place import Place
from tests.model.beside.rows import (
    INDEX,
    TIMEOUT_S,
    Event,
    Reading,
    Row,
    Rows,
    new_point,
    row_of,
    shown_rows,
    vector_of,
)
from tests.model.errors import WrongError, check
from tests.model.processes import LOST

if TYPE_CHECKING:
    from tests.model.beside.round import Round

__all__ = ["OPERATIONS", "Writer"]

ALIAS = "also"
IDS, BUILT_IDS = 40, 20
STAMPS = 5
MAX_COLUMNS = 16
"""Attributes and named vectors that a round adds."""
PATIENCE_S = 300.0
OPERATIONS = {
    "upsert": 30, "update": 30, "update_where": 12, "delete": 4, "delete_where": 2, "conditional": 6, "get": 30,
    "scan": 3, "alter": 1.0, "alias": 0.5, "other_index": 0.2, "kill": 0.3, "kill_maintenance": 0.1, "build": 0.2,
    "collect": 0.2, "maintain": 0.0,
}  # fmt: skip
"""Weights of the operations."""
_NOT_FOR_ROOTS = ("kill", "kill_maintenance", "build", "other_index", "alias")

ResultT = TypeVar("ResultT")


class Writer:
    """A client that does one operation after the other."""

    def __init__(self, world: Round, name: str, place: Place) -> None:
        self.world, self.name, self.place = world, name, place
        self.client, self.start = place.open()
        self.seen = 0

    def run(self, ops: int) -> None:
        """Do operations; what fails ends all."""
        weights = {
            name: 0.0 if self.world.roots and name in _NOT_FOR_ROOTS else own
            for name, own in OPERATIONS.items()
        }
        weights["maintain"] = 1.0 if self.world.roots else 0.0
        for number in range(ops):
            if self.world.failures:
                return
            rng = random.Random(f"{self.world.seed}-{self.name}-{number}")
            what = rng.choices(list(weights), list(weights.values()))[0]
            try:
                getattr(self, what)(rng)
            except BaseException as error:  # noqa: BLE001  the main thread raises it
                trace = "".join(traceback.format_exception(error)[-6:])
                self.world.failures.append(
                    WrongError(f"operation {number} of {self.name}, {what}: {error}\n{trace}")
                )
                return
            self.world.counts[what] += 1

    def close(self) -> None:
        """Close the client."""
        self.client.close()

    def compare(self, final: Rows) -> None:
        """Check that this client is shown the final rows, once its server has come back and has seen all."""
        self.answered(partial(self.world.check_whole, self.name, final=final), wrong=True)

    def answered(self, call: Callable[[Client], ResultT], *, wrong: bool = False) -> ResultT:
        """Return the result of a call, which is repeated where the server is away, or does not know a name yet."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call(self.client)
            except LOST as error:
                check(time.monotonic() < end_s, f"{self.name} gets no answer: {error}")
                self.reconnect()
            except scannery.ResourceExhaustedError as error:
                check(time.monotonic() < end_s, f"{self.name} takes no writes: {error}")
                self.world.counts["refused"] += 1
            except scannery.InvalidArgumentError as error:
                unknown = any(name in str(error) for name, _ in list(self.world.columns))
                check(unknown and time.monotonic() < end_s, f"{self.name}: {error}")
                self.world.counts["unknown column"] += 1
            except WrongError:
                if not wrong or time.monotonic() >= end_s - PATIENCE_S * 0.8:
                    raise
            time.sleep(0.05)

    def reconnect(self) -> None:
        """Make a new client, which has seen nothing yet; of a server that was killed, to the next one."""
        self.world.counts["reconnected"] += 1
        self.client.close()
        self.client, self.start = self.place.open()
        self.seen = 0

    def write(
        self,
        what: str,
        call: Callable[[Client, str], Any],
        apply: Callable[[Rows], dict[str, Row | None]],
        rng: random.Random,
    ) -> None:
        """Do a write, and take note of its answer."""
        request_id = f"{rng.getrandbits(100):x}"
        done = self.answered(lambda client: call(client, request_id))
        self.world.events.append(Event(done.sequence, self.name, what, apply))
        self.seen = max(self.seen, done.sequence)

    def row(self, rng: random.Random) -> Row:
        """Return any row."""
        attributes: dict[str, Any] = {"kind": "live", "stamp": rng.randrange(STAMPS)}
        vectors = {}
        for name, kind in list(self.world.columns):
            if rng.random() < 0.6:
                if kind == "int":
                    attributes[name] = rng.randrange(10)
                else:
                    vectors[name] = [float(rng.randrange(1, 9)), float(rng.randrange(9))]
        if self.world.dynamic:
            for name in ("d0", "d1"):
                if rng.random() < 0.4:
                    attributes[name] = rng.choice([rng.randrange(9), "text", {"deep": [rng.randrange(9)]}])
        return Row(attributes, vectors, rng.choice([None, "one", "two"]))

    def upsert(self, rng: random.Random) -> None:
        """Replace some rows."""
        rows = {f"id{rng.randrange(IDS)}": self.row(rng) for _ in range(rng.choice([1, 1, 2, 5]))}
        points = [new_point(name, row) for name, row in rows.items()]
        self.write(
            "upsert",
            lambda client, own: client.index(INDEX).upsert(points, request_id=own),
            lambda _: dict(rows),
            rng,
        )

    def change(self, rng: random.Random) -> dict[str, Any]:
        """Return some fields with new values."""
        row = self.row(rng)
        attributes: dict[str, Any] = dict(rng.sample(sorted(row.attributes.items(), key=str), 1))
        attributes = {
            name: None if name != "kind" and rng.random() < 0.1 else value
            for name, value in attributes.items()
        }
        change: dict[str, Any] = {"attributes": attributes}
        if row.vectors and rng.random() < 0.3:
            name, vector = rng.choice(sorted(row.vectors.items()))
            change["vectors"] = {name: None if rng.random() < 0.1 else vector}
        if rng.random() < 0.2:
            change["title"] = row.title
        return change

    def update(self, rng: random.Random) -> None:
        """Change some fields of some rows."""
        changes = {f"id{rng.randrange(IDS)}": self.change(rng) for _ in range(rng.choice([1, 1, 2]))}
        points: list[Any] = [{"id": name, **change} for name, change in changes.items()]

        def apply(rows: Rows) -> dict[str, Row | None]:
            check(
                changes.keys() <= rows.keys(),
                f"{self.name} changed one of {sorted(changes)}, which was not there",
            )
            return {name: rows[name][1].changed(change) for name, change in changes.items()}

        with suppress(scannery.NotFoundError):
            self.write(
                "update", lambda client, own: client.index(INDEX).update(points, request_id=own), apply, rng
            )

    def filtered(
        self,
        rng: random.Random,
        call: Callable[..., Any],
        effect: Callable[[Row], Row | None],
        **options: Any,
    ) -> None:
        """Write the rows that a filter allows, in one batch."""
        stamp = rng.randrange(STAMPS)
        where: dict[str, Any] = {"kind": "live", "stamp": stamp}
        attributes = [name for name, kind in list(self.world.columns) if kind == "int"]
        name = rng.choice(attributes) if attributes and rng.random() < 0.5 else ""
        exists = rng.random() < 0.5
        if name:
            where[name] = {"$exists": exists}
        request_id = f"{rng.getrandbits(100):x}"
        batch = self.answered(
            lambda client: client._run(
                call(
                    INDEX, where, limit=1000, until_sequence=None, dry_run=False, request_id=request_id,
                    timeout_s=TIMEOUT_S, **options,
                )
            )
        )  # fmt: skip

        def apply(rows: Rows) -> dict[str, Row | None]:
            chosen = {
                own: effect(row)
                for own, (_, row) in rows.items()
                if row.attributes.get("stamp") == stamp
                and row.attributes.get("kind") == "live"
                and (not name or (name in row.attributes) == exists)
            }
            check(
                len(chosen) == batch.rows,
                f"{self.name} wrote {batch.rows} rows of {where}, not {len(chosen)}",
            )
            return chosen

        if batch.rows:
            self.world.events.append(Event(batch.sequence, self.name, "filtered", apply))

    def update_where(self, rng: random.Random) -> None:
        """Change what a filter allows."""
        attributes = {name: value for name, value in self.change(rng)["attributes"].items() if name != "kind"}
        attributes = attributes or {"stamp": rng.randrange(STAMPS)}
        self.filtered(
            rng,
            filtered_writes.update_where,
            lambda row: row.changed({"attributes": attributes}),
            attributes=attributes,
        )

    def delete_where(self, rng: random.Random) -> None:
        """Delete what a filter allows."""
        self.filtered(rng, filtered_writes.delete_where, lambda row: None)

    def delete(self, rng: random.Random) -> None:
        """Delete some rows."""
        names = sorted({f"id{rng.randrange(IDS)}" for _ in range(rng.choice([1, 3]))})
        self.write(
            "delete",
            lambda client, own: client.index(INDEX).delete(names, request_id=own),
            lambda rows: dict.fromkeys(names),
            rng,
        )

    def conditional(self, rng: random.Random) -> None:
        """Replace a row only if it is as it was read."""
        name, row = f"id{rng.randrange(IDS)}", self.row(rng)
        shown = self.answered(lambda client: shown_rows(client, [name]))[name]
        revision = None if shown is None else shown[0]
        condition: dict[str, Any] = {"if_absent": True} if revision is None else {"if_revision": revision}

        def apply(rows: Rows) -> dict[str, Row | None]:
            stored = rows[name][0] if name in rows else None
            check(
                stored == revision, f"{self.name} replaced {name} at {stored}, on the condition of {revision}"
            )
            return {name: row}

        point = new_point(name, row) | condition
        with suppress(scannery.FailedPreconditionError):
            self.write(
                "conditional",
                lambda client, own: client.index(INDEX).upsert([point], request_id=own),
                apply,
                rng,
            )

    def get(self, rng: random.Random) -> None:
        """Read some rows."""
        names = sorted({f"id{rng.randrange(IDS)}" for _ in range(rng.choice([1, 3, 10]))})

        def read(client: Client) -> Reading:
            seen = self.seen  # of this client
            return Reading(self.name, seen, shown_rows(client, names), whole=False)

        self.world.readings.append(self.answered(read))

    def scan(self, rng: random.Random) -> None:
        """Read all rows, page by page."""

        def read(client: Client) -> Reading:
            seen = self.seen
            rows = list(client.index(INDEX).scan(where={"kind": "live"}, vectors=True, page_size=15))
            return Reading(self.name, seen, {row.id: row_of(row) for row in rows}, whole=True)

        with suppress(scannery.FailedPreconditionError):  # its snapshot is gone
            self.world.readings.append(self.answered(read))

    def alter(self, rng: random.Random) -> None:
        """Add an attribute or a named vector."""
        if len(self.world.columns) >= MAX_COLUMNS:
            return
        kind = rng.choice(["int", "vector"])
        name = f"{kind[0]}{next(self.world.numbers)}"
        changes: dict[str, Any] = (
            {"attributes": {name: "int"}} if kind == "int" else {"named_vectors": {name: {"dimensions": 2}}}
        )
        if self.world.roots:  # which leave it to others
            alter_index(self.world.store, INDEX, lambda manifest: altered_spec(manifest.spec, changes))
        else:
            self.answered(lambda client: client.index(INDEX).alter(**changes))
        self.world.columns.append((name, kind))

    def alias(self, rng: random.Random) -> None:
        """Write by an alias."""
        self.answered(lambda client: client.alias(ALIAS, INDEX))
        name, row = f"id{rng.randrange(IDS)}", self.row(rng)
        self.write(
            "alias",
            lambda client, own: client.index(ALIAS).upsert([new_point(name, row)], request_id=own),
            lambda _: {name: row},
            rng,
        )

    def other_index(self, rng: random.Random) -> None:
        """Create another index, and drop it."""
        name = f"other{rng.getrandbits(60):x}"
        self.answered(lambda client: client.create_index(name, dimensions=2, if_exists="keep"))
        if self.place.name == "embedded" or self.world.roots:
            return  # servers have it open
        self.answered(lambda client: client.drop_index(name, missing_ok=True))

    def kill(self, rng: random.Random) -> None:
        """Kill a worker or the whole server."""
        self.place.kill(rng)

    def kill_maintenance(self, rng: random.Random) -> None:
        """Kill what seals and merges."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if PROGRAM.encode() in words and str(self.world.path).encode() in words:
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def maintain(self, rng: random.Random) -> None:
        """Seal or merge, where no server does."""
        with suppress(AlreadyExistsError):
            if rng.random() < 0.6:
                seal(self.world.store, INDEX, log_root=DatabaseUrl(self.world.log))
            else:
                merge(self.world.store, INDEX)

    def collect(self, rng: random.Random) -> None:
        """Remove what no version needs."""
        with suppress(InUseError):
            collect_garbage(self.world.store, INDEX, keep=rng.choice([1, 3]))

    def build(self, rng: random.Random) -> None:
        """Build rows that nobody else writes, with the columns that there are."""
        if not self.world.building.acquire(blocking=False):
            return
        try:
            self._build(rng)
        finally:
            self.world.building.release()

    def _build(self, rng: random.Random) -> None:
        rows = {f"b{rng.randrange(BUILT_IDS)}": Row(self.row(rng).attributes, {}) for _ in range(6)}
        for row in rows.values():
            row.attributes["kind"] = "built"
        lines = [
            json.dumps({"id": name, "vector": vector_of(name)} | row.attributes) for name, row in rows.items()
        ]
        path = self.world.path.parent / f"{rng.getrandbits(60):x}.jsonl"
        path.write_text("\n".join(lines))
        spec = read_manifest(self.world.store, INDEX).spec
        if any(
            name not in spec.attributes for row in rows.values() for name in row.attributes if name[0] == "i"
        ):
            return
        with suppress(AlreadyExistsError, BuildError, SpecConflictError):  # others have published a version
            build(spec, [str(path)], str(self.world.path), before=seal)
            self.world.built.append(self.world.built[-1] | rows)

"""A client that does one operation after the other, drawn from the seed."""

from __future__ import annotations

import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import scannery
from scannery.client import Client
from scannery.client.request import filtered_writes
from tests.model.beside.place import Place
from tests.model.beside.rows import (
    INDEX,
    PRESENT,
    TIMEOUT_S,
    Event,
    Reading,
    Refusal,
    Row,
    Rows,
    new_point,
    row_of,
    shown_rows,
)
from tests.model.beside.upkeep import UPKEEP
from tests.model.errors import WrongError, check
from tests.model.processes import LOST

if TYPE_CHECKING:
    from tests.model.beside.round import Round

__all__ = ["Writer"]

IDS, HOT_IDS = 400, 60
"""Ids of all rows, and of those that half of the writes go to: writers meet there."""
BATCHES = (1, 3, 20, 40, 60)
"""Rows of a write: most of its cost is that of a record, which each process reads."""
STAMPS = 40
PATIENCE_S = 300.0
READ_BACK = 0.9
"""Share of the writes whose rows their client reads next."""
OPERATIONS = {
    "upsert": 30, "update": 36, "update_where": 10, "delete": 5, "delete_where": 2, "conditional": 8, "get": 6,
    "scan": 2,
}  # fmt: skip
"""Weights of the operations on rows; those on the index are in `UPKEEP`."""

ResultT = TypeVar("ResultT")


class Writer:
    """A client that does one operation after the other."""

    def __init__(self, world: Round, name: str, place: Place) -> None:
        self.world, self.name, self.place = world, name, place
        self.client = place.open()
        self.seen = Counter[str]()
        """Last sequence that this client wrote by each name of the index: reads by that name show it."""
        self.refused: list[Refusal] = []
        """Since the last write."""

    def run(self) -> None:
        """Do operations until all writers together have done what they should; what fails ends all."""
        upkeep = {
            name: weight
            for name, (_, weights) in UPKEEP.items()
            if (weight := weights.roots if self.world.roots else weights.servers)
        }
        weights = OPERATIONS | upkeep | self.world.weights
        number = 0
        while self.world.goes_on():
            rng = random.Random(f"{self.world.seed}-{self.name}-{number}")
            what = rng.choices(list(weights), list(weights.values()))[0]
            try:
                if what in UPKEEP:
                    UPKEEP[what][0](self, rng)
                else:
                    getattr(self, what)(rng)
            except BaseException as error:  # noqa: BLE001  the main thread raises it
                trace = "".join(traceback.format_exception(error)[-6:])
                self.world.failures.append(
                    WrongError(f"operation {number} of {self.name}, {what}: {error}\n{trace}")
                )
                return
            self.world.counts[what] += 1
            number += 1
        self.world.refusals += self.refused

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
        """Make a new client, which has seen nothing yet."""
        self.world.counts["reconnected"] += 1
        self.client.close()
        self.client = self.place.open()
        self.seen.clear()

    def write(
        self,
        what: str,
        call: Callable[[Client, str], Any],
        apply: Callable[[Rows], dict[str, Row | None]],
        names: list[str],
        rng: random.Random,
        *,
        index: str = INDEX,
    ) -> None:
        """Do a write of some ids, take note of its answer, and read the rows, which others may have changed again."""
        request_id = f"{rng.getrandbits(100):x}"
        done = self.answered(lambda client: call(client, request_id))
        self.note(Event(done.sequence, self.name, what, apply), len(names))
        self.seen[index] = done.sequence
        if rng.random() < READ_BACK:
            self.read(names, index)

    def note(self, event: Event, operations: int) -> None:
        """Take note of a write."""
        refused, self.refused = self.refused, []
        self.world.refusals += [
            Refusal(each.actor, each.seen, event.sequence, each.condition) for each in refused
        ]
        self.world.events.append(event)
        self.world.done(operations)

    def read(self, names: list[str], index: str = INDEX) -> dict[str, tuple[int, Row] | None]:
        """Return what this client is shown of some ids, of which it takes note."""

        def read(client: Client) -> Reading:
            seen = self.seen[index]  # of this client
            return Reading(self.name, seen, shown_rows(client, names, index), whole=False)

        reading = self.answered(read)
        self.world.readings.append(reading)
        return reading.rows

    def columns(self, rng: random.Random) -> list[tuple[str, str]]:
        """Return columns that a write may name: all, or not the newest, which processes that come late do not know."""
        columns = list(self.world.columns)
        return columns if rng.random() < 0.4 else columns[: max(0, len(columns) - rng.choice([1, 3]))]

    def row(self, rng: random.Random, columns: list[tuple[str, str]]) -> Row:
        """Return any row with some of the columns."""
        attributes: dict[str, Any] = {"kind": "live", "stamp": rng.randrange(STAMPS)}
        vectors = {}
        for name, kind in columns:
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

    def some_ids(self, rng: random.Random, *counts: int) -> list[str]:
        """Return one of some numbers of ids."""
        ids = HOT_IDS if rng.random() < 0.5 else IDS
        return sorted(f"id{number}" for number in rng.sample(range(ids), rng.choice(counts)))

    def upsert(self, rng: random.Random) -> None:
        """Replace some rows."""
        columns = self.columns(rng)
        rows = {name: self.row(rng, columns) for name in self.some_ids(rng, *BATCHES)}
        points = [new_point(name, row) for name, row in rows.items()]
        self.write(
            "upsert",
            lambda client, own: client.index(INDEX).upsert(points, request_id=own),
            lambda _: dict(rows),
            list(rows),
            rng,
        )
        self.world.there.update(rows)

    def change(self, rng: random.Random, columns: list[tuple[str, str]]) -> dict[str, Any]:
        """Return some fields with new values."""
        row = self.row(rng, columns)
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
        """Change some fields of some rows, which were there a moment ago."""
        names = [name for name in self.some_ids(rng, *BATCHES) if name in self.world.there]
        columns = self.columns(rng)
        changes = {name: self.change(rng, columns) for name in names or self.some_ids(rng, 1)}
        points: list[Any] = [{"id": name, **change} for name, change in changes.items()]

        def apply(rows: Rows) -> dict[str, Row | None]:
            check(
                changes.keys() <= rows.keys(),
                f"{self.name} changed one of {sorted(changes)}, which was not there",
            )
            return {name: rows[name][1].changed(change) for name, change in changes.items()}

        try:
            self.write(
                "update",
                lambda client, own: client.index(INDEX).update(points, request_id=own),
                apply,
                list(changes),
                rng,
            )
        except scannery.NotFoundError:
            self.refused.append(Refusal(self.name, self.seen[INDEX], None, dict.fromkeys(changes, PRESENT)))
            self.world.counts["not found"] += 1

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
        attributes = [name for name, kind in self.columns(rng) if kind == "int"]
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
            self.note(Event(batch.sequence, self.name, "filtered", apply, named=False), 1)

    def update_where(self, rng: random.Random) -> None:
        """Change what a filter allows."""
        change = self.change(rng, self.columns(rng))
        attributes = {name: value for name, value in change["attributes"].items() if name != "kind"}
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
        names = self.some_ids(rng, 1, 3, 5)
        self.world.there.difference_update(names)
        self.write(
            "delete",
            lambda client, own: client.index(INDEX).delete(names, request_id=own),
            lambda rows: dict.fromkeys(names),
            names,
            rng,
        )

    def conditional(self, rng: random.Random) -> None:
        """Replace some rows only if all are as they were read."""
        columns = self.columns(rng)
        rows = {name: self.row(rng, columns) for name in self.some_ids(rng, 1, 1, 3)}
        revisions = {name: shown and shown[0] for name, shown in self.read(list(rows)).items()}

        def apply(stored: Rows) -> dict[str, Row | None]:
            there = {name: stored[name][0] if name in stored else None for name in rows}
            check(
                there == revisions, f"{self.name} replaced rows at {there}, on the condition of {revisions}"
            )
            return dict(rows)

        points = [
            new_point(name, row)
            | ({"if_absent": True} if revisions[name] is None else {"if_revision": revisions[name]})
            for name, row in rows.items()
        ]
        try:
            self.write(
                "conditional",
                lambda client, own: client.index(INDEX).upsert(points, request_id=own),
                apply,
                list(rows),
                rng,
            )
        except scannery.FailedPreconditionError:
            self.refused.append(Refusal(self.name, self.seen[INDEX], None, revisions))
            self.world.counts["conflicts"] += 1

    def get(self, rng: random.Random) -> None:
        """Read some rows."""
        self.read(self.some_ids(rng, 1, 10, 30))

    def scan(self, rng: random.Random) -> None:
        """Read all rows, page by page."""
        page_size = rng.choice([20, 100])

        def read(client: Client) -> Reading:
            seen = self.seen[INDEX]
            rows = list(client.index(INDEX).scan(where={"kind": "live"}, vectors=True, page_size=page_size))
            return Reading(self.name, seen, {row.id: row_of(row) for row in rows}, whole=True)

        with suppress(scannery.FailedPreconditionError):  # its snapshot is gone
            self.world.readings.append(self.answered(read))

"""Processes that write and read beside each other, compared with the log that they wrote.

Two clients of a server with two workers, one of a second server of the store, an embedded client and builds; or clients
of two roots with a log in PostgreSQL. Each write has a request id and is repeated until it is answered, so that all
sequences are known: in their order, the writes are applied to the model. A read shows one of its states, and none from
before what its client has seen.

The operations of a client are drawn from the seed and its name. Which of them come first is up to the processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import scannery
from scannery.client import Client
from scannery.client.request import filtered_writes
from scannery.indexer import (
    AlreadyExistsError,
    BuildError,
    InUseError,
    Store,
    alter_index,
    altered_spec,
    collect_garbage,
    read_manifest,
    verify,
)
from scannery.live.log.location import DatabaseUrl
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.scheduler import PROGRAM
from scannery.live.maintenance.seal import seal
from scannery.pipelines import build
from scannery.pipelines.errors import SpecConflictError
from tests.cluster.servers import leaf_server, root_server
from tests.live.torture import ServerProcess
from tests.model.errors import WrongError, check
from tests.model.processes import LIVE, LOST

__all__ = ["OPERATIONS", "run_beside"]

INDEX, ALIAS = "modelled", "also"
IDS, BUILT_IDS = 40, 20
STAMPS = 5
MAX_COLUMNS = 16
"""Attributes and named vectors that a round adds."""
ROUND = 2000
PATIENCE_S = 120.0
TIMEOUT_S = 30.0
OPERATIONS = {
    "upsert": 30, "update": 30, "update_where": 12, "delete": 4, "delete_where": 2, "conditional": 6, "get": 30,
    "scan": 3, "alter": 1.0, "alias": 0.5, "other_index": 0.2, "kill": 0.3, "kill_maintenance": 0.1, "build": 0.2,
    "collect": 0.2, "maintain": 0.0,
}  # fmt: skip
"""Weights of the operations."""
_NOT_FOR_ROOTS = ("kill", "kill_maintenance", "build", "other_index", "alias")

ResultT = TypeVar("ResultT")


class Row(NamedTuple):
    """What a datapoint has."""

    attributes: dict[str, Any]
    vectors: dict[str, list[float]]
    title: str | None = None

    def changed(self, change: dict[str, Any]) -> Row:
        """Return the row with some fields changed."""
        attributes = self.attributes | change.get("attributes", {})
        vectors = self.vectors | change.get("vectors", {})
        return Row(
            {name: value for name, value in attributes.items() if value is not None},
            {name: value for name, value in vectors.items() if value is not None},
            change.get("title", self.title),
        )


Rows = dict[str, tuple[int, Row]]
"""Revision and content by id."""


@dataclass(frozen=True)
class Event:
    """An answered write: `apply` returns the rows that it changes, None those that it removes."""

    sequence: int
    actor: str
    what: str
    apply: Callable[[Rows], dict[str, Row | None]]


@dataclass(frozen=True)
class Reading:
    """What a client was shown: revision and row by id, None if there was none; `whole`: and no others."""

    actor: str
    seen: int
    rows: dict[str, tuple[int, Row] | None]
    whole: bool


@dataclass
class Place:
    """A server, or the store itself, at which clients write; a server that was killed is started again."""

    name: str
    start: Callable[[], tuple[str, ServerProcess | None]]
    lock: threading.Lock = field(default_factory=threading.Lock)
    number: int = 0
    """How often it was started."""
    address: str = ""
    server: ServerProcess | None = None

    def open(self) -> tuple[Client, int]:
        """Return a new client, and the number of the start."""
        with self.lock:
            if not self.address:
                self.address, self.server = self.start()
                self.number += 1
            return scannery.connect(self.address, timeout_s=TIMEOUT_S), self.number

    def kill(self, rng: random.Random) -> None:
        """Kill a worker, the supervisor or all."""
        with self.lock:
            if self.server is not None and not self.server.kill(
                rng.choice(["worker", "worker", "server"]), rng
            ):
                self.address, self.server = "", None

    def close(self) -> None:
        """End the server."""
        if self.server is not None:
            self.server.end()


class Round:
    """A store, those who write to it, and what they were answered."""

    def __init__(self, folder: Path, seed: str, log: str = "") -> None:
        """Create an index in a folder; `log`: URL of a database for roots, empty for servers of the store."""
        self.path, self.seed, self.roots = folder / "store", seed, bool(log)
        self.log = log
        rng = random.Random(seed)
        self.dynamic = rng.random() < 0.5
        self.columns: list[tuple[str, str]] = []
        """Names that were added, each with its kind."""
        self.numbers = count()
        self.events: list[Event] = []
        self.readings: list[Reading] = []
        self.built: list[dict[str, Row]] = [{}]
        """What each build made of its rows."""
        self.building = threading.Lock()
        self.counts: Counter[str] = Counter()
        spec = {
            "index": INDEX,
            "distance": "dot",
            "shards": 2,
            "attributes": {"kind": "string", "stamp": "int"},
            "live": LIVE,
            "dynamic": self.dynamic,
        }
        with scannery.connect(self.path, create=True) as client:
            client.create_index(spec, dimensions=2)
        self.failures: list[BaseException] = []

    @property
    def store(self) -> Store:
        """The store, opened anew."""
        return Store.open(self.path)

    @contextmanager
    def places(self) -> Iterator[list[Place]]:
        """Give one place for each client."""
        with ExitStack() as stack:
            if self.roots:
                leaves = [
                    stack.enter_context(leaf_server(self.path, group, 2, log=self.log)).address
                    for group in range(2)
                ]
                roots = [
                    stack.enter_context(root_server(self.path, ",".join(leaves), log=self.log)).address
                    for _ in range(2)
                ]
                yield [Place(f"root{n}", partial(lambda root: (root, None), roots[n % 2])) for n in range(3)]
                return
            first, second = (Place(name, self._server) for name in ("first", "second"))
            for place in (first, second):
                stack.callback(place.close)
            embedded = Place("embedded", lambda: (str(self.path), None))
            yield [first, first, first, second, second, embedded, embedded]

    def _server(self) -> tuple[str, ServerProcess]:
        server = ServerProcess(self.path, 2, check_every_s=1.0)
        return server.address, server

    def run(self, ops: int) -> None:
        """Do operations with all clients at once, and compare."""
        with self.places() as places:
            writers = [Writer(self, f"{place.name}-{n}", place) for n, place in enumerate(places)]
            threads = [
                threading.Thread(target=writer.run, args=(-(-ops // len(writers)),)) for writer in writers
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if self.failures:
                raise self.failures[0]
            final = self.replayed()
            for writer in writers:
                writer.compare(final)
                writer.close()
        log = DatabaseUrl(self.log) if self.log else None
        seal(self.store, INDEX, log_root=log)
        problems = verify(self.store, INDEX).problems
        check(not problems, f"verify says {problems}")
        if not self.roots:
            with scannery.connect(self.path) as client:
                self.check_whole("anew", client, final)

    def replayed(self) -> Rows:
        """Apply all writes in the order of the log, check what was read, and return the rows."""
        events = sorted(self.events, key=lambda event: event.sequence)
        sequences = [event.sequence for event in events]
        check(sequences == list(range(1, len(events) + 1)), "the answers have other sequences than the log")
        rows: Rows = {}
        histories: dict[str, list[tuple[int, Row | None]]] = {}
        present: list[frozenset[str]] = [frozenset()]
        for event in events:
            for name, row in event.apply(rows).items():
                histories.setdefault(name, []).append((event.sequence, row))
                if row is None:
                    rows.pop(name, None)
                else:
                    rows[name] = event.sequence, row
            present.append(frozenset(rows))
        for reading in self.readings:
            _check_reading(reading, histories, present)
        return rows

    def check_whole(self, who: str, client: Client, final: Rows) -> None:
        """Check all rows that a client is shown."""
        own: dict[str, Any] = {name: (revision, row) for name, (revision, row) in final.items()}
        built = {name: (0, row) for name, row in self.built[-1].items()}
        shown = _shown(client, [*own, *built])
        for name, wanted in (own | built).items():
            check(shown[name] == wanted, f"{who} shows {name} as {shown[name]}, not {wanted}")
        total = client.index(INDEX).count()
        check(total == len(own) + len(built), f"{who} counts {total}, not {len(own) + len(built)}")


def _check_reading(
    reading: Reading, histories: dict[str, list[tuple[int, Row | None]]], present: list[frozenset[str]]
) -> None:
    """Check that a reading is of one state, which is not older than what its client had seen."""
    end = len(present)
    states = {range(reading.seen, end)}
    for name, shown in reading.rows.items():
        history = [(0, None), *histories.get(name, [])]
        spans = {
            range(first, following)
            for (first, row), following in zip(
                history, [*(each[0] for each in history[1:]), end], strict=True
            )
            if (None if row is None else (first, row)) == shown
        }
        check(spans, f"{reading.actor} shows {name} as {shown}, which it never was: {history[-6:]}")
        states = {
            both
            for state in states
            for span in spans
            if (both := range(max(state.start, span.start), min(state.stop, span.stop)))
        }
        check(states, f"{reading.actor} has seen {reading.seen}, and shows {name} as {shown}: {history[-6:]}")
    if reading.whole:
        names = reading.rows.keys()
        check(
            any(names == present[sequence] for state in states for sequence in state),
            f"{reading.actor} shows {len(names)} rows in a scan, as there never were",
        )


def _shown(
    client: Client, names: list[str], timeout_s: float = TIMEOUT_S
) -> dict[str, tuple[int, Row] | None]:
    rows = client.index(INDEX).get(names, vectors=True, timeout_s=timeout_s) if names else []
    return {name: None if row is None else _row(row) for name, row in zip(names, rows, strict=True)}


def _row(row: Any) -> tuple[int, Row]:
    vectors = {name: vector.tolist() for name, vector in row.vectors.items()}
    return row.revision, Row(dict(row.attributes), vectors, row.title)


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
        points = [_point(name, row) for name, row in rows.items()]
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
        shown = self.answered(lambda client: _shown(client, [name]))[name]
        revision = None if shown is None else shown[0]
        condition: dict[str, Any] = {"if_absent": True} if revision is None else {"if_revision": revision}

        def apply(rows: Rows) -> dict[str, Row | None]:
            stored = rows[name][0] if name in rows else None
            check(
                stored == revision, f"{self.name} replaced {name} at {stored}, on the condition of {revision}"
            )
            return {name: row}

        point = {**_point(name, row), **condition}
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
            return Reading(self.name, seen, _shown(client, names), whole=False)

        self.world.readings.append(self.answered(read))

    def scan(self, rng: random.Random) -> None:
        """Read all rows, page by page."""

        def read(client: Client) -> Reading:
            seen = self.seen
            rows = list(client.index(INDEX).scan(where={"kind": "live"}, vectors=True, page_size=15))
            return Reading(self.name, seen, {row.id: _row(row) for row in rows}, whole=True)

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
            lambda client, own: client.index(ALIAS).upsert([_point(name, row)], request_id=own),
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
            json.dumps({"id": name, "vector": _vector(name)} | row.attributes) for name, row in rows.items()
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


def _vector(name: str) -> list[float]:
    return [float(int(name.lstrip("idb")) + 1), 1.0]


def _point(name: str, row: Row) -> Any:
    point: dict[str, Any] = {
        "id": name,
        "vector": _vector(name),
        "attributes": row.attributes,
        "vectors": row.vectors,
    }
    return point if row.title is None else point | {"title": row.title}


def run_beside(
    ops: int, seed: int, *, log: Callable[[], str] | None = None, verbose: bool = False
) -> str | None:
    """Do random operations, on a new store for each ROUND of them; return what was wrong first.

    Args:
        ops: number of operations.
        seed: of the operations.
        log: returns the URL of a new database for each round, for two roots; None: servers of the store.
        verbose: whether to print how far it is.

    """
    started_s, left, totals = time.monotonic(), ops, Counter[str]()
    for number in count():
        if left <= 0:
            break
        with tempfile.TemporaryDirectory(prefix="scannery-model-", ignore_cleanup_errors=True) as folder:
            world = Round(Path(folder), f"{seed}-{number}", "" if log is None else log())
            try:
                world.run(min(left, ROUND))
            except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
                return f"round {number}: {type(error).__name__}: {error}"
        left -= ROUND
        totals += world.counts
        if verbose:
            minutes = (time.monotonic() - started_s) / 60
            print(
                f"{ops - max(left, 0):,} of {ops:,} operations, {minutes:.1f} minutes: {dict(totals)}",
                flush=True,
            )
    return None

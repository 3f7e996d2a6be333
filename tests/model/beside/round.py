"""Processes that write and read beside each other, compared with the log that they wrote.

Two clients of a server with two workers, one of a second server of the store, an embedded client and builds; or clients
of two roots with a log in PostgreSQL. Each write has a request id and is repeated until it is answered, so that all
sequences are known: in their order, the writes are applied to the model. A read shows one of its states, and none from
before what its client has seen.

The operations of a client are drawn from the seed and its name. Which of them come first, and how many each client
does, is up to the processes.

What counts as an operation: a row that a write names, if a reading or the final comparison shows it as that write left
it; a write by filter, whatever it changes, if one of its rows is shown so; a version with another spec; an alias; an
index that is created and dropped; a build. Reads, seals, merges and kills do not count.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

import scannery
from scannery.client import Client
from scannery.indexer import Store, verify
from scannery.live.log.location import DatabaseUrl
from scannery.live.maintenance.seal import seal
from tests.cluster.servers import leaf_server, root_server
from tests.live.torture import ServerProcess
from tests.model.beside.place import Place
from tests.model.beside.rows import (
    INDEX,
    Event,
    Histories,
    Reading,
    Refusal,
    Row,
    Rows,
    check_reading,
    check_refusal,
    shown_rows,
)
from tests.model.beside.writer import Writer
from tests.model.errors import check

__all__ = ["Round", "run_beside"]

ROUND = 5000
"""Operations on one store."""
SPARE = 1.15
"""As many operations are done for each that is compared: others overwrite some rows before anybody reads them."""
WORKERS = {"first": 2, "second": 1}
LIVE = {"seal_rows": 1000, "seal_age_s": 5.0, "max_rows": 5000, "merge_segments": 2}
"""So little that maintenance runs often; each version costs all processes a replay of what is not sealed."""


class Round:
    """A store, those who write to it, and what they were answered."""

    def __init__(
        self, folder: Path, seed: str, log: str = "", *, weights: Mapping[str, float] | None = None
    ) -> None:
        """Create an index in a folder.

        Args:
            folder: of the store and what is beside it.
            seed: of the operations.
            log: URL of a database for roots, empty for servers of the store.
            weights: of operations, instead of the usual ones.

        """
        self.path, self.seed, self.roots = folder / "store", seed, bool(log)
        self.log, self.weights = log, dict(weights or {})
        rng = random.Random(seed)
        self.dynamic = rng.random() < 0.5
        self.columns: list[tuple[str, str]] = []
        """Names that were added, each with its kind."""
        self.numbers = count()
        self.events: list[Event] = []
        self.readings: list[Reading] = []
        self.refusals: list[Refusal] = []
        self.there: set[str] = set()
        """Ids that rows probably have."""
        self.left = 0
        self.leaving = threading.Lock()
        self.operations = 0
        """How many operations were compared."""
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
                yield [Place(f"root{number}", roots[number % 2]) for number in range(3)]
                return
            first, second = (
                Place(name, start=partial(self._server, workers)) for name, workers in WORKERS.items()
            )
            for place in (first, second):
                stack.callback(place.close)
            embedded = Place("embedded", str(self.path))
            yield [first, first, first, second, second, embedded, embedded]

    def _server(self, workers: int, listen: str) -> ServerProcess:
        return ServerProcess(self.path, workers, check_every_s=1.0, listen=listen)

    def goes_on(self) -> bool:
        """Return whether there are operations left to do."""
        return self.left > 0 and not self.failures

    def done(self, operations: int, *, compared: bool = False) -> None:
        """Record that operations were done; those on rows count when they are `compared`."""
        with self.leaving:
            self.left -= operations
            self.operations += operations if compared else 0

    def run(self, ops: int) -> None:
        """Do operations with all clients at once, and compare."""
        self.left = ops
        with self.places() as places, ExitStack() as stack:
            writers = [Writer(self, f"{place.name}-{n}", place) for n, place in enumerate(places)]
            for writer in writers:
                stack.callback(writer.close)
            threads = [threading.Thread(target=writer.run) for writer in writers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if self.failures:
                raise self.failures[0]
            final = self.replayed()
            for writer in writers:
                writer.compare(final)
        log = DatabaseUrl(self.log) if self.log else None
        seal(self.store, INDEX, log_root=log)
        problems = verify(self.store, INDEX).problems
        check(not problems, f"verify says {problems}")
        if not self.roots:
            with scannery.connect(self.path) as client:
                self.check_whole("anew", client, final)

    def replayed(self) -> Rows:
        """Apply all writes in the order of the log, check what was read, and return the rows."""
        events = {event.sequence: event for event in self.events}
        last = max(events, default=0)
        # An alter appends a record of its own.
        others = last - len(events)
        check(
            len(events) == len(self.events) and min(events, default=1) >= 1 and others <= len(self.columns),
            "the answers have other sequences than the log",
        )
        rows: Rows = {}
        histories: Histories = {}
        present: list[frozenset[str]] = [frozenset()]
        written: list[tuple[Event, set[tuple[str, int]]]] = []
        for sequence in range(1, last + 1):
            changed = events[sequence].apply(rows) if sequence in events else {}
            if sequence in events:
                written.append((events[sequence], {(name, sequence) for name in changed}))
            for name, row in changed.items():
                histories.setdefault(name, []).append((sequence, row))
                if row is None:
                    rows.pop(name, None)
                else:
                    rows[name] = sequence, row
            present.append(frozenset(rows))
        # The final rows are compared with those of all clients.
        shown = {(name, history[-1][0]) for name, history in histories.items()}
        for reading in self.readings:
            shown |= check_reading(reading, histories, present)
        for refusal in self.refusals:
            check_refusal(refusal, histories, len(present))
        self.operations += sum(
            len(own & shown) if event.named else bool(own & shown) for event, own in written
        )
        return rows

    def check_whole(self, who: str, client: Client, final: Rows) -> None:
        """Check all rows that a client is shown."""
        own: dict[str, Any] = {name: (revision, row) for name, (revision, row) in final.items()}
        built = {name: (0, row) for name, row in self.built[-1].items()}
        shown = shown_rows(client, [*own, *built])
        for name, wanted in (own | built).items():
            check(shown[name] == wanted, f"{who} shows {name} as {shown[name]}, not {wanted}")
        total = client.index(INDEX).count()
        check(total == len(own) + len(built), f"{who} counts {total}, not {len(own) + len(built)}")


def run_beside(
    ops: int,
    seed: int,
    *,
    log: Callable[[], str] | None = None,
    weights: Mapping[str, float] | None = None,
    verbose: bool = False,
) -> str | None:
    """Do random operations, on a new store for each ROUND of them; return what was wrong first.

    Args:
        ops: least number of operations.
        seed: of the operations.
        log: returns the URL of a new database for each round, for two roots; None: servers of the store.
        weights: of operations, instead of the usual ones.
        verbose: whether to print how far it is.

    """
    started_s, done, totals = time.monotonic(), 0, Counter[str]()
    for number in count():
        if done >= ops:
            break
        with tempfile.TemporaryDirectory(prefix="scannery-model-", ignore_cleanup_errors=True) as folder:
            world = Round(Path(folder), f"{seed}-{number}", "" if log is None else log(), weights=weights)
            try:
                world.run(min(ceil(SPARE * (ops - done)), ROUND))
            except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
                return f"round {number}: {type(error).__name__}: {error}"
        done += world.operations
        totals += world.counts + Counter(
            {"readings": len(world.readings), "requests": len(world.events), "rounds": 1}
        )
        if verbose:
            seconds = time.monotonic() - started_s
            print(f"{done:,} of {ops:,} operations, {seconds:.0f} s: {dict(totals)}", flush=True)
    return None

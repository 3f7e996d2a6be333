"""Processes that write and read beside each other, compared with the log that they wrote.

Two clients of a server with two workers, one of a second server of the store, an embedded client and builds; or clients
of two roots with a log in PostgreSQL. Each write has a request id and is repeated until it is answered, so that all
sequences are known: in their order, the writes are applied to the model. A read shows one of its states, and none from
before what its client has seen.

The operations of a client are drawn from the seed and its name. Which of them come first is up to the processes.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
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
from tests.model.beside.rows import INDEX, Event, Reading, Row, Rows, check_reading, shown_rows
from tests.model.beside.writer import Writer
from tests.model.errors import check
from tests.model.processes import LIVE

__all__ = ["Round", "run_beside"]

ROUND = 1000
"""Operations on one store."""


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
        events = {event.sequence: event for event in self.events}
        last = max(events, default=0)
        # An alter appends a record of its own.
        others = last - len(events)
        check(
            len(events) == len(self.events) and min(events, default=1) >= 1 and others <= len(self.columns),
            "the answers have other sequences than the log",
        )
        rows: Rows = {}
        histories: dict[str, list[tuple[int, Row | None]]] = {}
        present: list[frozenset[str]] = [frozenset()]
        for sequence in range(1, last + 1):
            changed = events[sequence].apply(rows) if sequence in events else {}
            for name, row in changed.items():
                histories.setdefault(name, []).append((sequence, row))
                if row is None:
                    rows.pop(name, None)
                else:
                    rows[name] = sequence, row
            present.append(frozenset(rows))
        for reading in self.readings:
            check_reading(reading, histories, present)
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

"""Clients that write at random roots and know what the index must have, whatever happens to the processes."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import scannery
from scannery.client import Index
from tests.live.model import DIMENSIONS
from tests.served import PAUSE_S

__all__ = ["StormWriter"]

IDS, DOCUMENTS = 40, 8
RETRIED = (
    scannery.UnavailableError,
    scannery.DeadlineExceededError,
    scannery.ResourceExhaustedError,
    scannery.DataLossError,
)
RETRY_S = 120.0


@dataclass
class _Row:
    revision: int
    year: int
    document_id: str


class StormWriter(threading.Thread):
    """Writes datapoints of its own, one request after the other, and compares what it reads with a model.

    A request without an answer is repeated with its request id at any root until it has one. So the model is exact.
    """

    def __init__(self, addresses: Sequence[str], number: int, seed: int, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._rng = random.Random(f"{seed} {number}")
        self._prefix, self._ended = f"w{number}", ended
        self._clients = [scannery.connect(address, timeout_s=15, retries=False) for address in addresses]
        self._rows: dict[str, _Row] = {}
        self._sequence = 0
        self.done: Counter[str] = Counter()
        """Requests by kind, and `read` and `repeated`."""
        self.problem: BaseException | None = None

    def run(self) -> None:
        """Write until the end; the first difference ends all."""
        kinds = [
            self._upsert, self._conditional, self._update, self._delete_ids, self._delete_documents, self._filtered,
        ]  # fmt: skip
        try:
            while not self._ended.wait(PAUSE_S):
                kind = self._rng.choices(kinds, [6, 3, 5, 3, 1, 2])[0]
                kind()
                self.done[kind.__name__.strip("_")] += 1
                if self._rng.random() < 0.4:
                    self._check(self._rng.choice(self._clients))
            for client in self._clients:
                self._check(client)
        except BaseException as error:  # noqa: BLE001  the test tells
            self.problem = error
            self._ended.set()
        finally:
            for client in self._clients:
                client.close()

    def _asked(self, method: str, *arguments: Any, **options: Any) -> Any:
        if "where" not in options:
            options["request_id"] = uuid.uuid4().hex
        end_s = time.monotonic() + RETRY_S
        while True:
            try:
                client = self._rng.choice(self._clients)
                return getattr(client.index("live"), method)(*arguments, **options)
            except RETRIED:
                if time.monotonic() > end_s:
                    raise
                self._pause()

    def _pause(self) -> None:
        self.done["repeated"] += 1
        time.sleep(0.05)

    def _noted(self, points: Sequence[dict[str, Any]], sequence: int) -> None:
        for point in points:
            self._rows[point["id"]] = _Row(sequence, point["attributes"]["year"], point["document_id"])
        self._sequence = sequence

    def _any_id(self) -> str:
        return f"{self._prefix}-{self._rng.randrange(IDS)}"

    def _any_document(self) -> str:
        return f"{self._prefix}-d{self._rng.randrange(DOCUMENTS)}"

    def _point(self, name: str) -> dict[str, Any]:
        """Return a datapoint, often of another document, and so in another shard, than the one before it."""
        return {
            "id": name,
            "vector": [self._rng.gauss(0, 1) for _ in range(DIMENSIONS)],
            "document_id": self._any_document(),
            "attributes": {"show": self._prefix, "year": self._rng.randrange(2000, 2030)},
        }

    def _upsert(self) -> None:
        names = sorted({self._any_id() for _ in range(self._rng.choice([1, 1, 4, 15]))})
        points = [self._point(name) for name in names]
        self._noted(points, self._asked("upsert", points).sequence)

    def _conditional(self) -> None:
        point = self._point(self._any_id())
        known = self._rows.get(point["id"])
        revision = (known.revision if known else 0) + self._rng.choice([0, 0, 0, 1])
        absent = self._rng.random() < 0.4
        holds = known is None if absent else known is not None and revision == known.revision
        condition = {"if_absent": True} if absent else {"if_revision": revision}
        try:
            done = self._asked("upsert", [{**point, **condition}])
        except scannery.FailedPreconditionError as error:
            assert not holds, error
        else:
            assert holds, (point["id"], condition, known)
            self._noted([point], done.sequence)

    def _update(self) -> None:
        """Count up, each datapoint only if it still has the revision that is known here."""
        names = sorted(
            self._rng.sample(sorted(self._rows), min(len(self._rows), self._rng.choice([1, 1, 3])))
        )
        if names:
            changes = [
                {"id": name, "attributes": {"year": row.year + 1}, "if_revision": row.revision}
                for name in names
                for row in (self._rows[name],)
            ]
            self._sequence = self._asked("update", changes).sequence
            for name in names:
                row = self._rows[name]
                self._rows[name] = _Row(self._sequence, row.year + 1, row.document_id)

    def _delete_ids(self) -> None:
        names = sorted({self._any_id() for _ in range(self._rng.choice([1, 4, 10]))})
        self._removed(self._rows.keys() & names, self._asked("delete", names))

    def _delete_documents(self) -> None:
        document = self._any_document()
        gone = {name for name, row in self._rows.items() if row.document_id == document}
        self._removed(gone, self._asked("delete", document_ids=[document]))

    def _filtered(self) -> None:
        """Delete by a filter; the number is not checked, since a call without an answer is begun again."""
        year = self._rng.randrange(2000, 2030)
        where = {"show": self._prefix, "year": {"$gte": year - 4, "$lt": year}}
        gone = {name for name, row in self._rows.items() if year - 4 <= row.year < year}
        done = self._asked("delete", where=where, batch_size=self._rng.choice([2, 1000]))
        self._removed(gone, done, counted=False)

    def _removed(self, gone: Collection[str], done: scannery.Deleted, *, counted: bool = True) -> None:
        assert not counted or done.deleted == len(gone), (done, gone)
        for name in gone:
            del self._rows[name]
        self._sequence = max(self._sequence, done.sequence)

    def _check(self, client: scannery.Client) -> None:
        found = {hit.id: hit.attributes["year"] for hit in self._read(client.index("live"))}
        assert found == {name: row.year for name, row in self._rows.items()}, self._sequence
        self.done["read"] += 1

    def _read(self, index: Index) -> scannery.Hits:
        end_s = time.monotonic() + RETRY_S
        while True:
            try:
                return index.search(
                    [1.0] * DIMENSIONS, 1000, exact=True, mode="dense", where={"show": self._prefix},
                    min_sequence=self._sequence,
                )  # fmt: skip
            except RETRIED:
                if time.monotonic() > end_s:
                    raise
                self._pause()

"""Clients that write and search while the database of the log fails."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import scannery
from tests.http1 import eventually
from tests.live.model import DIMENSIONS
from tests.served import PAUSE_S

__all__ = ["Searcher", "Writer", "check_written"]


class Writer(threading.Thread):
    """Writes rows of its own, each with a request id that it repeats until it has an answer."""

    def __init__(self, address: str, number: int, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._address, self._number, self._ended = address, number, ended
        self.acknowledged: dict[str, int] = {}
        """The sequence of each row."""
        self.retried = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            with scannery.connect(self._address, timeout_s=30) as client:
                while not self._ended.wait(PAUSE_S):
                    name = f"w{self._number}-{len(self.acknowledged)}"
                    self.acknowledged[name] = self._written(client, name)
        except BaseException as error:  # noqa: BLE001  the test tells
            self.problem = error

    def _written(self, client: scannery.Client, name: str) -> int:
        row: Any = {"id": name, "vector": [1.0] * DIMENSIONS}
        request_id, end_s = uuid.uuid4().hex, time.monotonic() + 120
        while True:
            try:
                return client.index("live").upsert([row], request_id=request_id).sequence
            except (scannery.UnavailableError, scannery.DeadlineExceededError):
                if time.monotonic() > end_s:
                    raise
                self.retried += 1
                time.sleep(0.05)


class Searcher(threading.Thread):
    """Searches all the time; no search may fail."""

    def __init__(self, address: str, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._address, self._ended = address, ended
        self.searches = 0
        self.problems: list[str] = []

    def run(self) -> None:
        with scannery.connect(self._address, timeout_s=30) as client:
            while not self._ended.wait(PAUSE_S):
                try:
                    client.index("live").search([1.0] * DIMENSIONS, k=3)
                    self.searches += 1
                except scannery.ScanneryError as error:
                    self.problems.append(str(error))


def check_written(address: str, writers: Sequence[Writer]) -> dict[str, int]:
    """Fail unless an index has what the writers wrote, once each, and nothing else; return the sequences."""
    written = {name: sequence for writer in writers for name, sequence in writer.acknowledged.items()}
    assert [writer.problem for writer in writers] == [None] * len(writers)
    with scannery.connect(address) as client:
        index = client.index("live")
        # Who answers may not have asked the database yet what another process wrote.
        index.search([1.0] * DIMENSIONS, k=1, min_sequence=max(written.values()))
        names = [*written]
        for first in range(0, len(names), 500):
            # Another worker than that of the search may answer: it catches up, and what is lost stays lost.
            eventually(partial(_has_all, index, names[first : first + 500]), 30)
        # Each acknowledged request has one sequence, and there are no others.
        assert sorted(written.values()) == list(range(1, len(written) + 1))
        assert index.stats().sequence == len(written)
    return written


def _has_all(index: scannery.Index, names: Sequence[str]) -> bool:
    return [hit.id for hit in index.get(names) if hit is not None] == names

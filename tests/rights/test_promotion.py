"""A customer that grows moves to an index of its own while it is searched (docs/tenants.md)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import scannery
from scannery.client import NewDatapoint
from scannery.indexer import Store
from scannery.serving import SecurityConfig, Server, ServerConfig
from scannery.serving.security.api_keys import KeyFile
from tests.served import PAUSE_S

TENANTS, ROWS, SEARCHES = ("acme", "beta", None), 40, 20
ONLY_ACME = {"tenant": "acme"}


def points(tenant: str | None) -> list[NewDatapoint]:
    return [
        {
            "id": f"{tenant}-{number}",
            "text": f"words {number} of {tenant}",
            "vector": [1.0, number, 0.5],
            "attributes": {} if tenant is None else {"tenant": tenant},
        }
        for number in range(ROWS)
    ]


class Reader(threading.Thread):
    """A customer that searches, counts and reads by its alias all the time, and expects its rows and no others."""

    def __init__(self, index: scannery.Index, expected: set[str]) -> None:
        super().__init__(daemon=True)
        self._index, self._expected, self._ended = index, expected, threading.Event()
        self.answers, self.faults = 0, list[object]()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                found = {hit.id for hit in self._index.search([1.0, 3.0, 0.5], k=3 * ROWS)}
                words = {hit.id for hit in self._index.search("words", k=3 * ROWS, mode="lexical")}
                count = self._index.count()
            except scannery.ScanneryError as error:
                self.faults.append(error)
                continue
            if not found == words == self._expected or count != len(self._expected):
                self.faults.append((found ^ self._expected, words ^ self._expected, count))
            self.answers += 1
            time.sleep(PAUSE_S)

    def wait_for(self, answers: int) -> None:
        """Wait until so many further answers came."""
        goal = self.answers + answers
        for _ in range(6000):
            if self.answers >= goal or self.faults:
                return
            time.sleep(0.01)
        raise TimeoutError("the reader gets no answers")

    def end(self) -> None:
        self._ended.set()
        self.join()


@pytest.mark.system
def test_a_customer_moves_to_an_index_of_its_own_without_a_failed_search(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    _, operator = keys.create("operator", scopes=["read", "write", "admin"])
    entries = [{"index": name, "where": ONLY_ACME} for name in ("shop", "shop-acme")]
    _, customer = keys.create("acme", scopes=["read", "write"], access=entries)
    store = Store.open(tmp_path / "store", create=True)
    security = SecurityConfig(keys_file=str(keys.path))
    config = ServerConfig(store=store.uri, listen="127.0.0.1:0", security=security)
    with (
        Server(config) as server,
        scannery.connect(server.address, api_key=operator, timeout_s=120) as owner,
        scannery.connect(server.address, api_key=customer, timeout_s=120) as acme,
    ):
        shop = owner.create_index("shop", dimensions=3, lexical=True, attributes={"tenant": "string"})
        shop.upsert([point for tenant in TENANTS for point in points(tenant)])
        owner.alias("acme", "shop")
        mine = acme.index("acme")
        reader = Reader(mine, {str(point["id"]) for point in points("acme")})
        reader.start()
        reader.wait_for(SEARCHES)

        moved = owner.branch_index("shop", "shop-acme")
        reader.wait_for(SEARCHES)
        assert moved.delete(where={"$not": ONLY_ACME}).deleted == 2 * ROWS
        assert owner.alias("acme", "shop-acme") == "shop"
        reader.wait_for(SEARCHES)
        assert shop.delete(where=ONLY_ACME).deleted == ROWS
        reader.wait_for(SEARCHES)
        reader.end()

        assert not reader.faults
        mine.upsert(
            [{"id": "acme-new", "text": "more", "vector": [0, 0, 1]}]
        )  # gets the value of the key's filter
        assert moved.count() == ROWS + 1 == moved.count(where=ONLY_ACME)
        assert shop.count() == 2 * ROWS == shop.count(where={"$not": ONLY_ACME})

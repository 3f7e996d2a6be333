"""DropIndex: what is gone, what goes on, and that nothing is acknowledged into an index that is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import Store
from scannery.live.maintenance.seal import seal
from scannery.serving import SecurityConfig
from scannery.serving.security.api_keys import KeyFile
from tests.live.torture import ServerProcess
from tests.served import PAUSE_S, WIRES, connected, copied, serving

pytestmark = pytest.mark.system

VECTORS = np.random.default_rng(4).normal(size=(20, 8)).astype(np.float32)
POINTS: list[Any] = [{"id": f"p{i}", "vector": VECTORS[i]} for i in range(20)]


@pytest.fixture(params=WIRES)
def client(request: pytest.FixtureRequest, library: Path, tmp_path: Path) -> Iterator[scannery.Client]:
    with connected(copied(library, tmp_path), request.param) as client:
        yield client


def test_a_dropped_index_is_gone_and_its_name_is_free(client: scannery.Client) -> None:
    index = client.create_index("notes", dimensions=8)
    index.upsert(POINTS)
    assert client.drop_index("notes") is True
    for call in (lambda: index.search(VECTORS[0]), lambda: index.upsert(POINTS), index.stats):
        with pytest.raises(scannery.NotFoundError):
            call()
    with pytest.raises(scannery.NotFoundError) as caught:
        client.drop_index("notes")
    assert caught.value.field == "index"
    assert client.drop_index("notes", missing_ok=True) is False
    again = client.create_index("notes", dimensions=4)
    assert again.search([1, 2, 3, 4]) == []
    assert again.upsert([{"id": "a", "vector": [1, 2, 3, 4]}]).sequence == 1
    assert [hit.id for hit in again.search([1, 2, 3, 4])] == ["a"]
    # One that a build made.
    client.drop_index("library")
    assert [info.name for info in client.indexes()] == ["flat", "notes"]


def test_an_index_with_an_alias_stays(client: scannery.Client) -> None:
    client.alias("books", "library")
    with pytest.raises(
        scannery.FailedPreconditionError, match="has the aliases books: move or delete"
    ) as caught:
        client.drop_index("library")
    assert caught.value.field == "index"
    with pytest.raises(scannery.InvalidArgumentError, match="an alias of 'library'") as refused:
        client.drop_index("books")
    assert refused.value.field == "index"
    assert client.index("books").stats().rows == 600
    client.delete_alias("books")
    assert client.drop_index("library")


def test_queries_that_run_finish_and_later_ones_find_nothing(library: Path, tmp_path: Path) -> None:
    outcomes: set[str] = set()
    with serving(copied(library, tmp_path)) as server, scannery.connect(server.address) as client:
        stop = threading.Event()

        def ask() -> None:
            while not stop.wait(PAUSE_S):
                try:
                    assert len(client.index("library").search(VECTORS[0].repeat(2), 10)) == 10
                    outcomes.add("answered")
                except Exception as error:  # noqa: BLE001
                    outcomes.add(type(error).__name__)
                    if not isinstance(error, scannery.NotFoundError):
                        return

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while "answered" not in outcomes:
            time.sleep(PAUSE_S)
        client.drop_index("library")
        with pytest.raises(scannery.NotFoundError):
            client.index("library").search(VECTORS[0].repeat(2))
        stop.set()
        for thread in threads:
            thread.join()
    assert outcomes <= {"answered", "NotFoundError"}


@pytest.mark.parametrize("writes_before", [True, False])
def test_no_write_is_acknowledged_into_a_dropped_index(tmp_path: Path, writes_before: bool) -> None:
    """Another worker has the index open, with its log or without, and does not know of the drop."""
    path = tmp_path / "store"
    store = Store.open(path, create=True)
    with (
        serving(path, check_every_s=600) as one,
        serving(path, check_every_s=600) as other,
        scannery.connect(one.address) as first,
        scannery.connect(other.address, timeout_s=2) as second,
    ):
        first.create_index("notes", dimensions=8)
        index = second.index("notes")
        index.stats()
        if writes_before:
            index.upsert(POINTS)
        acknowledged: list[int] = []
        dropped = threading.Event()

        def write() -> None:
            for number in range(1000):
                was_dropped = dropped.is_set()
                try:
                    index.upsert([{"id": str(number), "vector": VECTORS[0]}], timeout_s=0.2)
                except scannery.ScanneryError:
                    if was_dropped:
                        return
                else:
                    acknowledged.append(was_dropped)

        thread = threading.Thread(target=write)
        if writes_before:
            thread.start()
        assert first.drop_index("notes")
        dropped.set()
        if not writes_before:
            thread.start()
        thread.join()
        assert not any(acknowledged)
        assert [item.key for item in store.list("notes") if "leases" not in item.key] == []
        # Created again, it takes writes, and has nothing of the former one.
        first.create_index("notes", dimensions=8)
        assert first.index("notes").upsert([{"id": "new", "vector": VECTORS[1]}]).sequence == 1
        assert [hit.id for hit in first.index("notes").search(VECTORS[1])] == ["new"]


def test_another_server_forgets_it_and_serves_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store.open(path, create=True)
    with (
        serving(path, check_every_s=0.05) as one,
        serving(path, check_every_s=0.05) as other,
        scannery.connect(one.address) as first,
        scannery.connect(other.address) as second,
    ):
        first.create_index("notes", dimensions=8).upsert(POINTS)
        end_s = time.monotonic() + 5  # it may have opened the index before the rows were written
        while second.index("notes").stats().rows != 20 and time.monotonic() < end_s:
            time.sleep(0.02)
        second.index("notes").upsert(POINTS)
        first.drop_index("notes")
        first.create_index("notes", dimensions=8).upsert(POINTS[:3])
        end_s = time.monotonic() + 5
        while second.index("notes").stats().rows != 3 and time.monotonic() < end_s:
            time.sleep(0.02)
        # The sequence of the former index, which this client remembers, is not asked of the new one.
        assert len(second.index("notes").search(VECTORS[0], 10)) == 3
        second.index("notes").upsert(POINTS[:4])
        assert len(second.index("notes").search(VECTORS[0], 10)) == 4


def rows_found(client: scannery.Client) -> set[int]:
    """Return how many rows searches find, until they find some."""
    found: set[int] = set()
    end_s = time.monotonic() + 10
    while not found - {0} and time.monotonic() < end_s:
        found.add(len(client.index("notes").search(VECTORS[0], 10)))
    return found


def test_no_worker_answers_from_a_dropped_index(tmp_path: Path) -> None:
    """The workers do not look for changes by themselves here: only the drop tells them."""
    path = tmp_path / "store"
    Store.open(path, create=True)
    server = ServerProcess(path, workers=2, check_every_s=3600)
    try:
        with ExitStack() as stack:
            clients = [stack.enter_context(scannery.connect(server.address)) for _ in range(12)]
            first = clients[0]
            for rows in range(1, 4):
                first.create_index("notes", dimensions=8).upsert(POINTS[:rows])
                for client in clients:
                    # Another worker reads the write from the log a moment later; the former index had other rows.
                    assert rows_found(client) - {0} == {rows}
                first.drop_index("notes")
                if rows == 2:
                    continue  # created again before the others have asked
                for client in clients:
                    with pytest.raises(scannery.NotFoundError):
                        client.index("notes").search(VECTORS[0], 10)
    finally:
        server.end()


def test_an_embedded_client_leaves_an_index_that_a_server_has_open(library: Path, tmp_path: Path) -> None:
    path = copied(library, tmp_path)
    with serving(path), scannery.connect(path) as client:
        with pytest.raises(scannery.FailedPreconditionError, match="in use"):
            client.drop_index("library")
        assert client.index("library").stats().rows == 600


def test_dropping_needs_the_scope_and_the_name(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    _, writer = KeyFile(path).create("writer", scopes=["read", "write"])
    _, narrow = KeyFile(path).create("narrow", scopes=["admin", "read"], indexes=["flat"])
    with serving(copied(library, tmp_path), security=SecurityConfig(keys_file=str(path))) as server:
        with (
            scannery.connect(server.address, api_key=writer) as client,
            pytest.raises(scannery.PermissionDeniedError),
        ):
            client.drop_index("library")
        with scannery.connect(server.address, api_key=narrow) as client:
            with pytest.raises(scannery.NotFoundError):
                client.drop_index("library")
            with pytest.raises(scannery.NotFoundError):
                client.drop_index("library", missing_ok=True)
            assert client.drop_index("flat")


def test_sealed_rows_and_a_log_outside_the_store_go_too(tmp_path: Path) -> None:
    path, logs = tmp_path / "store", tmp_path / "logs"
    store = Store.open(path, create=True)
    with serving(path, log=str(logs)) as server, scannery.connect(server.address) as client:
        index = client.create_index("notes", dimensions=8)
        index.upsert(POINTS)
        seal(store, "notes", log_root=logs)
        index.upsert(POINTS[:2])
        assert list(logs.rglob("*.db")) or list(logs.rglob("log*"))
        client.drop_index("notes")
        assert [file.name for file in logs.rglob("*") if file.is_file()] in ([], [".changes"])
        assert client.create_index("notes", dimensions=8).upsert(POINTS).sequence == 1

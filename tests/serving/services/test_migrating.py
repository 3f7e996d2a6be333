"""MigrateIndex on every wire: a server does the work, says how far it is, and takes it back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import scannery
from scannery.client import Migration
from scannery.indexer import Store, read_manifest
from scannery.serving import SecurityConfig
from scannery.serving.security.api_keys import KeyFile
from tests.data import at_full_length
from tests.http1 import eventually
from tests.live.migration.traffic import INDEX, Traffic, text_of
from tests.served import MINILM, connected, serving

pytestmark = pytest.mark.system
DOCUMENTS = 60
ENCODER = {"model": MINILM, "dimensions": 64}
WHOLE = at_full_length("a minute of starts of processes")
MOST_S = 300.0
"""Longest wait for a step, which starts a process that loads a model."""


def create(store: Path, *silent: str) -> None:
    """Create the index; silent datapoints have a vector and no text."""
    with scannery.connect(store, create=True, timeout_s=280) as client:
        index = client.create_index(INDEX, encoder=MINILM, lexical=True)
        index.upsert([{"id": f"d{number}", "text": text_of(number, 0)} for number in range(DOCUMENTS)])
        if silent:
            index.upsert([{"id": name, "vector": [1.0] * 384} for name in silent])


def reached(client: scannery.Client) -> Migration:
    """Wait until a migration has reached its goal, and return its state."""
    return waited(client, lambda migration: migration.reached)


def waited(client: scannery.Client, is_met: Callable[[Migration], bool]) -> Migration:
    until_s = time.monotonic() + MOST_S
    while not is_met(migration := client.migration(INDEX)):
        assert time.monotonic() < until_s, migration
        time.sleep(0.2)
    return migration


@pytest.mark.parametrize("wire", ["HTTP", pytest.param("embedded", marks=[pytest.mark.long, WHOLE])])
def test_a_migration_there_and_back(tmp_path: Path, wire: str) -> None:
    create(tmp_path / "store")
    with connected(tmp_path / "store", wire) as client:
        index = client.index(INDEX)
        begun = client.migrate_index(INDEX, encoder=ENCODER, switch=False, timeout_s=280)
        assert (begun.goal, begun.mirror, begun.exchanged) == ("mirror", f"{INDEX}-mirror", False)
        assert (begun.dimensions, begun.mirror_dimensions, begun.mirror_model) == (384, 64, MINILM)
        index.upsert([{"id": "new", "text": text_of(77, 0)}])
        mirrored = reached(client)
        assert mirrored.filled and not mirrored.exchanged and mirrored.error == ""
        assert mirrored.converted == mirrored.to_convert == DOCUMENTS and mirrored.seconds_left is None
        with pytest.raises(scannery.FailedPreconditionError, match="nothing to undo"):
            client.undo_migration(INDEX)
        with pytest.raises(scannery.FailedPreconditionError, match="other changes"):
            client.migrate_index(INDEX, encoder={"model": MINILM, "dimensions": 32}, timeout_s=280)

        client.migrate_index(INDEX)
        switched = reached(client)
        assert switched.exchanged and (switched.dimensions, switched.mirror_dimensions) == (64, 384)
        index.upsert([{"id": "newer", "text": text_of(78, 0)}], timeout_s=280)

        assert client.undo_migration(INDEX).goal == "undo"
        undone = reached(client)
        assert not undone.exchanged and undone.dimensions == 384
        time.sleep(1.1)  # an embedded client looks for versions once a second
        assert index.count() == DOCUMENTS + 2
        assert index.search(text_of(78, 0), k=1, timeout_s=280)[0].id == "newer"

        # So many that whoever serves the mirror sees it gone before its files are.
        files = tmp_path / "store" / f"{INDEX}-mirror" / "stage" / "many"
        files.mkdir(parents=True)
        for number in range(30_000):
            (files / f"{number}.arrow").touch()
        assert client.abandon_migration(INDEX).goal == "abandon"
        with pytest.raises(scannery.NotFoundError, match="not being migrated"):
            waited(client, lambda migration: False)
        store = Store.open(tmp_path / "store")
        eventually(lambda: store.list(f"{INDEX}-mirror") == [])
        eventually(lambda: not store.list(f"{INDEX}/leases/{INDEX}-mirror.json"))


@pytest.mark.long
def test_a_server_goes_on_where_a_killed_process_ended(tmp_path: Path) -> None:
    store = tmp_path / "store"
    create(store)
    with serving(store, device="cpu") as server, scannery.connect(server.address) as client:
        traffic = Traffic(server.address, DOCUMENTS)
        with traffic.running():
            client.migrate_index(INDEX, encoder=ENCODER, timeout_s=280)
            killed = 0
            while killed < 3 and not client.migration(INDEX).reached:
                time.sleep(2.5)
                killed += kill_runners(store)
            assert killed
            reached(client)
            client.undo_migration(INDEX)
            assert reached(client).dimensions == 384
        assert traffic.failures == []
        index = client.index(INDEX)
        index.search(text_of(1, 0), min_sequence=index.stats().sequence)
        assert traffic.problems(index) == []


def kill_runners(store: Path) -> int:
    """Kill the processes that lead migrations in a store, and return how many there were."""
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--run" in words and any(str(store).encode() in word for word in words):
            os.kill(int(folder.name), signal.SIGKILL)
            killed += 1
    return killed


def test_what_stops_a_migration_is_told(tmp_path: Path) -> None:
    create(tmp_path / "store", "silent")
    with connected(tmp_path / "store", "gRPC") as client:
        client.migrate_index(INDEX, encoder=ENCODER, timeout_s=280)
        stopped = waited(client, lambda migration: migration.error != "")
        assert "'silent' cannot get a vector of the new encoder" in stopped.error
        assert not stopped.reached
        with pytest.raises(scannery.FailedPreconditionError, match="is being migrated"):
            client.drop_index(INDEX)
        client.abandon_migration(INDEX)
        with pytest.raises(scannery.NotFoundError):
            waited(client, lambda migration: False)
        assert client.index(INDEX).count() == DOCUMENTS + 1


def test_who_may_migrate_and_to_what(tmp_path: Path) -> None:
    store, path = tmp_path / "store", tmp_path / "keys.json"
    create(store)
    keys = KeyFile(path)
    _, admin = keys.create("admin", scopes=["admin", "read"])
    _, writer = keys.create("writer", scopes=["read", "write"])
    _, narrow = keys.create("narrow", scopes=["admin", "read"], indexes=[INDEX])
    with serving(store, device="cpu", security=SecurityConfig(keys_file=str(path))) as server:

        def refused(key: str, encoder: str = MINILM) -> str:
            with scannery.connect(server.address, api_key=key, timeout_s=280) as client:
                changes = {"model": encoder, "dimensions": 64}
                with pytest.raises(
                    (scannery.PermissionDeniedError, scannery.FailedPreconditionError)
                ) as error:
                    client.migrate_index(INDEX, encoder=changes)
                return str(error.value)

        assert "'admin'" in refused(writer)
        assert f"{INDEX}-mirror" in refused(narrow)
        assert "sentence-transformers/all-mpnet-base-v2" in refused(
            admin, "sentence-transformers/all-mpnet-base-v2"
        )
        with (
            scannery.connect(server.address, api_key=writer) as client,
            pytest.raises(scannery.PermissionDeniedError),
        ):
            client.migration(INDEX)
    assert read_manifest(Store.open(store), INDEX).dimensions == 384
    assert not [*store.glob(f"{INDEX}-mirror")]


def test_one_that_waits_for_memory_says_so_and_can_be_abandoned(tmp_path: Path) -> None:
    create(tmp_path / "store")
    with (
        serving(tmp_path / "store", device="cpu", memory="1300MB") as server,
        scannery.connect(server.address) as client,
    ):
        client.migrate_index(INDEX, encoder=ENCODER, timeout_s=280)
        waiting = waited(client, lambda migration: migration.error != "")
        assert waiting.error == "waits for 600 MiB of memory under the ceiling of the server"
        client.abandon_migration(INDEX)
        with pytest.raises(scannery.NotFoundError):
            waited(client, lambda migration: False)

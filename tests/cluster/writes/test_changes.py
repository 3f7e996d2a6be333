"""A root creates, alters, drops and migrates indexes, as one server does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.indexer import Store, latest_version
from scannery.serving.catalog.roles import maintenance_catalog
from scannery.serving.catalog.watcher import Watcher
from tests.cluster.servers import started_cluster
from tests.data import at_full_length
from tests.live.migration.traffic import INDEX, Traffic, text_of
from tests.served import MINILM

pytestmark = pytest.mark.system

GROUPS = 2
DOCUMENTS = 60
MOST_S = 300.0
"""Longest wait for a step of a migration, which starts a process that loads a model."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    Store.open(path, create=True)
    return path


@contextmanager
def connected(store: Path, **options: Any) -> Iterator[scannery.Client]:
    """Give a client of a root, which repeats no call, so that what a call has made must be there at once."""
    with (
        started_cluster(store, GROUPS, device="cpu", **options) as (root, _),
        scannery.connect(root.address, retries=False, timeout_s=MOST_S) as client,
    ):
        yield client


def test_an_index_is_created_altered_and_dropped(store: Path) -> None:
    with connected(store) as client:
        index = client.create_index("notes", dimensions=2, lexical=True, attributes={"show": "string"})
        index.upsert([{"id": "a", "vector": [1, 0], "text": "volcano", "attributes": {"show": "x"}}])
        altered = index.alter(attributes={"year": "int"}, if_version=1)
        assert altered.version == 2
        with pytest.raises(scannery.FailedPreconditionError, match="at version 2, not 1"):
            index.alter(target_recall=0.5, if_version=1)
        done = index.upsert([{"id": "b", "vector": [0, 1], "attributes": {"year": 2020}}])
        hits = index.search([0, 1], where={"year": 2020}, min_sequence=done.sequence)
        assert [hit.id for hit in hits] == ["b"]
        assert index.rollback(1).version == 3
        with pytest.raises(scannery.InvalidArgumentError, match="year"):
            index.search([0, 1], where={"year": 2020})
        client.drop_index("notes")
        with pytest.raises(scannery.NotFoundError):
            index.count()
        # Leaves may still have the former one.
        again = client.create_index("notes", dimensions=3)
        done = again.upsert([{"id": "c", "vector": [1, 0, 0]}])
        assert [hit.id for hit in again.search([1, 0, 0], min_sequence=done.sequence)] == ["c"]
        assert again.count() == 1


def test_attributes_of_a_dynamic_index_are_declared_where_its_rows_are(store: Path) -> None:
    with connected(store) as client:
        index = client.create_index("notes", dimensions=2, dynamic=True)
        index.upsert([{"id": "a", "vector": [1, 0], "attributes": {"year": 2020}}])
        with pytest.raises(
            scannery.UnimplementedError, match="serve.*index alter notes --attribute year=TYPE"
        ):
            index.alter(attributes={"year": "int"})
        assert index.alter(target_recall=0.9).version == 2


def test_queries_that_a_root_keeps_are_told(store: Path) -> None:
    with connected(store, keep_queries=9) as client:
        index = client.create_index("notes", dimensions=2)
        index.upsert([{"id": "a", "vector": [1, 0]}])
        index.search([0.6, 0.8])
        for _ in range(50):
            if len(kept := index.kept_queries()):
                break
            time.sleep(0.1)
        assert kept.ravel().tolist() == pytest.approx([0.6, 0.8])


@contextmanager
def maintained(store: Path) -> Iterator[None]:
    """Maintain a store within the context, as `scannery maintain` does."""
    catalog = maintenance_catalog(Store.open(store), fill_cache=False, on_end=lambda ended: None, log=store)
    watcher = Watcher(catalog, every_s=0.2)
    watcher.start()
    try:
        yield
    finally:
        watcher.stop()
        catalog.close()


# As tests/serving/services/test_migrating.py has it by one server.
@pytest.mark.long
@at_full_length("a minute of starts of processes")
def test_a_migration_there_and_back(store: Path) -> None:
    encoder = {"model": MINILM, "dimensions": 64}
    with (
        maintained(store),
        started_cluster(store, GROUPS, device="cpu", models=(MINILM,)) as (root, _),
        scannery.connect(root.address, timeout_s=MOST_S) as client,
    ):
        index = client.create_index(INDEX, encoder=MINILM, lexical=True)
        index.upsert([{"id": f"d{number}", "text": text_of(number, 0)} for number in range(DOCUMENTS)])
        traffic = Traffic(root.address, DOCUMENTS)
        with traffic.running():
            begun = client.migrate_index(INDEX, encoder=encoder)
            assert (begun.goal, begun.mirror, begun.exchanged) == ("switch", f"{INDEX}-mirror", False)
            switched = reached(client)
            assert switched.exchanged and switched.error == ""
            assert (switched.dimensions, switched.mirror_dimensions) == (64, 384)
            client.undo_migration(INDEX)
            assert reached(client).dimensions == 384
        assert traffic.failures == []
        index.search(text_of(1, 0), min_sequence=index.stats().sequence)
        assert traffic.problems(index) == []
        client.abandon_migration(INDEX)
        until_s = time.monotonic() + MOST_S
        while latest_version(Store.open(store), f"{INDEX}-mirror") is not None:
            assert time.monotonic() < until_s
            time.sleep(0.2)


def reached(client: scannery.Client) -> scannery.client.Migration:
    """Wait until a migration has reached its goal, and return its state."""
    until_s = time.monotonic() + MOST_S
    while not (migration := client.migration(INDEX)).reached:
        assert time.monotonic() < until_s, migration
        time.sleep(0.2)
    return migration

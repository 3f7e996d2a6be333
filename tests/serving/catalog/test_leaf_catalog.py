"""The states that a leaf has: the current one, those before for a while, and later ones as soon as they are open."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import scannery
from scannery.indexer import NO_SHARDS, ShardGroup, Store, open_index
from scannery.indexer.store.changes import CHANGES_FILE
from scannery.indexer.versions.leases import leased_versions
from scannery.live.maintenance.seal import seal
from scannery.runtime.errors import StateUnavailableError, UnknownIndexError
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.published_versions import WATCHED
from scannery.serving.catalog.roles import leaf_catalog, server_catalog
from scannery.serving.request.query import ById, parse_query
from scannery.serving.services.leaf.states import LeafStates
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.leaf_pb2 import At
from scannery.v1.search_pb2 import Query, SearchOptions
from tests.data import without_ids
from tests.served import LIBRARY, copied, library_table, publish_version


@pytest.fixture
def store(library: Path, tmp_path: Path) -> Store:
    return Store.open(copied(library, tmp_path))


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def catalog(store: Store, clock: list[float]) -> Iterator[Catalog]:
    catalog = leaf_catalog(store, ShardGroup(1, 2), clock=lambda: clock[0])
    catalog.refresh()
    yield catalog
    catalog.close()


def at(catalog: Catalog, version: int, *, sequence: int = 0, seconds: float = 60.0) -> Snapshot:
    index_id = catalog.snapshot("library").manifest.index_id
    return snapshot_at(catalog, index_id, version, sequence=sequence, seconds=seconds)


def snapshot_at(
    catalog: Catalog, index_id: str | None, version: int, *, sequence: int = 0, seconds: float = 60.0
) -> Snapshot:
    state = At(index="library", index_id=index_id or "", version=version, sequence=sequence)
    return LeafStates(catalog).snapshot(state, Deadline.after(seconds))


def versions_told(catalog: Catalog) -> list[tuple[int, bool]]:
    """Return the versions that a status tells, and whether each is a former one."""
    found = [(index.state.manifest, former) for index, former in LeafStates(catalog).open_indexes()]
    return [(manifest.version, former) for manifest, former in found if manifest.index == "library"]


@pytest.mark.system
def test_a_former_version_gets_the_mutations_of_the_next(catalog: Catalog, store: Store) -> None:
    with scannery.connect(store.uri) as client:
        index = client.index("library")
        index.delete(ids=["d1"])
        before = at(catalog, 1, sequence=1)
        assert seal(store, "library") is not None
        catalog.refresh()
        assert catalog.snapshot("library").manifest.version == 2
        second = index.delete(ids=[f"d{row}" for row in range(2, 40)]).sequence
        # A root that has not moved yet asks for the new mutation in its own version.
        for version in (1, 2):
            snapshot = at(catalog, version, sequence=second)
            assert (snapshot.manifest.version, snapshot.sequence) == (version, second)
            assert snapshot.find("d5") is None
        assert at(catalog, 1, sequence=second).rows == at(catalog, 2, sequence=second).rows < before.rows
        assert at(catalog, 1, sequence=1) is before
        with pytest.raises(StateUnavailableError, match="not at version 2, sequence 0 here"):
            at(catalog, 2)


class AsksWhenTold(logging.Handler):
    """Asks a leaf for the former version as soon as the log tells that the next one has taken its place."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self.catalog, self.answers = catalog, list[Snapshot]()

    def emit(self, record: logging.LogRecord) -> None:
        self.answers.append(at(self.catalog, 1))


def test_the_former_version_is_there_while_the_next_takes_its_place(
    catalog: Catalog, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    before = at(catalog, 1)
    without_ids(store, "library", ["d1"])
    logger = logging.getLogger("scannery.serving.catalog.catalog")
    handler = AsksWhenTold(catalog)
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, logger.name):
            catalog.refresh()
    finally:
        logger.removeHandler(handler)
    assert [each is before for each in handler.answers] == [True]


def test_only_the_segments_of_the_group_are_open(catalog: Catalog, store: Store) -> None:
    snapshot = at(catalog, 1)
    assert [segment.entry.shard for segment in snapshot.segments] == [1]
    shards = {entry.shard: entry.rows for entry in open_index(store, "library").manifest.segments}
    assert snapshot.rows == shards[1] < sum(shards.values())


def test_the_state_before_is_held_for_a_while(catalog: Catalog, store: Store, clock: list[float]) -> None:
    before = at(catalog, 1)
    without_ids(store, "library", [f"d{row}" for row in range(0, 600, 2)])
    catalog.refresh()
    assert at(catalog, 2).rows < at(catalog, 1).rows
    assert at(catalog, 1) is before
    assert at(catalog, 1).segments[0].ids is at(catalog, 2).segments[0].ids
    # Its files are kept as long.
    catalog.refresh()
    assert leased_versions(store, "library")[0] == {1, 2}
    assert versions_told(catalog) == [(2, False), (1, True)]
    clock[0] += 20
    assert at(catalog, 1) is before  # which holds it on
    clock[0] += 20
    assert at(catalog, 1) is before
    clock[0] += 31
    catalog.refresh()
    assert leased_versions(store, "library")[0] == {2}
    assert versions_told(catalog) == [(2, False)]
    with pytest.raises(StateUnavailableError, match="not at version 1, sequence 0 here, but at version 2"):
        at(catalog, 1)


def test_a_small_version_is_opened_when_it_is_asked_for(catalog: Catalog, store: Store) -> None:
    without_ids(store, "library", ["d1"])
    assert at(catalog, 2) is catalog.snapshot("library")
    assert at(catalog, 1).manifest.version == 1
    with pytest.raises(StateUnavailableError, match="not at version 3"):
        at(catalog, 3)


@pytest.mark.system
def test_a_large_version_is_waited_for(store: Store) -> None:
    with closing(leaf_catalog(store, ShardGroup(1, 2), upkeep=replace(WATCHED, small_bytes=0))) as catalog:
        catalog.refresh()
        without_ids(store, "library", ["d1"])
        started_s = time.monotonic()
        with pytest.raises(
            StateUnavailableError, match="not at version 2, sequence 0 here, but at version 1"
        ):
            at(catalog, 2, seconds=0.3)
        assert 0.25 < time.monotonic() - started_s < 3
        watcher = threading.Timer(0.2, catalog.refresh)
        watcher.start()
        try:
            assert at(catalog, 2).manifest.version == 2
        finally:
            watcher.join()


@pytest.mark.system
def test_another_index_of_the_name_is_another_state(catalog: Catalog, store: Store, tmp_path: Path) -> None:
    first = at(catalog, 1)
    first_id = first.manifest.index_id
    for item in list(store.list("library")):
        if "/leases/" not in f"/{item.key}":
            store.delete(item.key)
    publish_version(store, LIBRARY, library_table(), tmp_path, shards=4)
    catalog.refresh()
    assert at(catalog, 1) is not first
    assert [segment.entry.shard for segment in at(catalog, 1).segments] == [1, 3]
    assert snapshot_at(catalog, first_id, 1) is first
    with pytest.raises(StateUnavailableError, match="of another index of this name"):
        snapshot_at(catalog, "f" * 32, 1)


@pytest.mark.system
def test_a_dropped_index_is_gone(catalog: Catalog, store: Store) -> None:
    index_id = at(catalog, 1).manifest.index_id
    without_ids(store, "library", ["d1"])
    catalog.refresh()
    for item in list(store.list("library")):
        store.delete(item.key)
    catalog.refresh()
    with pytest.raises(UnknownIndexError):
        snapshot_at(catalog, index_id, 1)


def test_an_index_without_any_of_its_shards_knows_its_options(library: Path) -> None:
    store = Store.open(library)
    whole = server_catalog(store)
    empty = server_catalog(store, shards=NO_SHARDS, maintenance=None)
    try:
        for catalog in (whole, empty):
            catalog.refresh()
        message = SearchOptions(k=3, offset=2, return_fields=["show"])
        message.crowding.group_by = "show"
        message.crowding.max_per_group = 2
        first, second = (catalog.snapshot("library") for catalog in (whole, empty))
        assert (len(first.segments), second.segments, second.rows) == (3, (), 0)
        assert first.parsed(message).options == second.parsed(message).options
        query = Query(id="d1")
        for snapshot in (first, second):
            vectors = snapshot.parsed(message).options.vectors
            assert parse_query(query, snapshot.manifest, vectors) == ById("d1")
        assert second.find("d1") is None
    finally:
        whole.close()
        empty.close()


def files_of(store: Store) -> set[str]:
    # Reading a log of SQLite makes files beside it, and whoever watches a store the file of notes that others write.
    passing = ("-wal", "-shm", CHANGES_FILE)
    return {
        each.key for each in store.list("") if "/leases/" not in each.key and not each.key.endswith(passing)
    }


@pytest.mark.system
def test_mutations_are_followed_and_nothing_is_written(store: Store) -> None:
    with scannery.connect(store.uri) as client:
        client.index("library").delete(ids=[f"d{row}" for row in range(100)])
    before = files_of(store)
    catalog = leaf_catalog(store, ShardGroup(0, 1))
    try:
        catalog.refresh()
        catalog.maintain()
        assert at(catalog, 1, sequence=1).rows == 500
        assert files_of(store) == before
    finally:
        catalog.close()
    assert files_of(store) == before

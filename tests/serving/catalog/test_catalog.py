"""Versions come, go and break; readers do not notice."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import SegmentCache, Store, latest_version, parse_spec
from scannery.indexer.errors import CorruptError, NotFoundError, StoreError
from scannery.indexer.versions.dropping import drop_index
from scannery.indexer.versions.leases import read_leases
from scannery.serving import ClosedError, UnknownIndexError
from scannery.serving.catalog.published_versions import ON_ACCESS
from scannery.serving.catalog.roles import embedded_catalog, open_embedded_catalog, server_catalog
from scannery.serving.catalog.watcher import Watcher
from tests.data import datapoints
from tests.served import publish_version

SPEC = parse_spec({"index": "moving", "source": {"id": "id", "vector": "v"}, "distance": "dot"})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def publish(store: Store, folder: Path, version: int) -> None:
    """Publish the version whose ids and vectors all say its number."""
    vectors = np.full((5, 4), version, np.float32)
    ids = [f"v{version}-{row}" for row in range(5)]
    assert publish_version(store, SPEC, datapoints(SPEC, vectors, ids=ids), folder).version == version


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store", create=True)
    publish(store, tmp_path, 1)
    return store


@pytest.mark.system
def test_a_new_version_is_seen_and_the_old_one_stays_whole_for_its_readers(
    store: Store, tmp_path: Path
) -> None:
    clock = Clock()
    catalog = embedded_catalog(store, clock=clock)
    old = catalog.snapshot("moving")
    publish(store, tmp_path, 2)
    assert catalog.snapshot("moving") is old
    clock.now += ON_ACCESS.every_s
    new = catalog.snapshot("moving")
    assert (old.manifest.version, new.manifest.version) == (1, 2)
    assert old.segments[0].ids.to_pylist() == [f"v1-{row}" for row in range(5)]
    assert new.segments[0].ids.to_pylist() == [f"v2-{row}" for row in range(5)]
    assert old.find("v1-3") == (0, 3)
    assert new.find("v1-3") is None


def test_segments_that_both_versions_have_are_opened_once(store: Store, tmp_path: Path) -> None:
    clock = Clock()
    catalog = embedded_catalog(store, clock=clock)
    old = catalog.snapshot("moving")
    vectors = np.full((5, 4), 1, np.float32)
    publish_version(store, SPEC, datapoints(SPEC, vectors, ids=[f"v1-{row}" for row in range(5)]), tmp_path)
    clock.now += ON_ACCESS.every_s
    assert catalog.snapshot("moving").segments[0] is old.segments[0]


@pytest.mark.system
def test_a_version_that_cannot_be_opened_leaves_the_one_before(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    catalog = embedded_catalog(store, clock=clock, cache=SegmentCache(tmp_path / "cache"))
    old = catalog.snapshot("moving")
    publish(store, tmp_path, 2)
    damaged = {item.key for item in store.list("moving/segments")} - {
        f"moving/{old.manifest.segments[0].key}"
    }
    for key in damaged:
        store.write(key, b"x" * store.size(key))
    clock.now += ON_ACCESS.every_s
    assert catalog.snapshot("moving") is old
    assert "version 2 cannot be opened" in caplog.text
    # Not tried again at once, but later; and a good version ends the trouble.
    caplog.clear()
    clock.now += ON_ACCESS.every_s
    assert catalog.snapshot("moving") is old
    assert caplog.text == ""
    publish(store, tmp_path, 3)
    clock.now += 60
    assert catalog.snapshot("moving").manifest.version == 3


def test_an_index_that_never_opened_says_why(store: Store, tmp_path: Path) -> None:
    for item in store.list("moving/segments"):
        store.write(item.key, b"x" * item.size_bytes)
    catalog = embedded_catalog(store, cache=SegmentCache(tmp_path / "cache"))
    with pytest.raises(CorruptError, match="SHA-256"):
        catalog.snapshot("moving")
    assert catalog.states() == {"moving": False}


@pytest.mark.parametrize("name", ["nobody", "../moving", "moving/versions", "MOVING", "a" * 300])
def test_an_unknown_index_is_named_with_those_that_there_are(store: Store, name: str) -> None:
    catalog = embedded_catalog(store)
    with pytest.raises(UnknownIndexError, match="there are: moving") as caught:
        catalog.snapshot(name)
    assert caught.value.field == "index"
    assert catalog.states() == {}


def test_a_store_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        open_embedded_catalog(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        open_embedded_catalog(tmp_path / "file")
    assert open_embedded_catalog(tmp_path).names() == []


@pytest.mark.system
def test_only_the_chosen_indexes_are_there(store: Store, library: Path) -> None:
    catalog = embedded_catalog(Store.open(library), only=["flat"])
    assert catalog.names() == ["flat"]
    with pytest.raises(UnknownIndexError):
        catalog.snapshot("library")


@pytest.mark.system
def test_a_closed_catalog_refuses(store: Store) -> None:
    catalog = embedded_catalog(store)
    catalog.snapshot("moving")
    catalog.close()
    with pytest.raises(ClosedError):
        catalog.snapshot("moving")


@pytest.mark.system
def test_the_watcher_finds_new_indexes_and_versions_and_drops_what_is_gone(
    store: Store, tmp_path: Path
) -> None:
    catalog = server_catalog(store)
    looked = threading.Event()
    watcher = Watcher(catalog, every_s=0.02, after=looked.set)
    watcher.start()
    try:
        assert catalog.states() == {"moving": True}
        publish(store, tmp_path, 2)
        other = parse_spec({"index": "other", "source": {"id": "id", "vector": "v"}})
        publish_version(store, other, datapoints(other, np.eye(3, dtype=np.float32)), tmp_path)
        wait_for(lambda: catalog.names() == ["moving", "other"], looked)
        wait_for(lambda: catalog.snapshot("moving").manifest.version == 2, looked)
        shutil.rmtree(tmp_path / "store" / "other")
        wait_for(lambda: catalog.names() == ["moving"], looked)
    finally:
        watcher.stop()
    assert latest_version(store, "moving") == 2


def wait_for(condition: object, looked: threading.Event) -> None:
    for _ in range(500):
        looked.clear()
        if condition():  # type: ignore[operator]
            return
        assert looked.wait(60)
    raise AssertionError("it never came true")


@pytest.mark.system
def test_a_lease_that_is_as_it_should_be_is_not_written_again_and_a_new_version_is_leased_at_once(
    store: Store, tmp_path: Path
) -> None:
    catalog = server_catalog(store)
    catalog.refresh()
    [lease] = store.list("moving/leases")
    written = store.stamp(lease.key)
    for _ in range(3):
        catalog.refresh()
    assert store.stamp(lease.key) == written
    publish(store, tmp_path, 2)
    catalog.refresh()
    assert store.stamp(lease.key) != written
    assert read_leases(store, "moving").versions == {2}
    catalog.close()


@pytest.mark.system
@pytest.mark.parametrize("noticed", [True, False])
def test_an_index_that_was_dropped_and_made_again_is_leased_again(
    store: Store, tmp_path: Path, noticed: bool
) -> None:
    catalog = server_catalog(store)
    catalog.refresh()
    catalog.refresh()
    assert read_leases(store, "moving").versions == {1}
    drop_index(store, "moving", force=True)
    if noticed:
        catalog.refresh()
    publish(store, tmp_path, 1)
    catalog.refresh()
    catalog.refresh()
    assert read_leases(store, "moving").versions == {1}
    catalog.close()

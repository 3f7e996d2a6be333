"""Leases, and garbage collection beside them; what builds leave is collected in tests/pipelines/test_garbage.py."""

from __future__ import annotations

import json
import os
import threading
from datetime import datetime, timedelta, timezone

import pytest

from scannery.indexer import (
    IndexerError,
    LeaseHolder,
    Store,
    StoreError,
    collect_garbage,
    commit,
    leased_versions,
    list_versions,
    read_manifest,
    rollback,
    segment_key,
    verify,
)
from scannery.indexer.errors import MissingFileError
from scannery.indexer.versions import leases
from scannery.indexer.versions.leases import LIFETIME, read_leases, removing, wait_for_removals, working
from scannery.pipelines.state.job import sealed
from scannery.serving.catalog.roles import server_catalog
from scannery.serving.catalog.watcher import Watcher
from tests.data import without_ids
from tests.hooks import before_call, make_old
from tests.indexer.test_maintenance import NOW, store

__all__ = ["store"]

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def test_a_lease_holds_until_it_expires(store: Store):
    clock = Clock()
    holder = LeaseHolder(store, clock=clock)
    holder.hold("t", {1, 3})
    assert leased_versions(store, "t", START) == ({1, 3}, [])
    [lease] = store.list("t/leases")
    assert leased_versions(store, "t", START + LIFETIME) == (set(), [lease.key])
    clock.now += LIFETIME / 2
    holder.hold("t", {1, 3})
    assert leased_versions(store, "t", START + LIFETIME) == ({1, 3}, [])
    holder.release()
    assert store.list("t/leases") == []


def test_a_lease_is_written_only_when_it_must(store: Store):
    clock = Clock()
    holder = LeaseHolder(store, clock=clock)
    holder.hold("t", {1})
    [lease] = store.list("t/leases")
    store.write(lease.key, b"untouched")
    clock.now += LIFETIME / 4
    holder.hold("t", {1})
    assert store.read(lease.key) == b"untouched"
    holder.hold("t", {2})
    assert json.loads(store.read(lease.key))["versions"] == [2]


def test_a_store_that_is_read_only_is_said_once(store: Store, caplog, monkeypatch):
    def refuse(key: str, data: bytes) -> None:
        raise StoreError("read-only")

    monkeypatch.setattr(store, "write", refuse)
    clock = Clock()
    holder = LeaseHolder(store, clock=clock)
    for _ in range(5):
        holder.hold("t", {1})
        clock.now += LIFETIME
    assert [record.message for record in caplog.records] == [
        "cannot lease the open versions, so gc may remove them: read-only"
    ]


@pytest.mark.system
def test_a_forked_process_has_leases_of_its_own(store: Store):
    holder = LeaseHolder(store)
    holder.hold("t", {1})
    child = os.fork()
    if child == 0:
        holder.hold("t", {2})
        os._exit(0)
    os.waitpid(child, 0)
    assert leased_versions(store, "t")[0] == {1, 2}
    holder.release()
    assert leased_versions(store, "t")[0] == {2}, "the child was killed, so to say: its lease expires"


def test_a_damaged_lease_holds_nothing_and_goes_when_it_is_old(store: Store):
    store.write("t/leases/x.json", b"{")
    now = datetime.now(timezone.utc)
    assert leased_versions(store, "t", now) == (set(), [])
    assert leased_versions(store, "t", now + 2 * LIFETIME) == (set(), ["t/leases/x.json"])


@pytest.mark.system
def test_a_version_that_a_server_has_open_stays(store: Store):
    catalog = server_catalog(store)
    watcher = Watcher(catalog, every_s=3600)
    watcher.start()
    for row in range(3):
        without_ids(store, "t", [f"d{row}"])
    report = collect_garbage(store, "t", keep=1, min_age=NOW)
    assert (report.versions, report.leased) == ((2, 3), (1,))
    assert list_versions(store, "t") == [1, 4]
    assert catalog.snapshot("t").manifest.version == 1
    catalog.refresh()
    assert collect_garbage(store, "t", keep=1, min_age=NOW).versions == (1,)
    watcher.stop()
    catalog.close()
    assert store.list("t/leases") == []


def test_expired_leases_are_collected_and_progress_is_told(store: Store):
    clock = Clock()
    clock.now = datetime.now(timezone.utc) - 2 * LIFETIME
    LeaseHolder(store, clock=clock).hold("t", {1})
    store.write(f"t/segments/{'0' * 64}.parquet", b"left by a killed build")
    told: list[tuple[int, int]] = []
    report = collect_garbage(store, "t", min_age=NOW, progress=lambda *counts: told.append(counts))
    assert (len(report.scratch), len(report.segments)) == (1, 1)
    assert told == [(1, 2), (2, 2)]
    assert store.list("t/leases") == []


@pytest.mark.system
def test_what_is_named_meanwhile_stays(store: Store, monkeypatch: pytest.MonkeyPatch):
    without_ids(store, "t", ["d1"])
    without_ids(store, "t", ["d2"])

    def rolled_back() -> None:
        rollback(store, "t", 1)
        rollback(store, "t", 2)

    # Right before the first version goes: what gc is about to remove was looked up already.
    before_call(monkeypatch, "delete", r"t/versions/", rolled_back)
    report = collect_garbage(store, "t", keep=1, min_age=NOW)
    assert (report.versions, report.deletes) == ((1, 2), ())
    assert verify(store, "t").problems == ()


@pytest.mark.system
def test_work_is_left_alone_however_old_its_files_are(store: Store):
    without_ids(store, "t", ["d1"])
    without_ids(store, "t", ["d2"])
    old, record = "t/segments/" + "0" * 64 + ".parquet", "t/stage/segments/x.json"
    for key in (
        old, "t/embeddings/used.parquet", "t/stage/units/used.json", "t/embeddings/other.parquet", record,
    ):  # fmt: skip
        store.write(key, b"")
        make_old(store, key)
    with working(store, "t", parent=1) as lease:
        lease.hold(parent=1, units=["used"])
        # Taken up: the record is written again, the segment is as old as it was.
        store.write(record, sealed(json.dumps({"entries": [{"key": old.removeprefix("t/")}]})))
        store.write("t/segments/fresh.parquet", b"")
        report = collect_garbage(store, "t", keep=1, min_age=NOW)
        assert (report.versions, report.leased) == ((), (1, 2))
        assert (report.segments, report.embeddings) == ((), ("t/embeddings/other.parquet",))
    assert store.list("t/leases") == []
    report = collect_garbage(store, "t", keep=1, min_age=NOW)
    assert report.versions == (1, 2)
    assert (len(report.segments), report.embeddings) == (2, ("t/embeddings/used.parquet",))


@pytest.mark.system
def test_a_lease_of_work_is_renewed_until_it_ends(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leases, "LIFETIME", timedelta(seconds=0.3))
    with working(store, "t", parent=4):
        [lease] = store.list("t/leases")
        first = json.loads(store.read(lease.key))
        assert first["versions"] == [4, 5]
        renewed = threading.Event()
        before_call(monkeypatch, "write", "t/leases/", renewed.set)
        assert renewed.wait(10)
        while json.loads(store.read(lease.key))["expires_at"] == first["expires_at"]:
            pass
        assert read_leases(store, "t").versions == {4, 5}
    assert store.list("t/leases") == []


@pytest.mark.system
def test_a_file_that_gc_removes_is_not_committed(store: Store, monkeypatch: pytest.MonkeyPatch):
    manifest = read_manifest(store, "t")
    extra = manifest.segments[0].model_copy(update={"key": f"segments/{'0' * 64}.parquet", "size_bytes": 4})
    store.write(segment_key("t", extra.key), b"left")
    child = manifest.model_copy(update={"parent": 1, "segments": (*manifest.segments, extra)})
    problems: list[IndexerError] = []

    def committed() -> None:
        try:
            commit(store, child)
        except IndexerError as error:
            problems.append(error)

    thread = threading.Thread(target=committed)

    # After the last look of gc: it removes the file, and the commit must wait for that and see that it is gone.
    def begun() -> None:
        thread.start()
        thread.join(0.3)

    before_call(monkeypatch, "delete", r"t/segments/", begun)
    assert len(collect_garbage(store, "t", keep=1, min_age=NOW).segments) == 1
    thread.join()
    assert [type(error) for error in problems] == [MissingFileError]
    assert list_versions(store, "t") == [1]


@pytest.mark.system
def test_a_file_that_is_being_committed_is_not_removed(store: Store, monkeypatch: pytest.MonkeyPatch):
    manifest = read_manifest(store, "t")
    entry = without_ids(store, "t", ["d1"]).segments[0]
    without_ids(store, "t", ["d2"])
    assert entry.deleted is not None
    make_old(store, segment_key("t", entry.deleted.key))
    child = manifest.model_copy(update={"parent": 3, "segments": (entry,)})
    # Right before the put, when the commit has seen that all of its files are there.
    before_call(
        monkeypatch, "create", "t/versions/", lambda: collect_garbage(store, "t", keep=1, min_age=NOW)
    )
    commit(store, child)
    assert verify(store, "t").problems == ()


@pytest.mark.system
def test_a_removal_that_was_killed_is_waited_for_a_while_only(store: Store):
    with removing(store, "t", ["t/segments/a.parquet"]):
        wait_for_removals(store, "t", ["t/segments/b.parquet"])
        with pytest.raises(StoreError, match=r"garbage collection is removing t/segments/a\.parquet"):
            wait_for_removals(store, "t", ["t/segments/a.parquet"], wait_s=0.2)
    wait_for_removals(store, "t", ["t/segments/a.parquet"])
    store.write("t/removals/killed.json", b"{}")
    make_old(store, "t/removals/killed.json")
    assert collect_garbage(store, "t", min_age=NOW).scratch == ("t/removals/killed.json",)

"""Leases, and garbage collection beside them; what builds leave is collected in tests/pipelines/test_garbage.py."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

from scannery.indexer import (
    LeaseHolder,
    Store,
    StoredObject,
    StoreError,
    collect_garbage,
    garbage,
    leased_versions,
    list_versions,
    rollback,
    verify,
)
from scannery.indexer.leases import LIFETIME
from scannery.serving.catalog import Catalog
from scannery.serving.watcher import Watcher
from tests.data import without_ids
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
        "cannot announce the open versions, gc may remove them: read-only"
    ]


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


def test_a_version_that_a_server_has_open_stays(store: Store):
    catalog = Catalog(store)
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


def test_what_is_named_meanwhile_stays(store: Store, monkeypatch: pytest.MonkeyPatch):
    without_ids(store, "t", ["d1"])
    without_ids(store, "t", ["d2"])
    real = garbage._Garbage.of

    def overtaken(self: garbage._Garbage, kind: str) -> Iterator[StoredObject]:
        found = list(real(self, kind))
        if kind == "scratch":
            rollback(store, "t", 1)
            rollback(store, "t", 2)
        return iter(found)

    monkeypatch.setattr(garbage._Garbage, "of", overtaken)
    report = collect_garbage(store, "t", keep=1, min_age=timedelta(0))
    assert len(report.deletes) == 1
    assert verify(store, "t").problems == ()

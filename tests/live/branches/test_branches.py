"""Branches: an index of its own with the content of another one, whatever becomes of either."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore.store import MemoryStore

import scannery
from scannery.client import Index
from scannery.indexer import (
    AlreadyExistsError,
    InUseError,
    Manifest,
    NotFoundError,
    SegmentCache,
    Store,
    change_aliases,
    collect_garbage,
    list_indexes,
    list_versions,
    manifest_key,
    read_manifest,
    verify,
)
from scannery.indexer.errors import StoreError
from scannery.indexer.store.bucket_backend import BucketBackend
from scannery.indexer.versions import versions
from scannery.indexer.versions.dropping import drop_index
from scannery.indexer.versions.leases import claimed
from scannery.live.log.mutation_log import WrongLogError
from scannery.live.maintenance import copies
from scannery.live.maintenance.copies import branch, restore, snapshot
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.runtime.errors import ReadOnlyError
from scannery.serving.catalog.roles import server_catalog
from scannery.serving.catalog.version_opener import ColdIndexes
from tests.cluster.servers import started_cluster
from tests.data import ROOT
from tests.live.model import DIMENSIONS, make_store, random_row
from tests.served import serving
from tests.tools.prepared_process import PreparedProcess

ROWS = 40
VECTOR = [1.0, *[0.0] * (DIMENSIONS - 1)]
HALF_AN_HOUR = timedelta(minutes=30)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = random.Random(5)
    return make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(ROWS)])


@pytest.fixture
def store(path: Path) -> Store:
    return Store.open(path)


@pytest.fixture
def client(path: Path) -> Iterator[scannery.Client]:
    with scannery.connect(path) as client:
        yield client


def ids(index: Index) -> set[str]:
    return {point.id for point in index.scan(fields=[])}


def put(index: Index, *names: str) -> int:
    return index.upsert([{"id": name, "vector": VECTOR} for name in names]).sequence


def bytes_on_disk(path: Path) -> int:
    """Return the bytes of all files, each once, whatever its names."""
    status = [each.stat() for each in path.rglob("*")]
    return sum({each.st_ino: each.st_blocks * 512 for each in status}.values())


def test_a_branch_has_all_writes_and_neither_sees_those_of_the_other(
    client: scannery.Client, store: Store, path: Path
) -> None:
    origin = client.index("live")
    put(origin, "sealed")
    seal(store, "live")
    put(origin, "unsealed")
    origin.delete(["id0"])
    before = bytes_on_disk(path)
    made = client.branch_index("live", "trial")
    assert bytes_on_disk(path) - before < 1 << 20
    assert made.name == "trial"
    whole = {f"id{number}" for number in range(1, ROWS)} | {"sealed", "unsealed"}
    assert ids(made) == ids(origin) == whole
    for file in read_manifest(store, "trial").files:
        assert (path / "trial" / file.key).samefile(path / "live" / file.key)
    assert put(made, "of trial") == put(origin, "of live") == 4
    assert (ids(made), ids(origin)) == (whole | {"of trial"}, whole | {"of live"})
    manifests = [read_manifest(store, name) for name in ("live", "trial")]
    assert len({manifest.index_id for manifest in manifests}) == 2
    assert manifests[1].spec.index == manifests[1].index == "trial"
    assert manifests[1].statistics["branch"]["index"] == "live"
    for name in ("live", "trial"):
        seal(store, name)
        assert verify(store, name).problems == ()


def test_a_branch_of_a_version_or_of_a_time(client: scannery.Client, store: Store) -> None:
    origin, times = client.index("live"), []
    for number in range(2, 4):
        put(origin, f"v{number}")
        times.append(datetime.now(timezone.utc))
        assert seal(store, "live").version == number  # type: ignore[union-attr]
    put(origin, "unsealed")

    def content(name: str, **options: Any) -> set[str]:
        made = client.branch_index("live", name, **options)
        with_one = ids(made) - {f"id{number}" for number in range(ROWS)}
        assert put(made, "later") > 0
        assert ids(made) >= {"later"}
        return with_one

    assert content("one", version=1) == set()
    assert content("two", version=2) == {"v2"}
    assert content("three", version=3) == {"v2", "v3"}
    assert content("then", time=times[0]) == set()
    assert content("thence", time=times[1].isoformat()) == {"v2"}
    assert content("now", time=timedelta(0)) == content("just-now", time="0s") == {"v2", "v3"}
    assert content("all") == {"v2", "v3", "unsealed"}
    wrong: list[tuple[dict[str, Any], type[scannery.ScanneryError], str]] = [
        ({"version": 9}, scannery.NotFoundError, "no version 9; it has 1, 2, 3"),
        (
            {"time": "7d"},
            scannery.NotFoundError,
            "has no version of .* or before; the oldest, version 1, is of",
        ),
        ({"time": "soon"}, scannery.InvalidArgumentError, "time: must be a time in ISO 8601"),
        ({"version": 0}, scannery.InvalidArgumentError, "version: must be a number from 1"),
        (
            {"version": 1, "time": "1h"},
            scannery.InvalidArgumentError,
            "time: must not be given with `version`",
        ),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message) as caught:
            client.branch_index("live", "none", **options)
        assert caught.value.field in options
    assert not store.list("none")


def test_names_that_no_branch_can_have(client: scannery.Client, store: Store) -> None:
    origin = client.index("live")
    put(origin, "x")
    client.branch_index("live", "trial")
    change_aliases(store, lambda aliases: {**aliases, "other": "live"})
    before = store.list()
    for name in ("trial", "live", "other"):
        with pytest.raises(scannery.AlreadyExistsError, match=name):
            client.branch_index("live", name)
    with pytest.raises(scannery.InvalidArgumentError) as caught:
        client.branch_index("live", "A name")
    assert caught.value.field == "branch"
    with pytest.raises(scannery.NotFoundError, match="no index 'nobody'"):
        client.branch_index("nobody", "fresh")
    assert store.list() == before
    assert client.branch_index("other", "by-alias").count() == ROWS + 1


def test_a_name_whose_index_is_being_removed_or_made(store: Store) -> None:
    branch(store, "live", "trial")
    store.write("trial/versions/dropped.json", b"{}")
    with pytest.raises(InUseError, match="was dropped.*scannery index drop trial"):
        branch(store, "live", "trial")
    with (
        claimed(store, "fresh"),
        pytest.raises(InUseError, match="another process makes an index of this name"),
    ):
        branch(store, "live", "fresh")
    assert branch(store, "live", "fresh").version == 1


@pytest.mark.parametrize("gone", ["live", "trial"])
def test_either_may_be_dropped(client: scannery.Client, store: Store, gone: str) -> None:
    put(client.index("live"), "unsealed")
    client.branch_index("live", "trial")
    client.drop_index(gone)
    collect_garbage(store, ({"live", "trial"} - {gone}).pop(), keep=1, min_age=timedelta(0))
    [left] = list_indexes(store)
    assert client.index(left).count() == ROWS + 1
    assert verify(store, left).problems == ()
    assert client.branch_index(left, gone).count() == ROWS + 1


def test_a_request_that_is_repeated_gets_the_branch_that_it_made(store: Store) -> None:
    branch(store, "live", "trial", request_id="r1")
    made = copies.branch_of(store, "trial", "r1")
    assert made == read_manifest(store, "trial")
    assert copies.branch_of(store, "trial", "r2") is copies.branch_of(store, "trial", "") is None
    assert copies.branch_of(store, "none", "r1") is None


def test_what_the_branch_keeps(store: Store) -> None:
    manifest, key = read_manifest(store, "live"), "queries/" + "0" * 64 + ".npy"
    store.write(f"live/{key}", b"queries")
    assert manifest.recall is not None
    measured = manifest.model_copy(
        update={
            "recall": manifest.recall.model_copy(update={"given_queries": key}),
            "former": (manifest.search_state,),
            "model": "order@1",
        }
    )
    store.write(manifest_key("live", 1), measured.to_json())
    branch(store, "live", "trial")
    made = read_manifest(store, "trial")
    changed = {"index", "index_id", "spec", "statistics"}
    assert made.model_dump(exclude=changed) == measured.model_dump(exclude=changed)
    assert made.spec == measured.spec.model_copy(update={"index": "trial"})
    assert store.read(f"trial/{key}") == b"queries"


def test_a_backup_of_a_branch_and_a_branch_of_a_restored_backup(store: Store, tmp_path: Path) -> None:
    with scannery.connect(store.uri) as client:
        put(client.branch_index("live", "trial"), "x")
    backup, back = (Store.open(tmp_path / name, create=True) for name in ("backup", "back"))
    assert snapshot(store, "trial", backup).sequence == 1
    drop_index(store, "live")
    assert restore(backup, "trial", back).sequence == 1
    branch(back, "trial", "again")
    with scannery.connect(tmp_path / "back") as client:
        assert client.index("again").count() == ROWS + 1
    assert [verify(back, name).problems for name in ("trial", "again")] == [(), ()]


@pytest.mark.parametrize("options", [{}, {"version": 1}])
def test_gc_of_the_origin_and_of_the_branch_remove_nothing_that_a_branch_gets(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    copy_files = copies._copy_files

    def meanwhile(source: Store, target: Store, manifest: Manifest, name: str) -> int:
        with scannery.connect(path) as client:
            client.index("live").delete([f"id{number}" for number in range(ROWS)])
        seal(store, "live")
        assert list_versions(store, "live") == [1, 2]
        collect_garbage(store, "live", keep=1, min_age=timedelta(0))
        size_bytes = copy_files(source, target, manifest, name)
        collect_garbage(store, "trial", min_age=timedelta(0))
        return size_bytes

    monkeypatch.setattr(copies, "_copy_files", meanwhile)
    assert branch(store, "live", "trial", **options).version == 1
    assert verify(store, "trial").problems == ()
    assert read_manifest(store, "trial").rows == ROWS


@pytest.mark.parametrize("at", ["before", "after"])
def test_an_index_that_is_created_under_the_name_meanwhile_stays(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    with scannery.connect(path) as client:
        put(client.index("live"), "x")
        seal(store, "live")
        put(client.index("live"), "y")
        commit = versions.commit_copy

        def meanwhile(*arguments: Any, **options: Any) -> None:
            client.create_index("trial", dimensions=2)
            commit(*arguments, **options)

        if at == "before":
            files = copies._copy_files

            def before(*arguments: Any) -> int:
                client.create_index("trial", dimensions=2).upsert([{"id": "a", "vector": [1, 2]}])
                return files(*arguments)

            monkeypatch.setattr(copies, "_copy_files", before)
        else:
            monkeypatch.setattr(copies, "commit_copy", meanwhile)
        with pytest.raises(AlreadyExistsError, match="trial"):
            branch(store, "live", "trial")
    with scannery.connect(path) as client:
        trial = client.index("trial")
        trial.upsert([{"id": "b", "vector": [1, 2]}])
        assert ids(trial) == ({"a", "b"} if at == "before" else {"b"})


def test_a_log_that_is_elsewhere(path: Path, store: Store, tmp_path: Path) -> None:
    with serving(path, log=str(tmp_path / "logs")) as server, scannery.connect(server.address) as client:
        put(client.index("live"), "x")
        trial = client.branch_index("live", "trial")
        assert trial.count() == ROWS + 1
        assert put(trial, "y") == 2
        assert (tmp_path / "logs" / "trial").is_dir()
    with pytest.raises(WrongLogError, match="there is none in"):
        branch(store, "live", "second")
    assert branch(store, "live", "third", version=1).sequence == 0
    assert branch(store, "live", "fourth", log_root=tmp_path / "logs").sequence == 1
    assert not store.list("second")


def test_in_a_bucket_the_log_needs_a_place(path: Path, store: Store, tmp_path: Path) -> None:
    bucket = Store("memory", BucketBackend(MemoryStore()))
    for item in store.list():
        bucket.write(item.key, store.read(item.key))
    assert branch(bucket, "live", "trial").sequence == 0  # neither has a log yet
    with scannery.connect(path) as client:
        put(client.index("live"), "x")
    snapshot(store, "live", kept := Store("memory", BucketBackend(MemoryStore())))
    with pytest.raises(ReadOnlyError, match="needs a place"):
        branch(kept, "live", "trial")
    report = branch(kept, "live", "trial", log_root=tmp_path / "logs", version=1)
    assert report.sequence == 0
    assert verify(kept, "trial").problems == ()


def test_a_rollback_of_the_origin_leaves_the_branch(path: Path, store: Store) -> None:
    with scannery.connect(path) as client:
        put(client.index("live"), "x")
        seal(store, "live")
        client.branch_index("live", "trial")
    rollback(store, "live", 1)
    with scannery.connect(path) as client:
        assert (client.index("live").count(), client.index("trial").count()) == (ROWS, ROWS + 1)
    with pytest.raises(NotFoundError, match="no version 1"):
        rollback(store, "trial", 1)


def test_a_disk_that_cannot_take_the_branch(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise StoreError("no space left on device")

    monkeypatch.setattr(Store, "share_all", refused)
    with pytest.raises(StoreError, match="no space"):
        branch(store, "live", "trial")
    monkeypatch.undo()
    assert branch(store, "live", "trial").version == 1


def test_what_is_published_is_not_taken_back(
    client: scannery.Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client.index("live"), "unsealed")

    def interrupted(*_: object) -> None:
        raise StoreError("the store does not answer")

    monkeypatch.setattr(versions, "_check_not_aliased", interrupted)
    with pytest.raises(StoreError, match="does not answer"):
        branch(store, "live", "trial")
    monkeypatch.undo()
    assert client.index("trial").count() == ROWS + 1
    assert put(client.index("trial"), "x") == 2
    assert verify(store, "trial").problems == ()


class _Writer(threading.Thread):
    """Upserts one datapoint after the other, and knows which were acknowledged."""

    def __init__(self, address: str, index: str) -> None:
        super().__init__()
        self._address, self._index = address, index
        self.begun, self.acknowledged = 0, 0
        self.error: Exception | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            with scannery.connect(self._address) as client:
                while not self._ended.is_set():
                    self.begun += 1
                    put(client.index(self._index), f"{self._index}-{self.begun}")
                    self.acknowledged = self.begun
        except Exception as error:  # noqa: BLE001  told by the test
            self.error = error

    def end(self) -> None:
        self._ended.set()
        self.join()
        assert self.error is None

    def names(self, up_to: int) -> set[str]:
        return {f"{self._index}-{number}" for number in range(1, up_to + 1)}


@pytest.mark.system
def test_a_branch_beside_a_writer_has_what_was_acknowledged(path: Path, store: Store) -> None:
    built = {f"id{number}" for number in range(ROWS)}
    with serving(path) as server, scannery.connect(server.address) as client:
        writer = _Writer(server.address, "live")
        writer.start()
        end_s, made = time.monotonic() + 8, dict[str, tuple[set[str], set[str]]]()
        while time.monotonic() < end_s:
            time.sleep(0.7)
            if len(made) % 3 == 1:
                seal(store, "live")
            name, acknowledged = f"trial{len(made)}", writer.names(writer.acknowledged)
            client.branch_index("live", name)
            made[name] = acknowledged, writer.names(writer.begun)
        later = _Writer(server.address, "trial0")
        later.start()
        time.sleep(0.5)
        later.end()
        writer.end()
        assert len(made) > 4 and later.acknowledged > 0
        for name, (least, most) in made.items():
            own = later.names(later.begun) if name == "trial0" else set()
            content = ids(client.index(name)) - built
            assert least <= content - own <= most
            assert own <= content
        assert ids(client.index("live")) - built == writer.names(writer.begun)
    for name in ("live", *made):
        assert verify(store, name).problems == ()


def test_a_branch_is_opened_at_once_with_the_segments_of_its_origin(store: Store, tmp_path: Path) -> None:
    catalog = server_catalog(store, cache=SegmentCache(tmp_path / "cache"), log=tmp_path / "logs")
    catalog.refresh()
    origin = catalog.snapshot("live")
    catalog.branch("live", "trial", version=None, time=None, request_id="")
    assert catalog._opener.new_bytes("trial", 1, None) == 0
    trial = catalog.snapshot("trial")
    for one, other in zip(origin.segments, trial.segments, strict=True):
        assert one.searched_ND is other.searched_ND
    before = catalog.memory.needed_bytes()
    drop_index(store, "live", force=True)
    catalog.refresh()
    del origin, one, other
    assert catalog.states() == {"trial": True}
    assert catalog.snapshot("trial").index.manifest.rows == ROWS
    assert 0 < catalog.memory.needed_bytes() <= before
    catalog.close()


@pytest.mark.parametrize("cold", [("live",), ("trial",)])
def test_cold_segments_are_opened_by_the_name_of_each_index(
    store: Store, tmp_path: Path, cold: tuple[str, ...]
) -> None:
    cache = SegmentCache(tmp_path / "cache")
    catalog = server_catalog(store, cache=cache, log=tmp_path / "logs", cold=ColdIndexes(cold))
    catalog.refresh()
    catalog.branch("live", "trial", version=None, time=None, request_id="")
    catalog.refresh()
    drop_index(store, "live", force=True)
    catalog.refresh()
    [found] = [
        segment.find(np.array([VECTOR], np.float32), 5) for segment in catalog.snapshot("trial").segments[:1]
    ]
    assert len(found.rows_QK[0]) == 5
    catalog.close()


@pytest.mark.system
def test_a_cluster_opens_a_branch(path: Path, tmp_path: Path) -> None:
    with (
        started_cluster(path, 2, log=str(tmp_path / "logs")) as (root, _),
        scannery.connect(root.address, timeout_s=60) as client,
    ):
        origin = client.index("live")
        put(origin, "x")
        trial = client.branch_index("live", "trial")
        end_s = time.monotonic() + 30
        while True:  # a root has an index when its leaves do
            try:
                assert put(trial, "of trial") == 2
                break
            except (scannery.NotFoundError, scannery.UnavailableError):
                assert time.monotonic() < end_s
                time.sleep(0.1)
        assert put(origin, "of live") == 2
        assert {hit.id for hit in trial.search(VECTOR, 1000)} == {
            *(f"id{number}" for number in range(ROWS)), "x", "of trial",
        }  # fmt: skip
        assert trial.count() == origin.count() == ROWS + 2


KILLED = """
import os, signal, sys
from pathlib import Path
from scannery.indexer import Store
from scannery.live.log import registry
from scannery.live.log.sqlite_log import SqliteLog
from scannery.live.maintenance import copies
left = [None] * int(sys.argv[2])
def counted(owner, name):
    original = getattr(owner, name)
    def call(*arguments, **named):
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left.pop()
        return original(*arguments, **named)
    setattr(owner, name, call)
for name in ("_share", "create", "replace", "write", "delete"):
    counted(Store, name)
for name in ("hardlink_to", "unlink"):
    counted(Path, name)
counted(os, "fsync")
copies.branch(Store.open(sys.argv[1]), "live", "trial")
print("done")
"""


def killed_after(store: Store, calls: int) -> bool:
    """Make a branch in a process that is killed before some call; return whether it was done before."""
    arguments = [sys.executable, "-c", KILLED, store.uri, str(calls)]
    with PreparedProcess(arguments, env={"PYTHONPATH": str(ROOT / "src")}, text=True) as process:
        code = process.wait(60)
    assert code in (0, -9)
    return code == 0


def expire_leases(store: Store, *indexes: str) -> None:
    for item in (each for index in indexes for each in store.list(f"{index}/leases")):
        lease = json.loads(store.read(item.key))
        store.write(item.key, json.dumps(lease | {"expires_at": "2020-01-01T00:00:00+00:00"}).encode())


@pytest.mark.system
@pytest.mark.parametrize("clean", [collect_garbage, drop_index], ids=["gc", "drop"])
def test_a_killed_branch_is_not_there_and_what_it_left_goes(
    path: Path, store: Store, clean: Callable[..., object]
) -> None:
    with scannery.connect(path) as client:
        put(client.index("live"), "sealed")
        seal(store, "live")
        put(client.index("live"), "unsealed")
    calls, unfinished = 0, 0
    while not killed_after(store, calls):
        if list_versions(store, "trial"):  # the manifest was put
            assert verify(store, "trial").problems == ()
            drop_index(store, "trial", force=True)
        elif store.list("trial"):
            unfinished += 1
            with pytest.raises((InUseError, AlreadyExistsError)):
                branch(store, "live", "trial")
            assert not list_versions(store, "trial")
            expire_leases(store, "trial")
            options = {"min_age": timedelta(0)} if clean is collect_garbage else {}
            clean(store, "trial", **options)
        expire_leases(store, "live")
        assert store.list("trial") == []
        calls += 2
    assert unfinished > 5
    assert verify(store, "live").problems == verify(store, "trial").problems == ()
    with scannery.connect(path) as client:
        assert client.index("live").count() == client.index("trial").count() == ROWS + 2

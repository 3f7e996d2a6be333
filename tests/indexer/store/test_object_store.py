from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from scannery.indexer import AlreadyExistsError, NotFoundError, Store, StoreError, list_indexes, list_versions
from scannery.indexer.store.bucket_backend import BucketBackend
from tests.hooks import no_descriptors


@pytest.fixture(params=["folder", "object"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return Store.open(tmp_path / "store", create=True)
    return Store("memory", BucketBackend(MemoryStore()))


def test_objects_come_back(store: Store, tmp_path: Path):
    store.write("a/one.bin", b"1")
    store.write("a/one.bin", b"11")
    (tmp_path / "file").write_bytes(b"222")
    store.write_file("a/b/two.bin", tmp_path / "file")
    assert store.read("a/one.bin") == b"11"
    assert [(item.key, item.size_bytes) for item in store.list()] == [("a/b/two.bin", 3), ("a/one.bin", 2)]
    assert [item.key for item in store.list("a/b")] == ["a/b/two.bin"]
    assert store.list("nothing") == []
    assert store.folders() == ["a"]
    with store.open_file("a/b/two.bin") as path:
        assert path.read_bytes() == b"222"
    store.delete("a/one.bin")
    store.delete("a/one.bin")
    assert not store.exists("a/one.bin")


def test_a_range_of_an_object(store: Store):
    store.write("index/data", bytes(range(100)))
    assert store.read_range("index/data", 10, 5) == bytes(range(10, 15))
    assert store.read_range("index/data", 90, 10) == bytes(range(90, 100))
    assert store.read_range("index/data", 100, 0) == b""
    with pytest.raises(StoreError):
        store.read_range("index/data", 95, 10)
    with pytest.raises(StoreError):
        store.read_range("index/data", 200, 10)
    with pytest.raises(NotFoundError):
        store.read_range("index/other", 0, 1)


def test_a_stamp_tells_that_an_object_was_replaced(store: Store):
    store.write("a", b"1")
    before = store.stamp("a")
    assert store.stamp("a") == before
    store.write("a", b"2")
    assert store.stamp("a") != before
    with pytest.raises(NotFoundError):
        store.stamp("b")


def test_missing_objects(store: Store):
    with pytest.raises(NotFoundError, match=r"no x/y\.json"):
        store.read("x/y.json")
    with pytest.raises(NotFoundError), store.open_file("x/y.json"):
        pass


def test_of_many_creators_exactly_one_wins(store: Store):
    outcomes: list[str] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        try:
            store.create("versions/1.json", f"{number}".encode())
            outcomes.append(f"{number}")
        except AlreadyExistsError:
            outcomes.append("lost")

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("lost") == 7
    assert store.read("versions/1.json").decode() in outcomes


def test_shared_bytes_have_two_lives(store: Store):
    store.write("a/segments/1", b"bytes")
    store.write("b/segments/2", b"before")
    for _ in range(2):  # again: a target that has the bytes already stays
        store.share("a/segments/1", "b/segments/1")
    store.share("b/segments/1", "b/segments/2")
    assert [item.key for item in store.list()] == ["a/segments/1", "b/segments/1", "b/segments/2"]
    store.delete("a/segments/1")
    assert store.read("b/segments/1") == store.read("b/segments/2") == b"bytes"
    store.write("b/segments/1", b"other")
    assert store.read("b/segments/2") == b"bytes"
    with pytest.raises(NotFoundError, match="a/segments/1"):
        store.share("a/segments/1", "c/segments/1")
    with pytest.raises(StoreError, match="invalid object key"):
        store.share("b/segments/1", "../1")


@pytest.mark.parametrize("refuses", [False, True])
def test_a_folder_links_or_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool):
    store = Store.open(tmp_path / "store", create=True)
    store.write("a/1", b"bytes")

    def link(*_: object) -> None:
        raise PermissionError(
            errno.EPERM, "Operation not permitted"
        )  # as on FAT, and some network file systems

    if refuses:
        monkeypatch.setattr(os, "link", link)
    store.share("a/1", "b/1")
    assert store.read("b/1") == b"bytes"
    assert (tmp_path / "store/b/1").samefile(tmp_path / "store/a/1") is not refuses
    assert sorted(path.name for path in (tmp_path / "store").rglob("*")) == ["1", "1", "a", "b"]


def test_a_link_whose_folder_or_draft_is_removed_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Store.open(tmp_path, create=True)
    store.write("a/1", b"bytes")
    original, calls = os.link, 0

    def link(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            target.parent.rmdir()
        original(source, target)
        if calls == 2:
            target.unlink()

    monkeypatch.setattr(os, "link", link)
    store.share("a/1", "b/1")
    assert (store.read("b/1"), calls) == (b"bytes", 3)


@pytest.mark.parametrize("key", ["", "../x", "a/../../x", "/etc/passwd", "a//b", "a/./b", "a\\b", "a\0"])
def test_keys_stay_inside(store: Store, key: str):
    with pytest.raises(StoreError, match="invalid object key"):
        store.write(key, b"")
    with pytest.raises(StoreError, match="invalid object key"):
        store.read(key)


def test_a_killed_writer_leaves_no_object(tmp_path: Path):
    store = Store.open(tmp_path, create=True)
    # What a writer has on disk before it is done.
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".tmp-0123").write_bytes(b"half")
    assert store.list() == []


def test_writes_are_synced_before_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # The order is what survives a power cut: data, then the name, then the folder that holds the name.
    steps: list[str] = []

    def recorded(name: str, original: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            steps.append(name)
            original(*arguments)

        return call

    for name in ("fsync", "link"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, recorded(name, original))
    store = Store.open(tmp_path)
    store.create("manifest.json", b"{}")
    assert steps == ["fsync", "link", "fsync"]


def test_places_that_are_no_store(tmp_path: Path):
    with pytest.raises(NotFoundError, match="no store at"):
        Store.open(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        Store.open(tmp_path / "file", create=True)
    with pytest.raises(StoreError, match="cannot create a store at .*: Not a directory"):
        Store.open(tmp_path / "file" / "below", create=True)
    with pytest.raises(StoreError, match="unknown scheme"):
        Store.open("ftp://host/store")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give up root")
def test_a_folder_that_may_not_be_written():
    # Not tmp_path: pytest hides it from other users, and root may write anywhere.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        store = Store.open(folder)
        os.seteuid(65534)
        try:
            with pytest.raises(StoreError, match="Permission denied"):
                store.write("a.json", b"")
        finally:
            os.seteuid(0)


def test_what_cannot_be_listed_is_not_empty(tmp_path: Path):
    store = Store.open(tmp_path)
    store.write("pods/versions/00000001.json", b"{}")
    now = datetime.now(timezone.utc)
    asked: list[Callable[[], object]] = [
        store.list,
        store.folders,
        lambda: store.list("pods/versions"),
        lambda: list_versions(store, "pods"),
        lambda: list_indexes(store),
        lambda: store.remove_drafts("pods", now),
    ]
    for ask in asked:
        with no_descriptors(), pytest.raises(StoreError, match="Too many open files"):
            ask()


def test_a_store_that_is_gone_is_not_empty(tmp_path: Path):
    store = Store.open(tmp_path / "store", create=True)
    assert store.list("pods/versions") == []
    (tmp_path / "store").rmdir()
    with pytest.raises(StoreError, match="cannot be listed: No such file"):
        store.list("pods/versions")


def test_a_folder_made_for_a_store_is_its_owners_alone(tmp_path: Path):
    store = Store.open(tmp_path / "deep" / "store", create=True)
    store.write("pods/segments/a.parquet", b"")
    store.create("pods/versions/1.json", b"")
    paths = [tmp_path / "deep" / "store", *(tmp_path / "deep" / "store").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o700, 0o600}


def test_a_folder_that_was_there_keeps_its_mode_and_gives_it_on(tmp_path: Path):
    tmp_path.chmod(0o750)
    Store.open(tmp_path, create=True).write("pods/a.json", b"")
    modes = [
        path.stat().st_mode & 0o777 for path in (tmp_path, tmp_path / "pods", tmp_path / "pods" / "a.json")
    ]
    assert modes == [0o750, 0o750, 0o640]


def test_file_uris(tmp_path: Path):
    store = Store.open(f"file://{tmp_path}/with%20space", create=True)
    assert store.local_root == tmp_path / "with space"


def test_what_is_being_written_is_no_leftover(tmp_path: Path):
    store = Store.open(tmp_path / "store", create=True)
    os.mkfifo(pipe := tmp_path / "pipe")
    (tmp_path / "store" / "a").mkdir()
    (tmp_path / "store" / "a" / ".tmp-killed").write_bytes(b"half")
    thread = threading.Thread(target=store.write_file, args=("a/b", pipe))
    thread.start()
    with pipe.open("wb") as file:
        file.write(b"first")
        file.flush()
        while len(drafts := list((tmp_path / "store" / "a").glob(".tmp-*"))) < 2:
            time.sleep(0.01)
        store.remove_drafts("a", datetime.now(timezone.utc) + timedelta(hours=1))
        assert [path for path in drafts if path.exists()] == [p for p in drafts if p.name != ".tmp-killed"]
        file.write(b" second")
    thread.join()
    assert store.read("a/b") == b"first second"


def test_a_draft_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store, flock, taken = Store.open(tmp_path / "store", create=True), fcntl.flock, list[Path]()

    def late(descriptor: int, flags: int) -> None:
        if not taken:
            taken.extend((tmp_path / "store" / "a").glob(".tmp-*"))
            taken[0].unlink()
        flock(descriptor, flags)

    monkeypatch.setattr(fcntl, "flock", late)
    store.write("a/b", b"whole")
    assert taken and store.read("a/b") == b"whole"

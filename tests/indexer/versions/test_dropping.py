"""Dropping an index: whole or not at all, also when its process is killed, and never under a server."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from scannery.indexer import (
    InUseError,
    LeaseHolder,
    NotFoundError,
    Store,
    collect_garbage,
    commit,
    list_indexes,
    list_versions,
    read_manifest,
    verify,
)
from scannery.indexer.errors import MissingFileError, StoreError
from scannery.indexer.store import folder_backend
from scannery.indexer.versions.dropping import drop_index
from scannery.indexer.versions.leases import working
from scannery.indexer.versions.levels import LEVEL_KEY
from scannery.indexer.versions.versions import is_dropped, manifest_key, segment_key
from tests.data import ROOT, clustered, datapoints, publish
from tests.indexer.test_maintenance import SPEC, publish_next, store
from tests.tools.prepared_process import PreparedProcess

__all__ = ["store"]

pytestmark = pytest.mark.system

KILLED = """
import os, signal, sys
from scannery.indexer import Store
from scannery.indexer.versions.dropping import drop_index
method, left = sys.argv[2], [None] * int(sys.argv[3])
original = getattr(Store, method)
def counted(self, *arguments):
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left.pop()
    return original(self, *arguments)
setattr(Store, method, counted)
drop_index(Store.open(sys.argv[1]), "t")
"""


def test_a_dropped_index_leaves_nothing_and_its_name_is_free(store: Store, tmp_path: Path):
    assert store.local_root is not None
    publish_next(store, tmp_path, 50)
    other = SPEC.model_copy(update={"index": "other"})
    publish(store, other, datapoints(other, clustered(20, 4)), tmp_path)
    report = drop_index(store, "t")
    assert (report.versions, report.files) == (2, 6)
    assert list_indexes(store) == ["other"]
    assert sorted(path.name for path in store.local_root.iterdir()) == ["other", LEVEL_KEY]
    assert verify(store, "other").problems == ()
    with pytest.raises(NotFoundError, match="no index 't'"):
        drop_index(store, "t")
    publish(store, SPEC, datapoints(SPEC, clustered(10, 4)), tmp_path)
    assert read_manifest(store, "t").rows == 10


@pytest.mark.parametrize(("method", "calls"), [("write", 0), ("delete", 0), ("delete", 2), ("delete", 4)])
def test_a_killed_drop_leaves_the_index_whole_or_gone(store: Store, tmp_path: Path, method: str, calls: int):
    arguments = [sys.executable, "-c", KILLED, store.uri, method, str(calls)]
    with PreparedProcess(arguments, env={"PYTHONPATH": str(ROOT / "src")}, text=True) as process:
        assert process.wait(60) == -9
    if method == "write":  # before the tombstone
        assert verify(store, "t").problems == ()
        return
    assert list_indexes(store) == []
    with pytest.raises(NotFoundError, match="was dropped, and some of its files are left"):
        read_manifest(store, "t")
    with pytest.raises(NotFoundError, match="was dropped"):
        collect_garbage(store, "t", min_age=timedelta(0))
    with pytest.raises(InUseError, match="`scannery index drop t` removes them"):
        publish(store, SPEC, datapoints(SPEC, clustered(10, 4)), tmp_path)
    drop_index(store, "t")
    assert not is_dropped(store, "t")
    assert store.list("t") == []
    publish(store, SPEC, datapoints(SPEC, clustered(10, 4)), tmp_path)
    assert list_versions(store, "t") == [1]


def test_an_index_in_use_is_dropped_only_by_force(store: Store):
    holder = LeaseHolder(store)
    holder.hold("t", {1})
    with pytest.raises(InUseError, match="a server has it open"):
        drop_index(store, "t")
    holder.release()
    with working(store, "t"), pytest.raises(InUseError, match="a build or other work"):
        drop_index(store, "t")
    assert verify(store, "t").problems == ()
    holder.hold("t", {1})
    assert drop_index(store, "t", force=True).versions == 1
    assert list_indexes(store) == []


def test_a_version_cannot_be_committed_while_its_index_is_dropped(store: Store):
    parent = read_manifest(store, "t")

    def late() -> None:
        with pytest.raises(InUseError):
            commit(store, parent.model_copy(update={"parent": 1}))

    drop_index(store, "t", also=late)
    assert list_versions(store, "t") == []


def test_what_a_failed_build_left_is_collected_or_dropped(store: Store):
    for name in ("failed", "other"):
        store.write(f"{name}/stage/units/a.json", b"{}")
        store.write(f"{name}/embeddings/a.parquet", b"x")
    assert collect_garbage(store, "failed", min_age=timedelta(hours=1)).freed_bytes == 0
    report = collect_garbage(store, "failed", min_age=timedelta(0))
    assert (report.records, report.embeddings) == (
        ("failed/stage/units/a.json",),
        ("failed/embeddings/a.parquet",),
    )
    assert store.list("failed") == []
    assert drop_index(store, "other").files == 2
    with pytest.raises(NotFoundError, match="there is no index 'failed'"):
        collect_garbage(store, "failed", min_age=timedelta(0))


@pytest.mark.parametrize("ends", [True, False])
def test_a_commit_during_which_its_index_is_dropped_leaves_no_version_without_files(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
):
    """Between the check of a commit and its put, a drop ends, or begins."""
    original = Store.create

    def create(self: Store, key: str, data: bytes) -> None:
        monkeypatch.setattr(Store, "create", original)
        if ends:
            drop_index(self, "t", force=True)
        else:
            self.write("t/versions/dropped.json", b'{"token": "other"}')
        original(self, key, data)

    monkeypatch.setattr(Store, "create", create)
    with pytest.raises(MissingFileError if ends else InUseError):
        publish_next(store, tmp_path, 50)
    left = {item.key for item in store.list("t/versions")}
    assert left == (set() if ends else {"t/versions/00000001.json", "t/versions/dropped.json"})


RACING = """
import random, sys, time
from scannery.indexer import Store, VectorsInfo, create_index
from scannery.indexer.errors import IndexerError
from scannery.indexer.versions.dropping import drop_index
from tests.data import clustered, datapoints, publish
from tests.indexer.test_maintenance import SPEC
from pathlib import Path
what, store, started = sys.argv[1], Store.open(sys.argv[2]), time.monotonic()
rows, done = datapoints(SPEC, clustered(10, 4)), 0
# On a busy machine nothing may succeed while all race; a commit does once the others have ended.
while time.monotonic() < started + (30 if what == "publish" and not done else 1.5):
    try:
        if what == "drop":
            drop_index(store, "t", force=True)
        elif what == "create":
            create_index(store, SPEC, vectors={"": VectorsInfo(dimensions=4)})
        else:
            publish(store, SPEC, rows, Path(sys.argv[3]))
        done += 1
    except IndexerError:
        time.sleep(random.uniform(0, 0.1))  # two drops that repeat at once would only stop each other
print(done)
"""


def test_drops_creates_and_commits_of_one_name_at_once_leave_a_whole_index_or_none(tmp_path: Path):
    store = Store.open(tmp_path / "store", create=True)
    kinds = ["drop", "drop", "create", "publish"]
    folders = [tmp_path / f"{number}" for number in range(len(kinds))]
    for folder in folders:
        folder.mkdir()
    running = [
        PreparedProcess(
            [sys.executable, "-c", RACING, kind, store.uri, str(folder)], cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for kind, folder in zip(kinds, folders, strict=True)
    ]  # fmt: skip
    ended = [process.communicate(timeout=60) for process in running]
    assert [error for _, error in ended if error] == []
    assert sum(int(done) for done, _ in ended) > 0
    if list_versions(store, "t"):
        assert verify(store, "t").problems == ()
        assert not is_dropped(store, "t")
    with contextlib.suppress(NotFoundError):
        drop_index(store, "t", force=True)
    assert [path.name for path in tmp_path.joinpath("store").iterdir()] == [LEVEL_KEY]


@pytest.mark.parametrize("linked", [1, 2])
def test_a_full_disk_changes_no_manifest_that_is_linked_into_a_backup(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: int
):
    publish_next(store, tmp_path, 50)
    assert store.local_root is not None
    for version in list_versions(store, "t")[-linked:]:
        (tmp_path / f"{version}").hardlink_to(store.local_root / "t" / "versions" / f"{version:08}.json")
    before = {path: path.read_bytes() for path in tmp_path.glob("[12]")}

    def full(*_: object) -> None:
        raise StoreError("no space left on device")

    monkeypatch.setattr(store, "write", full)
    if linked == 2:
        with pytest.raises(StoreError, match="no space"):
            drop_index(store, "t")
        assert list_versions(store, "t") == [1, 2]
    else:
        drop_index(store, "t")
        assert list_versions(store, "t") == []
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("dropped", ["t", "u"])
def test_a_drop_on_a_full_disk_leaves_the_bytes_that_another_index_shares(
    store: Store, monkeypatch: pytest.MonkeyPatch, dropped: str
):
    manifest = read_manifest(store, "t")
    store.share_all({segment_key("t", file.key): segment_key("u", file.key) for file in manifest.files})
    store.create(manifest_key("u", 1), manifest.model_copy(update={"index": "u"}).to_json())
    before = {
        item.key: store.read(item.key) for item in store.list() if not item.key.startswith(f"{dropped}/")
    }

    def full(*_: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_backend, "_write_synced", full)
    drop_index(store, dropped)
    assert {item.key: store.read(item.key) for item in store.list()} == before
    [left] = {"t", "u"} - {dropped}
    assert verify(store, left).problems == ()


def test_gc_leaves_no_empty_folders(store: Store, tmp_path: Path):
    assert store.local_root is not None
    publish_next(store, tmp_path, 50)
    store.write("t/stage/units/left.json", b"{}")
    (store.local_root / "t" / "deletes").mkdir(exist_ok=True)
    collect_garbage(store, "t", min_age=timedelta(0))
    folders = [path for path in (store.local_root / "t").rglob("*") if path.is_dir()]
    assert all(any(path.iterdir()) for path in folders)
    assert verify(store, "t").problems == ()
    store.write("failed/stage/units/left.json", b"{}")
    collect_garbage(store, "failed", min_age=timedelta(0))
    assert not (store.local_root / "failed").exists()

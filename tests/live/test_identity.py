"""Whose log it is: an index, its versions, its log and the processes that have them open never mix up two of them."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import apsw
import obstore
import pytest
from obstore.store import MemoryStore

import scannery
from scannery.indexer import (
    AlreadyExistsError,
    CorruptError,
    NotFoundError,
    SegmentCache,
    Store,
    StoreError,
    read_manifest,
    rollback,
)
from scannery.indexer.store.bucket_backend import BucketBackend
from scannery.live.log import homes as log_place
from scannery.live.log import sqlite_log
from scannery.live.log.database import LOG_FORMAT, create_database
from scannery.live.log.homes import forget_log
from scannery.live.log.location import LogRoot
from scannery.live.log.mutation_log import LogReplacedError, WrongLogError
from scannery.live.log.registry import registered
from scannery.live.log.sqlite_log import SqliteLog
from scannery.live.maintenance.copies import restore, snapshot
from scannery.live.maintenance.lag import log_status
from scannery.live.maintenance.seal import seal
from scannery.runtime.retry import Deadline
from scannery.serving import ReadOnlyError
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.roles import embedded_catalog, server_catalog
from scannery.serving.services.write import Writes
from scannery.v1 import index_pb2, types_pb2
from tests import served
from tests.live.model import DIMENSIONS, make_store, random_row

pytestmark = pytest.mark.system

VECTOR = [1.0, *[0.0] * (DIMENSIONS - 1)]


def rows(seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [random_row(rng, f"id{i}") for i in range(10)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_store(tmp_path, rows())


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    return tmp_path / "fast"


@contextmanager
def watched(store: Path, log: LogRoot | None = None) -> Iterator[Catalog]:
    with closing(server_catalog(Store.open(store), log=log)) as catalog:
        catalog.refresh()
        yield catalog


@contextmanager
def opened(store: Path, log: LogRoot | None = None) -> Iterator[Catalog]:
    catalog = embedded_catalog(Store.open(store), log=log)
    try:
        yield catalog
    finally:
        catalog.close()


def write(catalog: Catalog, name: str, request_id: str = "", *, index: str = "live") -> int:
    point = types_pb2.Datapoint(id=name, vector=types_pb2.Vector(values=VECTOR))
    request = index_pb2.UpsertRequest(
        index=index, upserts=[index_pb2.Upsert(datapoint=point)], request_id=request_id
    )
    return int(Writes(catalog).upsert(request, Deadline.after(20)).sequence)


def ids(catalog: Catalog, *names: str, index: str = "live") -> list[bool]:
    rows = catalog.snapshot(index).index.live_rows()
    found = {name for segment, rows_R in rows for name in segment.ids.take(rows_R).to_pylist()}
    return [name in found for name in names]


def log_of(store: Path) -> Path:
    return store / "live" / "log"


def test_the_versions_and_the_log_of_an_index_have_one_id(path: Path) -> None:
    store = Store.open(path)
    first = read_manifest(store, "live")
    with opened(path) as catalog:
        write(catalog, "a")
    seal(store, "live")
    rollback(store, "live", 1)
    assert [read_manifest(store, "live", number).index_id for number in (1, 2, 3)] == [first.index_id] * 3
    with closing(SqliteLog(log_of(path))) as log:
        assert log.identity().index_id == first.index_id
        known = registered(store, "live")
        assert known is not None and (known.log_id, known.path) == (log.identity().log_id, None)
    status = log_status(store, read_manifest(store, "live"))
    assert status is not None and status.written_by == f"SQLite {apsw.sqlite_lib_version()}"


def test_a_second_log_of_an_index_takes_no_writes(path: Path, fast: Path) -> None:
    store = Store.open(path)
    with opened(path, fast) as first:
        assert write(first, "a") == 1
        # Beside it, and after it: without the folder, and with another.
        for log in (None, fast.parent / "other"):
            with (
                opened(path, log) as second,
                pytest.raises(WrongLogError, match=f"in {fast}/live/log on host"),
            ):
                write(second, "b")
        with pytest.raises(WrongLogError, match="--log"):
            seal(store, "live")
        with pytest.raises(WrongLogError, match="--log"):
            snapshot(store, "live", Store.open(fast.parent / "copy", create=True))
        assert write(first, "c") == 2
        seal(store, "live", log_root=fast)
    with opened(path, fast) as again:
        assert ids(again, "a", "b", "c") == [True, False, True]


def test_an_index_that_was_open_before_another_log_began_takes_no_writes(path: Path, fast: Path) -> None:
    with opened(path) as one, opened(path, fast) as other:
        assert ids(one, "a") == ids(other, "a") == [False]
        assert write(other, "a") == 1
        with pytest.raises(WrongLogError, match=f"in a log in {fast}/live/log on host"):
            write(one, "b")
        assert write(other, "c") == 2


def test_another_log_of_the_same_index_is_told_from_its_own(path: Path, fast: Path) -> None:
    index_id = read_manifest(Store.open(path), "live").index_id
    with opened(path, fast) as catalog:
        write(catalog, "a")
    with (
        closing(SqliteLog(log_of(path), create=True)) as log,
        log.transaction(after=0, index_id=index_id) as transaction,
    ):
        transaction.append(b"what an earlier release may have written")
    with (
        opened(path) as catalog,
        pytest.raises(WrongLogError, match=f"not the one .* uses, which is in {fast}"),
    ):
        catalog.snapshot("live")


def test_a_log_is_compared_with_the_index_in_every_turn(path: Path) -> None:
    with closing(SqliteLog(log_of(path), create=True)) as log:
        with log.transaction(after=0, index_id="a" * 32) as transaction:
            assert transaction.append(b"one") == 1
        with (
            pytest.raises(LogReplacedError, match=f"with id {'a' * 32}"),
            log.transaction(after=0, index_id="b" * 32),
        ):
            pass
        with log.transaction(after=0, index_id="a" * 32) as transaction:
            assert transaction.append(b"two") == 2


def test_of_two_logs_that_begin_at_once_one_is_taken(path: Path, fast: Path) -> None:
    barrier, outcomes = threading.Barrier(2), list[Any]()

    def begin(log: Path | None) -> None:
        with opened(path, log) as catalog:
            catalog.live("live")
            barrier.wait()
            try:
                outcomes.append(write(catalog, "a"))
            except WrongLogError as error:
                outcomes.append(error)

    threads = [threading.Thread(target=begin, args=(log,)) for log in (None, fast)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["WrongLogError", "int"]


def test_a_log_that_was_made_and_not_registered_is_registered_by_the_next_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise StoreError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(log_place, "register", killed)
        with opened(path) as catalog, pytest.raises(StoreError, match="killed here"):
            write(catalog, "a")
    assert registered(Store.open(path), "live") is None
    with opened(path) as catalog:
        assert write(catalog, "b") == 1
        assert ids(catalog, "a", "b") == [False, True]
    assert registered(Store.open(path), "live") is not None


@pytest.mark.parametrize("gone", ["log.sqlite", "everything"])
def test_a_log_that_is_gone_is_not_an_index_without_writes(path: Path, gone: str) -> None:
    with opened(path) as catalog:
        write(catalog, "a")
    if gone == "everything":
        shutil.rmtree(log_of(path))
    else:
        (log_of(path) / gone).unlink()
    with opened(path) as catalog, pytest.raises(CorruptError, match=r"the log of index 'live' is gone"):
        catalog.snapshot("live")
    with pytest.raises(CorruptError, match="is gone"):
        seal(Store.open(path), "live")


def test_gc_leaves_alone_a_log_that_is_being_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(draft: Path) -> None:
        create_database(draft)
        Store.open(path).remove_drafts("live", datetime.now(timezone.utc) + timedelta(hours=1))

    monkeypatch.setattr(sqlite_log, "create_database", meanwhile)
    with opened(path) as catalog:
        assert write(catalog, "a") == 1


def test_a_log_that_is_gone_is_missed_where_it_was_never_registered(path: Path) -> None:
    with opened(path) as catalog:
        write(catalog, "a")
    (path / "live" / "log.json").unlink()
    (log_of(path) / "log.sqlite").unlink()
    with opened(path) as catalog, pytest.raises(CorruptError, match="up to 1 were acknowledged"):
        catalog.snapshot("live")


def test_another_database_beside_the_lock_file_is_refused(path: Path, tmp_path: Path) -> None:
    with opened(path) as catalog:
        write(catalog, "a")
    other = make_store(tmp_path, rows(1), name="other")
    with opened(other) as catalog:
        for name in ("x", "y"):
            write(catalog, name)
    (path / "live" / "log.json").unlink()
    shutil.copy(log_of(other) / "log.sqlite", log_of(path) / "log.sqlite")
    with closing(SqliteLog(log_of(path))) as log, pytest.raises(WrongLogError, match=r"turn\.lock"):
        log.acknowledged()
    with opened(path) as catalog, pytest.raises(WrongLogError, match="does not belong to"):
        catalog.snapshot("live")


def test_the_log_of_a_former_index_is_not_applied_to_a_new_one(
    path: Path, fast: Path, tmp_path: Path
) -> None:
    with opened(path, fast) as catalog:
        write(catalog, "a")
    shutil.rmtree(path)
    make_store(tmp_path, rows(1))
    with opened(path, fast) as catalog, pytest.raises(WrongLogError, match="does not belong to"):
        catalog.snapshot("live")
    fast.rename(tmp_path / "put away")
    with opened(path, fast) as catalog:
        assert ids(catalog, "a") == [False]
        assert write(catalog, "b") == 1


def test_a_restored_index_is_another_one_and_its_log_too(path: Path, tmp_path: Path) -> None:
    store, copy = Store.open(path), Store.open(tmp_path / "copy", create=True)
    with opened(path) as catalog:
        write(catalog, "a")
        snapshot(store, "live", copy)
        write(catalog, "later")
    back = Store.open(tmp_path / "back", create=True)
    restore(copy, "live", back)
    stores = (store, copy, back)
    assert len({read_manifest(each, "live").index_id for each in stores}) == 3
    assert len({known.log_id for each in stores if (known := registered(each, "live"))}) == 3
    for folder, later in ((path, True), (tmp_path / "copy", False), (tmp_path / "back", False)):
        with opened(folder) as catalog:
            assert ids(catalog, "a", "later") == [True, later]
            assert write(catalog, "b") == 2 + later
    with opened(tmp_path / "back", path) as catalog, pytest.raises(WrongLogError, match="does not belong to"):
        catalog.snapshot("live")


@pytest.mark.parametrize("left", ["log.sqlite", "log.sqlite-wal", "turn.lock"])
def test_nothing_is_restored_over_what_is_left_of_a_log(
    path: Path, fast: Path, tmp_path: Path, left: str
) -> None:
    store, copy = Store.open(path), Store.open(tmp_path / "copy", create=True)
    with opened(path, fast) as catalog:
        write(catalog, "a")
        snapshot(store, "live", copy, log_root=fast)
        write(catalog, "b")
        shutil.copytree(fast, tmp_path / "killed")
    for file in (tmp_path / "killed" / "live" / "log").iterdir():
        if file.name != left:
            file.unlink()
    back = Store.open(tmp_path / "back", create=True)
    with pytest.raises(AlreadyExistsError, match=rf"has a log already \({left}\)"):
        restore(copy, "live", back, log_root=tmp_path / "killed")
    assert not back.list("live/versions")
    restore(copy, "live", back, log_root=tmp_path / "empty")
    with opened(tmp_path / "back", tmp_path / "empty") as catalog:
        assert ids(catalog, "a", "b") == [True, False]


def swapped(path: Path, tmp_path: Path) -> None:
    """Put a restored copy in the place of an index, while a process has it open."""
    restore(Store.open(tmp_path / "copy"), "live", Store.open(tmp_path / "back", create=True))
    (path / "live").rename(tmp_path / "former")
    (tmp_path / "back" / "live").rename(path / "live")


def written(index: Any, name: str) -> int:
    """Write until it works: a write that meets the change is refused."""
    for _ in range(100):
        try:
            return int(index.upsert([{"id": name, "vector": VECTOR}]).sequence)
        except scannery.UnavailableError as error:
            # Refused by the write itself, or because the server has noticed the change first, before or in the write.
            reasons = ("replaced", "engine is closed", "created again or restored")
            assert any(reason in str(error) for reason in reasons), error
            time.sleep(0.05)
    raise AssertionError("no write comes through")


@pytest.mark.parametrize("how", ["server", "embedded"])
def test_an_index_that_is_replaced_under_a_process_is_opened_anew(
    path: Path, tmp_path: Path, how: str
) -> None:
    with opened(path) as catalog:
        write(catalog, "a")
        snapshot(Store.open(path), "live", Store.open(tmp_path / "copy", create=True))

    def check(client: scannery.Client) -> None:
        index = client.index("live")
        assert written(index, "lost") == 2
        swapped(path, tmp_path)
        assert written(index, "b") == 2
        found = index.get(["a", "lost", "b"])
        assert [point is not None for point in found] == [True, False, True]

    if how == "embedded":
        with scannery.connect(path) as client:
            check(client)
    else:
        with served.serving(path, check_every_s=0.05) as server, scannery.connect(server.address) as client:
            check(client)
    with scannery.connect(path) as client:
        assert [point is not None for point in client.index("live").get(["a", "lost", "b"])] == [
            True,
            False,
            True,
        ]


def test_an_older_copy_of_a_log_is_noticed_by_who_has_the_newer_one_open(path: Path, tmp_path: Path) -> None:
    with opened(path) as catalog:
        write(catalog, "a")
        with closing(SqliteLog(log_of(path))) as log:
            log.checkpoint(truncate=True)
        shutil.copytree(log_of(path), tmp_path / "older")
        write(catalog, "b")
        log_of(path).rename(tmp_path / "newer")
        shutil.copytree(tmp_path / "older", log_of(path))
        with pytest.raises(StoreError, match="was replaced"):
            write(catalog, "c")
        assert write(catalog, "d") == 2
        assert ids(catalog, "a", "b", "c", "d") == [True, False, False, True]


def test_a_log_that_is_set_back_in_its_own_file_is_noticed(path: Path) -> None:
    with opened(path) as catalog:
        for name in ("a", "b"):
            write(catalog, name)
        with closing(apsw.Connection(str(log_of(path) / "log.sqlite"))) as connection:
            connection.execute("DELETE FROM records WHERE sequence = 2")
        with pytest.raises(StoreError, match="ends at sequence 1, and had 2 before"):
            write(catalog, "c")
    with closing(SqliteLog(log_of(path))) as log:
        assert log.position() == 1


def test_a_log_that_is_removed_under_a_process_takes_no_writes(path: Path) -> None:
    with opened(path) as catalog:
        write(catalog, "a")
        shutil.rmtree(log_of(path))
        for _ in range(2):
            with pytest.raises(StoreError, match="removed|replaced"):
                write(catalog, "b")
        assert ids(catalog, "a", "b") == [True, False]
    assert not log_of(path).exists()


def test_a_turn_that_ends_in_a_file_without_a_name_is_not_acknowledged(path: Path, tmp_path: Path) -> None:
    with opened(path) as catalog:
        write(catalog, "a")
    log = SqliteLog(log_of(path))
    with pytest.raises(LogReplacedError, match="removed"), log.transaction(after=0) as transaction:
        transaction.append(b"b")
        log_of(path).rename(tmp_path / "moved")
    log.close()


@pytest.mark.parametrize("server", [True, False])
def test_an_index_that_is_made_anew_is_noticed_though_its_version_has_the_same_number(
    path: Path, tmp_path: Path, server: bool
) -> None:
    with watched(path) if server else opened(path) as catalog:
        before = catalog.snapshot("live").manifest
        other = make_store(tmp_path, rows(1)[:5], name="other")
        (path / "live").rename(tmp_path / "former")
        (other / "live").rename(path / "live")
        if server:
            catalog._entries["live"].look_again()  # a folder that is moved leaves no note: after SWEEP_S
            catalog.refresh()
        else:
            time.sleep(1.1)
        now = catalog.snapshot("live").manifest
        assert (before.version, now.version) == (1, 1)
        assert (before.index_id != now.index_id, now.rows) == (True, 5)


def test_a_log_that_is_forgotten_is_followed_by_a_new_one(path: Path, fast: Path, tmp_path: Path) -> None:
    store = Store.open(path)
    with opened(path, fast) as catalog:
        write(catalog, "a")
        with pytest.raises(AlreadyExistsError, match="log already"):
            forget_log(store, "live")
        fast.rename(tmp_path / "lost")
        known = forget_log(store, "live")
        assert known is not None and known.path == str(fast / "live" / "log")
        assert forget_log(store, "live") is None
        # A process that still has it open notices.
        with pytest.raises(StoreError, match="removed"):
            write(catalog, "b")
    with opened(path) as catalog:
        assert write(catalog, "c") == 1
        assert ids(catalog, "a", "b", "c") == [False, False, True]


def test_a_log_may_be_moved(path: Path, fast: Path) -> None:
    with opened(path) as catalog:
        write(catalog, "a")
    (fast / "live").mkdir(parents=True)
    log_of(path).rename(fast / "live" / "log")
    with opened(path, fast) as catalog:
        assert write(catalog, "b") == 2
    known = registered(Store.open(path), "live")
    assert known is not None and known.path == str(fast / "live" / "log")


def test_a_copy_of_a_log_takes_no_writes_beside_it(path: Path, fast: Path) -> None:
    with opened(path) as first:
        write(first, "a")
        shutil.copytree(log_of(path), fast / "live" / "log")
        with opened(path, fast) as second, pytest.raises(WrongLogError, match="is a copy of that in"):
            write(second, "b")
        with pytest.raises(WrongLogError, match="is a copy of that in"):
            seal(Store.open(path), "live", log_root=fast)
        assert write(first, "b") == 2
    # The same folder under another name is no copy.
    (fast.parent / "link").symlink_to(path)
    with opened(path, fast.parent / "link") as catalog:
        assert write(catalog, "c") == 3
    shutil.rmtree(fast)
    shutil.copytree(log_of(path), fast / "live" / "log")
    shutil.rmtree(log_of(path))
    with opened(path, fast) as catalog:
        assert write(catalog, "d") == 4


FORMAT_1 = """
PRAGMA user_version = 1;
DELETE FROM state WHERE name != 'truncated';
ALTER TABLE answers DROP COLUMN digest;
UPDATE answers SET request_id = 'r1';
"""


def of_early_days(path: Path) -> None:
    """Make of an index and its log what releases before there were ids wrote."""
    (path / "live" / "log.json").unlink()
    key = "live/versions/00000001.json"
    manifest = read_manifest(Store.open(path), "live").model_copy(update={"index_id": None})
    Store.open(path).write(key, manifest.to_json())
    with closing(apsw.Connection(str(log_of(path) / "log.sqlite"))) as connection:
        connection.execute(FORMAT_1)
    (log_of(path) / "turn.lock").write_bytes(b"%020d\n" % 1)


def test_an_index_and_a_log_of_early_days_get_ids(path: Path) -> None:
    store = Store.open(path)
    with opened(path) as catalog:
        write(catalog, "a", "r1")
    of_early_days(path)
    with opened(path) as catalog:
        assert ids(catalog, "a") == [True]  # nothing is changed by reading
        with closing(SqliteLog(log_of(path))) as log:
            assert log.identity().log_id is None
        assert write(catalog, "a", "r1") == 1  # answered already
        assert write(catalog, "b", "r2") == 2
        assert write(catalog, "b", "r2") == 2
    seal(store, "live")
    manifest = read_manifest(store, "live")
    assert manifest.index_id is not None
    with opened(path) as catalog:
        assert write(catalog, "c") == 3
    with closing(SqliteLog(log_of(path))) as log:
        assert log.identity().index_id == manifest.index_id
    with closing(apsw.Connection(str(log_of(path) / "log.sqlite"))) as connection:
        assert connection.pragma("user_version") == LOG_FORMAT


def test_a_seal_registers_a_log_of_early_days(path: Path, fast: Path) -> None:
    with opened(path) as catalog:
        write(catalog, "a")
    of_early_days(path)
    (fast / "live").mkdir(parents=True)
    log_of(path).rename(fast / "live" / "log")
    seal(Store.open(path), "live", log_root=fast)
    with opened(path) as catalog, pytest.raises(WrongLogError, match=str(fast)):
        write(catalog, "b")
    with opened(path, fast) as catalog:
        assert write(catalog, "b") == 2


def test_a_log_of_early_days_is_not_of_an_index_that_was_made_since(path: Path) -> None:
    manifest = read_manifest(Store.open(path), "live")
    with opened(path) as catalog:
        write(catalog, "a")
    of_early_days(path)
    Store.open(path).write("live/versions/00000001.json", manifest.to_json())
    with opened(path) as catalog, pytest.raises(WrongLogError, match="does not belong to"):
        catalog.snapshot("live")


def bucket(path: Path) -> Store:
    """Return a bucket with the files of a store."""
    memory = MemoryStore()
    for item in Store.open(path).list():
        obstore.put(memory, item.key, (path / item.key).read_bytes())
    return Store("gs://bucket", BucketBackend(memory))


def test_an_index_in_a_bucket_has_one_log(path: Path, fast: Path, tmp_path: Path) -> None:
    store = bucket(path)

    @contextmanager
    def at(log: Path | None) -> Iterator[Catalog]:
        with closing(embedded_catalog(store, log=log, cache=SegmentCache(tmp_path / "cache"))) as catalog:
            yield catalog

    with at(fast) as catalog:
        assert write(catalog, "a") == 1
        report = seal(store, "live", log_root=fast)
        assert report is not None and report.version == 2
        assert write(catalog, "b") == 2
    # Started again without its log: it shows what is sealed, and takes no writes.
    with at(None) as catalog:
        assert ids(catalog, "a", "b") == [True, False]
        with pytest.raises(ReadOnlyError, match="--log"):
            write(catalog, "c")
    with at(tmp_path / "other") as catalog, pytest.raises(WrongLogError, match=f"in {fast}/live/log on host"):
        catalog.snapshot("live")
    with pytest.raises(WrongLogError, match="the copy would lack"):
        snapshot(store, "live", Store.open(tmp_path / "copy", create=True))
    with at(fast) as catalog:
        assert ids(catalog, "a", "b", "c") == [True, True, False]


def test_a_snapshot_in_a_bucket_is_restored_with_its_log(path: Path, fast: Path, tmp_path: Path) -> None:
    with opened(path) as catalog:
        write(catalog, "a")
    copy = Store("gs://copies", BucketBackend(MemoryStore()))
    snapshot(Store.open(path), "live", copy)
    # Served as it is, it lacks the log: what a new one would get is refused.
    catalog = embedded_catalog(copy, log=fast, cache=SegmentCache(tmp_path / "cache"))
    with closing(catalog), pytest.raises(WrongLogError, match="a log in the store"):
        catalog.snapshot("live")
    restore(copy, "live", Store.open(tmp_path / "back", create=True))
    with opened(tmp_path / "back") as catalog:
        assert ids(catalog, "a") == [True]
    copy.delete("live/log/log.sqlite")
    with pytest.raises(NotFoundError, match="lacks its log"):
        restore(copy, "live", Store.open(tmp_path / "again", create=True))


def test_a_process_that_has_not_seen_the_log_yet_takes_writes(path: Path) -> None:
    # Two workers, of which the second gets its first write before it has looked for what the first one made.
    with watched(path) as one, watched(path) as two:
        assert [write(one, "a"), write(two, "b")] == [1, 2]
        one.live("live").catch_up()
        assert ids(one, "a", "b") == ids(two, "a", "b") == [True, True]


def test_writes_to_an_index_whose_place_another_has_taken_are_refused(
    path: Path, fast: Path, tmp_path: Path
) -> None:
    # The log lies elsewhere and is still there, so nothing but the version tells that the index is another one.
    with watched(path, fast) as catalog:
        write(catalog, "a")
        snapshot(Store.open(path), "live", Store.open(tmp_path / "copy", create=True), log_root=fast)
        restore(Store.open(tmp_path / "copy"), "live", Store.open(tmp_path / "back", create=True))
        path.rename(tmp_path / "aside")
        (tmp_path / "back").rename(path)
        catalog.refresh()
        with pytest.raises(StoreError, match="created again or restored"):
            write(catalog, "lost")
        assert ids(catalog, "a") == [True]

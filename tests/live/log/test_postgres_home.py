"""Indexes whose logs are in PostgreSQL: the right log for each, through drops, copies, backups and other databases."""

from __future__ import annotations

import random
import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import AlreadyExistsError, CorruptError, Store, StoreError, read_manifest
from scannery.live.log.homes import forget_log
from scannery.live.log.location import DatabaseUrl
from scannery.live.log.mutation_log import LogReplacedError, WrongLogError
from scannery.live.log.registry import Registration, registered
from scannery.live.maintenance.copies import branch, restore, snapshot
from scannery.live.maintenance.drop import drop
from scannery.live.maintenance.lag import log_status
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.live.memtable import unsealed_change
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from tests.live.log.postgres_server import PostgresServer
from tests.live.model import make_store, random_row
from tests.live.test_identity import ids, opened, watched, write

pytestmark = pytest.mark.system


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = random.Random(0)
    return make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(10)])


@pytest.fixture
def url(postgres: PostgresServer) -> DatabaseUrl:
    return DatabaseUrl(postgres.new_database())


def count(postgres: PostgresServer, url: DatabaseUrl, table: str) -> int:
    [[found]] = postgres.execute(
        f"SELECT count(*) FROM scannery.{table}", database=url.url.rpartition("/")[2]
    )
    return int(found)


def test_writes_are_seen_by_others_sealed_and_truncated(
    path: Path, url: DatabaseUrl, postgres: PostgresServer
) -> None:
    store = Store.open(path)
    with watched(path, url) as server, opened(path, url) as other:
        assert write(server, "a", "r1") == 1
        assert write(other, "b") == 2
        assert write(other, "a", "r1") == 1  # the same request, through another process
        server.snapshot("live", min_sequence=2)
        assert ids(server, "a", "b") == ids(other, "a", "b") == [True, True]
        change = unsealed_change(store, read_manifest(store, "live"), log_root=url)
        assert change is not None and change.mutations == 2
        report = seal(store, "live", log_root=url)
        assert report is not None and report.mutations == 2
        assert write(other, "c") == 3
        server.refresh()
        assert ids(server, "a", "b", "c") == [True, True, True]
        seal(store, "live", log_root=url)
    status = log_status(store, read_manifest(store, "live"), log_root=url)
    assert status is not None and (status.mutations, status.sequence) == (0, 3)
    assert status.written_by is not None and status.written_by.startswith("PostgreSQL ")
    assert count(postgres, url, "records") == 1  # of the version before, to which servers may roll back
    assert not (path / "live" / "log" / "log.sqlite").exists()
    assert rollback(store, "live", 1, log_root=url).log_sequence == 3


def test_a_query_for_the_first_mutation_finds_the_log(
    path: Path, url: DatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The thread that follows the log has looked for it before there was one, and its store takes a while to answer.
    looked, answered = threading.Event(), threading.Event()

    def slow(store: Store, index: str) -> Registration | None:
        found = registered(store, index)
        if threading.current_thread() is follower:
            looked.set()
            answered.wait(20)
        return found

    with watched(path, url) as reader, watched(path, url) as other:
        live = reader.live("live")
        live._home.look_again()
        monkeypatch.setattr("scannery.live.log.postgres.home.registered", slow)
        follower = threading.Thread(target=live.catch_up)
        follower.start()
        assert looked.wait(20)
        sequence = write(other, "a")
        threading.Timer(0.3, answered.set).start()
        assert reader.snapshot("live", min_sequence=sequence, deadline=Deadline.after(20)).sequence == 1
        follower.join()
        with pytest.raises(InvalidRequestError, match="mutations up to 1, got 2"):
            reader.snapshot("live", min_sequence=2, deadline=Deadline.after(20))


def test_a_seal_does_not_take_writes_for_those_that_the_database_has_lost(
    path: Path, url: DatabaseUrl, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A standby without the last records takes over while a seal builds its segments.
    with watched(path, url) as server:
        for name in "abc":
            write(server, name)
    name = url.url.rpartition("/")[2]

    def lose(*arguments: object, **options: object) -> None:
        monkeypatch.undo()
        postgres.execute("DELETE FROM scannery.records WHERE sequence > 1", database=name)
        postgres.execute(
            "UPDATE scannery.logs SET position = 1, chain = (SELECT chain FROM scannery.records)",
            database=name,
        )
        with watched(path, url) as server:
            assert write(server, "d") == 2
            assert ids(server, *"abcd") == [True, False, False, True]

    monkeypatch.setattr("scannery.live.maintenance.seal.open_segment", lose)
    with pytest.raises(LogReplacedError, match="lost records"):
        seal(Store.open(path), "live", log_root=url)
    assert seal(Store.open(path), "live", log_root=url) is not None
    with watched(path, url) as server:
        assert ids(server, *"abcd") == [True, False, False, True]


def test_stores_that_share_a_database_do_not_mix(path: Path, url: DatabaseUrl, tmp_path: Path) -> None:
    rng = random.Random(1)
    second = make_store(tmp_path / "second", [random_row(rng, f"id{i}") for i in range(10)])
    with opened(path, url) as one, opened(second, url) as two:
        assert (write(one, "a"), write(two, "b"), write(one, "c")) == (1, 1, 2)
    with opened(path, url) as one, opened(second, url) as two:
        assert ids(one, "a", "b", "c") == [True, False, True]
        assert ids(two, "a", "b", "c") == [False, True, False]


def test_a_log_that_is_elsewhere_is_not_replaced(
    path: Path, url: DatabaseUrl, postgres: PostgresServer
) -> None:
    with opened(path, url) as catalog:
        write(catalog, "a")
    with opened(path) as catalog, pytest.raises(WrongLogError, match="in postgresql://.*--log"):
        write(catalog, "b")
    empty = DatabaseUrl(postgres.new_database())
    with (
        opened(path, empty) as catalog,
        pytest.raises(WrongLogError, match="and there is none in postgresql://"),
    ):
        write(catalog, "b")
    with pytest.raises(AlreadyExistsError, match="UPDATE scannery.logs SET log_id"):
        forget_log(Store.open(path), "live", log_root=url)
    known = forget_log(Store.open(path), "live", log_root=empty)
    assert known is not None and known.in_database
    with opened(path, empty) as catalog:
        write(catalog, "b")
        assert ids(catalog, "a", "b") == [False, True]


def test_a_log_that_is_gone_is_said(path: Path, url: DatabaseUrl, postgres: PostgresServer) -> None:
    with opened(path, url) as catalog:
        write(catalog, "a")
        postgres.execute("DELETE FROM scannery.logs", database=url.url.rpartition("/")[2])
        with pytest.raises(StoreError, match="was removed from postgresql://"):
            write(catalog, "b")
    with opened(path, url) as catalog, pytest.raises(CorruptError, match="is gone from .*--forget"):
        catalog.snapshot("live")


def test_a_copy_of_a_store_does_not_share_the_log(path: Path, url: DatabaseUrl, tmp_path: Path) -> None:
    with opened(path, url) as catalog:
        write(catalog, "a")
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    with opened(copy, url) as catalog, pytest.raises(WrongLogError, match="is a copy of the one in"):
        catalog.snapshot("live")
    path.rename(tmp_path / "former")  # now it was moved
    with opened(copy, url) as catalog:
        assert write(catalog, "b") == 2


def test_a_dropped_index_leaves_nothing(path: Path, url: DatabaseUrl, postgres: PostgresServer) -> None:
    with opened(path, url) as catalog:
        write(catalog, "a", "r1")
    _, elsewhere = drop(Store.open(path), "live", log_root=url)
    assert elsewhere is None
    assert [count(postgres, url, table) for table in ("logs", "records", "answers")] == [0, 0, 0]


@pytest.mark.parametrize("back", ["database", "folder"])
def test_a_backup_is_restored_into_either_kind_of_log(
    path: Path, url: DatabaseUrl, tmp_path: Path, back: str
) -> None:
    with opened(path, url) as catalog:
        write(catalog, "a")
        write(catalog, "b")
        report = snapshot(Store.open(path), "live", Store.open(tmp_path / "copy", create=True), log_root=url)
        assert report.sequence == 2
    root = url if back == "database" else None
    restored = tmp_path / "restored"
    restore(Store.open(tmp_path / "copy"), "live", Store.open(restored, create=True), log_root=root)
    with opened(restored, root) as catalog:
        assert ids(catalog, "a", "b") == [True, True]
        assert write(catalog, "c") == 3
    with opened(path, url) as catalog:
        assert write(catalog, "d") == 3  # the restored index is a fork
        assert ids(catalog, "c", "d") == [False, True]


def test_a_branch_has_a_log_of_its_own(path: Path, url: DatabaseUrl, postgres: PostgresServer) -> None:
    store = Store.open(path)
    with opened(path, url) as catalog:
        write(catalog, "a")
        seal(store, "live", log_root=url)
        write(catalog, "b")
    assert branch(store, "live", "trial", log_root=url).sequence == 2
    assert branch(store, "live", "first", log_root=url, version=1).sequence == 0
    assert [count(postgres, url, table) for table in ("logs", "records")] == [2, 3]
    with opened(path, url) as catalog:
        assert write(catalog, "c", index="trial") == write(catalog, "d") == 3
        assert write(catalog, "e", index="first") == 1
        names = ("a", "b", "c", "d", "e")
        assert ids(catalog, *names) == [True, True, False, True, False]
        assert ids(catalog, *names, index="trial") == [True, True, True, False, False]
        assert ids(catalog, *names, index="first") == [False, False, False, False, True]
    drop(store, "live", log_root=url)
    with opened(path, url) as catalog:
        assert ids(catalog, *names, index="trial") == [True, True, True, False, False]
    with pytest.raises(WrongLogError, match="postgresql://127.0.0.1"):
        branch(store, "trial", "second")
    assert branch(store, "trial", "second", log_root=url).sequence == 3


def test_a_branch_that_is_killed_leaves_a_log_that_a_drop_removes(
    path: Path, url: DatabaseUrl, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(path)
    with opened(path, url) as catalog:
        write(catalog, "a")

    def interrupted(*_: object, **_named: object) -> None:
        raise StoreError("the database is gone")

    monkeypatch.setattr("scannery.live.log.postgres.home.PostgresHome._append", interrupted)
    with pytest.raises(StoreError, match="is gone"):
        branch(store, "live", "trial", log_root=url)
    assert store.list("trial") == []
    assert count(postgres, url, "logs") == 1
    monkeypatch.setattr(
        "scannery.live.maintenance.copies.forget", interrupted
    )  # as a kill: nothing is taken back
    monkeypatch.setattr("scannery.live.log.postgres.home.PostgresHome.remove", interrupted)
    with pytest.raises(StoreError, match="is gone"):
        branch(store, "live", "trial", log_root=url)
    monkeypatch.undo()
    assert count(postgres, url, "logs") == 2
    with pytest.raises(AlreadyExistsError, match="`scannery index drop trial` removes it"):
        branch(store, "live", "trial", log_root=url)
    drop(store, "trial", log_root=url)
    assert count(postgres, url, "logs") == 1
    assert branch(store, "live", "trial", log_root=url).sequence == 1


def test_commands_find_the_log_by_the_environment(
    path: Path, url: DatabaseUrl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(path, url) as catalog:
        write(catalog, "a")
    monkeypatch.setenv("SCANNERY_LOG", url.url)
    assert main(["index", "log", "live", "--store", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "written by PostgreSQL" in shown and "in postgresql://127.0.0.1" in shown
    assert main(["index", "seal", "live", "--store", str(path)]) == 0
    assert "1 mutations" in capsys.readouterr().out


def test_a_server_refuses_to_start_without_its_database(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = "postgresql://user:secret@127.0.0.1:1/logs"
    assert main(["serve", "--store", str(path), "--listen", "127.0.0.1:0", "--log", log]) != 0
    shown = capsys.readouterr()
    assert "postgresql://127.0.0.1:1/logs cannot be used now" in shown.err
    assert "secret" not in shown.err + shown.out


def test_an_older_registration_names_no_database(path: Path) -> None:
    with opened(path) as catalog:
        write(catalog, "a")
    known = registered(Store.open(path), "live")
    assert known is not None and not known.in_database
    with closing(scannery.connect(path)) as client:
        assert client.index("live").stats().sequence == 1

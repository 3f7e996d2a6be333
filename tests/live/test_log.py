"""The mutation log: durable, in order, shared by processes, and honest about damage."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from scannery.indexer import CorruptError, FormatError, Store, StoreError
from scannery.live.log import files as log_forks
from scannery.live.log import sqlite_log
from scannery.live.log.database import LOG_FORMAT, check_sqlite, connected
from scannery.live.log.files import exclusive, wal_of
from scannery.live.log.mutation_log import KEEP_ANSWERS_S, Answer, LogEntry, Request
from scannery.live.log.sqlite_log import SqliteLog
from scannery.live.log.transaction import entries_after
from scannery.serving import ConfigError
from scannery.serving.catalog.roles import embedded_catalog
from tests.data import ROOT
from tests.tools.prepared_process import PreparedProcess


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "index" / "log"


@pytest.fixture
def log(folder: Path) -> SqliteLog:
    folder.parent.mkdir()
    return SqliteLog(folder, create=True)


def append(log: SqliteLog, *batches: bytes, after: int = 0) -> list[int]:
    with log.transaction(after=after) as transaction:
        return [transaction.append(data) for data in batches]


def test_a_request_is_remembered_for_an_hour(folder: Path) -> None:
    now = 1000.0
    folder.parent.mkdir()
    log = SqliteLog(folder, create=True, clock=lambda: now)
    with log.transaction(after=0) as transaction:
        assert transaction.answer_of(Request("r1")) is None
        transaction.append(b"one", request=Request("r1"), count=7)
        assert transaction.answer_of(Request("r1")) == Answer(1, 7)
    now += KEEP_ANSWERS_S - 1
    with log.transaction(after=0) as transaction:
        assert transaction.answer_of(Request("r1")) == Answer(1, 7)
    now += 2
    with log.transaction(after=0) as transaction:
        assert transaction.answer_of(Request("r1")) is None
        transaction.append(b"two", request=Request("r2"))
    with closing(apsw.Connection(str(log.path))) as connection:
        assert connection.execute("SELECT request_id FROM answers").fetchall() == [("\0r2",)]


@pytest.mark.system
def test_the_write_ahead_log_begins_anew_while_others_append(
    log: SqliteLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_BYTES", 1 << 20)
    other, wal = SqliteLog(folder), folder / "log.sqlite-wal"
    for number in range(100):
        append(other if number % 5 == 0 else log, b"x" * 200_000)
        log.tidy()
        if number % 10 == 9:
            for thread in threading.enumerate():
                if thread.name == "scannery-checkpoint":
                    thread.join(60)
    assert wal.stat().st_size < 10 << 20
    assert len(other.read(0)) == 100
    other.close()
    log.close()


def test_a_damaged_file_is_refused(log: SqliteLog, folder: Path) -> None:
    append(log, *[b"x" * 100_000] * 20)
    log.checkpoint(truncate=True)
    log.close()
    with log.path.open("r+b") as file:
        file.seek(200_000)
        file.write(os.urandom(300_000))
    with pytest.raises(CorruptError):
        SqliteLog(folder).read(0)
    log.path.write_bytes(b"no database " * 2000)
    with pytest.raises(CorruptError):
        SqliteLog(folder)


def test_a_torn_tail_loses_only_what_was_not_acknowledged(log: SqliteLog, folder: Path) -> None:
    append(log, b"acknowledged")
    wal = folder / "log.sqlite-wal"
    whole = wal.stat().st_size
    append(log, b"x" * 50_000)
    # As after a power cut: the frames of the last commit are only partly there.
    copy = folder.parent / "copy"
    copy.mkdir()
    (copy / "log.sqlite").write_bytes(log.path.read_bytes())
    (copy / "log.sqlite-wal").write_bytes(wal.read_bytes()[: whole + 20_000])
    torn = SqliteLog(copy)
    assert torn.read(0) == [LogEntry(1, b"acknowledged")]
    assert append(torn, b"next") == [2]


def test_a_later_format_and_other_databases_are_refused(log: SqliteLog, folder: Path) -> None:
    log.close()
    with closing(apsw.Connection(str(log.path))) as connection:
        connection.execute(f"PRAGMA user_version = {LOG_FORMAT + 1}")
    with pytest.raises(FormatError, match=f"format {LOG_FORMAT + 1}.*upgrade"):
        SqliteLog(folder)
    with closing(apsw.Connection(str(log.path))) as connection:
        connection.execute("PRAGMA application_id = 0")
    with pytest.raises(FormatError, match="not a mutation log"):
        SqliteLog(folder)


def test_a_full_disk_refuses_and_recovers(log: SqliteLog) -> None:
    append(log, b"one")
    with pytest.raises(StoreError, match="disk is full"), log.transaction(after=0) as transaction:
        pages = transaction._connection.pragma("page_count")
        transaction._connection.execute(f"PRAGMA max_page_count = {pages}")
        transaction.append(b"x" * 1_000_000)
    assert append(log, b"two") == [2]
    assert [entry.data for entry in log.read(0)] == [b"one", b"two"]


@pytest.mark.system
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_commit_syncs_once(folder: Path) -> None:
    """One sync a commit is what makes group commit pay; none would lose acknowledged writes."""
    folder.parent.mkdir()
    script = f"""
from pathlib import Path
from scannery.live.log.sqlite_log import SqliteLog
log = SqliteLog(Path({str(folder)!r}), create=True)
def write(count):
    for _ in range(count):
        with log.transaction(after=0) as transaction: transaction.append(b"x" * 1000)
write(3)
print("begin", flush=True)
write(10)
print("end", flush=True)
"""
    traced = subprocess.run(
        ["strace", "-f", "-e", "trace=fsync,fdatasync,write", sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    between = traced.stderr.split('"begin')[1].split('"end')[0]
    assert between.count("sync(") == 10


WRITER = """
import sys
from pathlib import Path
from scannery.live.log.sqlite_log import SqliteLog
log = SqliteLog(Path(sys.argv[1]), create=True)
for i in range(int(sys.argv[3])):
    with log.transaction(after=0) as transaction:
        transaction.append(f"{sys.argv[2]}-{i}".encode())
    print(i, flush=True)
"""


def writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    return PreparedProcess(
        [sys.executable, "-c", WRITER, str(folder), name, str(count)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.system
def test_processes_create_and_share_a_log_and_one_that_is_killed_takes_nothing_with_it(folder: Path) -> None:
    folder.parent.mkdir()
    with writer(folder, "a", 200) as one, writer(folder, "b", 100_000) as other:
        assert other.stdout is not None
        acknowledged = [other.stdout.readline() for _ in range(100)]
        other.send_signal(signal.SIGKILL)
        acknowledged += other.stdout.readlines()
        assert one.wait(60) == 0
    log = SqliteLog(folder)
    entries = [entry.data.decode() for entry in log.read(0)]
    assert [name for name in entries if name[0] == "a"] == [f"a-{i}" for i in range(200)]
    killed = [name for name in entries if name[0] == "b"]
    assert killed == [f"b-{i}" for i in range(len(killed))]
    assert len(killed) - len(acknowledged) in (0, 1)
    assert append(log, b"after") == [len(entries) + 1]


def test_a_copy_is_consistent_while_others_append(log: SqliteLog, tmp_path: Path) -> None:
    append(log, b"one")
    (tmp_path / "copy").mkdir()
    log.copy_to(tmp_path / "copy" / "log.sqlite")
    append(log, b"two")
    assert SqliteLog(tmp_path / "copy").read(0) == [LogEntry(1, b"one")]


def test_a_log_that_is_not_there_is_not_made_by_readers(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SqliteLog(folder)
    assert not folder.exists()


@pytest.mark.parametrize("version", ["3.40.1", "3.44.5", "3.50.6", "3.51.0", "3.51.2"])
def test_a_sqlite_that_may_lose_commits_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=f"SQLite {version} may lose"):
        check_sqlite(version)


@pytest.mark.parametrize("version", ["3.44.6", "3.50.7", "3.51.3", "3.54.1", "4.0.0"])
def test_a_sound_sqlite_is_taken(version: str) -> None:
    check_sqlite(version)


def test_nothing_starts_with_a_sqlite_that_may_lose_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.40.1")
    with pytest.raises(ConfigError, match="3.40.1"):
        embedded_catalog(Store.open(tmp_path))


def test_a_checkpoint_waits_for_the_turn(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite before 3.51.3 loses commits where a checkpoint runs beside them."""
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_BYTES", 1)
    append(log, b"x" * 100_000)
    before = log.path.stat().st_size
    with exclusive(log.path):
        log.tidy()
        thread = next(thread for thread in threading.enumerate() if thread.name == "scannery-checkpoint")
        thread.join(0.2)
        assert (thread.is_alive(), log.path.stat().st_size) == (True, before)
    thread.join(30)
    assert log.path.stat().st_size > before


def test_who_reads_for_long_does_not_keep_writers_from_their_turn(log: SqliteLog, folder: Path) -> None:
    append(log, b"one", b"two")
    with closing(connected(log.path)) as reader:
        reader.execute("BEGIN")
        assert [entry.sequence for entry in entries_after(reader, 0, None)] == [1, 2]
        began_s = time.monotonic()
        log.truncate(1)
        assert time.monotonic() - began_s < 5
        append(log, b"three")
        assert [entry.sequence for entry in entries_after(reader, 0, None)] == [1, 2]
    log.truncate(2)
    assert wal_of(log.path).stat().st_size == 0
    assert [entry.sequence for entry in log.read(2)] == [3]


def test_the_first_write_makes_all_folders_above_the_log(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "logs" / "index" / "log", create=True)
    assert append(log, b"one") == [1]


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


def test_others_can_neither_read_nor_lock_a_log(folder: Path) -> None:
    before = os.umask(0)
    try:
        log = SqliteLog(folder, create=True)
        append(log, b"one")
        log.copy_to(folder / "copy.sqlite")
    finally:
        os.umask(before)
    private = {"log": 0o700, "copy.sqlite": 0o600} | dict.fromkeys(
        ("log.sqlite", "log.sqlite-wal", "log.sqlite-shm", "turn.lock"), 0o600
    )
    assert modes(folder) == private
    for path in (folder, *folder.iterdir()):
        path.chmod(path.stat().st_mode | 0o055)
    SqliteLog(folder).close()
    assert modes(folder) == private
    (folder / "turn.lock").chmod(0o644)
    append(log, b"two")
    assert modes(folder) == private


def forked(body: Callable[[Callable[[], None]], None]) -> Callable[[], bytes]:
    """Run `body` in a forked child, and return what lets it go on to its end and returns what went wrong there.

    The body is given what waits for that.
    """
    told, tell = os.pipe()
    said, say = os.pipe()
    child = os.fork()
    if not child:
        os.close(tell)
        trouble = b""
        try:
            body(lambda: (os.write(say, b"."), os.read(told, 1), None)[2])
        except BaseException as error:  # noqa: BLE001
            trouble = repr(error).encode()
        os.write(say, trouble)
        os._exit(0)
    for end in (told, say):
        os.close(end)
    os.read(said, 1)

    def finish() -> bytes:
        os.close(tell)
        trouble = os.read(said, 1000)
        os.close(said)
        os.waitpid(child, 0)
        return trouble

    return finish


@pytest.mark.system
def test_a_fork_during_a_turn_does_not_keep_it(
    log: SqliteLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_forks, "FORK_S", 0.1)
    with log.transaction(after=0) as transaction:
        transaction.append(b"one")
        finish = forked(lambda wait: wait())
    try:
        thread = threading.Thread(target=append, args=(SqliteLog(folder), b"two"), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    finally:
        assert finish() == b""
    assert log.position() == 2


@pytest.mark.system
@pytest.mark.parametrize("own", [True, False])
def test_what_a_forked_child_writes_is_not_lost(log: SqliteLog, folder: Path, own: bool) -> None:
    """SQLite in a child believes that it has the locks of its parent; others remove the write-ahead log under it."""
    append(log, b"parent")

    def child(wait: Callable[[], None]) -> None:
        mine = SqliteLog(folder) if own else log
        append(mine, b"child 1")
        wait()
        append(mine, b"child 2")

    finish = forked(child)
    log.close()
    with writer(folder, "third", 1) as third:
        assert third.wait(60) == 0
    assert finish() == b""
    entries = [entry.data for entry in SqliteLog(folder).read(0)]
    assert entries == [b"parent", b"child 1", b"third-0", b"child 2"]


@pytest.mark.system
def test_a_parent_goes_on_after_a_fork(log: SqliteLog) -> None:
    append(log, b"one")
    log.changed()
    finish = forked(lambda wait: wait())
    assert append(log, b"two") == [2]
    assert (log.changed(), [entry.sequence for entry in log.read(0)]) == (True, [1, 2])
    assert finish() == b""


@pytest.mark.system
def test_a_child_that_was_forked_during_a_commit_is_refused_the_log(
    log: SqliteLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_forks, "FORK_S", 0.1)

    def child(wait: Callable[[], None]) -> None:
        wait()
        SqliteLog(folder)

    with log.transaction(after=0) as transaction:
        transaction.append(b"one")
        finish = forked(child)
    assert b"StoreError" in (trouble := finish()) and b"when this process was forked" in trouble
    assert append(log, b"two") == [2]

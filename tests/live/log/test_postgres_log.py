"""A log in PostgreSQL: what fences writers, reveals lost records, and settles commits whose outcome nobody told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scannery.indexer import FormatError, StoreError
from scannery.live.log.homes import check_log_root
from scannery.live.log.location import DatabaseUrl
from scannery.live.log.mutation_log import (
    LogGapError,
    LogRefusedError,
    LogReplacedError,
    LogUnavailableError,
    MutationLog,
    Request,
)
from scannery.runtime.errors import ReadOnlyError
from tests.data import ROOT
from tests.live.log.kinds import LOG_ID, PostgresLogs
from tests.live.log.postgres_server import PostgresServer, postgres_or_skip

pytest.importorskip("psycopg", reason="needs scannery[postgres]")

import psycopg

from scannery.live.log.postgres import database as databases
from scannery.live.log.postgres import turn
from scannery.live.log.postgres.postgres_log import PostgresLog
from scannery.live.log.postgres.turn import PostgresTransaction


@pytest.fixture
def logs(postgres: PostgresServer) -> PostgresLogs:
    return PostgresLogs(postgres)


def append(log: MutationLog, *batches: bytes) -> list[int]:
    with log.transaction(after=0) as transaction:
        return [transaction.append(data) for data in batches]


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    server = postgres_or_skip()
    yield server
    server.stop()


@pytest.mark.system
def test_several_processes_make_the_tables_at_once(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    together = threading.Barrier(4)

    def make() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            together.wait()
            databases.create_schema(connection)

    with ThreadPoolExecutor(together.parties) as pool:
        for made in [pool.submit(make) for _ in range(together.parties)]:
            made.result()


@pytest.mark.system
def test_writers_do_not_wait_while_truncated_records_are_deleted(
    logs: PostgresLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = logs.open(), logs.open()
    append(log, b"one", b"two", b"three")
    delete = PostgresLog._delete_truncated

    def meanwhile(self: PostgresLog) -> None:
        assert logs.execute("SELECT FROM records") == 3
        assert append(other, b"four") == [4]
        assert [entry.data for entry in other.read(2)] == [b"three", b"four"]
        with pytest.raises(LogGapError):
            other.read(1)
        delete(self)

    monkeypatch.setattr(PostgresLog, "_delete_truncated", meanwhile)
    log.truncate(2)
    assert logs.execute("SELECT FROM records") == 2
    assert log.truncated() == 2


@pytest.mark.system
def test_responses_are_kept_for_an_hour(logs: PostgresLogs) -> None:
    log = logs.open()
    with log.transaction(after=0) as transaction:
        transaction.append(b"one", request=Request("r1"), count=7)
    logs.execute("UPDATE answers SET answered_at = answered_at - interval '59 minutes'")
    with log.transaction(after=0) as transaction:
        assert transaction.answer_of(Request("r1")) is not None
    logs.execute("UPDATE answers SET answered_at = answered_at - interval '2 minutes'")
    with log.transaction(after=0) as transaction:
        assert transaction.answer_of(Request("r1")) is None
        transaction.append(b"two", request=Request("r2"))
    log._tidied_at_s = float("-inf")  # type: ignore[attr-defined]
    log.tidy()
    assert logs.execute("DELETE FROM answers") == 1


@pytest.mark.system
@pytest.mark.parametrize("written_again", [False, True])
def test_a_lost_tail_is_noticed(logs: PostgresLogs, written_again: bool) -> None:
    log, writer = logs.open(), logs.open()
    append(writer, b"one", b"two")
    [_, last] = log.read(0)
    assert log.changed(now=True)
    append(writer, b"three")
    # The database comes back from a standby that had only the first record.
    logs.execute("DELETE FROM records WHERE sequence > 1")
    logs.execute("UPDATE logs SET position = 1, chain = (SELECT chain FROM records WHERE sequence = 1)")
    if written_again:
        append(logs.open(), b"other two", b"other three")
    with pytest.raises(LogReplacedError, match="lost records"):
        log.read(last.sequence)
    if not written_again:  # otherwise the log only seems to have grown, and reading on tells
        with pytest.raises(LogReplacedError, match="lost records"):
            log.changed(now=True)
    else:
        with pytest.raises(LogReplacedError, match="lost records"), writer.transaction(after=0):
            pass
    assert logs.open().read(0)[0].data == b"one"  # who begins again reads what there is


@pytest.mark.system
def test_a_turn_that_hangs_is_ended_and_cannot_commit(
    logs: PostgresLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "IDLE_MS", 200)
    log, other = logs.open(), logs.open()
    with pytest.raises(LogUnavailableError, match="cannot be used now"), log.transaction(after=0) as hung:
        hung.append(b"late")
        assert append(other, b"first") == [1]
    assert [entry.data for entry in other.read(0)] == [b"first"]
    assert append(log, b"second") == [2]


@pytest.mark.system
def test_a_writer_that_hangs_in_its_commit_is_ended_by_the_next(
    logs: PostgresLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server does not take a session for idle that waits for the rest of a pipeline.
    monkeypatch.setattr(turn, "IDLE_MS", 200)
    monkeypatch.setattr(turn, "LOCK_MS", 100)
    log, other, send = logs.open(), logs.open(), PostgresTransaction._write_state

    def hang(self: PostgresTransaction, cursor: psycopg.Cursor[Any]) -> None:
        monkeypatch.setattr(PostgresTransaction, "_write_state", send)
        assert append(other, b"first") == [1]
        send(self, cursor)

    monkeypatch.setattr(PostgresTransaction, "_write_state", hang)
    with pytest.raises(LogUnavailableError, match="cannot be used now"):
        append(log, b"late")
    assert [entry.data for entry in other.read(0)] == [b"first"]
    assert append(log, b"second") == [2]


@pytest.mark.system
def test_a_writer_that_works_keeps_its_turn(logs: PostgresLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "LOCK_MS", 100)
    log, other = logs.open(), logs.open()
    waiting = threading.Thread(target=append, args=(other, b"second"))
    with log.transaction(after=0) as transaction:
        transaction.append(b"first")
        waiting.start()
        time.sleep(0.5)
    waiting.join()
    assert [entry.data for entry in log.read(0)] == [b"first", b"second"]


@pytest.mark.system
def test_the_server_is_asked_to_notice_lost_machines(logs: PostgresLogs) -> None:
    logs.open()
    database = databases.Database.of(DatabaseUrl(logs.url))
    settings = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
    with database.connection() as connection:
        found = [connection.execute(f"SHOW {name}").fetchone() for name in settings]
    idle_s, interval_s, count = (int(row[0]) for row in found if row is not None)
    assert idle_s + interval_s * count <= 30


@pytest.mark.long
def test_a_process_that_is_stopped_in_its_turn_is_fenced(logs: PostgresLogs) -> None:
    program = (
        "import sys; from scannery.live.log.location import DatabaseUrl\n"
        "from scannery.live.log.postgres.database import Database\n"
        "from scannery.live.log.postgres.postgres_log import PostgresLog\n"
        "log = PostgresLog(Database.of(DatabaseUrl(sys.argv[1])), sys.argv[2])\n"
        "with log.transaction(after=0) as transaction:\n"
        "    transaction.append(b'late'); print('in turn', flush=True); sys.stdin.readline()\n"
    )
    log = logs.open()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
    hung = subprocess.Popen(
        [sys.executable, "-c", program, logs.url, LOG_ID],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert hung.stdout is not None and hung.stdout.readline() == "in turn\n"
        hung.send_signal(signal.SIGSTOP)
        started_s = time.monotonic()
        assert append(log, b"first") == [1]
        waited_s = time.monotonic() - started_s
        hung.send_signal(signal.SIGCONT)
        _, errors = hung.communicate("\n", timeout=60)
    finally:
        hung.kill()
        hung.communicate()
    print(f"the other writer waited {waited_s:.1f} s")
    assert hung.returncode == 1 and "LogUnavailableError" in errors
    assert [entry.data for entry in log.read(0)] == [b"first"]


@pytest.mark.system
@pytest.mark.parametrize("done", [True, False])
def test_the_outcome_of_a_commit_without_an_answer_is_found_out(
    logs: PostgresLogs, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    log, commit = logs.open(), PostgresTransaction.commit

    def broken(self: PostgresTransaction) -> None:
        if done:
            commit(self)
        self._connection.close()
        raise psycopg.OperationalError("the connection broke")

    monkeypatch.setattr(PostgresTransaction, "commit", broken)
    if done:
        assert append(log, b"one", b"two") == [1, 2]
    else:
        with pytest.raises(LogUnavailableError, match="broke"):
            append(log, b"one", b"two")
    monkeypatch.undo()
    assert append(log, b"next") == [3 if done else 1]
    assert not log.changed(now=True)


@pytest.mark.system
def test_a_server_that_refuses_to_tell_the_outcome_is_asked_again(
    logs: PostgresLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As while a standby takes over: its refusal must not be taken for that of the write, which was done.
    log, commit = logs.open(), PostgresTransaction.commit
    name = logs.url.rpartition("/")[2]
    setting = f"ALTER DATABASE {name} SET default_transaction_read_only ="
    writable = threading.Timer(0.5, logs.server.execute, (f"{setting} off",))

    def broken(self: PostgresTransaction) -> None:
        commit(self)
        self._connection.close()
        logs.server.execute(f"{setting} on")
        writable.start()
        raise psycopg.OperationalError("the connection broke")

    monkeypatch.setattr(PostgresTransaction, "commit", broken)
    assert append(log, b"one") == [1]
    writable.join()


def test_an_outcome_that_cannot_be_told_is_said(logs: PostgresLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logs.open()

    def broken(self: PostgresTransaction) -> None:
        self._connection.close()
        # Others write and seal before this process is back.
        logs.execute("UPDATE logs SET position = 5, truncated = 5")
        raise psycopg.OperationalError("the connection broke")

    monkeypatch.setattr(PostgresTransaction, "commit", broken)
    with pytest.raises(StoreError, match="cannot be told .* same request id"):
        append(log, b"one")


@pytest.mark.system
def test_a_restarted_server_is_found_again(own_server: PostgresServer) -> None:
    logs = PostgresLogs(own_server)
    log = logs.open()
    append(log, b"one")
    assert len(log.read(0)) == 1
    own_server.kill()
    with pytest.raises(LogUnavailableError) as failed:
        append(log, b"two")
    assert failed.value.retry_after_s
    with pytest.raises(LogUnavailableError, match="cannot be used now"):
        log.read(0)
    own_server.start()
    databases.Database.of(DatabaseUrl(logs.url))._retry_at_s = 0.0
    assert append(log, b"two") == [2]
    assert len(log.read(0)) == 2
    own_server.kill()
    own_server.start()  # connections that were open are dead, and nobody has noticed yet
    assert len(log.read(0)) == 2
    own_server.kill()
    own_server.start()
    assert append(log, b"three") == [3]


@pytest.mark.system
def test_a_server_that_does_not_answer_fails_the_statement(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PostgresLogs(own_server).open()
    append(log, b"one")
    monkeypatch.setattr(databases, "ANSWER_S", 0.3)
    backends = own_server.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'scannery'")
    for (pid,) in backends:
        os.kill(pid, signal.SIGSTOP)
    os.kill(own_server.pid, signal.SIGSTOP)
    monkeypatch.setitem(databases._DEFAULTS, "connect_timeout", 1)
    try:
        with pytest.raises(LogUnavailableError):
            log.position()
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
        for (pid,) in backends:
            os.kill(pid, signal.SIGCONT)


class TestErrors:
    """Each says what is wrong and where, and none shows a password."""

    def refused(self, url: str, kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match) as found:
            check_log_root(DatabaseUrl(url))
        error: BaseException | None = found.value
        while error is not None:
            assert "secret" not in f"{error} {error!r}"
            error = error.__cause__

    def test_no_server(self, postgres: PostgresServer) -> None:
        url = "postgresql://scannery:secret@127.0.0.1:1/logs"
        self.refused(url, LogUnavailableError, r"postgresql://127.0.0.1:1/logs cannot be used now")

    def test_a_wrong_password(self, own_server: PostgresServer) -> None:
        own_server.execute("CREATE USER scannery PASSWORD 'right'")
        own_server.add_rule("host all scannery 127.0.0.1/32 scram-sha-256")
        self.refused(own_server.url(user="scannery", password="secret"), LogRefusedError, "password")
        check_log_root(DatabaseUrl(own_server.url(user="scannery", password="right")))

    def test_a_url_that_cannot_be_read(self, postgres: PostgresServer) -> None:
        self.refused("postgresql://user:sec%ret:secret@host:port/db", LogRefusedError, "cannot be read")

    def test_no_such_database(self, postgres: PostgresServer) -> None:
        self.refused(postgres.url("none"), LogRefusedError, "does not exist")

    def test_a_server_that_is_too_old(
        self, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(databases, "OLDEST_SERVER", 99)
        self.refused(postgres.new_database(), LogRefusedError, "99 or later")

    def test_tables_of_a_later_release(self, logs: PostgresLogs) -> None:
        logs.open()
        logs.execute("UPDATE format SET version = 9")
        databases.Database.of(DatabaseUrl(logs.url)).drop_idle()
        self.refused(logs.url, FormatError, "logs of format 9, this Scannery reads up to 1")

    def test_a_standby(self, logs: PostgresLogs) -> None:
        log = logs.open()
        append(log, b"one")
        name = logs.url.rpartition("/")[2]
        statement: Any = f"ALTER DATABASE {name} SET default_transaction_read_only = on"
        logs.server.execute(statement)
        databases.Database.of(DatabaseUrl(logs.url)).drop_idle()
        with pytest.raises(ReadOnlyError, match="target_session_attrs=read-write"):
            append(log, b"two")
        assert len(log.read(0)) == 1

    def test_a_user_who_may_not(self, postgres: PostgresServer) -> None:
        name = postgres.new_database().rpartition("/")[2]
        postgres.execute("DROP USER IF EXISTS limited")
        postgres.execute("CREATE USER limited")
        database = databases.Database.of(DatabaseUrl(postgres.url(name, user="limited")))
        with pytest.raises(LogRefusedError, match="GRANT CREATE"), database.connection() as connection:
            databases.create_schema(connection)

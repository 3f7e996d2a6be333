"""Forks at awkward moments: of several threads at once, while a log is opened, while maintenance is started."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from scannery.indexer import Store
from scannery.live.log import files as log_forks
from scannery.live.log import sqlite_log
from scannery.live.log.database import connected
from scannery.live.log.sqlite_log import SqliteLog
from scannery.live.maintenance import scheduler as maintenance
from scannery.live.maintenance.locks import locked
from scannery.live.maintenance.scheduler import Maintenance
from tests.live.test_log import append, folder, forked, log, writer

__all__ = ["folder", "log"]


class Slow:
    """What takes its time before a fork, so that threads meet there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def before_fork(self, timeout_s: float) -> bool:
        time.sleep(min(0.05, timeout_s))
        return True

    def after_fork(self, *, in_child: bool) -> None:
        pass


def fork_some() -> None:
    for _ in range(5):
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)


@pytest.mark.system
def test_threads_that_fork_at_once_let_go_of_the_log(log: SqliteLog) -> None:
    append(log, b"before")
    slow = Slow(log.path)
    log_forks.watch_forks(slow)
    threads = [threading.Thread(target=fork_some) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    after = threading.Thread(target=append, args=(log, b"after"), daemon=True)
    after.start()
    after.join(10)
    assert not after.is_alive()


@pytest.mark.system
def test_what_a_child_writes_is_not_lost_though_a_log_was_being_opened(
    log: SqliteLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, b"parent")
    log.close()
    opening = threading.Event()

    def slow(path: Path) -> apsw.Connection:
        connection = connected(path)
        opening.set()
        time.sleep(0.3)
        return connection

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_log, "connected", slow)
        thread = threading.Thread(target=lambda: SqliteLog(folder).close())
        thread.start()
        opening.wait()

    def child(wait: object) -> None:
        mine = SqliteLog(folder)
        append(mine, b"child 1")
        assert callable(wait)
        wait()
        append(mine, b"child 2")

    finish = forked(child)
    thread.join()
    with writer(folder, "third", 1) as third:
        assert third.wait(60) == 0
    assert finish() == b""
    assert [entry.data for entry in SqliteLog(folder).read(0)] == [
        b"parent",
        b"child 1",
        b"third-0",
        b"child 2",
    ]


@pytest.mark.system
def test_a_child_does_not_keep_a_lock_after_the_death_of_its_parent(
    log: SqliteLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_forks, "FORK_S", 0.1)
    told, tell = os.pipe()
    said, say = os.pipe()
    if not (parent := os.fork()):
        with suppress(BaseException), SqliteLog(folder).transaction(after=0):
            if not os.fork():
                os.close(tell)
                os.write(say, b".")
                os.read(told, 1)
            os._exit(0)
        os._exit(1)
    assert os.read(said, 1) == b"."
    assert os.waitpid(parent, 0)[1] == 0
    try:
        thread = threading.Thread(target=append, args=(log, b"one"), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    finally:
        for end in (told, tell, said, say):
            os.close(end)


def test_a_child_does_not_keep_others_from_sealing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path / "store", create=True)
    (tmp_path / "live" / "log").mkdir(parents=True)
    children = []

    def spawn(self: Maintenance, task: str, lock: int, filling: bool) -> None:
        children.append(forked(lambda wait: wait()))
        raise OSError("no more processes")

    monkeypatch.setattr(Maintenance, "_spawn", spawn)
    monkeypatch.setattr(maintenance, "latest_version", lambda *_: 1)

    class State:
        class manifest:  # noqa: N801
            version = 1

    Maintenance(store, "live", tmp_path)._start("seal", State())  # type: ignore[arg-type]
    try:
        with locked(tmp_path, "live", "seal"):
            pass
    finally:
        assert children[0]() == b""

"""A thread that does something again and again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scannery.runtime import retry
from scannery.runtime.tasks import PeriodicTask


@contextmanager
def started(task: PeriodicTask) -> Iterator[None]:
    task.start()
    try:
        yield
    finally:
        task.stop()


def test_it_runs_at_its_interval_in_its_thread_and_stops_at_once() -> None:
    ran, names = threading.Semaphore(0), set[str]()

    def run() -> None:
        names.add(threading.current_thread().name)
        ran.release()

    with started(PeriodicTask("ticker", run, every_s=0.001)):
        assert all(ran.acquire(timeout=60) for _ in range(3))
    assert names == {"scannery-ticker"}
    patient = PeriodicTask("patient", run, every_s=3600)
    patient.start()
    began_s = time.monotonic()
    patient.stop()
    assert time.monotonic() - began_s < 60
    assert not patient._thread.is_alive()


def test_a_run_chooses_when_the_next_one_is() -> None:
    ran = threading.Semaphore(0)

    def run() -> float:
        ran.release()
        return 0.001

    task = PeriodicTask("chooser", run, every_s=0.01)
    with started(task):
        task._every_s = 3600
        assert all(ran.acquire(timeout=60) for _ in range(3))


def test_errors_end_nothing_and_are_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        retry.Backoff.__init__, "__kwdefaults__", {"first_s": 0.001, "max_s": 0.001, "clock": time.monotonic}
    )
    failures, ran = list[int](), threading.Semaphore(0)

    def run() -> None:
        ran.release()
        raise RuntimeError("a bug")

    task = PeriodicTask("broken", run, every_s=0.001, on_failure=lambda: failures.append(1))
    with caplog.at_level(logging.ERROR), started(task):
        assert all(ran.acquire(timeout=60) for _ in range(4))
    assert len(failures) >= 3
    assert len(caplog.records) == 1
    assert "the task 'broken' failed: a bug" in caplog.text
    assert "Traceback" in caplog.text


def test_one_that_was_never_started_can_be_stopped() -> None:
    PeriodicTask("idle", lambda: None, every_s=1).stop()

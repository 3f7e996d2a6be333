"""Threads for calls: warm ones first, no more than allowed, none left behind."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import Any

import pytest

from scannery.serving.scheduling.coalescer import CallThreads

NAME = "scannery-test-calls"


@pytest.fixture
def done() -> threading.Semaphore:
    return threading.Semaphore(0)


def _end(ended: threading.Event, _: Any) -> None:
    ended.set()


def _alive() -> int:
    return sum(thread.name.startswith(NAME) for thread in threading.enumerate())


def _await_alive(count: int) -> None:
    until_s = time.monotonic() + 60
    while _alive() != count:
        assert time.monotonic() < until_s, f"{_alive()} threads"
        time.sleep(0.001)


def test_no_more_threads_than_allowed_and_every_call_once(done: threading.Semaphore) -> None:
    threads, seen, most = CallThreads(3, NAME), [], []

    def work(number: int) -> None:
        most.append(_alive())
        time.sleep(0.002)
        seen.append(number)

    for number in range(50):
        threads.submit(work, number).add_done_callback(lambda call: done.release())
    for _ in range(50):
        assert done.acquire(timeout=60)
    assert sorted(seen) == list(range(50))
    assert max(most) <= 3
    threads.close()
    _await_alive(0)
    with pytest.raises(RuntimeError):
        threads.submit(work, 0)


def test_the_thread_that_ended_last_goes_on_first() -> None:
    threads = CallThreads(4, NAME)
    gates = [threading.Event() for _ in range(4)]
    for gate in gates:
        threads.submit(gate.wait, 60)
    used: list[str] = []
    for i, gate in enumerate(gates):
        gate.set()
        until_s = time.monotonic() + 60
        while len(threads._idle) <= i:
            assert time.monotonic() < until_s
            time.sleep(0.001)
    for _ in range(5):
        ended = threading.Event()
        threads.submit(lambda: used.append(threading.current_thread().name)).add_done_callback(
            partial(_end, ended)
        )
        assert ended.wait(60)
        until_s = time.monotonic() + 60
        while len(threads._idle) < 4:
            assert time.monotonic() < until_s
            time.sleep(0.001)
    assert set(used) == {f"{NAME}_4"}
    threads.close()
    _await_alive(0)


def test_a_call_that_raises_costs_no_thread_and_is_told(
    done: threading.Semaphore, caplog: pytest.LogCaptureFixture
) -> None:
    threads = CallThreads(1, NAME)

    def fail() -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR):
        threads.submit(fail).add_done_callback(lambda call: done.release())
        assert done.acquire(timeout=60)
    assert "broken" in caplog.text
    last = threads.submit(done.release)
    assert done.acquire(timeout=60)
    late = threading.Event()
    time.sleep(0.01)
    last.add_done_callback(lambda call: late.set())
    assert late.wait(60), "also of a call that has ended"
    threads.close()
    _await_alive(0)


def test_a_thread_that_cannot_be_started_takes_no_place(
    done: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = CallThreads(1, NAME)

    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none)
        with pytest.raises(RuntimeError):
            threads.submit(done.release)
    threads.submit(done.release)
    assert done.acquire(timeout=60)
    threads.close()
    _await_alive(0)

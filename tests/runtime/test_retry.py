"""Waits between tries, and what is said about failures."""

from __future__ import annotations

import logging

import pytest

from scannery.indexer import CorruptError
from scannery.runtime.retry import Backoff, RetryState


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_waits_double_up_to_a_bound_until_it_works() -> None:
    clock = Clock()
    backoff = Backoff(first_s=0.1, max_s=1.0, clock=clock)
    assert backoff.due
    assert [backoff.back_off() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert (backoff.failures, backoff.due) == (6, False)
    clock.now_s += 1.0
    assert backoff.due
    for _ in range(2000):
        backoff.back_off()  # no overflow
    backoff.reset()
    assert (backoff.failures, backoff.due, backoff.back_off()) == (0, True, 0.1)


def test_each_success_halves_the_next_wait() -> None:
    backoff = Backoff(first_s=1.0, max_s=16.0, clock=Clock())
    for _ in range(9):
        backoff.back_off()
    for _ in range(3):
        backoff.ease()
    assert [backoff.back_off() for _ in range(4)] == [2, 4, 8, 16]
    for _ in range(9):
        backoff.ease()
    assert backoff.back_off() == 1


def test_a_try_that_failed_is_put_off_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock, failures, tries = Clock(), list[int](), list[float]()
    retry = RetryState(on_failure=lambda: failures.append(1), clock=clock)

    def fail() -> None:
        tries.append(clock.now_s)
        raise OSError(28, "No space left on device", "/secret/place")

    for _ in range(6):
        retry.run("the index cannot be opened", fail)
        clock.now_s += 1
    assert tries == [100.0, 102.0]
    assert (len(failures), retry.failures) == (2, 2)
    # Callers get no paths of this machine; the log does.
    assert retry.problem == "the index cannot be opened: No space left on device"
    assert "/secret/place" in str(retry.error)
    assert "/secret/place" in caplog.text
    clock.now_s += 60
    retry.run("the index cannot be opened", lambda: None)
    assert (retry.failures, retry.error, retry.problem, retry.due) == (0, None, "", True)


def test_an_error_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    retry = RetryState()
    with caplog.at_level(logging.ERROR):
        for text in ("one", "one", "one", "two", "one"):
            retry.failed("it fails", CorruptError(text))
        retry.succeeded()
        retry.failed("it fails", CorruptError("one"))
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "it fails: one",
        "it fails: two",
        "it fails: one",
        "it fails: one",
    ]
    assert "Traceback" not in caplog.text
    # An error that is no known kind comes with its stack.
    retry.failed("it fails", ZeroDivisionError("a bug"))
    assert caplog.records[-1].exc_info
    assert retry.problem == "it fails: ZeroDivisionError"

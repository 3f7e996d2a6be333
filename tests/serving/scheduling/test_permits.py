"""Turns of callers that wait for permits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from scannery.serving.scheduling.permits import Permits
from tests.http1 import eventually


class Caller:
    """Requests of one account: each waits in a thread, and works until it is told to end."""

    def __init__(self, permits: Permits, account: str) -> None:
        self._permits, self._account = permits, account
        self.working: list[threading.Event] = []

    def ask(self, count: int = 1) -> None:
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def end(self, count: int = 1) -> None:
        for _ in range(count):
            self.working.pop(0).set()

    def _work(self) -> None:
        assert self._permits.acquire(self._account, 30)
        done = threading.Event()
        self.working.append(done)
        done.wait(30)
        self._permits.release(self._account)


@pytest.fixture
def permits() -> Permits:
    return Permits(4)


def settled(permits: Permits, *waiting: tuple[str, int]) -> None:
    eventually(lambda: {name: len(each) for name, each in permits._waiting.items()} == dict(waiting))


def test_a_lone_caller_has_all_but_the_one_that_is_kept(permits: Permits) -> None:
    a, b = Caller(permits, "a"), Caller(permits, "b")
    a.ask(6)
    eventually(lambda: len(a.working) == 4)
    settled(permits, ("a", 2))
    # Slow requests of one caller never stop another.
    for _ in range(3):
        b.ask()
        eventually(lambda: len(b.working) == 1)
        b.end()
        eventually(lambda: permits._held.get("b") is None)
    a.end(4)
    eventually(lambda: len(a.working) == 2)
    a.end(2)


def test_slow_requests_of_a_few_callers_stop_no_other(permits: Permits) -> None:
    """However many each of them has: as many callers as there are permits for one may hold some, and one more."""
    slow = [Caller(permits, name) for name in "abcd"]
    for caller in slow:
        caller.ask(6)
        eventually(lambda: caller.working)  # noqa: B023  which is called at once
    other = Caller(permits, "other")
    for _ in range(3):
        other.ask()
        eventually(lambda: len(other.working) == 1)
        other.end()
        eventually(lambda: permits._held.get("other") is None)
    assert permits._taken == 7
    for caller in slow:
        while caller.working or permits._held.get(caller._account):
            caller.end(len(caller.working))
            time.sleep(0.01)


def test_while_others_wait_a_caller_has_at_most_its_share(permits: Permits) -> None:
    a, b = Caller(permits, "a"), Caller(permits, "b")
    a.ask(8)
    eventually(lambda: len(a.working) == 4)
    b.ask(8)
    eventually(lambda: len(b.working) == 1)
    settled(permits, ("a", 4), ("b", 7))
    a.end(2)
    # One of the two was above what is for all but newcomers; the other goes to who has less.
    eventually(lambda: (len(a.working), len(b.working)) == (2, 2))
    for _ in range(3):
        a.end()
        b.end()
        eventually(lambda: (len(a.working), len(b.working)) == (2, 2))
    for caller in (a, b):
        while len(caller.working) or permits._waiting:
            caller.end(len(caller.working))
            time.sleep(0.01)
            if not caller.working and not permits._held.get(caller._account):
                break


def test_callers_take_turns(permits: Permits) -> None:
    """However many requests each of them has."""
    a = Caller(permits, "a")
    a.ask(4)
    eventually(lambda: len(a.working) == 4)
    order: list[str] = []
    lock = threading.Lock()

    def asks(account: str) -> Callable[[], None]:
        def ask() -> None:
            assert permits.acquire(account, 30)
            with lock:
                order.append(account)
            time.sleep(0.005)
            permits.release(account)

        return ask

    threads = [threading.Thread(target=asks(name)) for name in "b" * 40 + "c" * 4 + "d" * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    first = Counter(order[: order.index("d") + 16])
    assert first["c"] + first["d"] >= 6
    a.end(4)


def test_who_waits_in_vain_leaves_no_trace(permits: Permits) -> None:
    held = [permits.acquire(name) for name in "aaaabcde"]
    assert all(held)
    for name in "abf":
        started_s = time.monotonic()
        assert not permits.acquire(name, 0.02)
        assert time.monotonic() - started_s < 5
    assert not permits._waiting
    for name in "aaaabcde":
        permits.release(name)
    assert (permits._held, permits._taken) == ({}, 0)

"""Parts of a request in several threads: which thread takes them, how many at once, and what becomes of errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from scannery.serving.scheduling import idle_cores
from scannery.serving.scheduling.idle_cores import IdleCores


@pytest.fixture(autouse=True)
def machine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let helpers lose any time: other tests may run beside these."""
    monkeypatch.setattr(idle_cores, "LOST_S", 1000.0)


@pytest.fixture
def idle() -> Iterator[IdleCores]:
    idle = IdleCores(2)
    yield idle
    idle.close()


class Meeting:
    """Work that waits until as many threads are at it as are awaited."""

    def __init__(self, awaited: int) -> None:
        self._gate = threading.Barrier(awaited)
        self._lock = threading.Lock()
        self.now = self.most = 0

    def __call__(self, part: int) -> int:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self._gate.wait(60)
        with self._lock:
            self.now -= 1
        return 2 * part


def test_results_are_in_the_order_of_the_parts(idle: IdleCores) -> None:
    def work(part: int) -> int:
        time.sleep(0.0005 * (part % 3))
        return 2 * part

    assert idle.run(work, range(20)) == list(range(0, 40, 2))
    assert idle.run(work, []) == []


def test_helpers_work_beside_the_caller(idle: IdleCores) -> None:
    meeting = Meeting(3)
    assert idle.run(meeting, range(6)) == [0, 2, 4, 6, 8, 10]
    assert meeting.most == 3


def test_helpers_are_bounded_for_all_requests_together(idle: IdleCores) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def work(part: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    callers = [threading.Thread(target=idle.run, args=(work, range(10))) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert most <= 3 + 2


def test_a_single_part_runs_in_the_thread_of_the_caller(idle: IdleCores) -> None:
    assert idle.run(lambda _: threading.get_ident(), [0]) == [threading.get_ident()]


def test_without_helpers_the_caller_does_all() -> None:
    assert set(IdleCores(0).run(lambda _: threading.get_ident(), range(5))) == {threading.get_ident()}


def test_after_an_error_no_further_part_is_begun(idle: IdleCores) -> None:
    begun = []

    def work(part: int) -> None:
        begun.append(part)
        if part == 3:
            raise ValueError("part 3")
        time.sleep(0.001)

    with pytest.raises(ValueError, match="part 3"):
        idle.run(work, range(1000))
    assert len(begun) < 50
    assert idle.run(abs, [-1, 2]) == [1, 2]


def test_the_error_of_the_first_part_is_raised(idle: IdleCores) -> None:
    gate = threading.Barrier(3)

    def work(part: int) -> None:
        gate.wait(60)
        raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 0"):
        idle.run(work, range(3))


def wait_for_a_core(part: int) -> int:
    """Take time as a thread does that waits for its core."""
    time.sleep(0.001)
    return threading.get_ident()


def test_a_helper_that_loses_time_leaves_the_rest_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_cores, "LOST_S", 0.0)
    idle = IdleCores(2, clock=lambda: 0.0)
    first = idle.run(wait_for_a_core, range(30))
    assert [thread for thread in first if thread != threading.get_ident()]
    # At most one part of each helper.
    assert sum(thread != threading.get_ident() for thread in first) <= 2
    assert set(idle.run(wait_for_a_core, range(5))) == {threading.get_ident()}
    idle.close()


def test_pauses_of_helpers_double_while_they_lose_time_and_shrink_when_they_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle_cores, "BUSY_S", 1.0)
    monkeypatch.setattr(idle_cores, "MOST_BUSY_S", 16.0)
    now_s = 0.0
    idle = IdleCores(1, clock=lambda: now_s)
    gate = threading.Barrier(2)

    def work(part: int) -> int:
        gate.wait(60)
        return wait_for_a_core(part)

    def pause_s() -> float:
        """Let a helper take a part, and return how long no request is helped after it."""
        nonlocal now_s
        idle.run(work, range(2))
        began_s = now_s
        while not idle.helps:
            now_s += 1
        return now_s - began_s

    monkeypatch.setattr(idle_cores, "LOST_S", 0.0)
    assert [pause_s() for _ in range(6)] == [1, 2, 4, 8, 16, 16]
    monkeypatch.setattr(idle_cores, "LOST_S", 1000.0)
    assert [pause_s() for _ in range(3)] == [0, 0, 0]
    monkeypatch.setattr(idle_cores, "LOST_S", 0.0)
    assert pause_s() == 2
    idle.close()


def test_after_the_end_the_caller_works_alone(idle: IdleCores) -> None:
    idle.close()
    assert idle.run(abs, [-1, -2, -3]) == [1, 2, 3]

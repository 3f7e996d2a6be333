"""The budget of work in the background, and how it gives way to requests."""

from __future__ import annotations

import time

import pytest

from scannery.serving.scheduling import spare_time
from scannery.serving.scheduling.spare_time import SpareTime


@pytest.fixture(autouse=True)
def same_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the priority of the thread of the tests."""
    monkeypatch.setattr(spare_time, "LOW_PRIORITY", 0)
    monkeypatch.setattr("os.setpriority", lambda *_: None)


def work(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def available(spare: SpareTime) -> bool:
    return spare.is_available


def test_time_is_saved_up_at_a_share_of_a_core_and_spent() -> None:
    spare = SpareTime(lambda: 0)
    assert not available(spare)
    spare._saved_at_s -= 10.0
    spare.refresh()
    assert spare._saved_s == pytest.approx(10.0 * spare_time.SHARE, rel=0.1)
    assert available(spare)
    assert spare.is_ample
    spare._saved_s = 0.01
    with spare.spend():
        work(0.03)
    assert spare._saved_s == pytest.approx(-0.02, abs=0.005)
    assert not available(spare)
    spare._saved_at_s -= 1000.0
    spare.refresh()
    assert spare._saved_s == spare_time.MOST_SAVED_S


def test_what_is_urgent_may_take_more() -> None:
    spare = SpareTime(lambda: 0)
    spare.is_urgent = True
    spare._saved_at_s -= 2.0
    spare.refresh()
    assert spare._saved_s == pytest.approx(2.0 * spare_time.SHARE_URGENT, rel=0.1)


def test_a_busy_process_pauses_after_each_unit_the_longer_the_more_it_took() -> None:
    requests = 1
    spare = SpareTime(lambda: requests)
    spare._saved_s = spare_time.MOST_SAVED_S
    with spare.spend(pause=False):
        work(0.001)
    assert available(spare)
    with spare.spend():
        work(0.03)
    assert not available(spare)
    assert spare._next_s - time.monotonic() == pytest.approx(0.03 / spare_time.SHARE_BUSY, rel=0.3)
    requests = 0
    assert available(spare), "no request is in flight, and none took much lately"


def test_a_process_is_busy_while_requests_took_much_of_a_core_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    # Beside other programs this one has a part of a core: its own time is the clock.
    monkeypatch.setattr("time.monotonic", time.process_time)
    spare = SpareTime(lambda: 0)
    spare._saved_s = 100.0
    with spare.spend():
        work(spare_time.LOAD_S)
    spare.refresh()
    assert not spare.is_busy, "that was work in the background"
    work(spare_time.LOAD_S)
    spare.refresh()
    assert spare.is_busy

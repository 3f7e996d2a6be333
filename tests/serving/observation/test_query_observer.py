"""The tasks of the observer: one after another, within one budget, and not held up by each other's errors."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from scannery.serving.observation.query_observer import QueryObserver
from scannery.serving.observation.query_sample import IndexSample
from scannery.serving.scheduling.spare_time import SpareTime


class Counting:
    """A task that counts its runs, and fails or not."""

    def __init__(self, *, fails: bool = False) -> None:
        self.name, self.runs, self._fails = "counting", 0, fails
        self.enough, self.threads = threading.Event(), set[int]()

    def run(self, samples: Mapping[str, IndexSample], spare: SpareTime) -> float:
        self.runs += 1
        self.threads.add(threading.get_ident())
        if self.runs == 3:
            self.enough.set()
        if self._fails:
            raise OSError("no such luck")
        return 0.001


def test_tasks_share_a_thread_and_an_error_holds_up_its_own_task_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing, working = Counting(fails=True), Counting()
    observer = QueryObserver([failing, working], SpareTime(lambda: 0))
    observer.start()
    assert working.enough.wait(60)
    observer.stop()
    assert failing.runs == 1, "it is tried again after two seconds"
    assert len(failing.threads | working.threads) == 1
    assert "the task 'counting' failed: no such luck" in caplog.text

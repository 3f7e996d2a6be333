"""What reaches the observer, and its tasks: one after another, and not held up by each other's errors."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.client.request.calls import search, search_many
from scannery.runtime.retry import Deadline
from scannery.serving.bridging.engine import Engine
from scannery.serving.observation.query_observer import QueryObserver
from scannery.serving.observation.query_sample import IndexSample
from scannery.serving.scheduling.spare_time import SpareTime
from tests.served import DIMENSIONS, make_library_store, serving


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


@pytest.mark.system
def test_each_search_of_a_bridge_is_observed_once_by_the_name_of_its_index(tmp_path: Path) -> None:
    queries_QD, calls = np.eye(DIMENSIONS, dtype=np.float32)[:3], list[tuple[str, int, str]]()
    with serving(make_library_store(tmp_path)) as server:
        scannery.connect(server.address).alias("shelf", "library")
        engine = Engine(
            server._lifecycle.methods,
            lambda index, queries, request_of: calls.append((index, queries, request_of().index)),
            checks=False,
        )
        engine.search(search("shelf", queries_QD[0], 2).request, Deadline.after(60))
        engine.search_many(search_many("shelf", queries_QD, 2).request, Deadline.after(60))
    assert calls == [("library", 1, "library"), ("library", 3, "library")]

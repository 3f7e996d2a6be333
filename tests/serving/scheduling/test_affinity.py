"""Cores of a worker's threads: requests keep to one where there is a worker for each, and the rest has all."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scannery.serving.scheduling.affinity import on_all_cores, on_core, own_core
from tests.serving.process.test_supervisor import answers, children, started

CORES = os.sched_getaffinity(0)
SEVERAL = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


@SEVERAL
def test_what_is_started_keeps_to_the_core_and_the_starter_does_not() -> None:
    seen: list[set[int]] = []

    def ask() -> None:
        seen.append(os.sched_getaffinity(0))
        with on_all_cores():
            seen.append(os.sched_getaffinity(0))
        seen.append(os.sched_getaffinity(0))

    def start() -> None:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    core = max(CORES)
    on_core(core, start)
    assert seen == [{core}, CORES, {core}]
    assert os.sched_getaffinity(0) == CORES
    on_core(None, start)
    assert seen[3] == CORES


def test_errors_of_what_is_started_arrive() -> None:
    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        on_core(min(CORES), fail)


def test_only_workers_for_every_core_have_one_of_their_own() -> None:
    assert own_core(0, len(CORES) - 1) is None
    if len(CORES) > 1:
        assert {own_core(number, len(CORES)) for number in range(len(CORES))} == CORES
        assert own_core(len(CORES), len(CORES)) == own_core(0, len(CORES)), "of the next generation"


@contextlib.contextmanager
def only_on(cores: set[int]) -> Iterator[None]:
    """Let this thread and the processes that it starts run on some cores only."""
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES)


@pytest.mark.system
@SEVERAL
def test_workers_share_the_cores_out(library: Path) -> None:
    two = set(sorted(CORES)[:2])  # where there are many, a worker for each would take a minute to start
    with only_on(two), started(library, "--workers", "2") as (process, address):
        assert answers(address)
        used = Counter[int]()
        for pid in children(process.pid):
            affinities = []
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):  # a thread that just ended
                    affinities.append(os.sched_getaffinity(int(task.name)))
            assert two in affinities, "what is not a request's"
            [core] = {min(each) for each in affinities if len(each) == 1}
            used[core] += 1
        assert used == Counter(two)

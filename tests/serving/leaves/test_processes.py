"""Leaves that are processes, and are killed or stopped while calls run; and roots that are forked."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from scannery.runtime.errors import UnavailableError
from scannery.serving.telemetry.metrics import ServerMetrics
from tests.data import ROOT
from tests.serving.leaves.conftest import Connect, StartLeaf
from tests.serving.leaves.test_groups import ask
from tests.serving.process.test_supervisor import wait_until

pytestmark = pytest.mark.system

CALLERS, PAUSE_S = 4, 0.02


class LeafProcess:
    """A scripted leaf in a process of its own."""

    def __init__(self, group: int, groups: int, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.serving.leaves.leaf_server", f"{group}/{groups}", str(port)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )
        self.group, self.groups = group, groups
        self.address = ""

    def wait_started(self) -> None:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        self.address = self.process.stdout.readline().strip() if ready else ""
        assert self.address, "not started"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def restarted(self) -> LeafProcess:
        """Return a new process at the same address."""
        return LeafProcess(self.group, self.groups, int(self.address.rpartition(":")[2]))


@pytest.fixture
def leaves() -> Iterator[list[LeafProcess]]:
    """Two groups of two leaves: 0, 0, 1, 1."""
    with ExitStack() as stack:
        started = [LeafProcess(group, 2) for group in (0, 0, 1, 1)]
        for leaf in started:
            stack.callback(leaf.kill)
        for leaf in started:
            leaf.wait_started()
        yield started


@pytest.fixture
def target(leaves: list[LeafProcess]) -> str:
    return ",".join(leaf.address for leaf in leaves)


def while_asked(
    one_call: Callable[[], object], change: Callable[[], None], *, before_s: float, after_s: float
) -> list[float]:
    """Return how long each call took, in seconds, while a few callers call on before and after a change."""
    latencies: list[float] = []
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            begin_s = time.monotonic()
            one_call()
            latencies.append(time.monotonic() - begin_s)
            end.wait(PAUSE_S)

    with ThreadPoolExecutor(CALLERS) as pool:
        callers = [pool.submit(work) for _ in range(CALLERS)]
        try:
            time.sleep(before_s)
            change()
            time.sleep(after_s)
        finally:
            end.set()
        for caller in callers:
            caller.result()
    return latencies


def test_no_call_fails_while_leaves_are_killed(
    leaves: list[LeafProcess], target: str, connect: Connect, cleanup: ExitStack
) -> None:
    groups = connect(target)
    wait_until(lambda: all(one.ready for one in groups.statuses()))

    def kill() -> None:
        for place in (0, 2):
            leaves[place].kill()
            again = leaves[place].restarted()
            cleanup.callback(again.kill)
            again.wait_started()
            wait_until(lambda: all(one.ready for one in groups.statuses()))

    answers: list[dict[int, int]] = []
    while_asked(lambda: answers.append(ask(groups)), kill, before_s=0.5, after_s=0.5)
    assert len(answers) > 50
    assert all(answer == {0: 7, 1: 107} for answer in answers)


def test_a_stopped_leaf_delays_few_calls(leaves: list[LeafProcess], target: str, connect: Connect) -> None:
    metrics = ServerMetrics()
    groups = connect(target, metrics=metrics)
    wait_until(lambda: all(one.ready for one in groups.statuses()))
    for _ in range(64):
        ask(groups)
    stopped = leaves[0].process
    try:
        latencies = while_asked(
            lambda: ask(groups), lambda: stopped.send_signal(signal.SIGSTOP), before_s=0.5, after_s=4.0
        )
        assert not next(one for one in groups.statuses() if one.address == leaves[0].address).ready
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert len(latencies) > 100
    # Far below the 20 s of the deadline and the 2 s until the leaf counts as not ready.
    assert np.percentile(latencies, 99) < 0.5
    assert sum(metrics.leaf_hedges.dump().values()) >= 1
    wait_until(lambda: all(one.ready for one in groups.statuses()))


def test_a_group_whose_leaves_are_dead_is_named_or_left_out(
    leaves: list[LeafProcess], target: str, connect: Connect
) -> None:
    groups = connect(target)
    wait_until(lambda: all(one.ready for one in groups.statuses()))
    leaves[2].kill()
    leaves[3].kill()
    begin_s = time.monotonic()
    with pytest.raises(UnavailableError, match="group 1") as raised:
        ask(groups)
    assert time.monotonic() - begin_s < 5
    assert raised.value.retry_after_s
    assert ask(groups, allow_partial=True) == {0: 7}
    wait_until(lambda: not groups.ready)
    assert groups.newest("books") is None


def test_a_group_that_hangs_is_soon_refused(leaves: list[LeafProcess], target: str, connect: Connect) -> None:
    groups = connect(target)
    stopped = [leaf.process for leaf in leaves[:2]]
    try:
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not groups.ready)
        begin_s = time.monotonic()
        with pytest.raises(UnavailableError, match="no leaf of group 0 is ready"):
            ask(groups)
        assert time.monotonic() - begin_s < 1
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)


FORKING = """
import os, sys
from scannery.runtime.retry import Deadline
from scannery.serving.config import LeavesConfig
from scannery.serving.leaves.groups import LeafGroups
from tests.serving.leaves.test_groups import ask

created = LeafGroups(LeavesConfig(target=sys.argv[1]))
children = []
for number in range(2):
    child = os.fork()
    if not child:
        groups = created if number else LeafGroups(LeavesConfig(target=sys.argv[1]))
        groups.start(20)
        print(sorted(ask(groups).items()), flush=True)
        groups.close()
        os._exit(0)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_forked_processes_call_leaves(leaf: StartLeaf) -> None:
    target = f"{leaf(0, 2).address},{leaf(1, 2).address}"
    ended = subprocess.run(
        [sys.executable, "-c", FORKING, target],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    assert (ended.returncode, ended.stdout) == (0, "[(0, 7), (1, 107)]\n" * 2), ended.stderr

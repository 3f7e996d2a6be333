"""Leaves and roots as processes of the command, on ports of loopback that they keep over restarts."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

import numpy as np

import scannery
from tests.cluster.machines import Machine
from tests.data import ROOT
from tests.tools.ports import free_ports
from tests.tools.prepared_process import PreparedProcess

__all__ = [
    "Cluster", "Process", "Traffic", "children_of", "often", "running_cluster", "wait_until",
]  # fmt: skip


class Process:
    """A server of the command, which can be killed and started again."""

    def __init__(self, store: Path | str, port: int, *arguments: str, machine: Machine | None = None) -> None:
        self.address = f"{machine.address if machine else '127.0.0.1'}:{port}"
        self._command = [
            *(machine.enter if machine else ()),
            sys.executable, "-m", "scannery.cli.main", "serve", "--store", str(store), "--listen", self.address,
            *(() if "leaf" in arguments else ("--http", "off")), *(("--insecure",) if machine else ()), *arguments,
        ]  # fmt: skip
        self._elsewhere = machine is not None
        self._process: subprocess.Popen[str] | None = None
        self._since_s: float | None = None
        self._retries = 20
        """Times that it may still be started again: a connection of another process can have its port for a moment."""

    def start(self) -> None:
        """Start it; `wait` waits until it serves."""
        start = subprocess.Popen if self._elsewhere else PreparedProcess
        self._process = start(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            # A group of its own: the worker, which serves, is a child of the process that is started.
            start_new_session=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip

    def wait(self, timeout_s: float = 120) -> None:
        """Return when it serves."""
        assert self.serves_for_s(timeout_s) is not None, "not started"

    def serves_for_s(self, wait_s: float = 0) -> float | None:
        """Return for how many seconds it has served, as far as is known; None: it does not within `wait_s`."""
        assert self._process is not None
        assert self._process.stdout is not None
        if self._since_s is None and select.select([self._process.stdout], [], [], wait_s)[0]:
            line = self._process.stdout.readline()
            if not line and self._retries:  # it has ended
                self._retries -= 1
                self.kill()
                time.sleep(0.5)
                self.start()
                return self.serves_for_s(wait_s)
            assert re.search(r"Serving on (\S+);", line), f"not started: {line!r}"
            self._since_s = time.monotonic()
        return None if self._since_s is None else time.monotonic() - self._since_s

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor and its workers."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def wait_for_the_end(self, timeout_s: float = 60) -> None:
        """Return when it has ended, after a signal."""
        assert self._process is not None
        self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            # A worker whose supervisor alone is killed drains first.
            with suppress(ProcessLookupError):  # it has ended already
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = self._since_s = None


class Cluster:
    """A root over rows of leaves: `leaves[row][group]`."""

    def __init__(self, store: Path, groups: int, rows: int, *, root: tuple[str, ...] = ()) -> None:
        ports = iter(free_ports(groups * rows + 1))
        self.leaves = [
            [
                Process(store, next(ports), "--role", "leaf", "--group", f"{group}/{groups}")
                for group in range(groups)
            ]
            for _ in range(rows)
        ]
        target = ",".join(leaf.address for row in self.leaves for leaf in row)
        self.root = Process(store, next(ports), "--role", "root", "--leaves", target, *root)

    @property
    def all(self) -> list[Process]:
        """Return all processes, the root last."""
        return [*(leaf for row in self.leaves for leaf in row), self.root]


@contextmanager
def running_cluster(store: Path, groups: int, rows: int) -> Iterator[Cluster]:
    """Start a cluster, and kill it at the end."""
    cluster = Cluster(store, groups, rows)
    with ExitStack() as stack:
        for process in cluster.all:
            stack.callback(process.kill)
            process.start()
        for process in cluster.all:
            process.wait()
        yield cluster


class Traffic:
    """Searches at a rate by some callers, each with a connection of its own, until the end of the block."""

    def __init__(
        self,
        address: str,
        ask: Callable[[scannery.Client], scannery.Hits],
        *,
        rate: float = 50,
        retries: bool = False,
    ) -> None:
        self._address, self._ask, self._pause_s = address, ask, _CALLERS / rate
        self._retries = retries
        self.latencies_s: list[float] = []
        self.answers: list[scannery.Hits] = []
        self.failures: list[Exception] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(_CALLERS)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def p99_s(self) -> float:
        """Return the latency that 99 % of the searches do not exceed."""
        return float(np.quantile(self.latencies_s, 0.99))

    def _run(self, number: int) -> None:
        with scannery.connect(self._address, retries=self._retries) as client:
            while not self._ended.wait(self._pause_s):
                began_s = time.monotonic()
                try:
                    self.answers.append(self._ask(client))
                except scannery.ScanneryError as error:
                    self.failures.append(error)
                self.latencies_s.append(time.monotonic() - began_s)


_CALLERS = 4


def often(count: int, full: int) -> int:
    """Return how often something is done: `count` times, or `full` in `make test-cluster`."""
    return full if os.environ.get("SCANNERY_TEST_CLUSTER") else count


def children_of(pid: int) -> list[int]:
    """Return the processes that the first thread of a process started."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Return when a condition is true; fail if it does not become so."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "it never came true"
        time.sleep(0.05)

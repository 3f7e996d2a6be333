"""Clusters that change while callers search: more groups, rows added and removed, all processes replaced in turn."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import scannery
from tests.cluster.processes import Process, Traffic, often, wait_until
from tests.served import DIMENSIONS, make_library_store
from tests.tools.ports import free_ports

GROUPS = often(2, 4)
READ_AGAIN_S = 7.0
"""Roots read the file every five seconds, and know a new leaf half a second later."""
QUERY = np.random.default_rng(3).standard_normal(DIMENSIONS).astype(np.float32)


class Growing:
    """Leaves whose addresses are lines of a file, and two roots that read it."""

    def __init__(self, store: Path, stack: ExitStack) -> None:
        self._store, self._stack = store, stack
        self._file = store.parent / "leaves.txt"
        self._file.write_text("")
        self.leaves: list[Process] = []
        self.roots = [self._process("--role", "root", "--leaves", f"file://{self._file}") for _ in range(2)]

    def add_row(self, groups: int) -> list[Process]:
        """Start a leaf for each group, and name them in the file when they serve."""
        row = [self._process("--role", "leaf", "--group", f"{group}/{groups}") for group in range(groups)]
        start(row)
        self.leaves += row
        self._write()
        return row

    def remove(self, leaves: Iterable[Process]) -> None:
        """Take leaves out of the file, and end them when all roots have read it."""
        leaves = list(leaves)
        self.leaves = [leaf for leaf in self.leaves if leaf not in leaves]
        self._write()
        time.sleep(READ_AGAIN_S)
        for leaf in leaves:
            leaf.send(signal.SIGTERM)
            leaf.wait_for_the_end()

    def _write(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text("".join(f"{leaf.address}\n" for leaf in self.leaves))
        new.replace(self._file)

    def _process(self, *arguments: str) -> Process:
        process = Process(self._store, free_ports(1)[0], *arguments)
        self._stack.callback(process.kill)
        return process


def start(processes: Iterable[Process]) -> None:
    processes = list(processes)
    for process in processes:
        process.start()
    for process in processes:
        process.wait()


def restart(process: Process, known_after_s: float) -> None:
    """End a process as an operator does, start it again, and wait until others know it."""
    process.send(signal.SIGTERM)
    process.wait_for_the_end()
    start([process])
    time.sleep(known_after_s)


def ask(client: scannery.Client) -> scannery.Hits:
    return client.index("library").search(QUERY, 300, exact=True, timeout_s=20)


@contextmanager
def growing(folder: Path) -> Iterator[Growing]:
    with ExitStack() as stack:
        cluster = Growing(make_library_store(folder, shards=2 * GROUPS), stack)
        for _ in range(2):
            cluster.add_row(GROUPS)
        start(cluster.roots)
        for root in cluster.roots:
            wait_until(lambda: answers(root.address))  # noqa: B023  # it is called in this round
        yield cluster


def answers(address: str) -> bool:
    with scannery.connect(address, retries=False) as client:
        try:
            return bool(ask(client))
        except scannery.UnavailableError:
            return False


@pytest.mark.long
def test_no_search_fails_while_the_cluster_changes(tmp_path: Path) -> None:
    with growing(tmp_path) as cluster:
        with scannery.connect(cluster.roots[0].address) as client:
            right = [(hit.id, hit.score) for hit in ask(client)]
        old = list(cluster.leaves)
        # Callers of one root; another one's are told to go elsewhere when it ends, which is a test of its own below.
        with Traffic(cluster.roots[0].address, ask, rate=20) as traffic:
            third = cluster.add_row(GROUPS)
            time.sleep(READ_AGAIN_S)
            cluster.remove(third)
            for leaf in cluster.leaves:
                restart(leaf, 1.5)
            for _ in range(2):
                cluster.add_row(2 * GROUPS)
            time.sleep(READ_AGAIN_S)
            cluster.remove(old)
            time.sleep(1)
        check(traffic, right)


@pytest.mark.long
def test_no_search_fails_while_roots_are_replaced_in_turn(tmp_path: Path) -> None:
    with growing(tmp_path) as cluster:
        with scannery.connect(cluster.roots[0].address) as client:
            right = [(hit.id, hit.score) for hit in ask(client)]
        both = "ipv4:" + ",".join(root.address for root in cluster.roots)
        with Traffic(both, ask, rate=20, retries=True) as traffic:
            for root in cluster.roots:
                time.sleep(2)
                restart(root, 3)
        check(traffic, right)


def check(traffic: Traffic, right: list[tuple[str, float]]) -> None:
    print(f"{len(traffic.answers)} searches, p99 {traffic.p99_s() * 1e3:.0f} ms")
    assert traffic.failures == []
    assert len(traffic.answers) > 100
    for hits in traffic.answers:
        assert [(hit.id, hit.score) for hit in hits] == right

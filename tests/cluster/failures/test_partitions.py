"""Machines that lose each other: routes between roots, leaves and the database of the log are cut."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

import scannery
from tests.cluster.machines import SERVICE, Machine, machines_or_skip
from tests.cluster.processes import Process, Traffic, wait_until
from tests.live.log.postgres_server import PostgresServer, postgres_or_skip
from tests.live.model import DIMENSIONS, make_store, random_row

pytestmark = pytest.mark.long

GROUPS, ROWS, ROOTS = 2, 2, 2
PORT = 7070
CUT_S = 12.0
QUERY = [1.0] * DIMENSIONS


@dataclass
class Bed:
    """Two roots and two rows of leaves, each on a machine of its own, and the database of their log on this one."""

    leaves: list[Machine]
    roots: list[Machine]

    def address(self, number: int) -> str:
        """Return the address of a root."""
        return f"{self.roots[number].address}:{PORT}"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    rng = random.Random(0)
    store = make_store(tmp_path_factory.mktemp("bed"), [random_row(rng, f"id{i}") for i in range(50)])
    with ExitStack() as stack:
        machines = stack.enter_context(machines_or_skip(GROUPS * ROWS + ROOTS))
        database: PostgresServer = postgres_or_skip(durable=True, host=SERVICE)
        stack.callback(database.stop)
        log = database.new_database().replace("127.0.0.1", SERVICE)
        leaves, roots = machines[: GROUPS * ROWS], machines[GROUPS * ROWS :]
        target = ",".join(f"{machine.address}:{PORT}" for machine in leaves)
        processes = [
            Process(
                store, PORT, "--role", "leaf", "--group", f"{number % GROUPS}/{GROUPS}", "--log", log,
                machine=machine,
            )
            for number, machine in enumerate(leaves)
        ]  # fmt: skip
        processes += [
            Process(store, PORT, "--role", "root", "--leaves", target, "--log", log, machine=machine)
            for machine in roots
        ]
        for process in processes:
            stack.callback(process.kill)
            process.start()
        for process in processes:
            process.wait()
        found = Bed(leaves, roots)
        with scannery.connect(found.address(0)) as client:
            client.index("live").upsert([{"id": "first", "vector": QUERY}])
        yield found


def ask(client: scannery.Client) -> scannery.Hits:
    return client.index("live").search(QUERY, 10, exact=True, timeout_s=30)


def write(bed: Bed, root: int, name: str) -> int:
    """Write at a root, and return the sequence."""
    with scannery.connect(bed.address(root), timeout_s=20) as client:
        return client.index("live").upsert([{"id": name, "vector": QUERY}]).sequence


def check_reads(bed: Bed, root: int, sequence: int) -> None:
    """Fail if a root does not see a mutation."""
    with scannery.connect(bed.address(root), timeout_s=30) as client:
        assert client.index("live").search(QUERY, 10, exact=True, min_sequence=sequence).sequence >= sequence


def write_and_read(bed: Bed, name: str, roots: Callable[[int], tuple[int, int]]) -> int:
    """Write for CUT_S and fail if a write is not seen; return how many there were.

    Args:
        bed: the machines.
        name: first part of the ids.
        roots: from the number of a write to the root that writes, and the one that reads.

    """
    end_s, number = time.monotonic() + CUT_S, 0
    while time.monotonic() < end_s:
        writing, reading = roots(number)
        check_reads(bed, reading, write(bed, writing, f"{name}{number}"))
        number += 1
        time.sleep(0.2)
    return number


@pytest.mark.timeout(300)
def test_a_leaf_loses_the_database(bed: Bed) -> None:
    with Traffic(bed.address(0), ask, rate=30) as traffic, Traffic(bed.address(1), ask, rate=10) as other:
        bed.leaves[0].cut(SERVICE)
        number = write_and_read(bed, "leaf", lambda number: ((number + 1) % ROOTS, number % ROOTS))
        bed.leaves[0].heal(SERVICE)
        time.sleep(1)
    tell(traffic, f"{number} writes")
    assert traffic.failures == other.failures == []
    assert number > 10


@pytest.mark.timeout(300)
def test_a_root_loses_the_database(bed: Bed) -> None:
    with Traffic(bed.address(0), ask, rate=30) as traffic, Traffic(bed.address(1), ask, rate=10) as other:
        bed.roots[0].cut(SERVICE)
        number = write_and_read(bed, "root", lambda number: (1, 1))
        with pytest.raises((scannery.UnavailableError, scannery.DeadlineExceededError)):
            write(bed, 0, "refused")
        bed.roots[0].heal(SERVICE)
    tell(traffic, f"{number} writes at the other root")
    assert traffic.failures == other.failures == []
    last = write(bed, 1, "last")
    wait_until(lambda: _sees(bed, 0, last))
    assert write(bed, 0, "again") > last


@pytest.mark.timeout(300)
def test_all_lose_the_database(bed: Bed) -> None:
    with Traffic(bed.address(0), ask, rate=30) as traffic, Traffic(bed.address(1), ask, rate=30) as other:
        for machine in (*bed.leaves, *bed.roots):
            machine.cut(SERVICE)
            time.sleep(0.1)
        time.sleep(CUT_S / 2)
        for machine in (*bed.leaves, *bed.roots):
            machine.heal(SERVICE)
    tell(traffic)
    assert traffic.failures == other.failures == []
    last = write(bed, 0, "after")
    wait_until(lambda: _sees(bed, 1, last))


@pytest.mark.timeout(300)
def test_a_root_loses_one_row_of_leaves(bed: Bed) -> None:
    with Traffic(bed.address(0), ask, rate=30) as traffic, Traffic(bed.address(1), ask, rate=10) as other:
        for leaf in bed.leaves[:GROUPS]:
            bed.roots[0].cut(leaf.address)
        time.sleep(CUT_S / 2)
        check_reads(bed, 0, write(bed, 0, "one row"))
        for leaf in bed.leaves[:GROUPS]:
            bed.roots[0].heal(leaf.address)
        time.sleep(1)
    tell(traffic)
    assert traffic.failures == other.failures == []


def tell(traffic: Traffic, more: str = "") -> None:
    """Print the figures of a test."""
    slowest_s = max(traffic.latencies_s)
    print(f"{len(traffic.answers)} searches, p99 {traffic.p99_s():.3f} s, slowest {slowest_s:.3f} s; {more}")


def _sees(bed: Bed, root: int, sequence: int) -> bool:
    with scannery.connect(bed.address(root), timeout_s=30) as client:
        return ask(client).sequence >= sequence

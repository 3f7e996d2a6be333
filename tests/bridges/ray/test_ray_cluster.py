"""A cluster on three nodes of Ray, which change and die while callers search. One Ray, and one test after the other."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import ray

import scannery
from tests.bridges.ray.on_ray import NAME, NODE, OnRay, ask, live_placements, running_ray
from tests.cluster.processes import Traffic, wait_until

RATE = 20.0
READY_WITHIN_S = 60.0
"""On a quiet machine it takes about six seconds, most of them for imports (docs/benchmarks/cluster.md)."""


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRay]:
    with running_ray(tmp_path_factory.mktemp("ray"), [NODE] * 3) as running:
        yield running


@pytest.fixture(scope="module")
def root(on_ray: OnRay) -> str:
    """Start the cluster that all tests use, and return the address of its root."""
    printed = on_ray.up(2, 2)
    assert "leaf-0-of-2" in printed
    return str(on_ray.serving()["root-row-0"]["address"])


@pytest.fixture
def traffic(root: str) -> Iterator[Traffic]:
    """Searches all the time; after the test, none may have failed or missed a hit."""
    with scannery.connect(root) as client:
        right = [(hit.id, hit.score) for hit in ask(client)]
    with Traffic(root, ask, rate=RATE) as running:
        yield running
        time.sleep(1)
    print(f"{len(running.answers)} searches, p99 {running.p99_s() * 1e3:.0f} ms")
    assert running.failures == []
    assert len(running.answers) > RATE
    assert all([(hit.id, hit.score) for hit in hits] == right for hits in running.answers)


def nodes_of(processes: Mapping[str, Mapping[str, Any]], groups: int) -> list[set[str]]:
    """Return the nodes of the leaves of each group."""
    return [
        {each["node"] for name, each in processes.items() if name.startswith(f"leaf-{group}-of-{groups}-")}
        for group in range(groups)
    ]


def back(on_ray: OnRay, names: set[str], changed: Callable[[], bool]) -> float:
    """Wait until all serve again after a failure, and return how many seconds that took."""
    began_s = time.monotonic()
    wait_until(lambda: changed() and names <= on_ray.serving().keys(), 120)
    return time.monotonic() - began_s


def test_leaves_of_a_group_are_on_different_nodes(on_ray: OnRay, root: str) -> None:
    processes = on_ray.processes()
    assert len(processes) == 5
    assert [len(nodes) for nodes in nodes_of(processes, 2)] == [2, 2]
    # The same shape again changes nothing; other options are refused.
    on_ray.up(2, 2)
    assert on_ray.processes() == processes
    assert "other options" in on_ray.up(2, 2, "--leaf-options", "--insecure --workers 2", code=2)


def test_a_leaf_that_is_killed_serves_again(on_ray: OnRay, traffic: Traffic) -> None:
    name = "leaf-1-of-2-row-0"
    before = on_ray.serving()
    os.kill(before[name]["pid"], signal.SIGKILL)
    took_s = back(
        on_ray, {name}, lambda: on_ray.serving().get(name, before[name])["pid"] != before[name]["pid"]
    )
    print(f"a leaf killed: serves again after {took_s:.1f} s")
    assert on_ray.serving()[name]["address"] == before[name]["address"]
    assert took_s < READY_WITHIN_S
    known()


def test_an_actor_that_is_killed_is_started_again(on_ray: OnRay, traffic: Traffic) -> None:
    name = "leaf-0-of-2-row-1"
    before = on_ray.serving()
    ray.kill(ray.get_actor(name), no_restart=False)
    took_s = back(
        on_ray, {name}, lambda: on_ray.serving().get(name, before[name])["pid"] != before[name]["pid"]
    )
    print(f"an actor killed: serves again after {took_s:.1f} s")
    wait_until(lambda: not Path(f"/proc/{before[name]['pid']}").exists())
    assert took_s < READY_WITHIN_S
    known()


def test_rows_are_added_and_removed(on_ray: OnRay, traffic: Traffic) -> None:
    on_ray.up(2, 3)
    assert [len(nodes) for nodes in nodes_of(on_ray.serving(), 2)] == [3, 3]
    reserved = len(live_placements())
    on_ray.up(2, 2)
    assert len(on_ray.serving()) == 5
    assert len(live_placements()) == reserved - 2, "the places of the third row are given back"


def test_leaves_of_a_dead_node_serve_elsewhere(on_ray: OnRay, traffic: Traffic) -> None:
    before = on_ray.serving()
    home = before["root-row-0"]["node"]
    # Callers of this test ask one root, so its node stays; so does Ray's head.
    lost = next(
        node for node in on_ray.nodes.worker_nodes
        if node.node_id != home and any(each["node"] == node.node_id for each in before.values())
    )  # fmt: skip
    gone = {name for name, each in before.items() if each["node"] == lost.node_id}
    assert gone
    for name in gone:
        os.kill(before[name]["pid"], signal.SIGKILL)
    began_s = time.monotonic()
    on_ray.nodes.remove_node(lost, allow_graceful=False)
    wait_until(lambda: elsewhere(on_ray.serving(), gone, lost.node_id), 120)
    took_s = time.monotonic() - began_s
    print(f"a node killed with {len(gone)} leaves: all serve elsewhere after {took_s:.1f} s")
    assert took_s < READY_WITHIN_S
    wait_until(lambda: [len(nodes) for nodes in nodes_of(on_ray.serving(), 2)] == [2, 2])
    known()


def elsewhere(processes: Mapping[str, Mapping[str, Any]], names: set[str], node: str) -> bool:
    return names <= processes.keys() and all(processes[name]["node"] != node for name in names)


def test_the_number_of_groups_doubles(on_ray: OnRay, traffic: Traffic) -> None:
    on_ray.nodes.add_node(**NODE)
    on_ray.up(4, 2)
    assert sorted(on_ray.serving()) == sorted(
        [f"leaf-{group}-of-4-row-{row}" for group in range(4) for row in range(2)] + ["root-row-0"]
    )


def test_processes_that_cannot_start_are_told(on_ray: OnRay, root: str) -> None:
    told = on_ray.run(
        "up", "--store", "/nowhere", "--groups", "1", "--rows", "1", "--roots", "1", "--leaf-cpus", "0.1",
        name="broken", code=4,
    )  # fmt: skip
    assert "does not start" in told
    # No process is opened to the network unless that is said.
    assert "--insecure" in told
    on_ray.run("down", name="broken")
    assert [each for each in live_placements() if "/broken/" in each] == []
    # Ray goes on with the other cluster.
    assert "root-row-0" in on_ray.serving()


def test_all_ends(on_ray: OnRay, root: str) -> None:
    pids = [each["pid"] for each in on_ray.serving().values()]
    on_ray.run("down")
    assert on_ray.serving() == {}
    assert [name for name in live_placements() if f"/{NAME}/" in name] == []
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def known() -> None:
    """Wait until the root asks a leaf that is back."""
    time.sleep(7)

"""A cluster that follows its load, while leaves, the command and Ray's head come and go."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from tests.bridges.ray.on_ray import NODE, OnRay, ask, running_ray
from tests.cluster.processes import Traffic, children_of, wait_until


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRay]:
    with running_ray(tmp_path_factory.mktemp("ray"), [{**NODE, "num_cpus": 0}, NODE, NODE]) as running:
        yield running


class Autoscaler:
    """The command, and what it says."""

    def __init__(self, on_ray: OnRay, *options: str) -> None:
        self.said: list[str] = []
        self.process: subprocess.Popen[str] = on_ray.started("autoscale", *options)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.strip())

    def has_said(self, text: str) -> bool:
        """Return whether it has said something."""
        return any(text in line for line in self.said)


@pytest.fixture
def autoscaler(on_ray: OnRay) -> Iterator[Autoscaler]:
    on_ray.up(2, 1)
    running = Autoscaler(
        on_ray, "--min-rows", "1", "--max-rows", "2", "--target-load", "0.02", "--every", "3", "--shrink-after", "6",
    )  # fmt: skip
    try:
        yield running
    finally:
        running.process.terminate()
        assert running.process.wait(60) == 0
        print("\n".join(running.said))


def rows(on_ray: OnRay) -> int:
    return sum(name.startswith("leaf-0-of-2-") for name in on_ray.serving())


def test_rows_follow_the_load(on_ray: OnRay, autoscaler: Autoscaler) -> None:
    address = on_ray.serving()["root-row-0"]["address"]
    wait_until(lambda: autoscaler.has_said("1 rows stay"))
    with Traffic(address, ask, rate=1000) as busy:
        wait_until(lambda: autoscaler.has_said("2 rows serve"), 120)
        assert rows(on_ray) == 2
    assert busy.failures == []
    with Traffic(address, ask, rate=4) as idle:
        wait_until(lambda: autoscaler.has_said("1 rows serve"), 120)
        time.sleep(1)
    assert idle.failures == []
    assert rows(on_ray) == 1
    print(f"{len(busy.answers)} searches while rows were added, {len(idle.answers)} while they were removed")


def test_what_talks_to_ray_is_started_again(on_ray: OnRay, autoscaler: Autoscaler) -> None:
    wait_until(lambda: autoscaler.has_said("1 rows stay"))
    # As Ray does to processes that have lost its head.
    for pid in children_of(autoscaler.process.pid):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: autoscaler.has_said("Ray is asked again"))
    autoscaler.said.clear()
    wait_until(lambda: autoscaler.has_said("1 rows stay"))


def test_a_cluster_that_was_ended_stays_so(on_ray: OnRay, autoscaler: Autoscaler) -> None:
    wait_until(lambda: autoscaler.has_said("1 rows stay"))
    on_ray.run("down")
    wait_until(lambda: autoscaler.has_said("no cluster"))
    assert on_ray.serving() == {}
    on_ray.up(2, 1)
    autoscaler.said.clear()
    wait_until(lambda: autoscaler.has_said("1 rows stay"))

"""The command on some nodes of Ray in this machine, and what it says of the cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

import scannery
from tests.data import ROOT
from tests.served import DIMENSIONS, make_library_store

__all__ = ["NAME", "NODE", "OnRay", "ask", "ended", "live_placements", "running_ray"]

NAME = "tested"
NODE = {"num_cpus": 4, "object_store_memory": 80 << 20, "include_dashboard": False}
QUERY = np.random.default_rng(3).standard_normal(DIMENSIONS).astype(np.float32)


def ask(client: scannery.Client) -> scannery.Hits:
    """Search exactly."""
    return client.index("library").search(QUERY, 300, exact=True, timeout_s=20)


@contextmanager
def running_ray(folder: Path, nodes: Sequence[dict[str, Any]]) -> Iterator[OnRay]:
    """Run nodes, of which the first is the head, and connect this process to them."""
    store = make_library_store(folder)
    cluster = Cluster(initialize_head=True, head_node_args=nodes[0])
    try:
        for node in nodes[1:]:
            cluster.add_node(**node)
        ray.init(cluster.address, namespace=f"scannery/{NAME}", log_to_driver=False)
        yield OnRay(cluster, store)
    finally:
        ray.shutdown()
        cluster.shutdown()


class OnRay:
    """The command, and what it says of the cluster."""

    def __init__(self, nodes: Cluster, store: Path) -> None:
        self.nodes, self._store = nodes, store

    def started(self, *arguments: str, name: str = NAME) -> subprocess.Popen[str]:
        """Start a command of `scannery cluster`."""
        return subprocess.Popen(
            [sys.executable, "-m", "scannery.cli.main", "cluster", arguments[0], "--ray", self.nodes.address,
             "--name", name, *arguments[1:]],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip

    def run(self, *arguments: str, code: int = 0, name: str = NAME) -> str:
        """Run a command of `scannery cluster` and return what it prints."""
        return ended(self.started(*arguments, name=name), code)

    def shape(self, groups: int, rows: int, *more: str) -> list[str]:
        """Return the arguments of `up`."""
        return [
            "up", "--store", str(self._store), "--groups", str(groups), "--rows", str(rows), "--roots", "1",
            "--port", "0", "--leaf-cpus", "0.5", "--root-cpus", "0.5", "--leaf-options", "--insecure",
            "--root-options", "--insecure --http off", *more,
        ]  # fmt: skip

    def up(self, groups: int, rows: int, *more: str, code: int = 0) -> str:
        """Give the cluster a shape."""
        return self.run(*self.shape(groups, rows, *more), code=code)

    def states(self) -> dict[str, Any]:
        """Return what the actors that answer tell, by name."""
        found = {}
        for name in ray.util.list_named_actors():
            try:
                found[name] = ray.get(ray.get_actor(name).state.remote(), timeout=1)
            except (ValueError, ray.exceptions.RayError):
                continue
        return found

    def processes(self) -> dict[str, dict[str, Any]]:
        """Return what runs, by name."""
        told = json.loads(self.run("status", "--json"))
        return {process["process"]: process for process in told["processes"]}

    def serving(self) -> dict[str, dict[str, Any]]:
        """Return what serves, by name, by the actors in this process: it takes milliseconds."""
        return {
            name: {"address": state.address, "node": state.node, "pid": state.process.pid}
            for name, state in self.states().items()
            if state.address
        }


def ended(process: subprocess.Popen[str], code: int = 0, timeout_s: float = 200) -> str:
    """Wait for a command, check its exit code, and return what it printed: with another code than 0, its errors."""
    try:
        printed, errors = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    assert process.returncode == code, f"{process.returncode}: {errors}"
    return printed if code == 0 else errors


def live_placements() -> list[str]:
    """Return the names of the placement groups."""
    tables = ray.util.placement_group_table().values()
    return [table["name"] for table in tables if table["state"] != "REMOVED"]

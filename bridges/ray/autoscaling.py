"""Follows the load of a cluster on Ray with the number of its rows.

What talks to Ray is a process of its own, which is started again when it ends: Ray ends processes that have lost its
head.

How many rows of leaves a load wants: quickly more, slowly less.

As the horizontal autoscaler of Kubernetes does, it compares the load with a target, leaves small differences alone, and
removes only what all of the last minutes did not want.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from scannery.bridges.ray.places import ROOTS, Shape, Slot
from scannery.runtime.errors import ConfigError, ServingError
from scannery.serving.config import LeavesConfig
from scannery.serving.process.os_calls import die_with_parent

if TYPE_CHECKING:
    from scannery.bridges.ray.ray_actors import ActorState
    from scannery.bridges.ray.ray_cluster import RayCluster
    from scannery.serving.leaves.groups import LeafInfo

__all__ = ["Autoscaling", "Limits", "Scaling", "demand_of", "follow_load", "shape_of", "wanted_rows"]


TOLERANCE = 0.1
"""Part of the target by which the load may be above it, or would be above it after a removal."""
_MOST_GROWTH = 2
"""Factor by which one decision adds rows at most: one measurement may be wrong."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Between what the number of rows is, and how fast it falls. Raises ConfigError."""

    min_rows: int
    max_rows: int
    target_load: float
    """Requests in flight of a leaf, as a part of its limit, that are wanted in the busiest group."""
    shrink_after_s: float
    """Time in which all measurements must want fewer rows before one is removed."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_rows <= self.max_rows:
            raise ConfigError(
                f"max_rows: must be at least min_rows, {max(self.min_rows, 1)}, got {self.max_rows}",
                field="max_rows",
            )
        if not 0 < self.target_load <= 1:
            raise ConfigError(
                f"target_load: must be above 0 and at most 1, got {self.target_load:g}", field="target_load"
            )


def wanted_rows(rows: int, demand: float, limits: Limits) -> int:
    """Return the number of rows for a load.

    Args:
        rows: that there are.
        demand: load of all leaves of the busiest group together: 1.5 are one leaf and a half at their limit.
        limits: the target and the bounds.

    """
    target = limits.target_load
    if demand <= rows * target * (1 + TOLERANCE):
        # With this many rows the load would not rise above the target, so that none is added again.
        target_rows = min(rows, math.ceil(demand / target - 1e-9))
    else:
        target_rows = min(math.ceil(demand / target - 1e-9), rows * _MOST_GROWTH)
    return min(max(target_rows, limits.min_rows), limits.max_rows)


class Scaling:
    """Decides from one measurement after the other."""

    def __init__(self, limits: Limits) -> None:
        """Begin without a history: for `shrink_after_s` nothing is removed."""
        self._limits = limits
        self._targets: deque[tuple[float, int]] = deque()
        """Times of measurements, and the rows that each wanted; the first one is at least `shrink_after_s` old."""

    def decide(self, now_s: float, rows: int, demand: float) -> int:
        """Return the number of rows that there should be: one less than now at least.

        Args:
            now_s: time of the measurement, by a clock that only goes forward.
            rows: that there are.
            demand: as `wanted_rows`.

        """
        target_rows = wanted_rows(rows, demand, self._limits)
        self._targets.append((now_s, target_rows))
        since_s = now_s - self._limits.shrink_after_s
        while len(self._targets) > 1 and self._targets[1][0] <= since_s:
            self._targets.popleft()
        if target_rows >= rows:
            return target_rows
        long_enough = self._targets[0][0] <= since_s
        return rows - 1 if long_enough and max(each for _, each in self._targets) < rows else rows

    def changed(self) -> None:
        """Forget the history: it was measured with another number of rows."""
        self._targets.clear()


_SAMPLE_EVERY_S = 0.25
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
_END_WITHIN_S = 20.0
_WRONG = 2
"""Exit code for what a retry does not help."""


@dataclass(frozen=True, kw_only=True)
class Autoscaling:
    """What is followed, and how. Raises ConfigError."""

    ray: str
    """Address of Ray's head."""
    name: str
    """Name of the cluster."""
    limits: Limits
    every_s: float
    """Time for which the load is measured before each decision."""
    timeout_s: float
    """Time in which new leaves must serve."""
    key_file: str = ""
    """Key file of the leaves, as their root has."""
    ca: str = ""
    """Certificate authority of the leaves, as their root has."""
    cert: str = ""
    """Certificate for leaves that ask for a certificate."""
    cert_key: str = ""
    """Private key of the certificate."""

    def __post_init__(self) -> None:
        self.leaves("127.0.0.1:1")  # checks the files

    def leaves(self, target: str) -> LeavesConfig:
        """Return the connection to leaves; raises ConfigError."""
        return LeavesConfig(
            target=target, key_file=self.key_file, ca=self.ca, cert=self.cert, cert_key=self.cert_key
        )


def follow_load(config: Autoscaling) -> int:
    """Follow the load until SIGTERM or Ctrl-C, and return the exit code."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    context, pause_s = multiprocessing.get_context("spawn"), _FIRST_PAUSE_S
    while not ended.is_set():
        began_s = time.monotonic()
        process = context.Process(target=_follow, args=(config, os.getpid()))
        process.start()
        while process.is_alive() and not ended.wait(_SAMPLE_EVERY_S):
            pass
        process.terminate()
        process.join(_END_WITHIN_S)
        process.kill()  # it hangs in a call to Ray
        process.join()
        if process.exitcode == _WRONG:
            return _WRONG
        pause_s = _FIRST_PAUSE_S if time.monotonic() - began_s > _LONGEST_PAUSE_S else pause_s
        if not ended.is_set():
            _say(f"Ray is asked again in {pause_s:g} s")
        ended.wait(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return 0


def _follow(config: Autoscaling, parent: int) -> None:
    """Follow the load as long as Ray is there: the process that talks to it."""
    from scannery.bridges.ray.ray_cluster import RayCluster

    # The parent ends this process; Ctrl-C reaches both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
    try:
        with RayCluster(config.ray, config.name) as cluster:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            with closing(_Load(config)) as load:
                _Follower(config, cluster, load).run()
    except ConfigError as error:
        _say(f"error: {error.message}")
        sys.exit(_WRONG)
    except ServingError as error:
        _say(error.message)
        sys.exit(1)
    except Exception as error:  # noqa: BLE001  Ray's errors are many
        _say(f"Ray does not answer: {' '.join(str(error).split()) or repr(error)}")
        sys.exit(1)


class _Follower:
    """Measures, decides and changes, again and again."""

    def __init__(self, config: Autoscaling, cluster: RayCluster, load: _Load) -> None:
        self._config, self._cluster, self._load = config, cluster, load
        self._scaling = Scaling(config.limits)
        self._said = ""

    def run(self) -> None:
        while True:
            try:
                self._step()
            except ServingError as error:
                # The next step tries again: what was begun is completed then.
                self._say_once(f"not changed: {error.message}")
                time.sleep(self._config.every_s)

    def _step(self) -> None:
        """Measure for some seconds, and change the cluster if that is due."""
        states = self._cluster.states()
        shape = shape_of(states)
        if shape is None:
            self._say_once(f"no cluster {self._config.name} with one number of groups runs")
            time.sleep(self._config.every_s)
            return
        demand = self._load.measured(shape.groups, self._config.every_s)
        if demand is None:
            self._say_once("the load is not known: a group has no leaf that is ready")
            return
        rows = self._scaling.decide(time.monotonic(), shape.rows, demand)
        load = f"load {demand / shape.rows:.2f} of each of {shape.rows} rows"
        if rows == shape.rows and set(shape.slots()) == states.keys():
            self._say_once(f"{rows} rows stay", f"{load}: {rows} rows stay")
            return
        self._said = ""
        _say(f"{load}: {rows} rows wanted")
        self._change(states, replace(shape, rows=rows))

    def _change(self, states: Mapping[Slot, ActorState | None], shape: Shape) -> None:
        options = {slot.team == ROOTS: state.options for slot, state in states.items() if state is not None}
        if len(options) < 2:
            raise ServingError("no root, or no leaf, tells its options")
        self._cluster.up(
            shape, leaf=options[False], root=options[True], timeout_s=self._config.timeout_s, report=_say
        )
        self._scaling.changed()
        _say(f"{shape.rows} rows serve")

    def _say_once(self, what: str, text: str = "") -> None:
        """Say something unless it was the last thing said."""
        if what != self._said:
            self._said = what
            _say(text or what)


def shape_of(slots: Iterable[Slot]) -> Shape | None:
    """Return the shape of what runs; None: nothing, or several numbers of groups, of which one is on its way."""
    slot_list = list(slots)
    groups = {slot.team.groups for slot in slot_list if slot.team != ROOTS}
    roots = [slot.row for slot in slot_list if slot.team == ROOTS]
    if len(groups) != 1 or not roots:
        return None
    rows = 1 + max(slot.row for slot in slot_list if slot.team != ROOTS)
    return Shape(groups=groups.pop(), rows=rows, roots=1 + max(roots))


def demand_of(leaves: Iterable[LeafInfo], groups: int) -> float | None:
    """Return the load of all leaves of the busiest group together, in leaves; None: it is not known of a group."""
    loads: list[list[float]] = [[] for _ in range(groups)]
    for leaf in leaves:
        if leaf.ready and leaf.groups == groups and leaf.group is not None and leaf.in_flight_limit > 0:
            loads[leaf.group].append(leaf.in_flight / leaf.in_flight_limit)
    return max(map(sum, loads)) if all(loads) else None


class _Load:
    """Asks the leaves for their load, as a root does."""

    def __init__(self, config: Autoscaling) -> None:
        from scannery.bridges.ray.ray_actors import LeavesFile
        from scannery.serving.leaves.groups import LeafGroups

        self._groups = LeafGroups(config.leaves(f"file://{LeavesFile().path}"))
        self._groups.start(0)

    def measured(self, groups: int, seconds: float) -> float | None:
        """Return the average demand of some seconds; None: it was not known at any time."""
        demands, end_s = [], time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _SAMPLE_EVERY_S))
            if (demand := demand_of(self._groups.statuses(), groups)) is not None:
                demands.append(demand)
        return sum(demands) / len(demands) if demands else None

    def close(self) -> None:
        """Close the connections."""
        self._groups.close()


def _say(text: str) -> None:
    typer.echo(text, err=True)

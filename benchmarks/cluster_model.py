"""A cluster as events: roots that choose, hedge and fail over as they do, and leaves that queue, pause, hang and die.

What is chosen is the code of the root itself: its view of leaves, latencies, windows and budgets of hedges. Modelled
are processors (a queue for some cores), times of work, the network, and what the group call does with them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from benchmarks.cluster_machines import Events, Host, Job, Process, Work, still
from scannery.serving.leaves.connector import Connector
from scannery.serving.leaves.group_call import KEPT_HEDGES
from scannery.serving.leaves.leaf import HedgeBudget, IndexState, LatencyWindow, Leaf, LeafState
from scannery.serving.leaves.view import View
from scannery.serving.leaves.watch import MISSES, STATUS_EVERY_S, STATUS_TIMEOUT_S
from scannery.v1.leaf_pb2 import At

__all__ = ["Failure", "Outcome", "Shape", "simulate"]

_AT = At(index="index", index_id="a", version=1)
_STATE = (("index", IndexState("a", 1, 0, 1, 1, "")),)
MOST_WAITING = 100_000
"""Queries in the cluster at which a simulation ends: it does not keep up."""


@dataclass(frozen=True)
class Failure:
    """A leaf that is away for a time."""

    kind: str
    """`dead`: connections are refused; `paused`: nothing answers."""
    group: int
    replica: int
    begin_s: float
    end_s: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What there is, and who asks."""

    groups: int
    replicas: int = 1
    roots: int = 1
    root_cores: int = 1
    """That a root uses at most: one for each worker, since these are processes of Python."""
    leaf_cores: int = 1
    shared_cores: int = 0
    """Number that all processes share; 0: each process has its own."""
    rate: float = 0.0
    """Queries per second that arrive at random; 0: `callers` ask one after the other."""
    callers: int = 1
    queries: int = 20_000
    hedged: bool = True
    failures: Sequence[Failure] = ()


@dataclass
class Outcome:
    """What callers saw."""

    latencies_s: list[float] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)
    failed: int = 0
    """Queries without an answer of a group."""
    calls: int = 0
    hedges: int = 0
    failovers: int = 0
    kept_up: bool = True
    """Whether queries did not pile up."""

    def quantiles_ms(self, *wanted: float) -> list[float]:
        """Return quantiles of the latencies, without the first tenth, in which roots learn."""
        after = self.latencies_s[len(self.latencies_s) // 10 :]
        return (
            [1e3 * float(each) for each in np.quantile(after, wanted)] if after else [math.nan] * len(wanted)
        )

    @property
    def rate(self) -> float:
        """Queries per second, without the first tenth."""
        first = len(self.ended_s) // 10
        took_s = self.ended_s[-1] - self.ended_s[first] if self.ended_s else 0.0
        return (len(self.ended_s) - first - 1) / took_s if took_s else 0.0


def simulate(shape: Shape, work: Work, seed: int = 0) -> Outcome:
    """Return what the callers of a cluster see; the same for the same seed."""
    # The root chooses with the module's generator.
    random.seed(seed)
    return _Simulation(shape, work).run()


class _Known(Leaf):
    """A leaf as a root knows it: the code of the root, without a connection."""

    def __init__(self, machine: _Machine, groups: int) -> None:
        super().__init__(machine.name, cast("Connector", _NoConnections()))
        self.machine = machine
        self.state = LeafState(machine.group, groups, _STATE)
        self.ready = True


class _NoConnections:
    def files(self) -> None:
        """Return nothing: there are no certificates."""

    def channel(self, address: str, files: object) -> None:
        """Return no connection."""

    http = channel


class _Machine:
    """A leaf as it is."""

    def __init__(self, name: str, group: int, process: Process) -> None:
        self.name, self.group, self.process = name, group, process
        self.dead = False
        self.attempts: set[_Attempt] = set()


@dataclass(eq=False)
class _Attempt:
    owner: _GroupCall
    leaf: _Known
    started_s: float
    job: Job | None = None


class _Root:
    """A root: what it knows of leaves, and its queue."""

    def __init__(self, simulation: _Simulation, process: Process, machines: Sequence[_Machine]) -> None:
        self.simulation, self.process = simulation, process
        groups = simulation.shape.groups
        self.leaves = [_Known(machine, groups) for machine in machines]
        self.windows = [LatencyWindow() for _ in range(groups)]
        self.budgets = [HedgeBudget() for _ in range(groups)]
        self.renew()
        for leaf in self.leaves:
            simulation.events.after(random.uniform(0, STATUS_EVERY_S), self.ask_status, leaf)

    def renew(self) -> None:
        self.view = View(self.leaves, self.simulation.shape.groups)

    def ask_status(self, leaf: _Known) -> None:
        """Ask a leaf for its status now, and again later."""
        events, machine = self.simulation.events, leaf.machine
        stopped_s = machine.process.stopped_until_s() - events.now_s
        if stopped_s > MISSES * STATUS_TIMEOUT_S:
            events.after(MISSES * STATUS_TIMEOUT_S, self.hangs, leaf)
            if stopped_s < math.inf:
                events.after(stopped_s, self.ask_status, leaf)
            return
        if machine.dead:
            self.lost(leaf, hung=False)
        else:
            was = leaf.ready
            leaf.other_calls = max(0, len(machine.attempts) - len(leaf.attempts))
            leaf.abandoned = 0
            leaf.ready, leaf.hung = True, False
            if not was:
                self.renew()
        events.after(STATUS_EVERY_S * random.uniform(0.9, 1.1), self.ask_status, leaf)

    def hangs(self, leaf: _Known) -> None:
        self.lost(leaf, hung=True)
        for attempt in tuple(leaf.attempts):
            cast("_Attempt", attempt).owner.left()

    def lost(self, leaf: _Known, *, hung: bool) -> None:
        if leaf.lost("away", hung=hung):
            self.renew()


class _GroupCall:
    """One call to one group, after `serving/leaves/group_call.py`."""

    def __init__(self, root: _Root, group: int, tell: Callable[[bool], None]) -> None:
        self._root, self._group, self._tell = root, group, tell
        self._events, self._outcome = root.simulation.events, root.simulation.outcome
        self._work = root.simulation.work
        self._window, self._budget = root.windows[group], root.budgets[group]
        self._started_s = self._events.now_s
        self._tried: set[Leaf] = set()
        self._running: set[_Attempt] = set()
        self._ended = False

    def begin(self) -> None:
        self._budget.save()
        self._outcome.calls += 1
        if not self._ask_another():
            self._end(answered=False)
        elif self._root.simulation.shape.hedged and len(self._root.view.by_group[self._group]) > 1:
            self._wait(self._window.slow_after_s)

    def left(self) -> None:
        if not self._ended and len(self._running) == 1 and self._ask_another():
            self._outcome.failovers += 1

    def _wait(self, delay_s: float, *, again: bool = False) -> None:
        # Loops count milliseconds.
        self._events.after(math.ceil(delay_s * 1000 + 1) / 1000, self._slow, delay_s, again)

    def _slow(self, delay_s: float, again: bool) -> None:
        if self._ended or self._next() is None:
            return
        if not self._budget.take(keep=0 if again else KEPT_HEDGES):
            self._wait(2 * delay_s, again=True)
            return
        self._outcome.hedges += 1
        self._ask_another()

    def _next(self) -> Leaf | None:
        return self._root.view.choose(
            self._group, self._root.view.groups, _AT, self._tried, self._events.now_s
        )

    def _ask_another(self) -> bool:
        leaf = cast("_Known | None", self._next())
        if leaf is None:
            return False
        attempt = _Attempt(self, leaf, self._events.now_s)
        self._tried.add(leaf)
        self._running.add(attempt)
        leaf.attempts.add(cast("Any", attempt))
        self._events.after(self._root.simulation.hop_s(), self._arrives, attempt)
        return True

    def _arrives(self, attempt: _Attempt) -> None:
        machine = attempt.leaf.machine
        if machine.dead:
            self._events.after(self._root.simulation.hop_s(), self.failed, attempt)
            return
        machine.attempts.add(attempt)
        attempt.job = machine.process.run(self._root.simulation.leaf_s(), lambda: self._computed(attempt))
        attempt.job.cancelled = self._ended

    def _computed(self, attempt: _Attempt) -> None:
        attempt.leaf.machine.attempts.discard(attempt)
        if not attempt.leaf.machine.dead:
            self._events.after(self._root.simulation.hop_s(), self._answered, attempt)

    def _answered(self, attempt: _Attempt) -> None:
        self._forget(attempt)
        if self._ended:
            return
        now_s = self._events.now_s
        attempt.leaf.answered(now_s - attempt.started_s, now_s)
        self._window.add(now_s - self._started_s)
        for slower in self._running:
            slower.leaf.abandoned += 1
            slower.leaf.average.add(now_s - slower.started_s, now_s)
        self._end(answered=True)

    def failed(self, attempt: _Attempt) -> None:
        """Go on after the connection of a call was lost."""
        self._forget(attempt)
        self._root.lost(attempt.leaf, hung=False)
        if self._ended:
            return
        if self._ask_another():
            self._outcome.failovers += 1
        elif not self._running:
            self._end(answered=False)

    def _forget(self, attempt: _Attempt) -> None:
        self._running.discard(attempt)
        attempt.leaf.attempts.discard(cast("Any", attempt))

    def _end(self, *, answered: bool) -> None:
        self._ended = True
        for attempt in tuple(self._running):
            self._forget(attempt)
            attempt.leaf.machine.attempts.discard(attempt)
            if attempt.job is not None:
                attempt.job.cancelled = True
        self._tell(answered)


class _Simulation:
    def __init__(self, shape: Shape, work: Work) -> None:
        self.shape, self.work = shape, work
        self.events, self.outcome = Events(), Outcome()
        self._asked = self._open = 0
        sigma2 = math.log(1 + work.variation**2)
        self._spread = -sigma2 / 2, math.sqrt(sigma2)
        shared = Host(self.events, shape.shared_cores) if shape.shared_cores else None
        self._callers = Process(
            self.events, shared or Host(self.events, shape.callers), still(work), shape.callers
        )
        machines = [
            self._machine(group, replica, shared)
            for replica in range(shape.replicas)
            for group in range(shape.groups)
        ]
        self._roots = [
            _Root(
                self,
                Process(
                    self.events, shared or Host(self.events, shape.root_cores), still(work), shape.root_cores
                ),
                machines,
            )
            for _ in range(shape.roots)
        ]

    def hop_s(self) -> float:
        return self.work.hop_s * random.lognormvariate(*self._spread)

    def leaf_s(self) -> float:
        return self.work.leaf_s * random.lognormvariate(*self._spread)

    def run(self) -> Outcome:
        for _ in range(1 if self.shape.rate else self.shape.callers):
            self._arrive()
        while len(self.outcome.ended_s) + self.outcome.failed < self.shape.queries and self.events.step():
            if self._open > MOST_WAITING:
                self.outcome.kept_up = False
                break
        return self.outcome

    def _machine(self, group: int, replica: int, shared: Host | None) -> _Machine:
        away = [each for each in self.shape.failures if (each.group, each.replica) == (group, replica)]
        host = shared or Host(self.events, self.shape.leaf_cores)
        stops = [(each.begin_s, each.end_s) for each in away if each.kind == "paused"]
        machine = _Machine(
            f"{group}/{replica}", group, Process(self.events, host, self.work, self.shape.leaf_cores, stops)
        )
        for each in away:
            if each.kind == "dead":
                self.events.after(each.begin_s, self._dies, machine)
                self.events.after(each.end_s, self._returns, machine)
        return machine

    def _dies(self, machine: _Machine) -> None:
        machine.dead = True
        for attempt in tuple(machine.attempts):
            attempt.owner.failed(attempt)
        machine.attempts.clear()

    def _returns(self, machine: _Machine) -> None:
        machine.dead = False

    def _arrive(self) -> None:
        if self._asked == self.shape.queries:
            return
        self._asked += 1
        self._open += 1
        if self.shape.rate:
            self.events.after(random.expovariate(self.shape.rate), self._arrive)
        root, began_s = self._roots[self._asked % len(self._roots)], self.events.now_s
        asked = _Query(self, root, began_s)
        self._callers.run(self.work.caller_s / 2, asked.leaves_caller)

    def ended(self, began_s: float, answered: bool) -> None:
        """Count a query whose answer has arrived at its caller."""
        self._open -= 1
        if answered:
            self.outcome.latencies_s.append(self.events.now_s - began_s)
            self.outcome.ended_s.append(self.events.now_s)
        else:
            self.outcome.failed += 1
        if not self.shape.rate:
            self._arrive()

    def back(self, began_s: float, answered: bool) -> None:
        """Bring an answer to its caller."""
        self.events.after(self.hop_s(), self._at_caller, began_s, answered)

    def _at_caller(self, began_s: float, answered: bool) -> None:
        self._callers.run(self.work.caller_s / 2, lambda: self.ended(began_s, answered))


class _Query:
    """A query at its root."""

    def __init__(self, simulation: _Simulation, root: _Root, began_s: float) -> None:
        self._simulation, self._root, self._began_s = simulation, root, began_s
        self._missing = simulation.shape.groups
        self._failed = False
        work = simulation.work
        self._half_s = (work.root_s + work.root_group_s * simulation.shape.groups) / 2

    def leaves_caller(self) -> None:
        self._simulation.events.after(self._simulation.hop_s(), self._at_root)

    def _at_root(self) -> None:
        self._root.process.run(self._half_s, self._ask)

    def _ask(self) -> None:
        for group in range(self._simulation.shape.groups):
            _GroupCall(self._root, group, self._told).begin()

    def _told(self, answered: bool) -> None:
        self._missing -= 1
        if not answered and not self._failed:
            self._failed = True
            self._simulation.back(self._began_s, False)
        elif not self._missing and not self._failed:
            self._root.process.run(self._half_s, lambda: self._simulation.back(self._began_s, True))

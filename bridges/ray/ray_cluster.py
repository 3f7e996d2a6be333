"""Starts, changes and ends the processes of a cluster on Ray.

Ray's control store is the only record: detached actors and placement groups, whose names say what they are. Ray
restarts actors and moves them to other nodes; this module only creates what is absent, and ends what is too much.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from scannery.bridges.ray.places import ROOTS, PlacementGroups, Shape, Slot, Team, Turn, turn
from scannery.bridges.ray.ray_actors import ActorState, ServeOptions, ServerActor
from scannery.runtime.errors import ConfigError, UnavailableError

__all__ = ["RayCluster"]

_ANSWER_WITHIN_S = 2.0
_ANSWER_BEFORE_END_S = 10.0
"""Time for an answer of an actor before its server is ended: one that waits for a node, or hangs, gives none."""
_CONNECT_WITHIN_S = 10.0
_LOOK_EVERY_S = 0.3
_FAILED_STARTS = 3
SETTLE_S = 8.0
"""Time in which a root uses the leaves that its file has: it reads each five seconds, and asks new leaves."""
_STOP_WITHIN_S = 60.0
_LOCAL_ADDRESSES = ("", "local")
"""What Ray takes for a new Ray of its own, which would end with the command."""


class RayCluster:
    """The processes of one cluster. Use it as a context manager."""

    def __init__(self, address: str, name: str) -> None:
        """Connect to Ray.

        Args:
            address: of Ray's head, or `auto`.
            name: of this cluster; several may run on the same nodes.

        Raises:
            ConfigError: Ray is not installed, or the address names none.
            UnavailableError: Ray is not there.

        """
        if address in _LOCAL_ADDRESSES:
            raise ConfigError(f"ray: must be an address or `auto`, got {address!r}", field="ray")
        _check_reachable(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise ConfigError("ray: install scannery[ray]", field="ray") from error
        self._ray: Any = ray
        self._name = name
        try:
            ray.init(address, namespace=f"scannery/{name}", log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UnavailableError(f"Ray at {address} does not answer: {error}", retry_after_s=1) from error
        self._placements = PlacementGroups(ray, name)
        self._created: dict[Slot, Any] = {}

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def states(
        self, slots: Iterable[Slot] | None = None, *, within_s: float = _ANSWER_WITHIN_S
    ) -> dict[Slot, ActorState | None]:
        """Return what runs, by slot; None: it waits for a node, starts again, or has not answered in time."""
        handles = {slot: self._actor(slot) for slot in (self._slots() if slots is None else slots)}
        calls = {slot: handle.state.remote() for slot, handle in handles.items() if handle is not None}
        if calls:
            self._ray.wait(list(calls.values()), num_returns=len(calls), timeout=within_s)
        return {slot: self._answer(calls.get(slot)) for slot in handles}

    def up(
        self,
        shape: Shape,
        *,
        leaf: ServeOptions,
        root: ServeOptions,
        timeout_s: float,
        report: Callable[[str], None],
    ) -> None:
        """Give the cluster a shape: start what is absent, wait until it serves, then end what is too much.

        Args:
            shape: groups, rows and roots.
            leaf: options of all leaves.
            root: options of all roots.
            timeout_s: time in which all must serve. What does not is left as it is: Ray goes on trying.
            report: called with what is done.

        Raises:
            ConfigError: processes run with other options.
            UnavailableError: processes cannot start, or not in time, or another command changes the cluster.

        """
        end_s = time.monotonic() + timeout_s
        with turn(self._ray, self._name) as mine:
            before = self.states()
            expectation = _Expectation(leaf, root, end_s, mine)
            expectation.check_options(before)
            self._placements.check({slot.team: expectation.options(slot.team).cpus for slot in shape.slots()})
            self._retire([slot for slot in before if slot in shape.slots()], retired=False)
            for slots, options in ((shape.leaves(), leaf), (shape.root_slots(), root)):
                absent = [slot for slot in slots if slot not in before]
                report(f"{len(absent)} of {len(slots)} {_kind(slots[0].team)} to be started")
                self._create(absent, options)
                self._wait(slots, expectation)
            surplus = sorted(before.keys() - set(shape.slots()))
            if surplus:
                # New leaves must be known before old ones go.
                self._wait_for_roots(shape, expectation)
                report(f"{len(surplus)} to be ended: {', '.join(map(str, surplus))}")
                self._retire([slot for slot in surplus if slot.team != ROOTS], retired=True)
                self._wait_for_roots(shape, expectation)
                self._end(surplus)
            self._placements.release(self._slots())

    def down(self) -> int:
        """End all processes, roots first, and return how many there were; an `up` that runs is ended, too."""
        ended: set[Slot] = set()
        with turn(self._ray, self._name, take=True):
            # Again, since an `up` may have started one more before it noticed.
            while slots := self._slots():
                self._end([slot for slot in slots if slot.team == ROOTS])
                self._end([slot for slot in slots if slot.team != ROOTS])
                ended.update(slots)
            self._placements.release([])
        return len(ended)

    def _slots(self) -> list[Slot]:
        slots = (Slot.named(name) for name in self._ray.util.list_named_actors())
        return sorted(slot for slot in slots if slot is not None)

    def _actor(self, slot: Slot) -> Any:
        try:
            return self._ray.get_actor(str(slot))
        except ValueError:  # it ended a moment ago
            return None

    def _answer(self, reference: Any) -> ActorState | None:
        if reference is None:
            return None
        try:
            state: ActorState = self._ray.get(reference, timeout=0)
        except self._ray.exceptions.RayError:  # GetTimeoutError is one, too
            return None
        return state

    def _create(self, absent: Sequence[Slot], options: ServeOptions) -> None:
        """Start the slots of each team on different nodes if there are enough."""
        for team in sorted({slot.team for slot in absent}):
            rows = [slot.row for slot in absent if slot.team == team]
            for placement, reserved in self._placements.of(team, rows, options.cpus):
                for row in sorted(set(rows) & set(reserved)):
                    self._start(Slot(team, row), options, placement, reserved.index(row))

    def _start(self, slot: Slot, options: ServeOptions, placement: Any, bundle: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self._ray.remote(ServerActor).options(
            name=str(slot), lifetime="detached", max_restarts=-1, num_cpus=options.cpus, max_concurrency=4,
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement, placement_group_bundle_index=bundle),
        )  # fmt: skip
        self._created[slot] = actor.remote(str(slot), options)

    def _wait(self, slots: Sequence[Slot], expectation: _Expectation) -> None:
        """Return when all serve."""
        while True:
            expectation.turn.check()
            states = self.states(slots)
            expectation.check_options(states)
            _check_starts(states)
            for slot, state in states.items():
                if state is None and self._actor(slot) is None:
                    raise UnavailableError(f"{slot} has ended: {self._end_of(slot)}", retry_after_s=1)
            missing = [str(slot) for slot, state in states.items() if state is None or not state.address]
            if not missing:
                return
            expectation.pause(f"not serving yet: {', '.join(missing)}; Ray goes on trying")

    def _end_of(self, slot: Slot) -> str:
        """Return why an actor ended for ever, as far as Ray says."""
        if slot not in self._created:
            return "another command has ended it"
        try:
            self._ray.get(self._created[slot].state.remote(), timeout=_ANSWER_WITHIN_S)
        except self._ray.exceptions.RayError as error:
            return str(error).strip().splitlines()[-1]
        return "Ray does not say why"

    def _wait_for_roots(self, shape: Shape, expectation: _Expectation) -> None:
        """Return when roots ask those leaves of the shape that serve, and none that is retired."""
        while True:
            expectation.turn.check()
            states = self.states()
            leaves = {state.address for slot, state in states.items() if slot in shape.leaves() and state}
            roots = [slot for slot in states if slot in shape.root_slots()]
            gone = {state.address for state in states.values() if state and state.retired}
            behind = [str(slot) for slot in roots if not _asks(states[slot], leaves - {""}, gone - {""})]
            if not behind:
                time.sleep(SETTLE_S)
                return
            expectation.pause(f"not known yet to {', '.join(behind)}: the leaves that have changed")

    def _retire(self, slots: Sequence[Slot], *, retired: bool) -> None:
        """Have roots leave these leaves, or use them again."""
        handles = [self._actor(slot) for slot in slots if slot.team != ROOTS]
        calls = [handle.retire.remote(retired) for handle in handles if handle is not None]
        if calls:
            self._ray.wait(calls, num_returns=len(calls), timeout=_ANSWER_WITHIN_S)

    def _end(self, slots: Sequence[Slot]) -> None:
        """Let running requests end, then end the processes and their actors."""
        answers = self.states(slots, within_s=_ANSWER_BEFORE_END_S) if slots else {}
        handles = {slot: handle for slot in slots if (handle := self._actor(slot)) is not None}
        stopping = [handle.stop.remote() for slot, handle in handles.items() if answers[slot] is not None]
        if stopping:
            self._ray.wait(stopping, num_returns=len(stopping), timeout=_STOP_WITHIN_S)
        for handle in handles.values():
            self._ray.kill(handle, no_restart=True)


@dataclass(frozen=True)
class _Expectation:
    """What an `up` waits for, and until when."""

    leaf: ServeOptions
    root: ServeOptions
    end_s: float
    turn: Turn

    def options(self, team: Team) -> ServeOptions:
        """Return the options of a team."""
        return self.root if team == ROOTS else self.leaf

    def check_options(self, states: Mapping[Slot, ActorState | None]) -> None:
        """Raise ConfigError if a process was started with other options."""
        for slot, state in states.items():
            if state is not None and state.options != self.options(slot.team):
                raise ConfigError(
                    f"{slot} runs with other options: end the cluster first, or give another name",
                    field="options",
                )

    def pause(self, problem: str) -> None:
        """Wait a moment; raise UnavailableError if the time is over."""
        if time.monotonic() > self.end_s:
            raise UnavailableError(problem, retry_after_s=1)
        time.sleep(_LOOK_EVERY_S)


def _asks(root: ActorState | None, leaves: AbstractSet[str], gone: AbstractSet[str]) -> bool:
    """Return whether the file of a root has all of some addresses, and none of others."""
    return root is not None and leaves - gone <= set(root.leaves) and not gone & set(root.leaves)


def _check_starts(states: Mapping[Slot, ActorState | None]) -> None:
    """Raise if a process ends again and again before it serves."""
    for slot, state in states.items():
        if state is not None and state.process.failures >= _FAILED_STARTS:
            raise UnavailableError(f"{slot} does not start: {state.process.problem}", retry_after_s=1)


def _check_reachable(address: str) -> None:
    """Raise UnavailableError if nothing listens at `host:port`: Ray itself tries that for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return  # Ray finds the place itself
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise UnavailableError(f"Ray at {address} does not answer: {error}", retry_after_s=1) from error


def _kind(team: Team) -> str:
    return "roots" if team == ROOTS else "leaves"

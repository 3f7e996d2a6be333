"""Starts, changes and ends the processes of a cluster on Ray.

Ray's control store is the only record: detached actors and placement groups, whose names say what they are. Ray
restarts actors and moves them to other nodes; this module only creates what is absent, and ends what is too much.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from scannery.cli.placement.ray_actors import ActorState, ServeOptions, ServerActor
from scannery.cli.placement.slots import ROOTS, Shape, Slot, Team, placement_name, placement_of
from scannery.runtime.errors import ConfigError, UnavailableError

__all__ = ["RayCluster"]

_ANSWER_WITHIN_S = 2.0
_LOOK_EVERY_S = 0.3
_FAILED_STARTS = 3
SETTLE_S = 8.0
"""Time in which all roots notice a change of the leaves: actors look each second, roots read each five seconds."""
_STOP_WITHIN_S = 60.0


class RayCluster:
    """The processes of one cluster. Use it as a context manager."""

    def __init__(self, address: str, name: str) -> None:
        """Connect to Ray.

        Args:
            address: of Ray's head, or `auto`.
            name: of this cluster; several may run on the same nodes.

        Raises:
            ConfigError: Ray is not installed.
            UnavailableError: Ray is not there.

        """
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

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def states(self, slots: Iterable[Slot] | None = None) -> dict[Slot, ActorState | None]:
        """Return what runs, by slot; None: it waits for a node, or starts again."""
        handles = {slot: self._actor(slot) for slot in (self._slots() if slots is None else slots)}
        asked = {slot: handle.state.remote() for slot, handle in handles.items() if handle is not None}
        if asked:
            self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_WITHIN_S)
        return {slot: self._answer(asked.get(slot)) for slot in handles}

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
            UnavailableError: processes cannot start, or not in time.

        """
        end_s = time.monotonic() + timeout_s
        before = self.states()
        _check_options(before, leaf, root)
        for slots, options in ((shape.leaves(), leaf), (shape.root_slots(), root)):
            absent = [slot for slot in slots if slot not in before]
            report(f"{len(absent)} of {len(slots)} {_kind(slots[0].team)} to be started")
            self._create(absent, options)
            self._wait(slots, end_s)
        surplus = sorted(before.keys() - {*shape.leaves(), *shape.root_slots()})
        if surplus:
            # New leaves must be known before old ones go.
            time.sleep(SETTLE_S)
            report(f"{len(surplus)} to be ended: {', '.join(map(str, surplus))}")
            self._retire(surplus)
        self._release()

    def down(self) -> int:
        """End all processes, roots first, and return how many there were."""
        slots = self._slots()
        roots = [slot for slot in slots if slot.team == ROOTS]
        self._end(roots)
        self._end([slot for slot in slots if slot.team != ROOTS])
        self._release()
        return len(slots)

    def _slots(self) -> list[Slot]:
        found = (Slot.named(name) for name in self._ray.util.list_named_actors())
        return sorted(slot for slot in found if slot is not None)

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
        teams = sorted({slot.team for slot in absent})
        for team in teams:
            rows = [slot.row for slot in absent if slot.team == team]
            placements = self._placements(team)
            free = {row for _, reserved in placements for row in reserved}
            if new := [row for row in rows if row not in free]:
                placements.append((self._reserve(team, new, options.cpus), new))
            for placement, reserved in placements:
                for row in sorted(set(rows) & set(reserved)):
                    self._start(Slot(team, row), options, placement, reserved.index(row))

    def _start(self, slot: Slot, options: ServeOptions, placement: Any, bundle: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self._ray.remote(ServerActor).options(
            name=str(slot), lifetime="detached", max_restarts=-1, num_cpus=options.cpus, max_concurrency=4,
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement, placement_group_bundle_index=bundle),
        )  # fmt: skip
        actor.remote(str(slot), options)

    def _reserve(self, team: Team, rows: Sequence[int], cpus: float) -> Any:
        """Make a placement group with a bundle for each row, if possible on nodes that the team does not use."""
        nodes = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        others = nodes - self._used_nodes(team)
        apart = len(others) >= len(rows)
        selector = {"ray.io/node-id": f"!in({','.join(sorted(nodes - others))})"}
        return self._ray.util.placement_group(
            [{"CPU": cpus}] * len(rows),
            strategy="STRICT_SPREAD" if apart else "SPREAD",
            name=placement_name(self._name, team, rows),
            lifetime="detached",
            bundle_label_selector=[selector] * len(rows) if apart and others != nodes else None,
        )

    def _used_nodes(self, team: Team) -> set[str]:
        """Return the nodes on which a team has places."""
        return {
            node
            for table in self._tables()
            if (found := placement_of(self._name, table["name"])) and found[0] == team
            for node in table["bundles_to_node_id"].values()
        }

    def _placements(self, team: Team | None = None) -> list[tuple[Any, Sequence[int]]]:
        """Return the placement groups of a team, or of all, with their rows."""
        found = []
        for table in self._tables():
            placed = placement_of(self._name, table["name"])
            if placed is not None and team in (None, placed[0]):
                found.append((self._ray.util.get_placement_group(table["name"]), placed[1]))
        return found

    def _tables(self) -> list[dict[str, Any]]:
        return [
            table for table in self._ray.util.placement_group_table().values() if table["state"] != "REMOVED"
        ]

    def _wait(self, slots: Sequence[Slot], end_s: float) -> None:
        """Return when all serve."""
        while True:
            states = self.states(slots)
            _check_starts(states)
            missing = [str(slot) for slot, state in states.items() if state is None or not state.address]
            if not missing:
                return
            if time.monotonic() > end_s:
                raise UnavailableError(
                    f"not serving yet: {', '.join(missing)}; Ray goes on trying", retry_after_s=1
                )
            time.sleep(_LOOK_EVERY_S)

    def _retire(self, slots: Sequence[Slot]) -> None:
        """Have roots leave these leaves, and end them when all have."""
        handles = [self._actor(slot) for slot in slots if slot.team != ROOTS]
        asked = [handle.retire.remote() for handle in handles if handle is not None]
        if asked:
            self._ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_WITHIN_S)
            time.sleep(SETTLE_S)
        self._end(slots)

    def _end(self, slots: Sequence[Slot]) -> None:
        """Let running requests end, then end the processes and their actors."""
        handles = [handle for slot in slots if (handle := self._actor(slot)) is not None]
        stopping = [handle.stop.remote() for handle in handles]
        if stopping:
            self._ray.wait(stopping, num_returns=len(stopping), timeout=_STOP_WITHIN_S)
        for handle in handles:
            self._ray.kill(handle, no_restart=True)

    def _release(self) -> None:
        """Give back the places of teams of which nothing runs any more."""
        running = set(self._slots())
        for table in self._tables():
            placed = placement_of(self._name, table["name"])
            if placed is None or any(Slot(placed[0], row) in running for row in placed[1]):
                continue
            with suppress(ValueError):  # another command was quicker
                self._ray.util.remove_placement_group(self._ray.util.get_placement_group(table["name"]))


def _check_options(states: Mapping[Slot, ActorState | None], leaf: ServeOptions, root: ServeOptions) -> None:
    for slot, state in states.items():
        wanted = root if slot.team == ROOTS else leaf
        if state is not None and state.options != wanted:
            raise ConfigError(
                f"{slot} runs with other options: end the cluster first, or give another name",
                field="options",
            )


def _check_starts(states: Mapping[Slot, ActorState | None]) -> None:
    """Raise if a process ends again and again before it serves."""
    for slot, state in states.items():
        if state is not None and state.process.failures >= _FAILED_STARTS:
            raise UnavailableError(f"{slot} does not start: {state.process.problem}", retry_after_s=1)


def _kind(team: Team) -> str:
    return "roots" if team == ROOTS else "leaves"

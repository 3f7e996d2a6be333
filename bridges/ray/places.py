"""The places of a cluster's processes on Ray's nodes, and the turn of the command that changes them.

A **team** are the processes that do the same: the leaves of one group, or the roots. A **slot** is the place of one of
them: its row in the team. The names of actors and placement groups tell what is there: no other record is kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from scannery.runtime.errors import ConfigError, UnavailableError

__all__ = [
    "ROOTS",
    "PlacementGroups",
    "Shape",
    "Slot",
    "Team",
    "Turn",
    "placement_name",
    "placement_of",
    "turn",
]


_TEAM = r"(?:root|leaf-(?P<group>\d+)-of-(?P<groups>\d+))"
_SLOT = re.compile(rf"{_TEAM}-row-(?P<row>\d+)")
_PLACEMENT = re.compile(rf"{_TEAM}-rows-(?P<rows>\d+(?:-\d+)*)")


@dataclass(frozen=True, order=True)
class Team:
    """Processes that do the same."""

    groups: int
    """Number of groups; 0: these are the roots."""
    group: int

    def __str__(self) -> str:
        return f"leaf-{self.group}-of-{self.groups}" if self.groups else "root"


ROOTS = Team(0, 0)


@dataclass(frozen=True, order=True)
class Slot:
    """The place of a process."""

    team: Team
    row: int

    def __str__(self) -> str:
        return f"{self.team}-row-{self.row}"

    @classmethod
    def named(cls, name: str) -> Slot | None:
        """Return the slot of a name; None: it is the name of something else."""
        match = _SLOT.fullmatch(name)
        return cls(_team(match), int(match["row"])) if match else None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How many processes a cluster has. Raises ConfigError."""

    groups: int
    rows: int
    """Leaves of each group."""
    roots: int

    def __post_init__(self) -> None:
        for name in ("groups", "rows", "roots"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}", field=name)

    def leaves(self) -> list[Slot]:
        """Return the slots of all leaves, group by group."""
        return [
            Slot(Team(self.groups, group), row) for group in range(self.groups) for row in range(self.rows)
        ]

    def root_slots(self) -> list[Slot]:
        """Return the slots of all roots."""
        return [Slot(ROOTS, row) for row in range(self.roots)]

    def slots(self) -> list[Slot]:
        """Return the slots of all processes."""
        return [*self.leaves(), *self.root_slots()]


def placement_name(cluster: str, team: Team, rows: Iterable[int]) -> str:
    """Return the name of a placement group, which has a bundle for each row; names of all clusters share one space."""
    return f"scannery/{cluster}/{team}-rows-{'-'.join(map(str, rows))}"


def placement_of(cluster: str, name: str) -> tuple[Team, Sequence[int]] | None:
    """Return team and rows of a placement group, by its name; None: it is none of this cluster."""
    head = f"scannery/{cluster}/"
    match = _PLACEMENT.fullmatch(name.removeprefix(head)) if name.startswith(head) else None
    return (_team(match), [int(row) for row in match["rows"].split("-")]) if match else None


def _team(match: re.Match[str]) -> Team:
    return Team(int(match["groups"] or 0), int(match["group"] or 0))


class PlacementGroups:
    """The placement groups of one cluster."""

    def __init__(self, ray: Any, cluster: str) -> None:
        """Keep what Ray is asked with.

        Args:
            ray: the module, connected.
            cluster: name of the cluster.

        """
        self._ray, self._cluster = ray, cluster

    def of(self, team: Team, rows: Sequence[int], cpus: float) -> list[tuple[Any, Sequence[int]]]:
        """Return placement groups with places for all rows of a team, each with its rows; what is absent is made."""
        groups = [
            (self._ray.util.get_placement_group(table["name"]), reserved)
            for table, reserved in self._tables(team)
            if set(rows) & set(reserved)
        ]
        free = {row for _, reserved in groups for row in reserved}
        if new := [row for row in rows if row not in free]:
            groups.append((self._reserve(team, new, cpus), new))
        return groups

    def check(self, cpus: Mapping[Team, float]) -> None:
        """Raise ConfigError if other processors are reserved for each process of a team, which may not run yet."""
        for team, needed in cpus.items():
            for table, _ in self._tables(team):
                _check_cpus(team, table, needed)

    def release(self, running: Iterable[Slot]) -> None:
        """Give back the places of which nothing runs any more."""
        kept = set(running)
        for table, rows in self._tables():
            placed = placement_of(self._cluster, table["name"])
            assert placed is not None
            if not any(Slot(placed[0], row) in kept for row in rows):
                with suppress(ValueError):  # another command was quicker
                    self._ray.util.remove_placement_group(self._ray.util.get_placement_group(table["name"]))

    def _reserve(self, team: Team, rows: Sequence[int], cpus: float) -> Any:
        """Make a placement group with a bundle for each row, if possible on nodes that the team does not use."""
        nodes = {
            node["NodeID"]
            for node in self._ray.nodes()
            # Others, as a head without processors, have no place however long one waits.
            if node["Alive"] and node["Resources"].get("CPU", 0) >= cpus
        }
        used = self._used_nodes(team)
        apart = len(nodes - used) >= len(rows)
        selector = {"ray.io/node-id": f"!in({','.join(sorted(used))})"}
        return self._ray.util.placement_group(
            [{"CPU": cpus}] * len(rows),
            strategy="STRICT_SPREAD" if apart else "SPREAD",
            name=placement_name(self._cluster, team, rows),
            lifetime="detached",
            bundle_label_selector=[selector] * len(rows) if apart and used else None,
        )

    def _used_nodes(self, team: Team) -> set[str]:
        """Return the nodes on which a team has places."""
        return {
            node for table, _ in self._tables(team) for node in table["bundles_to_node_id"].values() if node
        }

    def _tables(self, team: Team | None = None) -> list[tuple[dict[str, Any], Sequence[int]]]:
        """Return what Ray knows of the placement groups of a team, or of all, each with its rows."""
        tables = []
        for table in self._ray.util.placement_group_table().values():
            placed = placement_of(self._cluster, table["name"])
            if table["state"] != "REMOVED" and placed is not None and team in (None, placed[0]):
                tables.append((table, placed[1]))
        return tables


def _check_cpus(team: Team, table: dict[str, Any], cpus: float) -> None:
    reserved = {bundle.get("CPU", 0.0) for bundle in table["bundles"].values()}
    if reserved != {cpus}:
        raise ConfigError(
            f"{team}: {max(reserved):g} processors are reserved for each process, wanted {cpus:g}: end the cluster "
            "first, or give another name",
            field="options",
        )


_NAMESPACE = "scannery/turns"
_WAIT_S = 5.0
"""Ray may need a moment to notice that the last command ended."""
_TRY_EVERY_S = 0.2


class _Holder:
    """Has the name; Ray ends it with the process that made it, also if that is killed."""


class Turn:
    """Says whether this command still has the turn."""

    def __init__(self, ray: Any, cluster: str, actor: Any) -> None:
        self._ray, self._cluster, self._actor = ray, cluster, actor

    def check(self) -> None:
        """Raise UnavailableError if `down` has taken the turn."""
        holder = _holder(self._ray, self._cluster)
        if holder is None or holder._actor_id != self._actor._actor_id:  # handles do not compare
            raise UnavailableError(f"another command ends the cluster {self._cluster}", retry_after_s=1)


@contextmanager
def turn(ray: Any, cluster: str, *, take: bool = False) -> Iterator[Turn]:
    """Have the turn within the context.

    Args:
        ray: the module, connected.
        cluster: name of the cluster.
        take: end the turn of the command that has it.

    Raises:
        UnavailableError: another command has it.

    """
    end_s = time.monotonic() + _WAIT_S
    while (actor := _made(ray, cluster)) is None:
        if take and (holder := _holder(ray, cluster)) is not None:
            ray.kill(holder, no_restart=True)
        if time.monotonic() > end_s:
            raise UnavailableError(f"another command changes the cluster {cluster}", retry_after_s=5)
        time.sleep(_TRY_EVERY_S)
    try:
        yield Turn(ray, cluster, actor)
    finally:
        ray.kill(actor, no_restart=True)


def _made(ray: Any, cluster: str) -> Any:
    options = {"name": cluster, "namespace": _NAMESPACE, "num_cpus": 0, "max_restarts": -1}
    try:
        return ray.remote(_Holder).options(**options).remote()
    except ValueError:  # the name is taken
        return None


def _holder(ray: Any, cluster: str) -> Any:
    try:
        return ray.get_actor(cluster, namespace=_NAMESPACE)
    except ValueError:
        return None

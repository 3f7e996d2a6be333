"""The places of a cluster's processes, and the names by which Ray knows them.

A **team** are the processes that do the same: the leaves of one group, or the roots. A **slot** is the place of one of
them: its row in the team. The names of actors and placement groups tell what is there: no other record is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scannery.runtime.errors import ConfigError

__all__ = ["ROOTS", "Shape", "Slot", "Team", "placement_name", "placement_of"]

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
        found = _SLOT.fullmatch(name)
        return cls(_team(found), int(found["row"])) if found else None


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
    found = _PLACEMENT.fullmatch(name.removeprefix(head)) if name.startswith(head) else None
    return (_team(found), [int(row) for row in found["rows"].split("-")]) if found else None


def _team(found: re.Match[str]) -> Team:
    return Team(int(found["groups"] or 0), int(found["group"] or 0))

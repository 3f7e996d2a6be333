"""What a caller wants of a migration that servers run, and how far they are: two objects beside the mirror.

Servers and maintenance processes start `scannery index migrate INDEX --run` whenever a goal is not reached; it goes on
where an earlier process ended.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from scannery.indexer import Manifest, NotFoundError, Store, read_manifest

__all__ = [
    "Goal",
    "Progress",
    "goal_of",
    "is_due",
    "is_reached",
    "progress_of",
    "set_goal",
    "tell",
    "tell_problem",
]

_ModelT = TypeVar("_ModelT", bound=BaseModel)


class Goal(str, Enum):
    """Where a migration shall end."""

    MIRROR = "mirror"
    """The mirror is filled and follows the index."""
    SWITCH = "switch"
    """The index has the new content."""
    UNDO = "undo"
    """The index has the former content again."""
    ABANDON = "abandon"
    """There is no mirror any more."""


class Progress(BaseModel):
    """How far a migration is, as its process told last."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    converted: int = 0
    """Datapoints of the base that are converted."""
    to_convert: int = 0
    """Datapoints of the base; 0: it is not known yet."""
    rows_per_s: float = 0.0
    """Datapoints that are converted a second; 0: none are."""
    error: str = ""
    """Error that ended the last process; empty: none has."""

    @property
    def seconds_left(self) -> float | None:
        """Time until the base is converted at this rate; None: it is not known."""
        return (self.to_convert - self.converted) / self.rows_per_s if self.rows_per_s else None


class _Aim(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    goal: Goal


def set_goal(store: Store, mirror: str, goal: Goal) -> None:
    """Have servers lead a migration to a goal; StoreError if the store cannot be written."""
    store.write(_key(mirror, "goal"), _Aim(goal=goal).model_dump_json().encode())


def goal_of(store: Store, mirror: str) -> Goal | None:
    """Return the goal of a migration; None: no server runs it."""
    aim = _read(store, _key(mirror, "goal"), _Aim)
    return None if aim is None else aim.goal


def tell(store: Store, mirror: str, progress: Progress) -> None:
    """Say how far a migration is; StoreError if the store cannot be written."""
    store.write(_key(mirror, "progress"), progress.model_dump_json().encode())


def tell_problem(store: Store, mirror: str, problem: str) -> None:
    """Say why a migration does not go on, where that is not said yet; StoreError if the store cannot be written."""
    report = progress_of(store, mirror)
    if report.error != problem:
        tell(store, mirror, report.model_copy(update={"error": problem}))


def progress_of(store: Store, mirror: str) -> Progress:
    """Return what was told last of a migration."""
    return _read(store, _key(mirror, "progress"), Progress) or Progress()


def is_reached(goal: Goal, mirror: Manifest) -> bool:
    """Return whether a goal is reached, but for following the index."""
    followed = mirror.mirror
    if followed is None or not followed.filled or goal is Goal.ABANDON:
        return False
    return goal is Goal.MIRROR or followed.former == (goal is Goal.SWITCH)


def is_due(store: Store, mirror: Manifest, sequence: int) -> bool:
    """Return whether a process has something to do for a mirror, which has the mutations up to a sequence.

    A mirror whose goal is reached follows when the index is sealed: `--undo` takes over what is in the log. And an
    error is told until a process has ended without one: one that was late may have been all that failed. That a build
    has ended the way back is told once: it begins again when someone wants to go it.
    """
    goal, followed = goal_of(store, mirror.index), mirror.mirror
    if goal is None or followed is None:
        return False
    if not is_reached(goal, mirror):
        return True
    source, error = read_manifest(store, followed.index), progress_of(store, mirror.index).error
    if goal is not Goal.MIRROR and not followed.follows(source):
        return not error
    return bool(error) or source.log_sequence > sequence


def _key(mirror: str, name: str) -> str:
    return f"{mirror}/migration/{name}.json"


def _read(store: Store, key: str, kind: type[_ModelT]) -> _ModelT | None:
    try:
        return kind.model_validate_json(store.read(key))
    except (NotFoundError, ValidationError):  # one that a later release wrote is told by its process
        return None

"""By which plan a request was answered: noted deep down in the engine, asked for where the request is counted."""

from __future__ import annotations

from contextvars import ContextVar

__all__ = ["PlanNote", "note_plan", "noted_plan", "noting"]


class PlanNote:
    """The plan of one request: that of its largest segment, since it decides on the time."""

    __slots__ = ("_rows", "plan")

    def __init__(self) -> None:
        self.plan = ""
        """Empty: nothing was searched."""
        self._rows = -1

    def add(self, plan: str, rows: int) -> None:
        """Note the plan of a segment of which so many rows are allowed."""
        if rows > self._rows:
            self.plan, self._rows = plan, rows


_CURRENT: ContextVar[PlanNote | None] = ContextVar("scannery_plan", default=None)


def noting() -> PlanNote:
    """Return a new note, which is that of the current request from now on."""
    note = PlanNote()
    _CURRENT.set(note)
    return note


def note_plan(plan: str, rows: int) -> None:
    """Note the plan of a segment, if a request is being counted."""
    note = _CURRENT.get()
    if note is not None:
        note.add(plan, rows)


def noted_plan() -> str:
    """Return the plan of the current request; empty if none is known, or if nobody counts it."""
    note = _CURRENT.get()
    return note.plan if note else ""

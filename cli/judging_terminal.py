"""The dialogue of `scannery judge`: shows hits one by one, and reads a key for each."""

from __future__ import annotations

import os
import shutil
import termios
import textwrap
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import typer

from scannery.client import Hit

if TYPE_CHECKING:
    from scannery.evaluation.judgements import JudgementFile

__all__ = ["KEYS", "JudgingSession", "Task", "keyboard"]

KEYS = "0 not relevant  1 related  2 relevant  3 perfect  s skip  n next query  u undo  q quit"
LEVELS = "0123"
TEXT_LINES = 12
"""Lines of a text that are shown; `m` shows the rest."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One hit to judge for a query."""

    query_number: int
    query_id: str
    query: str
    name: str
    """Id that is judged: of the document, or of the datapoint."""
    hit: Hit

    @property
    def key(self) -> tuple[str, str]:
        """What a judgement is about: the query and the document."""
        return self.query_id, self.name


@dataclass(frozen=True)
class Step:
    """An answer of this session, which can be undone."""

    task: Task
    judged: bool
    skipped: int
    """Hits that it skipped: several if it left the query."""


@dataclass(kw_only=True)
class JudgingSession:
    """Judges the hits of queries, until a person quits or the keys end.

    Skipped hits are not judged: the next session shows them again.
    """

    file: JudgementFile
    queries: int
    """Number of queries in all."""
    keys: Iterator[str]
    judged: int = 0
    """Judgements of this session."""
    skipped: int = 0
    steps: list[Step] = field(default_factory=list)

    def judge(self, tasks: Sequence[Task], start: str | None = None) -> Step | Literal["next", "quit"]:
        """Judge the hits of one query; return what comes next, or a step of an earlier query that was undone.

        Args:
            tasks: the hits that have no judgement.
            start: name of the one to begin with, if it is not the first.

        """
        position = next((i for i, task in enumerate(tasks) if task.name == start), 0)
        while position < len(tasks):
            task = tasks[position]
            self._show(task, position, len(tasks))
            key = next(self.keys, "q")
            if key == "q":
                _say("quit")
                return "quit"
            if key == "u":
                step = self._undo()
                if step is not None:
                    matches = [i for i, task in enumerate(tasks) if task.key == step.task.key]
                    if not matches:
                        return step
                    position = matches[0]
            else:
                position += self._answer(task, key, remaining=len(tasks) - position)
        return "next"

    def _answer(self, task: Task, key: str, *, remaining: int) -> int:
        """Do what a key says, and return the number of hits to go on by."""
        if key in LEVELS:
            self.file.add(task.query_id, task.name, int(key))
            self.judged += 1
            self.steps.append(Step(task, judged=True, skipped=0))
            _say(key)
            return 1
        if key in ("s", "n"):
            count = 1 if key == "s" else remaining
            self.skipped += count
            self.steps.append(Step(task, judged=False, skipped=count))
            _say("skipped" if key == "s" else "next query")
            return count
        _say(_clean(task.hit.text or "") if key == "m" else f"{key!r} is no key")
        return 0

    def _undo(self) -> Step | None:
        if not self.steps:
            _say("nothing to undo in this session")
            return None
        step = self.steps.pop()
        if step.judged:
            self.file.undo()
            self.judged -= 1
        self.skipped -= step.skipped
        _say("undone")
        return step

    def _show(self, task: Task, position: int, count: int) -> None:
        width = shutil.get_terminal_size().columns
        _say(f"\n{'─' * min(width, 100)}")
        _say(f"Query {task.query_number} of {self.queries}: {_clean(task.query)}")
        _say(f"Hit {position + 1} of {count}: {_clean(task.hit.title or task.name)}\n")
        lines = textwrap.wrap(_clean(task.hit.text or "(no text)"), min(width, 100))
        more = len(lines) - TEXT_LINES
        _say("\n".join(lines[:TEXT_LINES]))
        if more > 0:
            _say(f"… {more} more lines: m")
        _say(f"\n{KEYS}\n> ", end="")


@contextmanager
def keyboard() -> Iterator[Iterator[str]]:
    """Yield the keys that are pressed: at once on a terminal, and the characters of a pipe but white space."""
    descriptor = 0  # standard input
    if not os.isatty(descriptor):
        yield _keys(descriptor)
        return
    before = termios.tcgetattr(descriptor)
    try:
        # Without echo and without waiting for Enter; Ctrl-C still interrupts.
        tty.setcbreak(descriptor)
        yield _keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _keys(descriptor: int) -> Iterator[str]:
    # Unbuffered: Python's own reader would take keys that another program should get after this one.
    while data := os.read(descriptor, 1):
        if data == b"\x04":  # Ctrl-D, which ends the input only where a terminal collects lines
            return
        if data == b"\x1b":  # an arrow key sends a sequence, which must not count as keys
            _drop_sequence(descriptor)
        elif not data.isspace():
            yield data.decode("latin-1").lower()


def _drop_sequence(descriptor: int) -> None:
    if os.read(descriptor, 1) in (b"[", b"O"):
        while (data := os.read(descriptor, 1)) and not b"@" <= data <= b"~":
            pass


def _say(text: str, end: str = "\n") -> None:
    # Standard output is for the result: `--json` can be read by a program.
    typer.echo(text + end, nl=False, err=True)


def _clean(text: str) -> str:
    """Return a text on one line, without characters that could control the terminal."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())

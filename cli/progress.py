"""Progress of long commands: bars on a terminal; for builds, occasional lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from scannery.pipelines import Progress as BuildProgress
    from scannery.pipelines import ProgressCallback

__all__ = ["counting_bar", "stage_bar"]

STAGES = {"plan": "reading input", "embed": "embedding", "segment": "building segments", "done": "done"}

LINE_EVERY_S = 30.0
"""Interval of lines without a terminal: the log of a long build stays readable, that of a short build empty."""


@contextmanager
def counting_bar(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback (done, total) that draws a bar on a terminal, and None elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn(label), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def stage_bar() -> Iterator[ProgressCallback]:
    """Yield a callback that shows a pipeline's progress on standard error: a bar on a terminal, lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Bar(bar)


class _Stage:
    """The running stage and its rate, without work that an earlier run finished.

    Args:
        first: progress when the stage began.

    """

    def __init__(self, first: BuildProgress) -> None:
        self.name, self._first, self._started = first.stage, first, time.monotonic()

    def detail(self, now: BuildProgress) -> str:
        """Return the datapoints so far, their rate, and how many records were refused."""
        parts = []
        if now.passages:
            parts.append(f"{now.passages:,} datapoints")
        made, seconds = now.passages - self._first.passages, time.monotonic() - self._started
        if made and seconds >= 1:
            parts.append(f"{made / seconds:,.0f}/s")
        if now.dead:
            parts.append(f"{now.dead:,} refused")
        return ", ".join(parts)

    def seconds_left(self, now: BuildProgress) -> float | None:
        """Return the estimated rest of the stage in seconds, None while unknown."""
        done = now.done - self._first.done
        return (time.monotonic() - self._started) * (now.total - now.done) / done if done else None


class _Bar:
    """Draws a build's progress; each stage has a new bar, with its own rate."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._stage: _Stage | None = None
        self._task: TaskID | None = None

    def __call__(self, progress: BuildProgress) -> None:
        if self._stage is None or self._task is None or progress.stage != self._stage.name:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._stage = _Stage(progress)
            self._task = self._bar.add_task(STAGES[progress.stage], total=None, detail="")
        detail = self._stage.detail(progress)
        self._bar.update(self._task, completed=progress.done, total=progress.total or None, detail=detail)


class _Lines:
    """Prints a build's progress as lines, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage: _Stage | None = None
        self._due = time.monotonic() + LINE_EVERY_S

    def __call__(self, progress: BuildProgress) -> None:
        if self._stage is None or progress.stage != self._stage.name:
            self._stage = _Stage(progress)
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + LINE_EVERY_S
        parts = [f"{progress.done / progress.total:.0%}"] if progress.total else []
        parts += [text for text in [self._stage.detail(progress)] if text]
        if (left_s := self._stage.seconds_left(progress)) is not None:
            parts.append(f"about {left_s:,.0f} s left")
        text = f"{STAGES[progress.stage]}: {', '.join(parts)}" if parts else STAGES[progress.stage]
        self._console.print(text, highlight=False, soft_wrap=True)

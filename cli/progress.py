"""Progress of long commands: bars on a terminal; for builds, occasional lines elsewhere.

`scannery build --plan` as text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from scannery.cli.output import console, size_text

if TYPE_CHECKING:
    from scannery.pipelines import BuildPlan, CostEstimate, ProgressCallback
    from scannery.pipelines import Progress as BuildProgress

__all__ = ["LINE_EVERY_S", "counting_bar", "print_plan", "stage_bar"]


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


def print_plan(plan: BuildPlan) -> None:
    """Print the work, the needs of every stage, and hours and price by kind of machine."""
    out = console()
    tokens = f", about {plan.tokens_per_passage:.0f} tokens each" if plan.tokens_per_passage else ""
    facts = (
        ("input", f"{plan.records:,} records in {plan.files:,} file(s), {size_text(plan.input_bytes)}"),
        ("datapoints", f"{plan.passages:,} with {plan.dimensions:,} dimensions{tokens}"),
        ("units", f"{plan.units:,} of at most {size_text(plan.unit_bytes)}"),
        (
            "shards",
            f"{plan.shards:,} of {plan.rows_per_shard:,} datapoints; index {size_text(plan.index_bytes)}",
        ),
    )
    for label, text in facts:
        out.print(f"[bold]{label:<12}[/bold]{text}", soft_wrap=True)
    out.print(_stages(plan))
    out.print(_costs(plan))
    out.print(
        "Estimates: M measured, E estimated, G given by you. Finished work of earlier runs is not subtracted. Nothing "
        "was started or written.",
        soft_wrap=True,
    )


def _stages(plan: BuildPlan) -> Table:
    table = Table(
        "stage", "tasks", "memory", "disk", "reads", "writes", "files", box=None, header_style="bold"
    )
    for stage in plan.stages:
        sizes = (stage.memory_bytes, stage.disk_bytes, stage.read_bytes, stage.written_bytes)
        table.add_row(stage.stage, f"{stage.tasks:,}", *map(size_text, sizes), f"{stage.files:,}")
    return table


def _costs(plan: BuildPlan) -> Table:
    table = Table(
        "machine",
        "workers",
        "passages/s each",
        "embed h",
        "segment h",
        "$",
        "basis",
        box=None,
        header_style="bold",
    )
    for cost in plan.costs:
        table.add_row(*_cells(cost))
    return table


def _cells(cost: CostEstimate) -> tuple[str, ...]:
    return (
        f"{cost.machine}: {cost.what}",
        f"{cost.workers:,}",
        f"{cost.passages_per_s:,.0f}",
        f"{cost.embed_hours:,.2f}",
        f"{cost.segment_hours:,.2f}",
        f"{cost.price:,.2f}",
        cost.basis,
    )

# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""Many datapoints, written in batches of which several are under way at once.

Calls may overtake each other; two batches that write the same datapoint are never under way together.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any

from scannery.client.concurrency import Task, Tasks
from scannery.client.errors import ScanneryError
from scannery.client.request.batches import Errors, WriteBatch, must_wait
from scannery.client.response.outcomes import (
    Outcome,
    Progress,
    Tally,
    Write,
    failed_writes,
    progress_reporter,
)
from scannery.client.response.results import BulkWritten

__all__ = ["write_all"]


def write_all(
    write: Write,
    parts: Iterator[WriteBatch],
    in_flight: int,
    progress: Progress,
    errors: Errors,
    total: int | None,
) -> BulkWritten:
    """Write all batches.

    Args:
        write: writes datapoints with a request id, which makes its repetition harmless.
        parts: the batches.
        in_flight: calls under way at once.
        progress: told how many datapoints are done.
        errors: `return` writes what can be written, and lists the rest.
        total: number of datapoints, if known.

    """
    tally = Tally()
    waiting: deque[tuple[WriteBatch, Task[list[Outcome]]]] = deque()
    with progress_reporter(progress, "writing", total) as report:
        with Tasks(in_flight) as tasks:

            def settle() -> None:
                batch, task = waiting.popleft()
                outcomes = tasks.result(task)
                tally.add(outcomes)
                report(len(batch.points))

            for batch in parts:
                while must_wait(batch, [other for other, _ in waiting], in_flight):
                    settle()
                task = tasks.start(_outcomes, write, batch.points, batch.first, halves=errors == "return")
                waiting.append((batch, task))
            while waiting:
                settle()
    return tally.result()


def _outcomes(write: Write, points: list[Any], first: int, *, halves: bool) -> list[Outcome]:
    """Return what became of a batch; a refused one is halved if so wanted, until the wrong datapoint is alone."""
    try:
        return [write(points, uuid.uuid4().hex)]
    except ScanneryError as error:
        if not halves:
            raise
        if (failed := failed_writes(points, first, error)) is not None:
            return failed
    middle = len(points) // 2
    return [
        *_outcomes(write, points[:middle], first, halves=True),
        *_outcomes(write, points[middle:], first + middle, halves=True),
    ]

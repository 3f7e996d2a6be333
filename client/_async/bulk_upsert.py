"""Many datapoints, written in batches of which several are under way at once.

Calls may overtake each other; two batches that write the same datapoint are never under way together.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any

from scannery.client.concurrency import AsyncTask, AsyncTasks
from scannery.client.errors import ScanneryError
from scannery.client.request.batches import Errors, WriteBatch, has_foreign, must_wait, read_batch
from scannery.client.request.records import AsyncReaderOf, RecordReader
from scannery.client.response.outcomes import (
    AsyncWrite,
    Outcome,
    Progress,
    Tally,
    failed_writes,
    located,
    progress_reporter,
)
from scannery.client.response.results import BulkWritten

__all__ = ["write_all"]


async def write_all(
    write: AsyncWrite,
    parts: Iterator[WriteBatch],
    in_flight: int,
    progress: Progress,
    errors: Errors,
    total: int | None,
    reader_of: AsyncReaderOf,
) -> BulkWritten:
    """Write all batches.

    Args:
        write: writes datapoints with a request id, which makes its repetition harmless.
        parts: the batches.
        in_flight: calls under way at once.
        progress: told how many datapoints are done.
        errors: `return` writes what can be written, and lists the rest.
        total: number of datapoints, if known.
        reader_of: asks for the spec of the index, once, when a record has keys that a datapoint does not have.

    """
    tally = Tally()
    reader: RecordReader | None = None
    waiting: deque[tuple[WriteBatch, AsyncTask[list[Outcome]]]] = deque()
    with progress_reporter(progress, "writing", total) as report:
        async with AsyncTasks(in_flight) as tasks:

            async def settle() -> None:
                batch, task = waiting.popleft()
                outcomes = await tasks.result(task)
                tally.add(outcomes)
                report(len(batch.points))

            for part in parts:
                if reader is None and has_foreign(part):
                    reader = await reader_of()
                for batch in [part] if reader is None else read_batch(part, reader):
                    while must_wait(batch, [other for other, _ in waiting], in_flight):
                        await settle()
                    task = tasks.start(_outcomes, write, batch.points, batch.first, halves=errors == "return")
                    waiting.append((batch, task))
            while waiting:
                await settle()
    ignored = () if reader is None else tuple(sorted(reader.ignored))
    return dataclasses.replace(tally.result(), ignored=ignored)


async def _outcomes(write: AsyncWrite, points: list[Any], first: int, *, halves: bool) -> list[Outcome]:
    """Return what became of a batch; a refused one is halved if so wanted, until the wrong datapoint is alone."""
    try:
        return [await write(points, uuid.uuid4().hex)]
    except ScanneryError as error:
        if not halves:
            raise located(error, first) from error
        if (failed := failed_writes(points, first, error)) is not None:
            return failed
    middle = len(points) // 2
    return [
        *await _outcomes(write, points[:middle], first, halves=True),
        *await _outcomes(write, points[middle:], first + middle, halves=True),
    ]

"""Many queries or datapoints, in batches of which several are under way at once; writes by filter.

Each batch is a call of its own, not a message of one stream: it goes to any free worker, and is tried again by itself
when a connection breaks or the server is overloaded.

Calls may overtake each other; two batches that write the same datapoint are never under way together.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from scannery.client.async_concurrency import AsyncTask, AsyncTasks, async_sleep
from scannery.client.errors import ResourceExhaustedError, ScanneryError
from scannery.client.request.batches import Errors, WriteBatch, has_foreign, must_wait, read_batch
from scannery.client.request.calls import Call
from scannery.client.request.filtered_writes import AsyncSend, BatchCall, FilteredBatch
from scannery.client.request.records import AsyncReaderOf, RecordReader
from scannery.client.response.outcomes import (
    Answers,
    AsyncAsk,
    AsyncWrite,
    Outcome,
    Progress,
    Tally,
    failed_queries,
    failed_writes,
    located,
    progress_reporter,
)
from scannery.client.response.results import BulkWritten, Hits

__all__ = ["search_batches", "write_all", "write_batches_where"]


async def search_batches(
    ask: AsyncAsk,
    parts: Iterator[Any],
    in_flight: int,
    progress: Progress,
    errors: Errors,
    total: int | None,
) -> AsyncIterator[Hits | ScanneryError]:
    """Return the hits of each query, in order; batches are read only as answers are taken.

    Args:
        ask: answers a batch.
        parts: the batches.
        in_flight: calls under way at once.
        progress: told how many queries are answered.
        errors: `return` gives the error of a query in the place of its hits.
        total: number of queries, if known.

    """

    async def answered(part: Any) -> Answers:
        return await ask(part) if errors == "raise" else await _hits_or_errors(ask, part)

    waiting: deque[AsyncTask[Answers]] = deque()
    with progress_reporter(progress, "searching", total) as report:
        async with AsyncTasks(in_flight) as tasks:
            waiting.extend(tasks.start(answered, part) for part in islice(parts, in_flight))
            while waiting:
                results = await tasks.result(waiting.popleft())
                waiting.extend(tasks.start(answered, part) for part in islice(parts, 1))
                report(len(results))
                for hits in results:
                    yield hits


async def _hits_or_errors(ask: AsyncAsk, part: Any) -> Answers:
    """Return the hits of each query, or its error: a refused batch is halved until the wrong query is alone."""
    try:
        return await ask(part)
    except ScanneryError as error:
        if (failed := failed_queries(error, len(part))) is not None:
            return failed
    middle = len(part) // 2
    return [*await _hits_or_errors(ask, part[:middle]), *await _hits_or_errors(ask, part[middle:])]


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
                    while must_wait(batch, [ahead for ahead, _ in waiting], in_flight):
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


MAX_WAIT_S = 120.0
"""Waited for a batch while the index refuses it: a seal of the most rows that fit in memory takes less."""


async def write_batches_where(
    send: AsyncSend,
    call: BatchCall,
    what: str,
    progress: Progress,
) -> FilteredBatch:
    """Write batches until none is left, and return their sum.

    Args:
        send: sends a call.
        call: makes the call of each batch.
        what: is done, for the progress bar: `deleting` or `changing`.
        progress: told how many datapoints are done.

    Raises:
        ScanneryError: a batch failed; the message says how many datapoints are done and how many are left.

    """
    batch = await _sent(send, call(None, uuid.uuid4().hex))
    rows = batch.rows
    with progress_reporter(progress, what, batch.rows + batch.remaining) as report:
        report(batch.rows)
        while batch.remaining and batch.rows:
            try:
                following = call(batch.until_sequence, uuid.uuid4().hex)
                if batch.index:  # an alias may be moved between batches
                    following.request.index = batch.index
                batch = await _sent(send, following)
            except ScanneryError as error:
                raise _part_way(error, rows, batch.remaining) from error
            rows += batch.rows
            report(batch.rows)
    return replace(batch, rows=rows)


async def _sent(send: AsyncSend, call: Call[Any, Any, FilteredBatch]) -> FilteredBatch:
    """Send a call, and wait while the index is full of new rows, which are being sealed."""
    waited_s = 0.0
    while True:
        try:
            return await send(call)
        except ResourceExhaustedError as error:
            if not error.retry_after_s or waited_s >= MAX_WAIT_S:
                raise
            waited_s += error.retry_after_s
            await async_sleep(error.retry_after_s)


def _part_way(error: ScanneryError, rows: int, remaining: int) -> ScanneryError:
    """Return an error that says how far the batches before it came."""
    message = f"{error.message}; {rows:,} datapoints are done, and {remaining:,} are left"
    return type(error)(message, field=error.field, retry_after_s=error.retry_after_s)

"""Many more datapoints than one call writes: cut into batches, several under way at once.

Batches may overtake each other on the way; two that write the same datapoint are never under way together.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from scannery.client.bulk import OF_ALL, OF_ONE, Errors, Progress, check_sizes, reported
from scannery.client.errors import InvalidArgumentError, ScanneryError
from scannery.client.results import BulkWritten, NotWritten, Written

__all__ = ["WriteBatch", "write_batches", "write_each", "write_each_async"]


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Datapoints that are written in one call."""

    points: list[Any]
    first: int
    """Position of the first of them among all."""
    names: frozenset[str]
    """Of datapoints and documents that it replaces: no other batch with one of them may be under way with it."""


def write_batches(
    points: Iterable[Any], batch_size: int, in_flight: int, errors: Errors
) -> Iterator[WriteBatch]:
    """Return the datapoints in batches that one call takes: no id twice in one.

    Raises:
        InvalidArgumentError: a size is out of range.

    """
    check_sizes(batch_size, in_flight, errors)
    if isinstance(points, (str, bytes, Mapping)) or not isinstance(points, Iterable):
        raise InvalidArgumentError(f"points: must be many datapoints, got {points!r:.80}", field="points")
    return _cut_writes(points, batch_size)


def write_each(
    write: Callable[[Sequence[Any], str], Written],
    parts: Iterator[WriteBatch],
    in_flight: int,
    progress: Progress,
    errors: Errors,
    total: int | None,
) -> BulkWritten:
    """Write all batches; `write` takes datapoints and a request id, which makes its repetition harmless."""
    tally = _Tally()
    waiting: deque[tuple[WriteBatch, Future[list[_Outcome]]]] = deque()

    def written(batch: WriteBatch) -> list[_Outcome]:
        return _written(write, batch.points, batch.first, apart=errors == "return")

    with (
        reported(progress, "writing", total) as report,
        ThreadPoolExecutor(in_flight, "scannery-bulk") as pool,
    ):

        def settle() -> None:
            batch, future = waiting.popleft()
            tally.add(future.result())
            report(len(batch.points))

        try:
            for batch in parts:
                while _must_wait(batch, [other for other, _ in waiting], in_flight):
                    settle()
                waiting.append((batch, pool.submit(written, batch)))
            while waiting:
                settle()
        finally:
            for _, future in waiting:
                future.cancel()
    return tally.result()


async def write_each_async(
    write: Callable[[Sequence[Any], str], Awaitable[Written]],
    parts: Iterator[WriteBatch],
    in_flight: int,
    progress: Progress,
    errors: Errors,
    total: int | None,
) -> BulkWritten:
    """Do the same, awaitable."""
    tally = _Tally()
    waiting: deque[tuple[WriteBatch, asyncio.Future[list[_Outcome]]]] = deque()

    async def written(batch: WriteBatch) -> list[_Outcome]:
        return await _written_async(write, batch.points, batch.first, apart=errors == "return")

    with reported(progress, "writing", total) as report:

        async def settle() -> None:
            batch, future = waiting.popleft()
            tally.add(await future)
            report(len(batch.points))

        try:
            for batch in parts:
                while _must_wait(batch, [other for other, _ in waiting], in_flight):
                    await settle()
                waiting.append((batch, asyncio.ensure_future(written(batch))))
            while waiting:
                await settle()
        finally:
            for _, future in waiting:
                future.cancel()
    return tally.result()


def _cut_writes(points: Iterable[Any], size: int) -> Iterator[WriteBatch]:
    batch: list[Any] = []
    names: set[str] = set()
    first = 0
    for point in points:
        own = _names(point)
        if batch and (len(batch) >= size or not names.isdisjoint(own)):
            yield WriteBatch(batch, first, frozenset(names))
            first += len(batch)
            batch, names = [], set()
        batch.append(point)
        names |= own
    if batch:
        yield WriteBatch(batch, first, frozenset(names))


def _names(point: Any) -> set[str]:
    # What is wrong with a datapoint is told when it is written. A document's passages may share a batch.
    return {str(point["id"])} if isinstance(point, Mapping) and "id" in point else set()


def _must_wait(batch: WriteBatch, under_way: Sequence[WriteBatch], in_flight: int) -> bool:
    """Return whether another batch must be done first: batches may overtake each other, writes of one id must not."""
    return len(under_way) >= in_flight or any(not batch.names.isdisjoint(other.names) for other in under_way)


_Outcome: TypeAlias = Written | NotWritten


def _written(
    write: Callable[[Sequence[Any], str], Written], points: list[Any], first: int, *, apart: bool
) -> list[_Outcome]:
    """Return what became of a batch, halved around what was refused if so wanted."""
    try:
        return [write(points, uuid.uuid4().hex)]
    except ScanneryError as error:
        if (failed := _refused(points, first, error, apart)) is not None:
            return failed
    middle = len(points) // 2
    return [
        *_written(write, points[:middle], first, apart=True),
        *_written(write, points[middle:], first + middle, apart=True),
    ]


async def _written_async(
    write: Callable[[Sequence[Any], str], Awaitable[Written]], points: list[Any], first: int, *, apart: bool
) -> list[_Outcome]:
    try:
        return [await write(points, uuid.uuid4().hex)]
    except ScanneryError as error:
        if (failed := _refused(points, first, error, apart)) is not None:
            return failed
    middle = len(points) // 2
    return [
        *await _written_async(write, points[:middle], first, apart=True),
        *await _written_async(write, points[middle:], first + middle, apart=True),
    ]


def _refused(points: list[Any], first: int, error: ScanneryError, apart: bool) -> list[_Outcome] | None:
    """Return the outcome of a batch that failed; None if its halves are to be tried. Raises what concerns all."""
    if not apart or error.field == "index" or not isinstance(error, OF_ONE + OF_ALL):
        raise error
    if isinstance(error, OF_ONE) and len(points) > 1:
        return None
    ids = [str(point.get("id", "")) if isinstance(point, Mapping) else "" for point in points]
    return [NotWritten(first + i, ids[i], error) for i in range(len(points))]


class _Tally:
    """Adds up what was written."""

    def __init__(self) -> None:
        self._sequence = self._written = 0
        self._failed: list[NotWritten] = []

    def add(self, outcomes: Iterable[_Outcome]) -> None:
        """Take what became of a batch."""
        for outcome in outcomes:
            if isinstance(outcome, NotWritten):
                self._failed.append(outcome)
            else:
                self._sequence = max(self._sequence, outcome.sequence)
                self._written += outcome.written

    def result(self) -> BulkWritten:
        """Return the sum."""
        return BulkWritten(self._sequence, self._written, tuple(self._failed))

"""Many more queries than one call takes: cut into batches, several under way at once, answers in order.

Batches are calls of their own, not one stream: each goes to whichever worker is free, and is tried again when its
connection breaks or the server has too much to do, which nobody has to know.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np

from scannery.client.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    ScanneryError,
    UnavailableError,
)
from scannery.client.queries import QueryLike
from scannery.client.results import Hits

__all__ = [
    "OF_ALL",
    "OF_ONE",
    "Errors",
    "Progress",
    "QueryStream",
    "ask_each",
    "ask_each_async",
    "batches",
    "check_sizes",
    "reported",
    "size_of",
]

Progress: TypeAlias = bool | Callable[[int], None]
"""True: a progress bar on the terminal. A function: called with the number of queries or datapoints done so far."""

Errors: TypeAlias = Literal["raise", "return"]
"""What becomes of what failed: `raise` ends at the first error, `return` gives each error in its place."""

QueryStream: TypeAlias = Iterable[QueryLike] | np.ndarray
"""Any number of queries, as they come."""

Answers: TypeAlias = Sequence[Hits | ScanneryError]

MAX_BATCH_HITS = 100_000
MAX_BATCH = 1000
MAX_IN_FLIGHT = 64

OF_ONE = (InvalidArgumentError, NotFoundError, FailedPreconditionError, AlreadyExistsError)
"""One item of a batch may be to blame: by themselves, the others succeed."""
OF_ALL = (UnavailableError, DeadlineExceededError, ResourceExhaustedError, InternalError)
"""The whole batch failed, and the next one need not."""


def batches(queries: QueryStream, k: int, batch_size: int, in_flight: int, errors: Errors) -> Iterator[Any]:
    """Return the queries in batches that one call takes, rows of an array as arrays.

    Raises:
        InvalidArgumentError: a size is out of range.

    """
    check_sizes(batch_size, in_flight, errors)
    if isinstance(queries, (str, bytes)):
        raise InvalidArgumentError(f"queries: must be many, got one: {queries!r:.80}", field="queries")
    size = max(1, min(batch_size, MAX_BATCH_HITS // max(1, k)))
    return _cut(queries, size)


def ask_each(
    ask: Callable[[Any], list[Hits]],
    parts: Iterator[Any],
    in_flight: int,
    progress: Progress,
    errors: Errors,
    total: int | None,
) -> Iterator[Hits | ScanneryError]:
    """Return the hits of each query, in order; batches are read only as answers are taken."""
    waiting: deque[Future[Answers]] = deque()

    def answered(part: Any) -> Answers:
        return ask(part) if errors == "raise" else _apart(ask, part)

    with (
        reported(progress, "searching", total) as report,
        ThreadPoolExecutor(in_flight, "scannery-bulk") as pool,
    ):
        try:
            waiting.extend(pool.submit(answered, part) for part in islice(parts, in_flight))
            while waiting:
                found = waiting.popleft().result()
                waiting.extend(pool.submit(answered, part) for part in islice(parts, 1))
                report(len(found))
                yield from found
        finally:
            for future in waiting:
                future.cancel()


async def ask_each_async(
    ask: Callable[[Any], Awaitable[list[Hits]]],
    parts: Iterator[Any],
    in_flight: int,
    progress: Progress,
    errors: Errors,
    total: int | None,
) -> AsyncIterator[Hits | ScanneryError]:
    """Return the same, awaitable."""
    waiting: deque[asyncio.Future[Answers]] = deque()

    async def answered(part: Any) -> Answers:
        return await ask(part) if errors == "raise" else await _apart_async(ask, part)

    with reported(progress, "searching", total) as report:
        try:
            waiting.extend(asyncio.ensure_future(answered(part)) for part in islice(parts, in_flight))
            while waiting:
                found = await waiting.popleft()
                waiting.extend(asyncio.ensure_future(answered(part)) for part in islice(parts, 1))
                report(len(found))
                for hits in found:
                    yield hits
        finally:
            for future in waiting:
                future.cancel()


def check_sizes(batch_size: int, in_flight: int, errors: Errors) -> None:
    """Raise InvalidArgumentError if one of these is out of range."""
    for name, value, most in (
        ("batch_size", batch_size, MAX_BATCH),
        ("in_flight", in_flight, MAX_IN_FLIGHT),
    ):
        if not 1 <= value <= most:
            raise InvalidArgumentError(f"{name}: must be 1 to {most}, got {value!r:.40}", field=name)
    if errors not in ("raise", "return"):
        raise InvalidArgumentError(f"errors: must be 'raise' or 'return', got {errors!r:.40}", field="errors")


def _cut(queries: QueryStream, size: int) -> Iterator[Any]:
    if isinstance(queries, np.ndarray):
        # One matrix goes over the wire as it is; its rows would each be converted.
        yield from (queries[start : start + size] for start in range(0, len(queries), size))
        return
    iterator = iter(queries)
    while batch := list(islice(iterator, size)):
        yield batch


def _apart(ask: Callable[[Any], list[Hits]], part: Any) -> Answers:
    """Return the hits of each query, or its error: a batch with a bad query is halved until the bad one is alone."""
    try:
        return ask(part)
    except OF_ALL as error:
        return [error] * len(part)
    except OF_ONE as error:
        if error.field == "index":
            raise
        if len(part) == 1:
            return [error]
    middle = len(part) // 2
    return [*_apart(ask, part[:middle]), *_apart(ask, part[middle:])]


async def _apart_async(ask: Callable[[Any], Awaitable[list[Hits]]], part: Any) -> Answers:
    try:
        return await ask(part)
    except OF_ALL as error:
        return [error] * len(part)
    except OF_ONE as error:
        if error.field == "index":
            raise
        if len(part) == 1:
            return [error]
    middle = len(part) // 2
    return [*await _apart_async(ask, part[:middle]), *await _apart_async(ask, part[middle:])]


def size_of(items: object) -> int | None:
    """Return how many there are, where that is known beforehand."""
    return len(items) if isinstance(items, Sized) else None


@contextmanager
def reported(progress: Progress, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Give a function that takes how many more are done."""
    done = 0
    if progress is True:
        from rich.progress import Progress as Bar

        with Bar() as bar:
            task = bar.add_task(what, total=total)
            yield lambda count: bar.advance(task, count)
        return

    def report(count: int) -> None:
        nonlocal done
        done += count
        if callable(progress):
            progress(done)

    yield report

"""Many more queries than one call takes: cut into batches, several under way at once, answers in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from scannery.client.errors import InvalidArgumentError
from scannery.client.queries import QueryLike
from scannery.client.results import Hits

__all__ = ["Progress", "QueryStream", "ask_each", "ask_each_async", "batches"]

Progress: TypeAlias = bool | Callable[[int], None]
"""True: a progress bar on the terminal. A function: called with the number of queries answered so far."""

QueryStream: TypeAlias = Iterable[QueryLike] | np.ndarray
"""Any number of queries, as they come."""

MAX_BATCH_HITS = 100_000
MAX_BATCH = 1000


def batches(queries: QueryStream, k: int, batch_size: int, in_flight: int) -> Iterator[Any]:
    """Return the queries in batches that one call takes, rows of an array as arrays.

    Raises:
        InvalidArgumentError: a size is out of range.

    """
    for name, value, most in (("batch_size", batch_size, MAX_BATCH), ("in_flight", in_flight, 64)):
        if not 1 <= value <= most:
            raise InvalidArgumentError(f"{name}: must be 1 to {most}, got {value!r:.40}", field=name)
    if isinstance(queries, (str, bytes)):
        raise InvalidArgumentError(f"queries: must be many, got one: {queries!r:.80}", field="queries")
    size = max(1, min(batch_size, MAX_BATCH_HITS // max(1, k)))
    return _cut(queries, size)


def _cut(queries: QueryStream, size: int) -> Iterator[Any]:
    if isinstance(queries, np.ndarray):
        # One matrix goes over the wire as it is; its rows would each be converted.
        yield from (queries[start : start + size] for start in range(0, len(queries), size))
        return
    iterator = iter(queries)
    while batch := list(islice(iterator, size)):
        yield batch


def ask_each(
    ask: Callable[[Any], list[Hits]], parts: Iterator[Any], in_flight: int, progress: Progress
) -> Iterator[Hits]:
    """Return the hits of each query, in order; batches are read only as answers are taken."""
    waiting: deque[Future[list[Hits]]] = deque()
    with _reported(progress) as report, ThreadPoolExecutor(in_flight, "scannery-bulk") as threads:
        try:
            waiting.extend(threads.submit(ask, part) for part in islice(parts, in_flight))
            while waiting:
                answered = waiting.popleft().result()
                waiting.extend(threads.submit(ask, part) for part in islice(parts, 1))
                report(len(answered))
                yield from answered
        finally:
            for future in waiting:
                future.cancel()


async def ask_each_async(
    ask: Callable[[Any], Awaitable[list[Hits]]], parts: Iterator[Any], in_flight: int, progress: Progress
) -> AsyncIterator[Hits]:
    """Return the same, awaitable."""
    waiting: deque[asyncio.Future[list[Hits]]] = deque()
    with _reported(progress) as report:
        try:
            waiting.extend(asyncio.ensure_future(ask(part)) for part in islice(parts, in_flight))
            while waiting:
                answered = await waiting.popleft()
                waiting.extend(asyncio.ensure_future(ask(part)) for part in islice(parts, 1))
                report(len(answered))
                for hits in answered:
                    yield hits
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def _reported(progress: Progress) -> Iterator[Callable[[int], None]]:
    done = 0
    if progress is True:
        from rich.progress import Progress as Bar

        with Bar() as bar:
            task = bar.add_task("searching", total=None)
            yield lambda count: bar.advance(task, count)
        return

    def report(count: int) -> None:
        nonlocal done
        done += count
        if callable(progress):
            progress(done)

    yield report

"""Many queries, in batches of which several are under way at once; the answers come in order.

Each batch is a call of its own, not a message of one stream: it goes to any free worker, and is tried again by itself
when a connection breaks or the server is overloaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any

from scannery.client.concurrency import AsyncTask, AsyncTasks
from scannery.client.errors import ScanneryError
from scannery.client.request.batches import Errors
from scannery.client.response.outcomes import (
    Answers,
    AsyncAsk,
    Progress,
    failed_queries,
    progress_reporter,
)
from scannery.client.response.results import Hits

__all__ = ["search_batches"]


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
                found = await tasks.result(waiting.popleft())
                waiting.extend(tasks.start(answered, part) for part in islice(parts, 1))
                report(len(found))
                for hits in found:
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

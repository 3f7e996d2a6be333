# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""Many queries, in batches of which several are under way at once; the answers come in order.

Each batch is a call of its own, not a message of one stream: it goes to any free worker, and is tried again by itself
when a connection breaks or the server is overloaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from scannery.client.concurrency import Task, Tasks
from scannery.client.errors import ScanneryError
from scannery.client.request.batches import Errors
from scannery.client.response.outcomes import (
    Answers,
    Ask,
    Progress,
    failed_queries,
    progress_reporter,
)
from scannery.client.response.results import Hits

__all__ = ["search_batches"]


def search_batches(
    ask: Ask,
    parts: Iterator[Any],
    in_flight: int,
    progress: Progress,
    errors: Errors,
    total: int | None,
) -> Iterator[Hits | ScanneryError]:
    """Return the hits of each query, in order; batches are read only as answers are taken.

    Args:
        ask: answers a batch.
        parts: the batches.
        in_flight: calls under way at once.
        progress: told how many queries are answered.
        errors: `return` gives the error of a query in the place of its hits.
        total: number of queries, if known.

    """

    def answered(part: Any) -> Answers:
        return ask(part) if errors == "raise" else _hits_or_errors(ask, part)

    waiting: deque[Task[Answers]] = deque()
    with progress_reporter(progress, "searching", total) as report:
        with Tasks(in_flight) as tasks:
            waiting.extend(tasks.start(answered, part) for part in islice(parts, in_flight))
            while waiting:
                found = tasks.result(waiting.popleft())
                waiting.extend(tasks.start(answered, part) for part in islice(parts, 1))
                report(len(found))
                for hits in found:
                    yield hits


def _hits_or_errors(ask: Ask, part: Any) -> Answers:
    """Return the hits of each query, or its error: a refused batch is halved until the wrong query is alone."""
    try:
        return ask(part)
    except ScanneryError as error:
        if (failed := failed_queries(error, len(part))) is not None:
            return failed
    middle = len(part) // 2
    return [*_hits_or_errors(ask, part[:middle]), *_hits_or_errors(ask, part[middle:])]

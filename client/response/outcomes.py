"""What became of the batches of a bulk call: which errors concern one item, the sum of what was written, progress."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

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
from scannery.client.response.results import BulkWritten, Hits, NotWritten, ScanPage, Written

__all__ = [
    "Answers",
    "Ask",
    "AsyncAsk",
    "AsyncReadPage",
    "AsyncWrite",
    "Outcome",
    "Progress",
    "ReadPage",
    "Tally",
    "Write",
    "failed_queries",
    "failed_writes",
    "located",
    "progress_reporter",
]

Progress: TypeAlias = bool | Callable[[int], None]
"""True: a progress bar on the terminal. A function: called with the number of queries or datapoints done."""

Answers: TypeAlias = Sequence[Hits | ScanneryError]
Outcome: TypeAlias = Written | NotWritten

AsyncAsk: TypeAlias = Callable[[Any], Awaitable[list[Hits]]]
Ask: TypeAlias = Callable[[Any], list[Hits]]
"""Answers a batch of queries."""

AsyncWrite: TypeAlias = Callable[[Sequence[Any], str], Awaitable[Written]]
Write: TypeAlias = Callable[[Sequence[Any], str], Written]
"""Writes datapoints with a request id."""

AsyncReadPage: TypeAlias = Callable[[str | None], Coroutine[Any, Any, ScanPage]]
ReadPage: TypeAlias = Callable[[str | None], ScanPage]
"""Reads the page of a scan at a token; None: the first one."""

_OF_ONE = (InvalidArgumentError, NotFoundError, FailedPreconditionError, AlreadyExistsError)
"""One item of a batch may be the cause: the others succeed without it."""
_OF_ALL = (UnavailableError, DeadlineExceededError, ResourceExhaustedError, InternalError)
"""The whole batch failed; the next one may succeed."""


def failed_queries(error: ScanneryError, count: int) -> Answers | None:
    """Return the answers of a batch that failed; None if its halves are to be asked. Raises what concerns all."""
    if not _is_told(error, count):
        return None
    return [error] * count


def failed_writes(points: Sequence[Any], first: int, error: ScanneryError) -> list[Outcome] | None:
    """Return the outcomes of a batch that failed; None if its halves are to be written. Raises what concerns all."""
    if not _is_told(error, len(points)):
        return None
    ids = [
        str(point.get("id", "")) if isinstance(point, Mapping) else getattr(point, "id", "")
        for point in points
    ]
    problem = located(error, first)
    return [NotWritten(first + i, identifier, problem) for i, identifier in enumerate(ids)]


def located(error: ScanneryError, first: int) -> ScanneryError:
    """Return an error of a batch with the position of its datapoint among all that were given."""
    if error.field is None or (match := _PREFIX.match(error.field)) is None:
        return error
    here, there = match[0], f"upserts[{first + int(match[1])}]"
    field = there + error.field[len(here) :]
    return type(error)(error.message.replace(here, there, 1), field=field, retry_after_s=error.retry_after_s)


_PREFIX = re.compile(r"upserts\[([0-9]+)\]")


def _is_told(error: ScanneryError, count: int) -> bool:
    if error.field == "index" or not isinstance(error, _OF_ONE + _OF_ALL):
        raise error
    return count == 1 or not isinstance(error, _OF_ONE)


MOST_WARNINGS = 20
"""Warnings of the batches of a call that its result has."""


class Tally:
    """The sum of what was written."""

    def __init__(self) -> None:
        self._sequence = self._rows = 0
        self._failed: list[NotWritten] = []
        self._warnings: list[str] = []

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Add the outcomes of a batch."""
        for outcome in outcomes:
            if isinstance(outcome, NotWritten):
                self._failed.append(outcome)
            else:
                self._sequence = max(self._sequence, outcome.sequence)
                self._rows += outcome.written
                self._warnings += outcome.warnings[: MOST_WARNINGS - len(self._warnings)]

    def result(self) -> BulkWritten:
        """Return the sum."""
        return BulkWritten(self._sequence, self._rows, tuple(self._failed), warnings=tuple(self._warnings))


@contextmanager
def progress_reporter(progress: Progress, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes how many more items are done."""
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

"""Jobs that write the records of files to an index, as the caller that began them.

A job lives in this process: it goes on when the page is closed, and ends with the console.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scannery.client.aio import AsyncClient
from scannery.client.errors import (
    DeadlineExceededError,
    InternalError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)
from scannery.console.files.formats import FileFormats, FilePoints
from scannery.runtime.errors import CodedError

__all__ = ["Job", "Jobs"]

MAX_RUNNING, MAX_JOBS = 4, 32
MAX_LETTERS = 10_000
"""Refused records that a job keeps; more are counted."""
BATCH, BATCH_S = 400, 1.0
"""Records that are written together, and the time after which they are although there are fewer."""
CALL_RECORDS = 100
MAX_WAIT_S = 120.0
"""How long a job waits for a server that is away or full."""
_LATER = (UnavailableError, DeadlineExceededError, ResourceExhaustedError)
_ENDS = (*_LATER, InternalError, NotFoundError, PermissionDeniedError, UnauthenticatedError)
"""Errors that are not about a record."""

_PREFIX = re.compile(r"upserts\[[0-9]+\](\.datapoint)?[.:]? ?")
_LOG = logging.getLogger(__name__)


@dataclass
class Job:
    """A job, and how far it is."""

    owner: str
    index: str
    files: Sequence[str]
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: Literal["running", "done", "stopped", "failed"] = "running"
    records: int = 0
    """Records that were read."""
    rows: int = 0
    """Datapoints that were written: passages, where texts are cut."""
    refused: int = 0
    letters: list[Mapping[str, str]] = field(default_factory=list)
    """Refused records as `{"place", "id", "error"}`, the first ones."""
    ignored: Sequence[str] = ()
    warnings: tuple[str, ...] = ()
    error: str = ""
    """What ended it."""
    waits: str = ""
    """What it waits for."""
    is_stopping: bool = False
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; of the refused records the first ten."""
        seconds = (self.ended_s or time.monotonic()) - self.started_s
        return {
            "job": self.id,
            "index": self.index,
            "files": list(self.files),
            "state": "stopping" if self.is_stopping and self.state == "running" else self.state,
            "records": self.records,
            "rows": self.rows,
            "refused": self.refused,
            "letters": self.letters[:10],
            "kept": len(self.letters),
            "ignored": list(self.ignored),
            "warnings": list(self.warnings),
            "error": self.error,
            "waits": self.waits,
            "seconds": seconds,
            "rowsPerSecond": self.rows / seconds if seconds else 0.0,
        }


class Jobs:
    """The jobs of a console.

    Args:
        client: writes, as the caller in whose request a job begins.
        formats: read the files.

    """

    def __init__(self, client: AsyncClient, formats: FileFormats) -> None:
        self._client = client
        self._formats = formats
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def of_index(self, owner: str, index: str) -> list[Job]:
        """Return the jobs of a caller on an index, the newest first."""
        return [job for job in reversed(self._jobs.values()) if (job.owner, job.index) == (owner, index)]

    def of(self, owner: str, name: str) -> Job:
        """Return a job of a caller; raises NotFoundError."""
        job = self._jobs.get(name)
        if job is None or job.owner != owner:
            raise NotFoundError("there is no such job; it ended with the console, or long ago")
        return job

    def start(self, owner: str, index: str, folder: Path, done: Callable[[], None]) -> Job:
        """Begin a job; `done` is called when it has ended. Raises ResourceExhaustedError."""
        if sum(job.state == "running" for job in self._jobs.values()) >= MAX_RUNNING:
            raise ResourceExhaustedError(f"the console runs {MAX_RUNNING} jobs at once; wait for one of them")
        for name, before in list(self._jobs.items()):
            if len(self._jobs) >= MAX_JOBS and before.state != "running":
                del self._jobs[name]
        job = Job(owner, index, sorted(path.name for path in folder.iterdir()))
        self._jobs[job.id] = job
        # The task has the context of the request, with the caller's key.
        task = asyncio.get_running_loop().create_task(self._run(job, folder, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def close(self) -> None:
        """End all jobs where they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Job, folder: Path, done: Callable[[], None]) -> None:
        try:
            await self._write(job, folder)
            job.state = "stopped" if job.is_stopping else "done"
        except CodedError as error:
            job.state, job.error = "failed", error.message
        except Exception:  # noqa: BLE001  a defect of one job does not end the console
            job.state, job.error = "failed", "the console has a defect; see its log"
            _LOG.exception("a job failed")
        finally:
            job.ended_s = time.monotonic()
            done()

    async def _write(self, job: Job, folder: Path) -> None:
        index = self._client.index(job.index)
        spec = (await index.stats()).spec
        points = self._formats.points(folder, spec)
        items = iter(points)
        while not job.is_stopping and (batch := await asyncio.to_thread(_taken, items)):
            await self._write_batch(job, points, batch)

    async def _write_batch(self, job: Job, points: FilePoints, batch: list[tuple[str, Any]]) -> None:
        job.records += len(batch)
        job.ignored = points.ignored
        waited_s, pause_s = 0.0, 1.0
        while batch:
            done = await self._client.index(job.index).upsert_many(
                [point for _, point in batch], batch_size=CALL_RECORDS, errors="return"
            )
            job.rows += done.written
            job.warnings = tuple(dict.fromkeys((*job.warnings, *done.warnings)))[:20]
            later = []
            for outcome in done.failed:
                location = batch[outcome.position][0]
                if isinstance(outcome.error, _LATER) and waited_s < MAX_WAIT_S and not job.is_stopping:
                    later.append(batch[outcome.position])
                    job.waits = outcome.error.message
                elif isinstance(outcome.error, _ENDS):
                    raise outcome.error
                else:
                    job.refused += 1
                    if len(job.letters) < MAX_LETTERS:
                        problem = _PREFIX.sub("", outcome.error.message, count=1)
                        letter = {"place": location, "id": outcome.id, "error": problem}
                        job.letters.append(letter)
            batch = later
            if batch:
                await asyncio.sleep(pause_s)
                waited_s, pause_s = waited_s + pause_s, min(2 * pause_s, 15.0)
        job.waits = ""


def _taken(items: Iterator[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the next records: as many as are written together, or as can be read in a moment."""
    until_s = time.monotonic() + BATCH_S
    batch = []
    for item in itertools.islice(items, BATCH):
        batch.append(item)
        if time.monotonic() > until_s:
            break
    return batch

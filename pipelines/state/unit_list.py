"""The list of a build's work units in the store: a pipeline gets places in it, so that its description stays small."""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections.abc import Iterator, Sequence

from scannery.indexer.store.object_store import Store
from scannery.pipelines.state.job import Job, stage_key
from scannery.pipelines.state.work_units import WorkUnit

__all__ = ["MOST_RUNS", "new_unit_list", "read_run", "remove_unit_list", "write_unit_list"]

MOST_RUNS = 8192
"""Most elements that a pipeline begins with: 0.6 MB of a job's description, of which Dataflow takes 20 MB. With more
units an element is a run of neighbours, which one worker makes one after the other: so a worker gets at least one
8192nd of the build."""

_PREFIX = "run "


def new_unit_list(job: Job) -> Job:
    """Return the job with a name for the list: another process that makes the same build has a list of its own."""
    return dataclasses.replace(job, unit_list=uuid.uuid4().hex[:8])


def write_unit_list(units: Sequence[WorkUnit], job: Job, store: Store) -> list[str]:
    """Store the units of a build, and return the runs of them that its workers read (`read_run`)."""
    lines = [f"{unit.to_json()}\n".encode() for unit in units]
    store.write(_key(job), b"".join(lines))
    size = max(1, math.ceil(len(lines) / MOST_RUNS))
    runs, place = [], 0
    for first in range(0, len(lines), size):
        length = sum(map(len, lines[first : first + size]))
        runs.append(f"{_PREFIX}{place} {length}")
        place += length
    return runs


def read_run(element: str, job: Job, store: Store) -> Iterator[WorkUnit] | None:
    """Return the units of a run; None for another element."""
    if not element.startswith(_PREFIX):
        return None
    start, length = map(int, element.removeprefix(_PREFIX).split())
    lines = store.read_range(_key(job), start, length).decode().splitlines()
    return map(WorkUnit.from_json, lines)


def remove_unit_list(job: Job, store: Store) -> None:
    """Remove the list of a build that has ended."""
    store.delete(_key(job))


def _key(job: Job) -> str:
    return stage_key(job.index, "builds", f"{job.build_id}.{job.unit_list}.units.jsonl")

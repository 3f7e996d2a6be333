"""Which units of a build earlier runs finished: looked up by one listing, not one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import TypeVar

from scannery.indexer.store.object_store import Store
from scannery.pipelines.errors import PipelineError
from scannery.pipelines.stages.embed import finished_unit
from scannery.pipelines.state.counts import UnitOutcome
from scannery.pipelines.state.job import Job
from scannery.pipelines.state.stage_outputs import read_unit
from scannery.pipelines.state.work_units import WorkUnit

__all__ = ["find_finished", "finished_units", "read_outcomes"]

FoundT = TypeVar("FoundT")

FEW_UNITS = 32
"""Up to this number each is looked up: the index may have many other units, and a listing has all of them."""

READERS = 16
"""Requests at once to a bucket; threads that read small local files only wait for each other."""


def finished_units(units: Sequence[WorkUnit], job: Job, store: Store) -> list[UnitOutcome] | None:
    """Return the outcomes of all units, in their order; None if one is not finished."""
    if len(units) > FEW_UNITS and not _listed(job, store).issuperset(unit.key for unit in units):
        return None
    outcomes: list[UnitOutcome] = []
    for start in range(0, len(units), FEW_UNITS * READERS):
        some = units[start : start + FEW_UNITS * READERS]
        found = _looked_up(some, store, lambda unit: finished_unit(unit, job, store))
        outcomes += (outcome for outcome in found if outcome is not None)
        if len(outcomes) < start + len(some):
            return None
    return outcomes


def find_finished(units: Sequence[WorkUnit], job: Job, store: Store) -> list[UnitOutcome]:
    """Return the outcomes of those units that are finished."""
    if len(units) > FEW_UNITS:
        listed = _listed(job, store)
        units = [unit for unit in units if unit.key in listed]
    found = _looked_up(units, store, lambda unit: finished_unit(unit, job, store))
    return [outcome for outcome in found if outcome is not None]


def read_outcomes(
    units: Sequence[WorkUnit], job: Job, store: Store, *, before: Container[str]
) -> list[UnitOutcome]:
    """Return the outcomes of all units of a run; those `before`, which it found finished, without their work.

    Raises:
        PipelineError: the record of a unit is missing.

    """

    def outcome(unit: WorkUnit) -> UnitOutcome:
        found = (
            finished_unit(unit, job, store) if unit.key in before else read_unit(store, job.index, unit.key)
        )
        if found is None:
            raise PipelineError(f"the record of work unit {unit.key} is missing; run the build again")
        return dataclasses.replace(found, ordinal=unit.ordinal)

    return _looked_up(units, store, outcome)


def _looked_up(
    units: Sequence[WorkUnit], store: Store, look_up: Callable[[WorkUnit], FoundT]
) -> list[FoundT]:
    with ThreadPoolExecutor(READERS if store.local_root is None else 1) as pool:
        return list(pool.map(look_up, units))


def _listed(job: Job, store: Store) -> set[str]:
    """Return the keys of the units that have a record."""
    paths = (PurePosixPath(item.key) for item in store.list(f"{job.index}/stage/units"))
    return {path.stem for path in paths if path.suffix == ".json"}

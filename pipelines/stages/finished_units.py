"""Which units of a build earlier runs finished: looked up by one listing, not one by one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

from scannery.indexer.store.object_store import Store
from scannery.pipelines.stages.embed import finished_unit
from scannery.pipelines.state.counts import UnitOutcome
from scannery.pipelines.state.job import Job
from scannery.pipelines.state.work_units import WorkUnit

__all__ = ["finished_units"]

FEW_UNITS = 32
"""Up to this number each is looked up: the index may have many other units, and a listing has all of them."""

READERS = 16
"""Requests at once to a bucket; threads that read small local files only wait for each other."""


def finished_units(units: Sequence[WorkUnit], job: Job, store: Store) -> list[UnitOutcome] | None:
    """Return the outcomes of all units, in their order; None if one is not finished."""
    if len(units) > FEW_UNITS and not _all_listed(units, job, store):
        return None
    outcomes: list[UnitOutcome] = []
    with ThreadPoolExecutor(READERS if store.local_root is None else 1) as pool:
        for start in range(0, len(units), FEW_UNITS * READERS):
            some = units[start : start + FEW_UNITS * READERS]
            found = list(pool.map(lambda unit: finished_unit(unit, job, store), some))
            done = [outcome for outcome in found if outcome is not None]
            if len(done) < len(some):
                return None
            outcomes += done
    return outcomes


def _all_listed(units: Sequence[WorkUnit], job: Job, store: Store) -> bool:
    paths = (PurePosixPath(item.key) for item in store.list(f"{job.index}/stage/units"))
    return {path.stem for path in paths if path.suffix == ".json"}.issuperset(unit.key for unit in units)

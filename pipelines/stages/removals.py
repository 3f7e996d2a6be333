"""What a full build removes: datapoints of the parent version that are not in its input, and live updates."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.schema import REVISION_COLUMN
from scannery.indexer.errors import CorruptError, NotFoundError
from scannery.indexer.manifest import Manifest, SegmentEntry
from scannery.indexer.store.object_store import Store
from scannery.pipelines.stages.old_rows import read_live_rows, stored_schema
from scannery.pipelines.state.job import Job

__all__ = ["removals"]

MOST_ROWS = 20_000_000
"""Most rows of changed segments whose ids one worker compares: about 2 GB of memory."""


def removals(
    job: Job, store: Store, parent: Manifest | None, entries: Sequence[SegmentEntry]
) -> dict[str, int | None]:
    """Return how many datapoints of the parent a full build removes, and how many rows of live updates it drops.

    Only the ids and revisions of segments that are not in both versions are read. None: the segments are too large, or
    one of the parent is damaged.

    Args:
        job: the build.
        store: of the index.
        parent: the version before.
        entries: segments of the new version.

    """
    unknown: dict[str, int | None] = {"removed_datapoints": None, "dropped_live": None}
    if job.mode != "full" or parent is None:
        return {}
    shared = {entry.labelled_keys for entry in parent.segments} & {entry.labelled_keys for entry in entries}
    old = [entry for entry in parent.segments if entry.labelled_keys not in shared]
    new = [entry for entry in entries if entry.labelled_keys not in shared]
    if sum(entry.rows for entry in (*old, *new)) > MOST_ROWS:
        return unknown
    try:
        before, after = (_ids(some, job, store) for some in (old, new))
    except (CorruptError, NotFoundError):  # a full build repairs them
        return unknown
    gone = pc.invert(pc.is_in(before.column("id"), value_set=after.column("id").combine_chunks()))
    live_before, live_after = (_live_count(table) for table in (before, after))
    return {"removed_datapoints": pc.sum(gone).as_py() or 0, "dropped_live": max(0, live_before - live_after)}


def _ids(entries: Sequence[SegmentEntry], job: Job, store: Store) -> pa.Table:
    columns = ["id", REVISION_COLUMN]
    empty = pa.schema([stored_schema(job).field(name) for name in columns]).empty_table()
    return pa.concat_tables([empty, *(read_live_rows(entry, job, store, columns)[0] for entry in entries)])


def _live_count(table: pa.Table) -> int:
    """Return how many rows were written by live updates."""
    return int(table.num_rows - table.column(REVISION_COLUMN).null_count)

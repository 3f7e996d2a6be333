"""Writes as they are queued: prepared in what they read, and resolved in it when their turn has come."""

from __future__ import annotations

from scannery.indexer import Manifest, written_schema
from scannery.live.log.mutation_log import Request
from scannery.live.log.records import Mutation, encode
from scannery.live.prepare import PreparedUpsert
from scannery.live.write_request import Deletion
from scannery.live.writing.filtered_write import FilteredWrite
from scannery.live.writing.group_commit import Resolved, Write
from scannery.live.writing.group_state import GroupState
from scannery.live.writing.resolve import look_ahead, resolve_deletion, resolve_upsert
from scannery.live.writing.write_views import WriteView
from scannery.runtime.deadline import Deadline

__all__ = ["blind_upsert", "columns_mark", "deletion_in", "filtered_in", "upsert_in"]


def blind_upsert(prepared: PreparedUpsert, request: Request) -> Write:
    """Return the write of a batch that is the same in every state."""
    resolved = prepared.mutation, prepared.encoded, prepared.mutation.rows.num_rows
    columns = prepared.mutation.columns_version
    return Write(request, len(prepared.encoded), None, columns, lambda group: resolved)


def columns_mark(manifest: Manifest) -> Write:
    """Return the write of a record without rows for the columns of a version."""
    nothing = written_schema(manifest.spec, manifest.dimensions).empty_table()
    mutation = Mutation.of(nothing, manifest)
    resolved = mutation, encode(mutation), 0
    return Write(Request(""), 0, None, manifest.columns_version, lambda group: resolved)


def upsert_in(view: WriteView, prepared: PreparedUpsert, request: Request) -> Write:
    """Return the write of a batch with conditions or partial updates."""

    def resolve(group: GroupState) -> Resolved:
        mutation = resolve_upsert(prepared, view.before(group))
        return mutation, encode(mutation), mutation.rows.num_rows

    look_ahead(prepared, view.state)
    columns = prepared.mutation.columns_version
    return Write(request, prepared.mutation.rows.nbytes, view, columns, resolve)


def deletion_in(view: WriteView, deletion: Deletion, request: Request) -> Write:
    """Return the write of a deletion."""

    def resolve(group: GroupState) -> Resolved:
        mutation, count = resolve_deletion(deletion, view.before(group))
        return mutation, encode(mutation), count

    return Write(request, 0, view, None, resolve)


def filtered_in(view: WriteView, write: FilteredWrite, request: Request, deadline: Deadline) -> Write:
    """Return the write of a batch of what a filter allows."""
    write.look_ahead(view, deadline)
    return Write(
        request,
        write.size_bytes,
        view,
        write.columns_version,
        lambda group: write.resolve(view.before(group)),
    )

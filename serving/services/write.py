"""Handlers of writes.

Handlers that delete or change the datapoints that a filter allows.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow.compute as pc

from scannery.indexer import Manifest, has_vector, search_ready, vector_column
from scannery.live.live_index import LiveIndex
from scannery.live.log.mutation_log import Answer, Request
from scannery.live.prepare import PartialUpdate, TextVectors, Upserts, encode_changes, prepare
from scannery.live.writing.filtered_write import FilteredWrite
from scannery.runtime.errors import (
    FullError,
    InvalidRequestError,
    OtherVersionError,
    OverloadedError,
    PermissionDeniedError,
)
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.contract import INDEX_SERVICE
from scannery.serving.request.filter import Node, has_condition, parse_filter
from scannery.serving.request.write import (
    check_request_id,
    parse_attribute_change,
    parse_delete,
    parse_upsert,
)
from scannery.serving.scheduling.permits import waiting
from scannery.serving.scheduling.quotas import NoQuotas
from scannery.serving.security.limits import MAX_ROWS
from scannery.serving.security.principal import CURRENT
from scannery.serving.services.narrowed_writes import NarrowedWriter, row_filter
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import index_pb2 as pb

__all__ = ["FilteredWrites", "Writes", "foreign_warnings", "writable"]


WrittenT = TypeVar("WrittenT")

NO_REQUEST = Request("")
_NO_QUOTAS = NoQuotas()

_LOG = logging.getLogger(__name__)


class Writes:
    """Upsert and Delete over the indexes of a process. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, quotas: NoQuotas = _NO_QUOTAS) -> None:
        """Serve writes to the indexes of a catalog; `quotas`: what callers may have there."""
        self._catalog, self._quotas = catalog, quotas

    def upsert(self, request: pb.UpsertRequest, deadline: Deadline) -> pb.UpsertResponse:
        """Write a batch atomically."""
        warnings: list[str] = []
        max_rows = self._quotas.max_rows()
        writer = NarrowedWriter.of_caller(request.index)

        def write(index: LiveIndex[Snapshot]) -> Answer:
            manifest = index.state.manifest
            upserts = parse_upsert(request, manifest, deadline)
            if writer is not None:
                upserts = writer.with_values(upserts, manifest)
            if not request.vector_model:
                seen = None if writer is None else writer.seen
                warnings[:] = foreign_warnings(index.snapshot.as_seen(seen), upserts)
            prepared = prepare(upserts, manifest, self._catalog.encoders, deadline)
            if writer is not None:
                writer.check_rows(prepared.mutation.rows, manifest)
                prepared = replace(prepared, seen=writer.rows(index.snapshot, deadline))
            return index.upsert(replace(prepared, max_rows=max_rows), identified(request), deadline)

        try:
            answer = in_newest(self._catalog, request.index, write, deadline)
        except FullError:
            self._quotas.refused(MAX_ROWS)
            raise
        self._catalog.note_write()
        return pb.UpsertResponse(
            sequence=answer.sequence,
            written=answer.count,
            request_id=request.request_id,
            warnings=warnings,
        )

    def delete(self, request: pb.DeleteRequest, deadline: Deadline) -> pb.DeleteResponse:
        """Delete datapoints and documents; unknown ids are no error."""
        deletion, writer = parse_delete(request), NarrowedWriter.of_caller(request.index)

        def delete(index: LiveIndex[Snapshot]) -> Answer:
            seen = None if writer is None else writer.rows(index.snapshot, deadline)
            return index.delete(replace(deletion, seen=seen), identified(request), deadline)

        answer = in_newest(self._catalog, request.index, delete, deadline)
        self._catalog.note_write()
        return pb.DeleteResponse(
            sequence=answer.sequence, deleted=answer.count, request_id=request.request_id
        )


def foreign_warnings(snapshot: Snapshot, upserts: Upserts) -> list[str]:
    """Return a warning for each name whose vectors in a batch do not look like those of the index.

    Raises:
        InvalidRequestError: there are such vectors, and the index refuses them.

    """
    spec, warnings = snapshot.manifest.spec, []
    policy = spec.live.foreign_vectors
    if policy == "allow":
        return []
    for name in snapshot.manifest.vector_names:
        column = vector_column(name)
        rows_N = np.flatnonzero(has_vector(upserts.rows, column))
        if not len(rows_N):
            continue
        values = pc.list_flatten(upserts.rows.column(column)).to_numpy()
        distance = spec.of_vectors(name).distance
        vectors_ND = search_ready(values.reshape(len(rows_N), -1), distance)
        foreign = snapshot.vector_checks.foreign(snapshot.index, name, vectors_ND)
        if foreign is None:
            continue
        field = f"vectors.{name}" if name else "vector"
        path = f"upserts[{upserts.numbers[rows_N[foreign.row]]}].datapoint.{field}"
        what = (
            f"{foreign.foreign} of {foreign.compared} vectors, this one first, do not look like those of index "
            f"{snapshot.manifest.index!r}{_of_model(snapshot.manifest, name)}: another model seems to have made them"
        )
        if policy == "refuse":
            raise InvalidRequestError.at(path, f"{what}. If it has not, name the model in `vector_model`")
        _LOG.warning("written to index %s: %s: %s", snapshot.manifest.index, path, what)
        warnings.append(f"{path}: {what}")
    return warnings


def _of_model(manifest: Manifest, name: str) -> str:
    encoder, model = manifest.spec.of_vectors(name).encoder, manifest.spec.of_vectors(name).vector_model
    model = model or (encoder.model if encoder is not None else None)
    return f", which are of {model!r}" if model else ""


def writable(catalog: Catalog, name: str) -> LiveIndex[Snapshot]:
    """Return the live index with a name; raises what `LiveIndex.check_writable` does, before any work."""
    index = catalog.live(name)
    try:
        index.check_writable()
    except OverloadedError:
        # The memtable is full. Embedded, only writes start maintenance, and all would be refused.
        catalog.note_write()
        raise
    return index


def in_newest(
    catalog: Catalog, name: str, write: Callable[[LiveIndex[Snapshot]], WrittenT], deadline: Deadline
) -> WrittenT:
    """Return what a write answers; where the index goes over to another version, open that, and prepare it again.

    Args:
        catalog: of this process.
        name: of the index.
        write: prepares a write for the version that is open, and does it.
        deadline: of the request.

    Raises what `writable` and `write` do; OtherVersionError if the other version cannot be opened within MOVE_S.
    """
    until, attempts = Deadline.after(min(MOVE_S, deadline.remaining_s)), MOVE_ATTEMPTS
    while True:
        index = writable(catalog, name)
        version = index.state.manifest.version
        try:
            return write(index)
        except OtherVersionError:
            catalog.open_later(name)
            # The mutation log may be ahead of the version that follows: writes wait while contents are exchanged.
            with waiting():
                while index.superseded and index.state.manifest.version == version:
                    if not until.remaining_s:
                        raise _not_open(catalog, name) from None
                    with catalog.moved:
                        moved = catalog.moved.wait(MOVE_CHECK_S)
                    if not moved:
                        catalog.note_write()  # embedded, maintenance runs by this alone
                        catalog.open_later(name)
            attempts -= 1
            if not attempts or not until.remaining_s:
                raise


def _not_open(catalog: Catalog, name: str) -> OtherVersionError:
    problem = catalog.problem(name) or "it is not open here yet"
    return OtherVersionError(
        f"index {name!r} goes over to another version: {problem}", retry_after_s=MOVE_CHECK_S
    )


MOVE_ATTEMPTS = 5
"""Most versions for which a write is prepared, one after the other."""
MOVE_S = 10.0
"""Most seconds that a write waits until the version is open for which it must be prepared."""
MOVE_CHECK_S = 0.25
"""Seconds between two looks of a waiting write for the version: each lists the versions in the store."""


def identified(
    request: pb.UpsertRequest | pb.DeleteRequest | pb.DeleteWhereRequest | pb.UpdateWhereRequest,
) -> Request:
    """Return id, caller and digest, by which a retried request is recognised; empty without a request id."""
    if not request.request_id:
        return NO_REQUEST
    principal = CURRENT.get()
    caller = "" if principal is None or principal.is_anonymous else principal.name
    data = request.SerializeToString(deterministic=True)
    kind = request.DESCRIPTOR.name.encode()[: hashlib.blake2b.PERSON_SIZE]  # the names differ before that
    return Request(request.request_id, caller, hashlib.blake2b(data, digest_size=16, person=kind).digest())


_Request: TypeAlias = pb.DeleteWhereRequest | pb.UpdateWhereRequest


class _Done(NamedTuple):
    """What became of a batch."""

    rows: int
    remaining: int
    sequence: int
    until_sequence: int

    def shared(self, request: _Request) -> dict[str, Any]:
        """Return the fields that the responses to both requests have."""
        return {
            "remaining": self.remaining,
            "sequence": self.sequence,
            "until_sequence": self.until_sequence,
            "request_id": request.request_id,
            "index": request.index,
        }


class FilteredWrites:
    """DeleteWhere and UpdateWhere over the indexes of a process. Safe to use from several threads."""

    def __init__(self, catalog: Catalog) -> None:
        """Serve writes to the indexes of a catalog."""
        self._catalog = catalog
        self.methods: Mapping[str, UnaryMethod] = {
            f"/{INDEX_SERVICE}/DeleteWhere": UnaryMethod(
                pb.DeleteWhereRequest, self.delete, "write", narrowed=True
            ),
            f"/{INDEX_SERVICE}/UpdateWhere": UnaryMethod(
                pb.UpdateWhereRequest, self.update, "write", narrowed=True
            ),
        }

    def delete(self, request: pb.DeleteWhereRequest, deadline: Deadline) -> pb.DeleteWhereResponse:
        """Delete a batch of the datapoints that a filter allows."""
        done = self._done(request, _deletion, deadline)
        return pb.DeleteWhereResponse(deleted=done.rows, **done.shared(request))

    def update(self, request: pb.UpdateWhereRequest, deadline: Deadline) -> pb.UpdateWhereResponse:
        """Change attributes of a batch of the datapoints that a filter allows."""
        done = self._done(request, _change, deadline)
        return pb.UpdateWhereResponse(updated=done.rows, **done.shared(request))

    def _done(
        self,
        request: Any,
        parse: Callable[[Any, Manifest, Deadline], tuple[Node | None, PartialUpdate | None]],
        deadline: Deadline,
    ) -> _Done:
        check_request_id(request.request_id)
        if request.dry_run:
            _check_may_count()
        return in_newest(
            self._catalog,
            request.index,
            lambda index: self._batch(index, request, parse, deadline),
            deadline,
        )

    def _batch(
        self,
        index: LiveIndex[Snapshot],
        request: Any,
        parse: Callable[[Any, Manifest, Deadline], tuple[Node | None, PartialUpdate | None]],
        deadline: Deadline,
    ) -> _Done:
        manifest, writer = index.state.manifest, NarrowedWriter.of_caller(request.index)
        where, change = parse(request, manifest, deadline)
        message = request.where
        if writer is not None:
            if change is not None:
                writer.check_change(change)
            where, message = writer.both(where, message, manifest)
        if change is not None and not request.dry_run:
            vectors = TextVectors(manifest, self._catalog.encoders, deadline)
            [change] = encode_changes([change], manifest, vectors)
        write = FilteredWrite(
            None if where is None else row_filter(index.snapshot.masks, where, message, deadline),
            columns_version=manifest.columns_version,
            limit=_limit(request),
            until_sequence=request.until_sequence if request.HasField("until_sequence") else None,
            change=change,
        )
        if request.dry_run:
            return _counted(index, write, deadline)
        answer = index.write_filtered(write, identified(request), deadline)
        self._catalog.note_write()
        until_sequence = answer.sequence if write.until_sequence is None else write.until_sequence
        remaining, _ = index.count_filtered(write, deadline)
        return _Done(answer.count, remaining, answer.sequence, until_sequence)


def _check_may_count() -> None:
    """Raise PermissionDeniedError unless the caller may read: a dry run is a count, and nothing is written."""
    principal = CURRENT.get()
    if principal is not None and not principal.may("read"):
        raise PermissionDeniedError(
            "dry_run: counting datapoints needs the scope 'read', which these credentials do not have",
            field="dry_run",
        )


def _counted(index: LiveIndex[Snapshot], write: FilteredWrite, deadline: Deadline) -> _Done:
    index.catch_up()
    count, sequence = index.count_filtered(write, deadline)
    until_sequence = sequence if write.until_sequence is None else write.until_sequence
    return _Done(count, count, sequence, until_sequence)


def _deletion(request: pb.DeleteWhereRequest, manifest: Manifest, _: Deadline) -> tuple[Node | None, None]:
    where = parse_filter(request.where, manifest.spec)
    if where is None or not has_condition(where):
        raise InvalidRequestError.at(
            "where", "must have a condition: without one, every datapoint would be deleted"
        )
    return where, None


def _change(
    request: pb.UpdateWhereRequest, manifest: Manifest, deadline: Deadline
) -> tuple[Node | None, PartialUpdate]:
    if not request.HasField("where"):
        raise InvalidRequestError.at("where", "is required; an empty filter changes every datapoint")
    where = parse_filter(request.where, manifest.spec)
    return where, parse_attribute_change(request.attributes, manifest, deadline)


def _limit(request: _Request) -> int:
    limit = request.limit if request.HasField("limit") else limits.DEFAULT_FILTERED_WRITES
    if not 1 <= limit <= limits.MAX_FILTERED_WRITES:
        raise InvalidRequestError.at("limit", f"must be 1 to {limits.MAX_FILTERED_WRITES}, got {limit}")
    return limit

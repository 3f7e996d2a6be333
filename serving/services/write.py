"""Handlers of writes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol, TypeVar

from scannery.live.live_index import LiveIndex
from scannery.live.log.mutation_log import Answer, Request
from scannery.live.prepare import prepare
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import OtherVersionError, OverloadedError
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.request.write import parse_delete, parse_upsert
from scannery.serving.security.principal import CURRENT
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import index_pb2 as pb

__all__ = ["Indexes", "Writes", "identified", "in_newest", "writable"]

WrittenT = TypeVar("WrittenT")

NO_REQUEST = Request("")


class Indexes(Protocol):
    """What the handlers need of a catalog."""

    @property
    def encoders(self) -> EncoderPool:
        """The encoders of texts."""

    def live(self, name: str) -> LiveIndex[Snapshot]:
        """Return the live index with a name."""

    def open_later(self, name: str) -> None:
        """Open a later version of an index than the open one, if that takes milliseconds."""

    def written(self) -> None:
        """Record a write: maintenance may be due."""


class Writes:
    """Upsert and Delete over the indexes of a process. Safe to use from several threads."""

    def __init__(self, indexes: Indexes) -> None:
        """Serve writes to `indexes`."""
        self._indexes = indexes

    def upsert(self, request: pb.UpsertRequest, deadline: Deadline) -> pb.UpsertResponse:
        """Write a batch atomically."""

        def write(index: LiveIndex[Snapshot]) -> Answer:
            manifest = index.state.manifest
            upserts = parse_upsert(request, manifest, deadline)
            prepared = prepare(upserts, manifest, self._indexes.encoders, deadline)
            return index.upsert(prepared, identified(request), deadline)

        answer = in_newest(self._indexes, request.index, write)
        self._indexes.written()
        return pb.UpsertResponse(
            sequence=answer.sequence, written=answer.count, request_id=request.request_id
        )

    def delete(self, request: pb.DeleteRequest, deadline: Deadline) -> pb.DeleteResponse:
        """Delete datapoints and documents; unknown ids are no error."""
        deletion = parse_delete(request)
        answer = in_newest(
            self._indexes,
            request.index,
            lambda index: index.delete(deletion, identified(request), deadline),
        )
        self._indexes.written()
        return pb.DeleteResponse(
            sequence=answer.sequence, deleted=answer.count, request_id=request.request_id
        )


def writable(indexes: Indexes, name: str) -> LiveIndex[Snapshot]:
    """Return the live index with a name; raises what `LiveIndex.check_writable` does, before any work."""
    index = indexes.live(name)
    try:
        index.check_writable()
    except OverloadedError:
        # The memtable is full. Embedded, only writes start maintenance, and all would be refused.
        indexes.written()
        raise
    return index


def in_newest(indexes: Indexes, name: str, write: Callable[[LiveIndex[Snapshot]], WrittenT]) -> WrittenT:
    """Return what a write answers; where the index has just got another version, open that, and prepare it again.

    Args:
        indexes: of this process.
        name: of the index.
        write: prepares a write for the version that is open, and does it.

    Raises what `writable` and `write` do; OtherVersionError if the other version cannot be opened now.
    """
    try:
        return write(writable(indexes, name))
    except OtherVersionError:
        indexes.open_later(name)
        return write(writable(indexes, name))


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

"""Handlers of writes."""

from __future__ import annotations

import hashlib
from typing import Protocol

from scannery.live.live_index import LiveIndex
from scannery.live.log.mutation_log import Request
from scannery.live.prepare import prepare
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import OverloadedError
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.request.write import parse_delete, parse_upsert
from scannery.serving.security.principal import ANONYMOUS, CURRENT
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import index_pb2 as pb

__all__ = ["Indexes", "Writes", "identified", "writable"]

NO_REQUEST = Request("")


class Indexes(Protocol):
    """What the handlers need of a catalog."""

    @property
    def encoders(self) -> EncoderPool:
        """The encoders of texts."""

    def live(self, name: str) -> LiveIndex[Snapshot]:
        """Return the live index with a name."""

    def written(self) -> None:
        """Record a write: maintenance may be due."""


class Writes:
    """Upsert and Delete over the indexes of a process. Safe to use from several threads."""

    def __init__(self, indexes: Indexes) -> None:
        """Serve writes to `indexes`."""
        self._indexes = indexes

    def upsert(self, request: pb.UpsertRequest, deadline: Deadline) -> pb.UpsertResponse:
        """Write a batch atomically."""
        index = writable(self._indexes, request.index)
        manifest = index.state.manifest
        prepared = prepare(
            parse_upsert(request, manifest, deadline), manifest, self._indexes.encoders, deadline
        )
        answer = index.upsert(prepared, identified(request), deadline)
        self._indexes.written()
        return pb.UpsertResponse(
            sequence=answer.sequence, written=answer.count, request_id=request.request_id
        )

    def delete(self, request: pb.DeleteRequest, deadline: Deadline) -> pb.DeleteResponse:
        """Delete datapoints and documents; unknown ids are no error."""
        index = writable(self._indexes, request.index)
        answer = index.delete(parse_delete(request), identified(request), deadline)
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


def identified(
    request: pb.UpsertRequest | pb.DeleteRequest | pb.DeleteWhereRequest | pb.UpdateWhereRequest,
) -> Request:
    """Return id, caller and digest, by which a retried request is recognised; empty without a request id."""
    if not request.request_id:
        return NO_REQUEST
    principal = CURRENT.get()
    caller = "" if principal is None or principal is ANONYMOUS else principal.name
    data = request.SerializeToString(deterministic=True)
    kind = request.DESCRIPTOR.name.encode()[: hashlib.blake2b.PERSON_SIZE]  # the names differ before that
    return Request(request.request_id, caller, hashlib.blake2b(data, digest_size=16, person=kind).digest())

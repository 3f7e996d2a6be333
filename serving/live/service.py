"""The handlers of writes: messages in, messages out, errors raised."""

from __future__ import annotations

from typing import Protocol

from scannery.serving.deadline import Deadline
from scannery.serving.encoding import EncoderPool
from scannery.serving.live.index import LiveIndex
from scannery.serving.live.parsing import parse_delete, parse_upsert
from scannery.serving.live.plain import prepare_plain
from scannery.serving.live.preparing import prepare
from scannery.v1 import index_pb2 as pb

__all__ = ["Writes"]


class Indexes(Protocol):
    """Where indexes are found; the catalog."""

    @property
    def encoders(self) -> EncoderPool:
        """The encoders of texts."""

    def live(self, name: str) -> LiveIndex:
        """Return an index as what takes writes."""

    def written(self) -> None:
        """Take note that something was written."""


class Writes:
    """Upsert and Delete over the indexes of a process. Safe to use from several threads."""

    def __init__(self, indexes: Indexes) -> None:
        self._indexes = indexes

    def upsert(self, request: pb.UpsertRequest, deadline: Deadline) -> pb.UpsertResponse:
        """Write a batch; all of it or nothing."""
        index = self._indexes.live(request.index)
        index.check_writable()
        manifest = index.state.manifest
        prepared = prepare_plain(request, manifest)
        if prepared is None:
            prepared = prepare(parse_upsert(request, manifest), manifest, self._indexes.encoders, deadline)
        answer = index.upsert(prepared, request.request_id, deadline)
        self._indexes.written()
        return pb.UpsertResponse(
            sequence=answer.sequence, written=answer.count, request_id=request.request_id
        )

    def delete(self, request: pb.DeleteRequest, deadline: Deadline) -> pb.DeleteResponse:
        """Delete datapoints and documents; what is not there is no error."""
        index = self._indexes.live(request.index)
        index.check_writable()
        answer = index.delete(parse_delete(request), request.request_id, deadline)
        self._indexes.written()
        return pb.DeleteResponse(
            sequence=answer.sequence, deleted=answer.count, request_id=request.request_id
        )

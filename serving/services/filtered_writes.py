"""Handlers that delete or change the datapoints that a filter allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from scannery.indexer import AllowedRows, Manifest, Segment
from scannery.live.live_index import LiveIndex
from scannery.live.named_encoding import TextVectors, encode_changes
from scannery.live.write_request import PartialUpdate
from scannery.live.writing.filtered_write import FilteredWrite
from scannery.live.writing.matching_rows import RowFilter
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError, PermissionDeniedError
from scannery.serving import limits
from scannery.serving.contract import INDEX_SERVICE
from scannery.serving.request.filter import Node, has_condition, parse_filter
from scannery.serving.request.write import check_request_id, parse_attribute_change
from scannery.serving.security.principal import CURRENT
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.services.write import Indexes, identified, in_newest
from scannery.serving.snapshot.filter_cache import FilterCache
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import index_pb2 as pb
from scannery.v1.types_pb2 import Filter

__all__ = ["FilteredWrites"]

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

    def __init__(self, indexes: Indexes) -> None:
        """Serve writes to `indexes`."""
        self._indexes = indexes
        self.methods: Mapping[str, UnaryMethod] = {
            f"/{INDEX_SERVICE}/DeleteWhere": UnaryMethod(pb.DeleteWhereRequest, self.delete, "write"),
            f"/{INDEX_SERVICE}/UpdateWhere": UnaryMethod(pb.UpdateWhereRequest, self.update, "write"),
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
            self._indexes, request.index, lambda index: self._batch(index, request, parse, deadline)
        )

    def _batch(
        self,
        index: LiveIndex[Snapshot],
        request: Any,
        parse: Callable[[Any, Manifest, Deadline], tuple[Node | None, PartialUpdate | None]],
        deadline: Deadline,
    ) -> _Done:
        manifest = index.state.manifest
        where, change = parse(request, manifest, deadline)
        if change is not None and not request.dry_run:
            vectors = TextVectors(manifest, self._indexes.encoders, deadline)
            [change] = encode_changes([change], manifest, vectors)
        write = FilteredWrite(
            None if where is None else _row_filter(index.snapshot.masks, where, request.where, deadline),
            columns_version=manifest.columns_version,
            limit=_limit(request),
            until_sequence=request.until_sequence if request.HasField("until_sequence") else None,
            change=change,
        )
        if request.dry_run:
            return _counted(index, write, deadline)
        answer = index.write_filtered(write, identified(request), deadline)
        self._indexes.written()
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


def _row_filter(masks: FilterCache, where: Node, message: Filter, deadline: Deadline) -> RowFilter:
    return RowFilter(partial(_matching, masks, where, deadline), message.SerializeToString())


def _matching(masks: FilterCache, where: Node, deadline: Deadline, segment: Segment) -> AllowedRows:
    return masks.allowed(segment, where, deadline=deadline)

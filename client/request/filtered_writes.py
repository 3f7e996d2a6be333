"""Calls that delete or change a batch of the datapoints that a filter allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.aggregations import is_int32
from scannery.client.request.calls import Call, Method
from scannery.client.request.filters import Where, build_filter
from scannery.client.request.values import refuses_surrogates
from scannery.client.request.writes import build_attributes
from scannery.v1 import index_pb2 as pb

__all__ = ["AsyncSend", "BatchCall", "FilteredBatch", "Send", "check_alone", "delete_where", "update_where"]

DELETE_WHERE = Method("/scannery.v1.IndexService/DeleteWhere", pb.DeleteWhereRequest, pb.DeleteWhereResponse)
UPDATE_WHERE = Method("/scannery.v1.IndexService/UpdateWhere", pb.UpdateWhereRequest, pb.UpdateWhereResponse)


@dataclass(frozen=True, slots=True)
class FilteredBatch:
    """What became of a batch."""

    rows: int
    """Datapoints that it deleted or changed."""
    remaining: int
    """Datapoints that are left."""
    sequence: int
    until_sequence: int
    """Sequence to be sent with the next batch."""
    index: str
    """Name of the index, for the next batch; empty: the server does not say it."""


BatchCall: TypeAlias = Callable[[int | None, str], Call[Any, Any, FilteredBatch]]
"""Makes the call of a batch from the `until_sequence` of the batch before, None for the first one, and a request id."""

AsyncSend: TypeAlias = Callable[[Call[Any, Any, FilteredBatch]], Awaitable[FilteredBatch]]
Send: TypeAlias = Callable[[Call[Any, Any, FilteredBatch]], FilteredBatch]
"""Sends the call of a batch."""


def check_alone(**arguments: object) -> None:
    """Refuse arguments that make no sense with `where`; InvalidArgumentError names the first one."""
    for name, value in arguments.items():
        if value is not None and value != ():
            raise InvalidArgumentError(f"{name}: cannot be given together with where", field=name)


@refuses_surrogates
def delete_where(
    index: str,
    where: Where,
    *,
    limit: int,
    until_sequence: int | None,
    dry_run: bool,
    request_id: str,
    timeout_s: float | None,
) -> Call[pb.DeleteWhereRequest, pb.DeleteWhereResponse, FilteredBatch]:
    """Return the call that deletes a batch."""
    request = pb.DeleteWhereRequest(
        index=index,
        where=build_filter(where),
        limit=_limit(limit),
        until_sequence=until_sequence,
        dry_run=dry_run,
        request_id=request_id,
    )
    return Call(DELETE_WHERE, request, lambda answer: _batch(answer.deleted, answer), timeout_s)


@refuses_surrogates
def update_where(
    index: str,
    where: Where,
    attributes: Mapping[str, Any] | None,
    *,
    limit: int,
    until_sequence: int | None,
    dry_run: bool,
    request_id: str,
    timeout_s: float | None,
) -> Call[pb.UpdateWhereRequest, pb.UpdateWhereResponse, FilteredBatch]:
    """Return the call that changes a batch."""
    request = pb.UpdateWhereRequest(
        index=index,
        where=build_filter(where),
        attributes=build_attributes({} if attributes is None else attributes),
        limit=_limit(limit),
        until_sequence=until_sequence,
        dry_run=dry_run,
        request_id=request_id,
    )
    return Call(UPDATE_WHERE, request, lambda answer: _batch(answer.updated, answer), timeout_s)


def _batch(rows: int, answer: pb.DeleteWhereResponse | pb.UpdateWhereResponse) -> FilteredBatch:
    return FilteredBatch(rows, answer.remaining, answer.sequence, answer.until_sequence, answer.index)


def _limit(limit: object) -> int:
    if not is_int32(limit):
        raise InvalidArgumentError(f"batch_size: must be an integer, got {limit!r:.80}", field="batch_size")
    return limit

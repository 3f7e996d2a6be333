"""Limits of the hits of a group (crowding): the hits that have the same value of a column."""

from __future__ import annotations

from dataclasses import dataclass

from scannery.indexer import IndexSpec
from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.request.filter import unknown_name
from scannery.serving.request.query import check_within
from scannery.v1 import search_pb2 as pb

__all__ = ["GroupLimit", "check_group_by", "parse_group_limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimit:
    """Limit of the hits that have the same value of a column."""

    column: str
    """Attribute, or `document_id`."""
    max_hits: int


def parse_group_limits(message: pb.SearchOptions, spec: IndexSpec) -> tuple[GroupLimit, ...]:
    """Return the limits of a request, in its order; InvalidRequestError names the field that is wrong."""
    if not message.HasField("crowding"):
        if message.further_crowding:
            raise InvalidRequestError.at("further_crowding", "needs `crowding`, the first limit")
        return ()
    crowdings = [message.crowding, *message.further_crowding]
    if len(crowdings) > limits.MAX_CROWDINGS:
        raise InvalidRequestError.at(
            "max_per_group", f"must have at most {limits.MAX_CROWDINGS} columns, got {len(crowdings)}"
        )
    group_limits: list[GroupLimit] = []
    for crowding in crowdings:
        max_hits = check_within("max_per_group", crowding.max_per_group, 1, limits.MAX_K)
        column = crowding.group_by or "document_id"
        check_group_by(column, spec)
        if any(column == earlier.column for earlier in group_limits):
            raise InvalidRequestError.at("group_by", f"{column!r} is given twice")
        group_limits.append(GroupLimit(column=column, max_hits=max_hits))
    return tuple(group_limits)


def check_group_by(name: str, spec: IndexSpec) -> None:
    """Raise InvalidRequestError if rows cannot be grouped by a column of this name."""
    if name == "document_id":
        return
    kind = spec.attributes.get(name)
    if kind is None:
        names = dict.fromkeys(("document_id", *spec.attributes))
        what = unknown_name(name, names, "declared attribute" if spec.dynamic else "attribute")
        raise InvalidRequestError.at("group_by", f"{name!r:.80}: {what}")
    if kind == "string_list":
        raise InvalidRequestError.at("group_by", f"{name!r} is a string_list; a row would be in many groups")
    if kind == "geo":
        raise InvalidRequestError.at("group_by", f"{name!r} is a place; places make no groups")

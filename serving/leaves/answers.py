"""Answers of leaves are parsed only if they have about as many parts as were asked for.

A leaf of ours has no more. An empty part takes two bytes of an answer, and a hundred times as much as a message: 40 MB
of them took 1 GB of a root, and an answer may have 1 GiB.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from scannery.runtime.errors import ServingError
from scannery.serving.limits import MAX_LEAF_ROWS
from scannery.serving.request.part_count import MAX_PARTS, count_parts
from scannery.v1.leaf_pb2 import LeafFetchRequest, LeafSearchRequest

__all__ = ["MOST_OF_OTHERS", "most_parts", "parsed"]

MOST_OF_OTHERS = 50_000
"""Of answers whose lists are packed, and of a status: some 20,000 indexes."""
MOST_OF_DATAPOINT = 8192

AnswerT = TypeVar("AnswerT", bound=Message)


def most_parts(request: Message) -> int:
    """Return how many messages, and strings in lists, the answer to a request has at most, with room to spare."""
    if isinstance(request, LeafSearchRequest):
        rankings = len(request.vectors) + bool(request.words)
        rows = min(request.queries * request.wanted, MAX_LEAF_ROWS) * rankings
        of_row = 1 + 2 * bool(request.group_by) + request.datapoints
        return 2 * rows * of_row + request.queries * (2 + 3 * rankings) + MOST_OF_OTHERS
    if isinstance(request, LeafFetchRequest):
        return max(MAX_PARTS, MOST_OF_DATAPOINT * len(request.ids))
    return MOST_OF_OTHERS


def parsed(kind: type[AnswerT], data: bytes, most: int, whose: str) -> AnswerT:
    """Return an answer as a message.

    Args:
        kind: of the answer.
        data: the encoded answer.
        most: parts that it may have.
        whose: whose answer it is, for errors.

    Raises:
        ServingError: it has more parts, or is no such message.

    """
    name = kind.DESCRIPTOR.full_name
    found = count_parts(kind, data, most)
    if found > most:
        raise ServingError(f"the answer of {whose} has more parts than a {name} of what was asked can have")
    try:
        if found < 0:
            raise DecodeError
        return kind.FromString(data)
    except DecodeError as error:
        raise ServingError(f"the answer of {whose} is not a {name}") from error

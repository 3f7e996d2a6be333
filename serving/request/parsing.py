"""Parses encoded messages, large ones in pieces.

Protobuf parses with the interpreter lock held: of a message of 57 MB for 50 milliseconds, and ten times as long if its
parts are small. Encoded messages are merged by concatenation, so one may be cut between any two of its fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, cast

import numpy as np
from google.protobuf.message import Message

from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.kernels.fused import compiled
from scannery.runtime.pieces import PIECE_BYTES
from scannery.serving.request.part_count import ENCODED_B, next_field

__all__ = ["parsed", "warm_up"]

MessageT = TypeVar("MessageT", bound=Message)


def parsed(kind: type[MessageT], data: bytes | bytearray) -> MessageT:
    """Return the message of some bytes; raises DecodeError if they are malformed."""
    if len(data) <= PIECE_BYTES:
        return kind.FromString(cast("bytes", data))  # which takes both, whatever its stub says
    message = kind()
    for piece in _pieces(data):
        message.MergeFromString(piece)
    return message


def warm_up() -> None:
    """Compile the search for fields, so that no request waits for it."""
    with COMPILING:
        for data_B in ENCODED_B:
            _end_of_piece(data_B, 0, 0)


def _pieces(data: bytes | bytearray) -> Iterator[bytes]:
    """Yield the bytes of a message in pieces, which are messages of the same type."""
    data_B, start = np.frombuffer(data, np.uint8), 0
    while start < len(data):
        end = _end_of_piece(data_B, start, PIECE_BYTES)
        yield data_B[start:end].tobytes()
        start = end


@compiled
def _end_of_piece(data_B: np.ndarray, start: int, size: int) -> int:
    """Return the end of the field in which a piece has its size; the end of the data if that is malformed."""
    at = start
    while at < len(data_B) and at - start < size:
        tag = data_B[at] & 7
        _, content, length = next_field(data_B, at, len(data_B))
        # The fields of a group have no end of their own.
        if length < 0 or tag in (3, 4):
            return len(data_B)
        at = content + length
    return at

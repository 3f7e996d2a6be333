"""How many parts a request has, counted on the wire before it is decoded.

A part that says nothing takes two bytes of a body, and a hundred times as much as a message: 60 MiB of them became
8 GiB, and kept the interpreter's lock for half a minute. What follows the limits of the contract has far fewer of them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from scannery.indexer.kernels.fused import COMPILING, compiled
from scannery.runtime.errors import InvalidRequestError

__all__ = ["check_parts", "warm_up"]

SMALL_BYTES = 1 << 15
"""Shorter requests are decoded as they are: whatever they consist of is soon done."""
MAX_PARTS = 5_000_000
"""Messages and texts of lists. A SearchMany at all of its limits has about this many values in its filters."""
MAX_OWN_PARTS = 8192
"""Likewise, in the lists of the request itself; a SearchMany has 2,000."""
MAX_DEPTH = 100
"""As deep as protobuf goes."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_TEXT = -1


def check_parts(kind: type[Message], data: bytes) -> None:
    """Look at a request before it is decoded.

    Raises:
        InvalidRequestError: it has too many parts, or is no message.

    """
    if len(data) <= SMALL_BYTES:
        return
    name = kind.DESCRIPTOR.full_name
    found = _count_parts(np.frombuffer(data, np.uint8), _kinds(kind.DESCRIPTOR), MAX_PARTS, MAX_OWN_PARTS)
    if found < 0:
        raise InvalidRequestError(f"the request is not a {name}")
    if found > MAX_PARTS:
        raise InvalidRequestError(
            f"the {name} has too many parts: its lists may have {MAX_OWN_PARTS} items, "
            f"and {MAX_PARTS} with what is in them"
        )


def warm_up() -> None:
    """Compile what counts: no request must wait for that."""
    with COMPILING:
        _count_parts(np.zeros(0, np.uint8), np.zeros((1, 1), np.int64), 1, 1)


@lru_cache
def _kinds(root: Descriptor) -> np.ndarray:
    """Return for each message (the first is the root) and number of a field what it is.

    0: something else; -1: a text of a list; otherwise a message, the one of which the number is one less.
    """
    messages = _messages(root)
    numbers = {message.full_name: number for number, message in enumerate(messages)}
    most = max(field.number for message in messages for field in message.fields)
    kinds_TF = np.zeros((len(messages), most + 1), np.int64)
    for message in messages:
        for field in message.fields:
            kinds_TF[numbers[message.full_name], field.number] = _kind(field, numbers)
    return kinds_TF


def _messages(root: Descriptor) -> list[Descriptor]:
    """Return a message, and all that it may have in it."""
    found = {root.full_name: root}
    waiting = [root]
    while waiting:
        for field in waiting.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in found:
                found[inner.full_name] = inner
                waiting.append(inner)
    return list(found.values())


def _kind(field: FieldDescriptor, numbers: dict[str, int]) -> int:
    if field.message_type is not None:
        return numbers[field.message_type.full_name] + 1
    is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    return _TEXT if is_text and field.is_repeated else 0


@compiled
def _varint(data_B: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Return a number, and where it ends; -1 as its end if it does not."""
    value = shift = 0
    while at < end and shift < 64:
        byte = int(data_B[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return value, -1


@compiled
def _field(data_B: np.ndarray, at: int, end: int) -> tuple[int, int, int]:
    """Return the number of the next field, 0 if it has no length, where its content begins, and its size; -1: none."""
    tag, at = _varint(data_B, at, end)
    number, wire, size = tag >> 3, tag & 7, 0
    if wire == _VARINT:
        _, at = _varint(data_B, at, end)
    elif wire == _LENGTH:
        size, at = _varint(data_B, at, end)
    elif wire == _FIXED64:
        size = 8
    elif wire == _FIXED32:
        size = 4
    if at < 0 or number <= 0 or wire > _FIXED32 or not 0 <= size <= end - at:
        size = -1
    return number if wire == _LENGTH else 0, at, size


@compiled
def _count_parts(data_B: np.ndarray, kinds_TF: np.ndarray, most: int, most_own: int) -> int:
    """Return how many parts there are, and more than `most` if they are too many; -1 if it is no message."""
    ends_D, types_D = np.zeros(MAX_DEPTH + 1, np.int64), np.zeros(MAX_DEPTH + 1, np.int64)
    ends_D[0] = len(data_B)
    depth = at = parts = own = 0
    while parts <= most and own <= most_own:
        while depth > 0 and at == ends_D[depth]:
            depth -= 1
        if at == ends_D[depth]:
            return parts
        number, at, size = _field(data_B, at, ends_D[depth])
        kind = kinds_TF[types_D[depth], number] if number < kinds_TF.shape[1] else 0
        if size < 0 or (kind > 0 and depth == MAX_DEPTH):
            return -1
        if kind != 0:
            parts += 1
            own += depth == 0
        if kind > 0:
            depth += 1
            ends_D[depth], types_D[depth] = at + size, kind - 1
        else:
            at += size
    return most + 1

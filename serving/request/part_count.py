"""Count the parts of an encoded request before it is decoded.

An empty part takes two bytes of a body, and a hundred times as much as a decoded message: 60 MiB of them became 8 GiB,
and held the interpreter lock for half a minute. Requests within the documented limits have far fewer parts.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.kernels.fused import compiled
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.limits import MAX_FILTER_VALUES

__all__ = ["ENCODED_B", "MAX_PARTS", "SMALL_BYTES", "check_parts", "count_parts", "next_field", "warm_up"]

SMALL_BYTES = 1 << 15
"""Requests up to this size are decoded without counting, and on the event loop: decoding them is always fast."""
MAX_PARTS = 5_000_000
"""Messages, and strings in lists. The filters of a SearchMany at all of its limits have about this many values."""
MAX_OWN_PARTS = 8192
"""Parts in lists of the request message itself; a SearchMany at its limits has 2,000."""
MAX_FIELD_PARTS = 16_384
"""Parts in one item of a list of the request, and in all fields that are no lists; a filter at its limits has 8,448."""
LARGE_FIELDS = frozenset(
    f"scannery.v1.{name}"
    for name in ("LeafSearchRequest", "SearchStreamRequest", "UpdateWhereRequest", "UpsertRequest")
)
"""Requests one field of which may have as many parts as the whole: a SearchManyRequest, a list of strings, the words of
all queries."""
MAX_DEPTH = 100
"""Nesting limit of protobuf."""
ENCODED_B = (np.frombuffer(bytes(1), np.uint8), np.frombuffer(bytearray(1), np.uint8))
"""An encoded request of each kind that kernels are compiled for: arrays that cannot be written, and those that can."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_TEXT = -1


def check_parts(kind: type[Message], data: bytes | bytearray) -> None:
    """Check an encoded request.

    Args:
        kind: class of the request message.
        data: the encoded request.

    Raises:
        InvalidRequestError: it has too many parts, or is not a valid message.

    """
    if len(data) <= SMALL_BYTES:
        return
    name = kind.DESCRIPTOR.full_name
    most_of_field = MAX_PARTS if name in LARGE_FIELDS else MAX_FIELD_PARTS
    count = _count_parts(
        np.frombuffer(data, np.uint8), *_kinds(kind.DESCRIPTOR), MAX_PARTS, MAX_OWN_PARTS, most_of_field
    )
    if count < 0:
        raise InvalidRequestError(f"the request is not a {name}")
    if count > MAX_PARTS:
        raise InvalidRequestError(
            f"the {name} has too many parts: its lists may have {MAX_OWN_PARTS} items, a list of a filter "
            f"{MAX_FILTER_VALUES}, another field {most_of_field} values and parts, and all together {MAX_PARTS}"
        )


def count_parts(kind: type[Message], data: bytes, maximum: int) -> int:
    """Return the number of parts of an encoded message; 0: it is small; more than `maximum`: too many; -1: invalid."""
    if len(data) <= SMALL_BYTES:
        return 0
    count: int = _count_parts(
        np.frombuffer(data, np.uint8), *_kinds(kind.DESCRIPTOR), maximum, maximum, maximum
    )
    return count


def warm_up() -> None:
    """Compile the counter, so that no request waits for it."""
    with COMPILING:
        for data_B in ENCODED_B:
            _count_parts(data_B, np.zeros((1, 1), np.int64), np.zeros(1, bool), 1, 1, 1)


@lru_cache
def _kinds(root: Descriptor) -> tuple[np.ndarray, np.ndarray]:
    """Return the kind of each field, int64 (message types, highest field number + 1), and which of the root are lists.

    The root message is row 0. Kinds are 0: not counted; -1: a string or bytes in a list; n > 0: a message whose type is
    row n - 1.
    """
    messages = _messages(root)
    numbers = {message.full_name: number for number, message in enumerate(messages)}
    largest = max(field.number for message in messages for field in message.fields)
    kinds_TF = np.zeros((len(messages), largest + 1), np.int64)
    for message in messages:
        for field in message.fields:
            kinds_TF[numbers[message.full_name], field.number] = _kind(field, numbers)
    lists_F = np.zeros(largest + 1, bool)
    lists_F[[field.number for field in root.fields if field.is_repeated]] = True
    return kinds_TF, lists_F


def _messages(root: Descriptor) -> list[Descriptor]:
    """Return a message type and all types that it can contain, the root first."""
    by_name = {root.full_name: root}
    pending = [root]
    while pending:
        for field in pending.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in by_name:
                by_name[inner.full_name] = inner
                pending.append(inner)
    return list(by_name.values())


def _kind(field: FieldDescriptor, numbers: dict[str, int]) -> int:
    if field.message_type is not None:
        return numbers[field.message_type.full_name] + 1
    is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    return _TEXT if is_text and field.is_repeated else 0


@compiled
def _varint(data_B: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Return a varint and the offset after it; -1 as the offset if it is cut off or too long."""
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
def next_field(data_B: np.ndarray, at: int, end: int) -> tuple[int, int, int]:
    """Return number, content offset and content size of the next field; size -1: the data is invalid.

    The number is 0 if the field is not length-delimited.
    """
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
def _count_parts(
    data_B: np.ndarray,
    kinds_TF: np.ndarray,
    lists_F: np.ndarray,
    maximum: int,
    most_own: int,
    most_of_field: int,
) -> int:
    """Return the number of parts; `maximum` + 1 if there are too many; -1 if the data is not a valid message.

    A field that is no list counts as often as it occurs: the decoder joins all of them.
    """
    ends_D, types_D = np.zeros(MAX_DEPTH + 1, np.int64), np.zeros(MAX_DEPTH + 1, np.int64)
    ends_D[0] = len(data_B)
    depth = at = parts = total = of_item = of_others = 0
    in_list = False
    while parts <= maximum and total <= most_own and max(of_item, of_others) <= most_of_field:
        while depth > 0 and at == ends_D[depth]:
            depth -= 1
        if at == ends_D[depth]:
            return parts
        number, at, size = next_field(data_B, at, ends_D[depth])
        kind = kinds_TF[types_D[depth], number] if number < kinds_TF.shape[1] else 0
        if size < 0 or (kind > 0 and depth == MAX_DEPTH):
            return -1
        if kind != 0:
            parts += 1
            if depth == 0:
                total, of_item, in_list = total + 1, 0, lists_F[number]
            if in_list:
                of_item += 1
            else:
                of_others += 1
        if kind > 0:
            depth += 1
            ends_D[depth], types_D[depth] = at + size, kind - 1
        else:
            at += size
    return maximum + 1

"""Refuses fields that are not in our messages: to ignore them would give another answer than the one asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from scannery.runtime.errors import UnsupportedError

__all__ = ["check_known"]


def check_known(request: Message) -> None:
    """Raise UnsupportedError if a request, or a message in it, has fields that are not known here."""
    size = request.ByteSize()
    copy = type(request)()
    copy.CopyFrom(request)
    copy.DiscardUnknownFields()
    if copy.ByteSize() == size:
        return
    path, number = next(_unknown(request, ""), ("", 0))
    raise UnsupportedError(
        f"{path or request.DESCRIPTOR.name}: field number {number} is not supported by this server",
        field=path,
    )


def _unknown(message: Message, path: str) -> Iterator[tuple[str, int]]:
    """Yield path and number of unknown fields."""
    unknown: Any = UnknownFieldSet(message)  # its stub lacks that it is a sequence
    for field in unknown:
        yield path, field.field_number
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        front = f"{path}.{field.name}" if path else field.name
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key, item in value.items():
                    yield from _unknown(item, f"{front}[{key!r:.80}]")
        elif field.is_repeated:
            for number, item in enumerate(value):
                yield from _unknown(item, f"{front}[{number}]")
        else:
            yield from _unknown(value, front)

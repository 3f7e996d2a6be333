"""Why a body is not the JSON of a message: the first value that does not fit, by its path.

The parser of Protobuf says it in the words of its implementation, and with paths that leave out items of lists. This
module is called for bodies that it has refused.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from typing import NamedTuple, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from scannery.indexer.strict_json import strict_json
from scannery.runtime.errors import InvalidRequestError

__all__ = ["json_error"]

SHOWN_CHARS = 80


class _Misfit(NamedTuple):
    path: str
    what: str


def json_error(kind: type[Message], data: bytes, said: str) -> InvalidRequestError:
    """Return the error for a body that is not the JSON of a message.

    Args:
        kind: the type of the message.
        data: the body.
        said: what the parser said, for what is not found here.

    """
    root = cast(Descriptor, kind.DESCRIPTOR)
    try:
        misfit = next(_misfits(root, strict_json(data.decode()), ""), None)
    except ValueError as error:
        return InvalidRequestError(f"the body is not JSON: {error}")
    except RecursionError:
        return InvalidRequestError("the body is not JSON: it is nested too deeply")
    if misfit is not None and misfit.path:
        return InvalidRequestError.at(_valid(misfit.path), _valid(misfit.what))
    what = misfit.what if misfit is not None else said.split("\n", 1)[0].strip(". ")
    return InvalidRequestError(f"the body is not the JSON of a {root.full_name}: {_valid(what)}")


def _misfits(kind: Descriptor, value: object, path: str) -> Iterator[_Misfit]:
    """Yield what does not fit in the JSON of a message."""
    if kind.full_name in _TEXTS:
        yield from _in_text(kind, value, path)
        return
    if not isinstance(value, dict):
        yield _Misfit(path, f"must be an object, got {_shown(value)}")
        return
    fields = {name: field for field in kind.fields for name in (field.json_name, field.name)}
    name_of_field: dict[str, str] = {}
    for name, item in value.items():
        here = f"{path}.{name}" if path else name
        field = fields.get(name)
        if field is None:
            yield _Misfit(here[:200], f"there is no such field in {kind.full_name}")
            continue
        if item is None:  # as if it were not there
            continue
        # Synthetic groups, those of `optional`, have one field.
        group = field.containing_oneof
        if (
            earlier := name_of_field.setdefault(field.name if group is None else group.full_name, name)
        ) != name:
            yield _Misfit(here, f"cannot be given together with {earlier}")
        yield from _of_field(field, item, here)


def _of_field(field: FieldDescriptor, value: object, path: str) -> Iterator[_Misfit]:
    """Yield what does not fit in a field that is given."""
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        if not isinstance(value, dict):
            yield _Misfit(path, f"must be an object, got {_shown(value)}")
            return
        for name, item in value.items():
            yield from _of_value(entry.fields_by_name["value"], item, f"{path}.{name:.80}")
    elif field.is_repeated:
        if not isinstance(value, list):
            yield _Misfit(path, f"must be a list, got {_shown(value)}")
            return
        for number, item in enumerate(value):
            yield from _of_value(field, item, f"{path}[{number}]")
    else:
        yield from _of_value(field, value, path)


def _of_value(field: FieldDescriptor, value: object, path: str) -> Iterator[_Misfit]:
    """Yield what does not fit in one value."""
    if field.message_type is not None:
        yield from _misfits(field.message_type, value, path)
    elif (allowed := _expected(field, value)) is not None:
        yield _Misfit(path, f"must be {allowed}, got {_shown(value)}")


def _expected(field: FieldDescriptor, value: object) -> str | None:
    """Return what a scalar must be; None: the value is that."""
    if field.enum_type is not None:
        fits, names = (
            _is_enum(field.enum_type, value),
            [value_of_enum.name for value_of_enum in field.enum_type.values if value_of_enum.number],
        )
        allowed = f"one of {', '.join(names)}"
    elif field.type in _INTEGERS:
        least, maximum = _INTEGERS[field.type]
        fits, allowed = _is_integer(value, least, maximum), f"an integer from {least} to {maximum}"
    elif field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        fits, allowed = _is_number(value), "a number"
    elif field.type == field.TYPE_BOOL:
        fits, allowed = isinstance(value, bool), "true or false"
    elif field.type == field.TYPE_BYTES:
        fits, allowed = isinstance(value, str) and _is_base64(value), "a string with base64"
    elif isinstance(value, str):
        fits, allowed = _valid(value) == value, "valid Unicode"
    else:
        fits, allowed = False, "a string"
    return None if fits else allowed


def _is_enum(kind: EnumDescriptor, value: object) -> bool:
    return type(value) is int or (isinstance(value, str) and value in kind.values_by_name)


def _is_integer(value: object, least: int, maximum: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        return least <= int(value) <= maximum and (isinstance(value, str) or value == int(value))
    except (ValueError, OverflowError):
        return False


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        # Infinity is a string in the JSON of Protobuf.
        return math.isfinite(float(value)) or isinstance(value, str)
    except (ValueError, OverflowError):
        return False


def _is_base64(text: str) -> bool:
    try:
        base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return False
    return True


def _valid(text: str) -> str:
    """Return a text with escapes in place of lone surrogates, which JSON can have and an answer cannot."""
    return text.encode(errors="backslashreplace").decode()


def _in_text(kind: Descriptor, value: object, path: str) -> Iterator[_Misfit]:
    """Yield what does not fit in a message that is a string in JSON."""
    allowed = _TEXTS[kind.full_name]
    if not isinstance(value, str):
        yield _Misfit(path, f"must be {allowed}, got {_shown(value)}")
        return
    if kind.full_name == Timestamp.DESCRIPTOR.full_name:
        try:
            Timestamp().FromJsonString(value)
        except ValueError:
            yield _Misfit(path, f"must be {allowed}, got {_shown(value)}")


def _shown(value: object) -> str:
    """Return a value as JSON, cut; lists and objects by their kind."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return json.dumps(value[:SHOWN_CHARS] if isinstance(value, str) else value, ensure_ascii=False)


_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
_TEXTS = {
    Timestamp.DESCRIPTOR.full_name: "a time such as 2024-05-01T12:00:00Z",
    "google.protobuf.FieldMask": "names of fields in a string, with commas between them",
}
"""Messages that are strings in JSON, and what the strings are."""

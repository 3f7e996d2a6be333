"""Descriptions of indexes and endpoints: as stored, as messages, and how lists of them are filtered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from scannery.runtime.errors import InvalidRequestError, UnsupportedError

__all__ = [
    "changed_paths",
    "check_description",
    "check_labels",
    "check_texts",
    "filtered",
    "masked",
    "timestamp",
]

MAX_NAME_CHARACTERS = 128
MAX_DESCRIPTION_CHARACTERS = 8192
MAX_LABELS = 64
MAX_FILTER_CHARACTERS = 2048
"""The time to find the ANDs of a filter grows with the square of its length."""
_LABEL = re.compile(r"[^\W\d_A-Z][\w-]{0,62}|[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[^A-Z\x00-\x1f]{0,63}")
_TERM = re.compile(
    r"(?P<name>display_name|labels\.[\w-]+|labels)\s*(?P<operator>=|:)\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<bare>[^\s\"]+))"
)

MessageT = TypeVar("MessageT", bound=Message)


def timestamp(seconds: float) -> Timestamp:
    """Return a time, given in seconds since 1970, as a message."""
    found = Timestamp()
    found.FromMicroseconds(round(seconds * 1e6))
    return found


def check_texts(resource: Any, front: str) -> None:
    """Check display name, description and labels; raises InvalidRequestError, whose field begins with `front`."""
    if not 1 <= len(resource.display_name) <= MAX_NAME_CHARACTERS:
        raise InvalidRequestError.at(
            f"{front}.display_name",
            f"must have 1 to {MAX_NAME_CHARACTERS} characters, got {len(resource.display_name)}",
        )
    check_description(resource.description, f"{front}.description")
    check_labels(resource.labels, f"{front}.labels")


def check_description(text: str, path: str) -> None:
    """Check the length of a description; raises InvalidRequestError."""
    if len(text) > MAX_DESCRIPTION_CHARACTERS:
        raise InvalidRequestError.at(
            path, f"must have at most {MAX_DESCRIPTION_CHARACTERS} characters, got {len(text)}"
        )


def check_labels(labels: Mapping[str, str], path: str) -> None:
    """Check labels; raises InvalidRequestError."""
    if len(labels) > MAX_LABELS:
        raise InvalidRequestError.at(path, f"must have at most {MAX_LABELS} labels, got {len(labels)}")
    for key, value in labels.items():
        if not _LABEL.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise InvalidRequestError.at(
                f"{path}.{key:.63}",
                "keys begin with a lower-case letter and have, as values, at most 63 characters: lower-case letters, "
                "digits, `_`, `-`",
            )


def changed_paths(mask: FieldMask, given: Any, known: Sequence[str], field: str = "update_mask") -> list[str]:
    """Return the fields that an update changes: those of the mask, or without one those that are set.

    Raises:
        InvalidRequestError: the mask names another field, or nothing is changed.

    """
    paths = list(dict.fromkeys(mask.paths)) or [name for name in known if _is_set(given, name)]
    for path in paths:
        if path not in known:
            raise InvalidRequestError.at(
                field, f"{path!r:.80} cannot be changed; possible are {', '.join(known)}"
            )
    if not paths:
        raise InvalidRequestError.at(field, f"must name at least one of {', '.join(known)}")
    return paths


def masked(message: MessageT, mask: FieldMask) -> MessageT:
    """Return a message with the fields of a mask only; without paths, all."""
    if not mask.paths:
        return message
    found = type(message)()
    known = [path for path in mask.paths if path != "*"]
    if len(known) < len(mask.paths):
        return message
    if not _is_valid(known, message):
        raise InvalidRequestError.at("read_mask", "names a field that there is not")
    FieldMask(paths=known).MergeMessage(message, found)
    return found


def _is_valid(paths: Sequence[str], message: Any) -> bool:
    return bool(FieldMask(paths=paths).IsValidForDescriptor(message.DESCRIPTOR))


def filtered(items: Iterable[tuple[str, MessageT]], text: str) -> list[tuple[str, MessageT]]:
    """Return those items that a filter of a list request allows.

    Raises:
        UnsupportedError: the filter has another form than terms joined by AND.

    """
    tests = _parsed(text)
    return [item for item in items if all(test(item[1]) for test in tests)]


def _parsed(text: str) -> list[Callable[[Any], bool]]:
    if len(text) > MAX_FILTER_CHARACTERS:
        raise InvalidRequestError.at(
            "filter", f"must have at most {MAX_FILTER_CHARACTERS} characters, got {len(text)}"
        )
    tests: list[Callable[[Any], bool]] = []
    for part in re.split(r"\s+AND\s+", text.strip()) if text.strip() else ():
        term = _TERM.fullmatch(part)
        if term is None:
            raise UnsupportedError(
                f'filter: {part!r:.200} is not supported; use display_name="…" and labels.KEY="…", joined by AND',
                field="filter",
            )
        value = term["bare"] if term["quoted"] is None else term["quoted"]
        tests.append(_test(term["name"], term["operator"], value))
    return tests


def _test(name: str, operator: str, value: str) -> Callable[[Any], bool]:
    if name == "display_name":
        if operator == ":":
            return lambda item: value in item.display_name
        return lambda item: bool(item.display_name == value)
    if name == "labels":  # labels:KEY
        return lambda item: value in item.labels
    key = name.removeprefix("labels.")
    if value == "*" and operator == ":":
        return lambda item: key in item.labels
    return lambda item: key in item.labels and item.labels[key] == value


def _is_set(message: Any, name: str) -> bool:
    field = message.DESCRIPTOR.fields_by_name[name]
    return any(found is field or found.name == name for found, _ in message.ListFields())

"""Finds indexes by the names of resources.

An index is a resource if it has vectors, and was not made as a collection of API v2.

Descriptions of indexes and endpoints: as stored, as messages, and how lists of them are filtered.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.names import ResourceName, is_visible, parse_name, unknown_resource
from scannery.bridges.vertex.shared.state import Resources
from scannery.bridges.vertex.v1.index_settings import IndexSettings, parse_settings
from scannery.bridges.vertex.v1.queries import measure_of
from scannery.indexer import Manifest, latest_version
from scannery.runtime.errors import InvalidRequestError, OverloadedError, UnknownIndexError, UnsupportedError
from scannery.serving.bridging import waiting
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.vertex.v1 import index_pb2 as pb

__all__ = [
    "BATCH",
    "DELETIONS",
    "ENDPOINTS",
    "INDEXES",
    "INDEX_KIND",
    "STREAM",
    "KnownIndex",
    "Registry",
    "changed_paths",
    "check_description",
    "check_labels",
    "check_texts",
    "filtered",
    "is_being_deleted",
    "masked",
    "opened",
    "timestamp",
]


INDEXES = "indexes"
"""Kind of resources: descriptions of indexes."""
ENDPOINTS = "endpoints"
DELETIONS = "deletions"
"""Kind of resources: when the deletion of an index began, in seconds since 1970. Meanwhile it cannot be deployed."""
DELETION_S = 600.0
"""Age of a deletion that counts no more: its server was killed. Long, since the clocks of two servers differ."""
COLLECTIONS = "collections"
"""Kind of resources of API v2 (v2/collections.py), by the names of their indexes."""
INDEX_KIND = "indexes"
"""Word for an index in names of resources."""
BATCH, STREAM = pb.BATCH_UPDATE, pb.STREAM_UPDATE
WAIT_S = 5.0
"""Seconds that a request waits for other indexes to be opened (`Catalog.open_created`)."""
LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class KnownIndex:
    """An index that exists and that the caller may see."""

    name: ResourceName
    manifest: Manifest
    record: Mapping[str, Any] | None
    """Its description; None: it was not made through this API, and has none."""

    @property
    def settings(self) -> IndexSettings:
        """What determines it."""
        if self.record is not None and self.record.get("config"):
            return parse_settings(self.record["config"])
        return IndexSettings(self.manifest.dimensions, measure_of(self.manifest.spec.distance), exact=False)

    @property
    def update_method(self) -> int:
        """How it is written."""
        return STREAM if self.record is None else int(self.record["update_method"])


class Registry:
    """Finds indexes by the names of resources. Safe to use from several threads."""

    def __init__(self, facade: Facade) -> None:
        """Look in the catalog and the state of a server."""
        self._facade = facade

    def find(self, text: str, field: str = "name", *, resources: Resources | None = None) -> KnownIndex:
        """Return an index by the name of its resource.

        Args:
            text: the name.
            field: of the request, for errors.
            resources: as read before; None: they are read now.

        Raises:
            InvalidRequestError: it is no name of an index.
            UnknownResourceError: there is none, or the caller may not see it.

        """
        name = parse_name(text, INDEX_KIND, field)
        entry = self.entry(name.id, self._facade.state.read() if resources is None else resources)
        if entry is None or (entry.record is not None and entry.record["parent"] != name.parent):
            raise unknown_resource(text, field)
        return KnownIndex(name, entry.manifest, entry.record)

    def find_recent(self, text: str, field: str = "name") -> KnownIndex:
        """As `find`, mostly without access to the store: what is known of the index may be half a second old."""
        resources = self._facade.state.recent()
        id = parse_name(text, INDEX_KIND, field).id
        # One without a description may have got it just now, from another worker.
        return self.find(text, field, resources=resources if id in resources.get(INDEXES, {}) else None)

    def entry(self, id: str, resources: Resources, *, wait: bool = True) -> KnownIndex | None:
        """Return an index by its id, None if there is none that the caller may see.

        The index of a collection (API v2) is none: only that API knows the schema and the revisions of its objects.

        Args:
            id: its id.
            resources: as read.
            wait: whether one that is described, and not open here yet, is waited for.

        """
        if not is_visible(id) or id in resources.get(COLLECTIONS, {}):
            return None
        record = resources.get(INDEXES, {}).get(id)
        try:
            # Only what is known to exist is waited for: names of requests must not load the store.
            catalog = self._facade.catalog
            waits = wait and record is not None
            manifest = opened(self._facade, id).manifest if waits else catalog.manifest(id)
        except (UnknownIndexError, InvalidRequestError):
            return None
        if not manifest.dimensions:
            return None
        if record is not None and record.get("index_id", manifest.index_id) != manifest.index_id:
            record = None  # of an index that had this name before
        parent = record["parent"] if record else ""
        return KnownIndex(ResourceName(parent, INDEX_KIND, id), manifest, record)


def is_being_deleted(resources: Resources, index: str) -> bool:
    """Return whether a deletion of an index has begun, and not been refused."""
    began_s: float = resources.get(DELETIONS, {}).get(index, 0.0)
    return time.time() - began_s < DELETION_S


def opened(facade: Facade, index: str) -> Snapshot:
    """Return the snapshot of an index that the state of the server names.

    Another worker may just have created it, and this one be busy with opening it, or others: then it is waited for.

    Raises:
        UnknownIndexError: it is not in the store, not served, or the caller may not see it.
        UnknownIndexError, OverloadedError: it is not opened in time.
        CorruptError, FormatError, StoreError: it cannot be opened.

    """
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            return facade.catalog.snapshot(index)
        except (UnknownIndexError, OverloadedError):
            if time.monotonic() > until_s or not _exists(facade, index):
                raise
        with waiting():
            time.sleep(LOOK_EVERY_S)


def _exists(facade: Facade, index: str) -> bool:
    catalog = facade.catalog
    return is_visible(index) and catalog.serves(index) and latest_version(catalog.store, index) is not None


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
    time_message = Timestamp()
    time_message.FromMicroseconds(round(seconds * 1e6))
    return time_message


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


def changed_paths(
    mask: FieldMask, message: Any, allowed: Sequence[str], field: str = "update_mask"
) -> list[str]:
    """Return the fields that an update changes: those of the mask, or without one those that are set.

    Raises:
        InvalidRequestError: the mask names another field, or nothing is changed.

    """
    paths = list(dict.fromkeys(mask.paths)) or [name for name in allowed if _is_set(message, name)]
    for path in paths:
        if path not in allowed:
            raise InvalidRequestError.at(
                field, f"{path!r:.80} cannot be changed; possible are {', '.join(allowed)}"
            )
    if not paths:
        raise InvalidRequestError.at(field, f"must name at least one of {', '.join(allowed)}")
    return paths


def masked(message: MessageT, mask: FieldMask) -> MessageT:
    """Return a message with the fields of a mask only; without paths, all."""
    if not mask.paths:
        return message
    result = type(message)()
    paths = [path for path in mask.paths if path != "*"]
    if len(paths) < len(mask.paths):
        return message
    if not _is_valid(paths, message):
        raise InvalidRequestError.at("read_mask", "names a field that there is not")
    FieldMask(paths=paths).MergeMessage(message, result)
    return result


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
    return any(present is field or present.name == name for present, _ in message.ListFields())

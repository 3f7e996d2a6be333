"""Names of resources of API v2: `projects/P/locations/L/collections/C`, and what is below them."""

from __future__ import annotations

import re
from typing import NamedTuple

from scannery.bridges.vertex.shared.names import parse_parent
from scannery.runtime.errors import InvalidRequestError

__all__ = [
    "CollectionName",
    "checked_id",
    "parsed_collection",
    "parsed_index",
    "parsed_object",
]

_COLLECTION = re.compile(r"(.*)/collections/([^/]+)", re.DOTALL)
_BELOW = re.compile(r"(.*)/(dataObjects|indexes)/([^/]+)", re.DOTALL)
_ID = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_OBJECT_ID = re.compile(r"[^/\x00-\x1f\x7f]+")


class CollectionName(NamedTuple):
    """The name of a collection in its parts."""

    location: str
    """`projects/P/locations/L`."""
    id: str
    """Also the name of our index."""

    def __str__(self) -> str:
        return f"{self.location}/collections/{self.id}"

    def data_object(self, identifier: str) -> str:
        """Return the name of a data object."""
        return f"{self}/dataObjects/{identifier}"

    def index_name(self, identifier: str) -> str:
        """Return the name of an index of the collection."""
        return f"{self}/indexes/{identifier}"


def parsed_collection(name: str, field: str) -> CollectionName:
    """Return the parts of the name of a collection; InvalidRequestError for another form."""
    match = _COLLECTION.fullmatch(name)
    if match is None or not _ID.fullmatch(match[2]):
        raise InvalidRequestError.at(
            field, f"must be projects/PROJECT/locations/LOCATION/collections/COLLECTION, got {name!r:.200}"
        )
    return CollectionName(parse_parent(match[1], field), match[2])


def parsed_object(name: str, field: str) -> tuple[CollectionName, str]:
    """Return the collection and the id of a data object; InvalidRequestError for another form."""
    collection, identifier = _below(name, field, "dataObjects")
    return collection, checked_id(identifier, field, strict=False)


def parsed_index(name: str, field: str) -> tuple[CollectionName, str]:
    """Return the collection and the id of an index; InvalidRequestError for another form."""
    collection, identifier = _below(name, field, "indexes")
    return collection, checked_id(identifier, field, strict=True)


def checked_id(identifier: str, field: str, *, strict: bool) -> str:
    """Return an id; InvalidRequestError if it is not one.

    Args:
        identifier: the id.
        field: of the request.
        strict: as the service demands of collections and indexes. Ids of data objects may be any here: clients
            send those of their own records.

    """
    if strict and not _ID.fullmatch(identifier):
        raise InvalidRequestError.at(field, f"must match {_ID.pattern}, got {identifier!r:.100}")
    if not strict and (not _OBJECT_ID.fullmatch(identifier) or len(identifier.encode()) > 512):
        raise InvalidRequestError.at(
            field, f"must have 1 to 512 bytes, no slash and no control characters, got {identifier!r:.100}"
        )
    return identifier


def _below(name: str, field: str, kind: str) -> tuple[CollectionName, str]:
    match = _BELOW.fullmatch(name)
    if match is None or match[2] != kind:
        raise InvalidRequestError.at(
            field,
            f"must be projects/PROJECT/locations/LOCATION/collections/COLLECTION/{kind}/ID, got {name!r:.200}",
        )
    return parsed_collection(match[1], field), match[3]

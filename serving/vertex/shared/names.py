"""Names of resources: `projects/P/locations/L`, a collection of resources, an id."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from scannery.runtime.errors import InvalidRequestError, UnknownResourceError
from scannery.serving.security.principal import CURRENT

__all__ = ["ResourceName", "is_visible", "new_id", "parse_name", "parse_parent", "unknown_resource"]

_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}"
_PARENT = re.compile(rf"projects/{_SEGMENT}/locations/{_SEGMENT}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class ResourceName:
    """A parsed name."""

    parent: str
    """`projects/P/locations/L`."""
    kind: str
    """Collection of resources, such as `indexes`."""
    id: str

    def __str__(self) -> str:
        return f"{self.parent}/{self.kind}/{self.id}"


def parse_parent(text: str, field: str = "parent") -> str:
    """Return the name of a location, checked; raises InvalidRequestError, which names the field."""
    if not _PARENT.fullmatch(text):
        raise InvalidRequestError.at(field, f"must be projects/PROJECT/locations/LOCATION, got {text!r:.200}")
    return text


def parse_name(text: str, kind: str, field: str = "name") -> ResourceName:
    """Return the parts of a name.

    Args:
        text: the name.
        kind: collection of resources that it must be of.
        field: of the request, for the error.

    Raises:
        InvalidRequestError: it is no such name.

    """
    parent, separator, id = text.rpartition(f"/{kind}/")
    if not separator or not _PARENT.fullmatch(parent) or not _ID.fullmatch(id):
        raise InvalidRequestError.at(
            field, f"must be projects/PROJECT/locations/LOCATION/{kind}/ID, got {text!r:.200}"
        )
    return ResourceName(parent, kind, id)


def new_id() -> str:
    """Return an id that no other resource has: 19 digits, as those of the managed service."""
    return str(10**18 + secrets.randbelow(9 * 10**18))


def is_visible(index: str) -> bool:
    """Return whether the caller may see an index of the store."""
    principal = CURRENT.get()
    return principal is None or principal.sees(index)


def unknown_resource(name: object, field: str = "name") -> UnknownResourceError:
    """Return the error about a resource that does not exist, or that the caller may not see."""
    return UnknownResourceError(f"{field}: there is no {str(name)!r:.200}", field=field)

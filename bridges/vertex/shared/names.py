"""Names of resources: `projects/P/locations/L`, a collection of resources, an id.

Etags of resources: a caller who sends one changes the resource only in the state that it has read.

Pages of lists: a token holds the place after which the next page begins, and a digest of what was asked.

Owners of resources that are no indexes, and how much one of them may keep.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scannery.runtime.errors import InvalidRequestError, OverloadedError, StaleEtagError, UnknownResourceError
from scannery.serving.bridging import CURRENT

__all__ = [
    "DEFAULT_PAGE",
    "MAX_PAGE",
    "ResourceName",
    "check_count",
    "check_etag",
    "check_kept",
    "current_owner",
    "etag_of",
    "is_visible",
    "new_id",
    "owns",
    "page_of",
    "parse_name",
    "parse_parent",
    "read_token",
    "unknown_resource",
    "written_token",
]


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


def etag_of(resource: Mapping[str, Any]) -> str:
    """Return the etag of a stored resource: a hash of its content."""
    data = json.dumps(resource, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def check_etag(etag: str, current: str, field: str = "etag") -> None:
    """Raise StaleEtagError if an etag is given that is not the current one."""
    if etag and etag != current:
        raise StaleEtagError(
            f"{field}: the resource has changed since it was read: its etag is {current!r}, got {etag!r:.80}",
            field=field,
        )


DEFAULT_PAGE = 100
MAX_PAGE = 1000
_DIGEST_BYTES = 8

ItemT = TypeVar("ItemT")


def page_of(
    items: Sequence[tuple[str, ItemT]], *, size: int, token: str, query_key: str
) -> tuple[list[ItemT], str]:
    """Return a page of items, and the token of the next one; empty: it is the last.

    Args:
        items: each with a key; sorted by key, keys distinct.
        size: most items, 0: DEFAULT_PAGE; more than MAX_PAGE are as MAX_PAGE.
        token: of the page before; empty: the first page.
        query_key: everything else of the request; a token is good for the same only.

    Raises:
        InvalidRequestError: the size is negative, or the token is not one of this list.

    """
    if size < 0:
        raise InvalidRequestError.at("page_size", f"must not be negative, got {size}")
    after = read_token(token, query_key)
    following = [item for item in items if not token or item[0] > after]
    limit = min(size or DEFAULT_PAGE, MAX_PAGE)
    page = following[:limit]
    return [item for _, item in page], written_token(page[-1][0], query_key) if len(following) > limit else ""


def written_token(position: str, query_key: str) -> str:
    """Return the token for what comes after a place."""
    return base64.urlsafe_b64encode(_digest(query_key) + position.encode()).decode()


def read_token(token: str, query_key: str) -> str:
    """Return the place in a token, empty for an empty one; raises InvalidRequestError."""
    if not token:
        return ""
    try:
        data = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        position = data[_DIGEST_BYTES:].decode()
    except (binascii.Error, UnicodeError) as error:
        raise InvalidRequestError.at("page_token", "is not a token of this server") from error
    if data[:_DIGEST_BYTES] != _digest(query_key):
        raise InvalidRequestError.at(
            "page_token", "is of another request: repeat the request with it unchanged"
        )
    return position


def _digest(query_key: str) -> bytes:
    return hashlib.blake2b(query_key.encode(), digest_size=_DIGEST_BYTES).digest()


def current_owner() -> str:
    """Return the owner of what the caller creates; empty: the caller has no credentials."""
    principal = CURRENT.get()
    return "" if principal is None or principal.is_anonymous else principal.name


def owns(owner: str) -> bool:
    """Return whether the caller is an owner, or sees all indexes. What has no owner, "", is for the latter only."""
    principal = CURRENT.get()
    return principal is None or principal.is_for_all_indexes or (owner != "" and principal.name == owner)


def check_count(owned: int, total: int, limit: int, what: str) -> None:
    """Raise OverloadedError if a store has no room for one more.

    Args:
        owned: how many the owner has.
        total: how many all owners have.
        limit: for all; a caller who sees some indexes only has half of what others leave.
        what: they are, for the error.

    """
    if not owns(""):
        limit, total = (limit - total + owned) // 2, owned
    if total >= limit:
        raise OverloadedError(f"{total} {what}, and there is room for {limit}")


def check_kept(resources: object, limit_bytes: int, what: str, field: str) -> None:
    """Raise OverloadedError, which says what they are, if resources would have more than a number of bytes as JSON."""
    size_bytes = len(json.dumps(resources))
    if size_bytes > limit_bytes:
        raise OverloadedError(
            f"{field}: {what} would have {size_bytes} bytes, and may have {limit_bytes}", field=field
        )

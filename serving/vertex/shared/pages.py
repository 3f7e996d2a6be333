"""Pages of lists: a token holds the place after which the next page begins, and a digest of what was asked."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import TypeVar

from scannery.runtime.errors import InvalidRequestError

__all__ = ["DEFAULT_PAGE", "MAX_PAGE", "page_of", "read_token", "written_token"]

DEFAULT_PAGE = 100
MAX_PAGE = 1000
_DIGEST_BYTES = 8

ItemT = TypeVar("ItemT")


def page_of(
    items: Sequence[tuple[str, ItemT]], *, size: int, token: str, asked: str
) -> tuple[list[ItemT], str]:
    """Return a page of items, and the token of the next one; empty: it is the last.

    Args:
        items: each with a key; sorted by key, keys distinct.
        size: most items, 0: DEFAULT_PAGE; more than MAX_PAGE are as MAX_PAGE.
        token: of the page before; empty: the first page.
        asked: everything else of the request; a token is good for the same only.

    Raises:
        InvalidRequestError: the size is negative, or the token is not one of this list.

    """
    if size < 0:
        raise InvalidRequestError.at("page_size", f"must not be negative, got {size}")
    after = read_token(token, asked)
    rest = [item for item in items if not token or item[0] > after]
    most = min(size or DEFAULT_PAGE, MAX_PAGE)
    page = rest[:most]
    return [item for _, item in page], written_token(page[-1][0], asked) if len(rest) > most else ""


def written_token(place: str, asked: str) -> str:
    """Return the token for what comes after a place."""
    return base64.urlsafe_b64encode(_digest(asked) + place.encode()).decode()


def read_token(token: str, asked: str) -> str:
    """Return the place in a token, empty for an empty one; raises InvalidRequestError."""
    if not token:
        return ""
    try:
        data = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        place = data[_DIGEST_BYTES:].decode()
    except (binascii.Error, UnicodeError) as error:
        raise InvalidRequestError.at("page_token", "is not a token of this server") from error
    if data[:_DIGEST_BYTES] != _digest(asked):
        raise InvalidRequestError.at(
            "page_token", "is of another request: repeat the request with it unchanged"
        )
    return place


def _digest(asked: str) -> bytes:
    return hashlib.blake2b(asked.encode(), digest_size=_DIGEST_BYTES).digest()

"""Aliases: other names of indexes, in one object of the store, `aliases.json`.

All aliases change with one conditional put, so a move from one index to another is atomic, in folders and in buckets.
Names are looked up once for each request; an alias never stands for another alias.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping

from scannery.indexer.errors import AlreadyExistsError, CorruptError, FormatError, NotFoundError
from scannery.indexer.store.object_store import Store

__all__ = ["ALIASES_KEY", "Aliases", "change_aliases", "check_no_alias", "read_aliases"]

ALIASES_KEY = "aliases.json"
ALIASES_FORMAT = 1
"""Version of the object that this code writes; later versions are refused."""

MAX_ATTEMPTS = 50
"""Attempts to replace the object while other processes replace it; each failure is the success of another one."""

Aliases = Mapping[str, str]
"""The index that each alias stands for."""


def read_aliases(store: Store) -> Aliases:
    """Return the aliases of a store.

    Raises:
        CorruptError: the object is damaged.
        FormatError: a later release wrote it.
        StoreError: it cannot be read.

    """
    return _parsed(_stored(store))


def change_aliases(store: Store, change: Callable[[Aliases], Aliases]) -> Aliases:
    """Replace the aliases by `change` of them, and return those before.

    Args:
        store: the store.
        change: returns the new aliases; called again if another process changed them meanwhile. Its errors end the
            call.

    Raises:
        AlreadyExistsError: in each of MAX_ATTEMPTS attempts, another process changed them meanwhile.
        CorruptError, FormatError, StoreError: as `read_aliases`.

    """
    for attempt in range(MAX_ATTEMPTS):
        known = _stored(store)
        before = _parsed(known)
        after = change(before)
        if after == before:
            return before
        try:
            store.replace(ALIASES_KEY, _to_json(after), known=known)
        except AlreadyExistsError:
            if attempt + 1 == MAX_ATTEMPTS:
                raise
        else:
            return before
    raise AssertionError


def check_no_alias(store: Store, index: str) -> None:
    """Raise AlreadyExistsError if a name is an alias: no index can have it. Otherwise raises as `read_aliases`."""
    if index in read_aliases(store):
        raise AlreadyExistsError(
            f"index: {index!r} is an alias; give the index another name, or delete the alias first",
            field="index",
        )


def _stored(store: Store) -> bytes | None:
    with contextlib.suppress(NotFoundError):
        return store.read(ALIASES_KEY)
    return None


def _parsed(data: bytes | None) -> Aliases:
    if data is None:
        return {}
    try:
        content = json.loads(data)
        if content["format"] > ALIASES_FORMAT:
            raise FormatError(
                f"{ALIASES_KEY} has format {content['format']}, this Scannery reads up to {ALIASES_FORMAT}; upgrade it"
            )
        return {str(alias): str(index) for alias, index in content["aliases"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{ALIASES_KEY} is damaged: {error!r}") from error


def _to_json(aliases: Aliases) -> bytes:
    content = {"format": ALIASES_FORMAT, "aliases": dict(sorted(aliases.items()))}
    return json.dumps(content, indent=2).encode() + b"\n"

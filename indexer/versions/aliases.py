"""Aliases: other names of indexes, in one object of the store, `aliases.json`.

All aliases change with one conditional put, so a move from one index to another is atomic, in folders and in buckets.
Names are looked up once for each request; an alias never stands for another alias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scannery.indexer.errors import AlreadyExistsError
from scannery.indexer.store.object_store import JsonObject, Store

__all__ = ["ALIASES_KEY", "Aliases", "change_aliases", "check_no_alias", "read_aliases"]

ALIASES_KEY = "aliases.json"

Aliases = Mapping[str, str]
"""The index that each alias stands for."""


def read_aliases(store: Store) -> Aliases:
    """Return the aliases of a store.

    Raises:
        CorruptError: the object is damaged.
        FormatError: a later release wrote it.
        StoreError: it cannot be read.

    """
    return _object(store).read()


def change_aliases(store: Store, change: Callable[[Aliases], Aliases]) -> Aliases:
    """Replace the aliases by `change` of them, and return those before.

    Args:
        store: the store.
        change: returns the new aliases; called again if another process changed them meanwhile. Its errors end the
            call.

    Raises:
        AlreadyExistsError: in each attempt, another process changed them meanwhile.
        CorruptError, FormatError, StoreError: as `read_aliases`.

    """
    before, _ = _object(store).change(lambda aliases: dict(change(aliases)))
    return before


def check_no_alias(store: Store, index: str) -> None:
    """Raise AlreadyExistsError if a name is an alias: no index can have it. Otherwise raises as `read_aliases`."""
    if index in read_aliases(store):
        raise AlreadyExistsError(
            f"index: {index!r} is an alias; give the index another name, or delete the alias first",
            field="index",
        )


def _object(store: Store) -> JsonObject:
    return JsonObject(store, ALIASES_KEY, "aliases", str)

"""Drop an index: make it invisible with one write, then remove its files.

The write is a tombstone among the versions, `INDEX/versions/dropped.json`: with it, an index has no version for any
reader (`list_versions`), and no version of the name can be committed. It is removed last. So a process that is killed
leaves either the whole index or a dropped one, and dropping it again removes the rest.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from scannery.indexer.errors import InUseError, NotFoundError, StoreError
from scannery.indexer.spec.model import INDEX_NAME
from scannery.indexer.store.folder_backend import sync_folder
from scannery.indexer.store.object_store import Store, StoredObject
from scannery.indexer.versions.leases import read_leases
from scannery.indexer.versions.levels import level_of
from scannery.indexer.versions.versions import is_dropped, list_versions, no_such_index, tombstone_key

__all__ = ["DropReport", "drop_index"]

CHECK_EVERY = 50
"""Files removed between two looks at the tombstone: another process may have taken over, and a new index may follow."""


@dataclass(frozen=True, kw_only=True)
class DropReport:
    """What `drop_index` removed."""

    index: str
    versions: int
    """Versions that it had; 0 if it was a failed build, or was dropped before."""
    files: int
    size_bytes: int


def drop_index(
    store: Store,
    index: str,
    *,
    force: bool = False,
    also: Callable[[], None] = lambda: None,
    progress: Callable[[int, int], None] | None = None,
) -> DropReport:
    """Remove an index with all its versions and files, or what a failed build or a killed removal left of one.

    Args:
        store: the store.
        index: name of the index.
        force: remove it although a server has it open, or a build is running: they fail.
        also: removes what lies outside the store, after the index became invisible; may be repeated.
        progress: called with the number of files removed so far, and of all.

    Raises:
        NotFoundError: the store has nothing of this name.
        InUseError: a server has it open, a build is running, or another process is removing it.
        FormatError: the store is of a later release.

    """
    level_of(store)
    is_name = INDEX_NAME.fullmatch(index) is not None
    if not is_name or not store.list(index):
        if is_name:  # a writer whose folder a drop removed may have left an empty one
            store.remove_empty_folders(index)
        raise NotFoundError(no_such_index(store, index), field="index")
    versions = list_versions(store, index)
    if not force and not is_dropped(store, index):
        _check_unused(store, index)
    token = uuid.uuid4().hex
    content = {"token": token, "dropped_at": datetime.now(timezone.utc).isoformat()}
    _mark_dropped(store, index, json.dumps(content).encode())
    also()
    gone: list[StoredObject] = []
    while going := [item for item in store.list(index) if item.key != tombstone_key(index)]:
        # Again, for what a process that did not look at the tombstone in time has written meanwhile.
        for number, item in enumerate(going):
            if number % CHECK_EVERY == 0:
                _check_own(store, index, token)
            store.delete(item.key)
            gone.append(item)
            if progress is not None:
                progress(number + 1, len(going))
    store.remove_drafts(index, datetime.now(timezone.utc))
    _finish(store, index, token)
    size_bytes = sum(item.size_bytes for item in gone)
    return DropReport(index=index, versions=len(versions), files=len(gone), size_bytes=size_bytes)


def _mark_dropped(store: Store, index: str, content: bytes) -> None:
    try:
        store.write(tombstone_key(index), content)
    except StoreError:  # the disk is full, perhaps: a drop is to make room
        if store.local_root is None:
            raise
        keys = [item.key for item in store.list(f"{index}/versions") if item.size_bytes >= len(content)]
        for key in reversed(keys):
            with contextlib.suppress(StoreError):
                store.turn_into(key, tombstone_key(index), content)
                return
        raise


def _check_unused(store: Store, index: str) -> None:
    leases = read_leases(store, index)
    if leases.versions or leases.since is not None:
        raise InUseError(
            f"index {index!r} is in use: a server has it open, or a build or other work is running. Stop it first (the "
            "lease of a killed process ends after 15 minutes), or drop the index with --force",
            field="index",
        )


def _check_own(store: Store, index: str, token: str) -> None:
    with contextlib.suppress(NotFoundError, ValueError):
        if json.loads(store.read(tombstone_key(index))).get("token") == token:
            return
    raise InUseError(f"index {index!r} is being dropped by another process", field="index")


def _finish(store: Store, index: str, token: str) -> None:
    """Remove the tombstone, and the empty folders of a local store."""
    root = store.local_root
    # Another removal may have taken over, and removed the folder: then the tombstone is not the own one.
    with contextlib.suppress(FileNotFoundError):
        if root is not None:
            sync_folder(root / index / "versions")  # no manifest may come back after a power loss
    _check_own(store, index, token)
    store.delete(tombstone_key(index))
    store.remove_empty_folders(index)  # the others are those of a new index

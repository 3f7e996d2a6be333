"""Backup: a consistent copy of an index, version and log, while it is served and written to.

The copy lies in a store of its own, in the same layout: it can be verified, copied back, and served as it is where it
lies in a folder. It is an index of its own, with ids of its own: both may be written to from then on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from scannery.indexer import (
    AlreadyExistsError,
    CorruptError,
    Manifest,
    NotFoundError,
    Store,
    StoreError,
    manifest_key,
    new_index_id,
    read_manifest,
    segment_key,
)
from scannery.indexer.local.scratch_folders import scratch_folder
from scannery.indexer.segment.segment_writer import file_sha256
from scannery.indexer.versions.leases import WorkLease, working
from scannery.indexer.versions.versions import hold_current
from scannery.live.log.files import (
    DRAFT_FILE,
    LOG_FILE,
    files_of_log,
    make_folders,
    open_private,
    sync_folder,
)
from scannery.live.log.home import LogPlace
from scannery.live.log.location import LOG_FOLDER
from scannery.live.log.mutation_log import WrongLogError
from scannery.live.log.registry import register, registered, registration_key
from scannery.live.log.sqlite_log import SqliteLog, rename_log
from scannery.runtime.errors import ReadOnlyError

__all__ = ["BackupReport", "restore", "snapshot"]

MAX_ATTEMPTS = 10
"""Against versions that are committed while the log is copied."""


@dataclass(frozen=True, kw_only=True)
class BackupReport:
    """What was copied."""

    index: str
    version: int
    sequence: int
    """Mutations up to this one are in the copy."""
    files: int
    size_bytes: int


def snapshot(store: Store, index: str, target: Store, *, log_root: Path | None = None) -> BackupReport:
    """Copy the current version of an index, and the log after it, to a store that does not have the index.

    Raises:
        NotFoundError: no such index.
        AlreadyExistsError: the target has the index.
        CorruptError: a file of the version is damaged.
        WrongLogError: the log of the index is not where it was looked for.

    """
    place = LogPlace(store, index, log_root)
    if place.folder is None and (known := registered(store, index)) is not None:
        raise WrongLogError(
            f"index {index!r} has live updates in a log {known.where}; give its folder with --log, or the copy "
            "would lack those that are not sealed"
        )
    with scratch_folder("backup") as folder, _lease(store, index) as lease:
        copy = folder / LOG_FILE
        manifest, sequence = _consistent(store, index, place, copy, lease)
        _check_absent(target, index)
        fork = _Fork.of(manifest)
        size_bytes = _copy_files(store, target, manifest)
        if copy.exists():
            fork.rename(copy)
            target.write_file(_log_key(index), copy)
            size_bytes += copy.stat().st_size
            register(target, index, fork.log_id, None)
        # Last: it is what makes the copy one.
        _publish(target, fork.manifest)
    return _report(manifest, sequence, size_bytes, with_log=sequence > manifest.log_sequence)


def restore(backup: Store, index: str, store: Store, *, log_root: Path | None = None) -> BackupReport:
    """Copy an index back from a store that `snapshot` has written.

    What is restored is a fork: the index that the copy was made of may still be written to, or other copies of it. So
    it gets an id of its own, in its version and in its log, and neither log is ever taken for the other's.

    Raises:
        NotFoundError: the backup does not have the index.
        CorruptError: a file of the backup is damaged.
        AlreadyExistsError: the store has it, or there is a log in its place: restore into another store, or remove it
            first.
        ReadOnlyError: there is a log, and no local folder to put it.

    """
    read_manifest(backup, index)  # a clear NotFoundError
    _check_absent(store, index)
    folder = LogPlace(store, index, log_root).folder
    _check_no_log(folder)
    with scratch_folder("restore") as scratch:
        path = scratch / LOG_FILE
        manifest, sequence = _from_backup(backup, index, path)
        fork = _Fork.of(manifest)
        size_bytes = _copy_files(backup, store, manifest)
        if path.exists():
            if folder is None:
                raise ReadOnlyError(
                    f"the backup of index {index!r} has a log of live updates, which needs a local folder (--log)"
                )
            sequence = max(sequence, _place_log(path, folder, fork))
            register(store, index, fork.log_id, folder)
            size_bytes += path.stat().st_size
    _publish(store, fork.manifest)
    return _report(manifest, sequence, size_bytes, with_log=sequence > manifest.log_sequence)


@dataclass(frozen=True)
class _Fork:
    """A copy of an index, as an index of its own."""

    manifest: Manifest
    log_id: str

    @classmethod
    def of(cls, manifest: Manifest) -> _Fork:
        return cls(manifest.model_copy(update={"index_id": new_index_id()}), new_index_id())

    def rename(self, copy: Path) -> None:
        """Give a log that is not in use yet the ids of the fork."""
        rename_log(copy, log_id=self.log_id, index_id=self.manifest.index_id)


def _from_backup(backup: Store, index: str, copy: Path) -> tuple[Manifest, int]:
    """Return the manifest of a backup and its last sequence, with a copy of its log, if it has one."""
    place = LogPlace(backup, index)
    if place.writable:  # it may be served by now, and written to: then its log is more than one file
        return _consistent(backup, index, place, copy)
    manifest = read_manifest(backup, index)
    if backup.exists(_log_key(index)):
        with backup.open_file(_log_key(index)) as path:
            shutil.copyfile(path, copy)
    elif registered(backup, index) is not None:
        raise NotFoundError(f"the backup of index {index!r} lacks its log: there is no {_log_key(index)}")
    return manifest, manifest.log_sequence


@contextmanager
def _lease(store: Store, index: str) -> Iterator[WorkLease | None]:
    """Give what keeps gc from the version that is copied; None where the store cannot be written."""
    with ExitStack() as stack:
        lease = None
        with suppress(StoreError):
            lease = stack.enter_context(working(store, index))
        yield lease


def _consistent(
    store: Store, index: str, place: LogPlace, copy: Path, lease: WorkLease | None = None
) -> tuple[Manifest, int]:
    """Return a manifest, with a copy of the log that has all that comes after it, and the last sequence."""
    for _ in range(MAX_ATTEMPTS):
        held = hold_current(store, index, lease) if lease else None
        manifest = held or read_manifest(store, index)
        log = place.checked(manifest)
        if log is None:
            return manifest, manifest.log_sequence
        try:
            copy.unlink(missing_ok=True)
            log.copy_to(copy)
        finally:
            log.close()
        copied = SqliteLog(copy.parent)
        try:
            if copied.truncated() <= manifest.log_sequence:
                return manifest, max(copied.position(), manifest.log_sequence)
        finally:
            copied.close()
    raise AlreadyExistsError(
        f"index {index!r} gets new versions faster than its log can be copied; try again"
    )


def _check_absent(store: Store, index: str) -> None:
    if store.list(f"{index}/versions"):
        raise AlreadyExistsError(f"{store.uri} has an index {index!r} already")
    if registered(store, index) is not None:
        raise AlreadyExistsError(
            f"{store.uri} has {registration_key(index)} of an index {index!r} that is gone; remove it first"
        )


def _check_no_log(folder: Path | None) -> None:
    # SQLite would apply the write-ahead log of another database.
    if folder is not None and (found := files_of_log(folder)):
        raise AlreadyExistsError(
            f"{folder} has a log already ({', '.join(found)}); move that folder away first"
        )


def _copy_files(source: Store, target: Store, manifest: Manifest) -> int:
    """Copy the files of a version and return their bytes; CorruptError if one is not what the manifest names."""
    size_bytes = 0
    for key, sha256 in _hashes(manifest).items():
        full = segment_key(manifest.index, key)
        with source.open_file(full) as path:
            if file_sha256(path) != sha256:
                raise CorruptError(
                    f"{full} is damaged: its SHA-256 is not the one in the manifest; it was not copied"
                )
            target.write_file(full, path)
            size_bytes += path.stat().st_size
    return size_bytes


def _hashes(manifest: Manifest) -> dict[str, str]:
    """Return the files of a version, by key, with the SHA-256 that each must have."""
    files = [file for entry in manifest.segments for file in (entry, entry.deleted) if file]
    found = {file.key: file.sha256 for file in files}
    given = manifest.recall.given_queries if manifest.recall else None
    return found | ({given: Path(given).stem} if given else {})


def _place_log(path: Path, folder: Path, fork: _Fork) -> int:
    """Copy a log to where it belongs, durably, and return its last sequence."""
    make_folders(folder)
    draft = folder / DRAFT_FILE
    os.close(open_private(draft))
    with path.open("rb") as source, draft.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 22)
    fork.rename(draft)
    draft.rename(folder / LOG_FILE)
    sync_folder(folder)
    log = SqliteLog(folder)
    try:
        return log.position()
    finally:
        log.close()


def _publish(store: Store, manifest: Manifest) -> None:
    store.create(manifest_key(manifest.index, manifest.version), manifest.to_json())


def _log_key(index: str) -> str:
    return f"{index}/{LOG_FOLDER}/{LOG_FILE}"


def _report(manifest: Manifest, sequence: int, size_bytes: int, *, with_log: bool) -> BackupReport:
    files = len(_hashes(manifest)) + 1 + with_log
    return BackupReport(
        index=manifest.index,
        version=manifest.version,
        sequence=sequence,
        files=files,
        size_bytes=size_bytes,
    )

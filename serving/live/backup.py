"""Backup: a consistent copy of an index, version and log, while it is served and written to.

The copy lies in a store of its own, in the same layout: it can be served as it is, verified, or copied back.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scannery.indexer import (
    AlreadyExistsError,
    CorruptError,
    Manifest,
    NotFoundError,
    Store,
    read_manifest,
    segment_key,
)
from scannery.indexer.scratch import scratch_folder
from scannery.indexer.segment_writer import file_sha256
from scannery.serving.errors import ReadOnlyError
from scannery.serving.live.location import LOG_FOLDER, log_folder
from scannery.serving.live.log_files import LOG_FILE, sync_folder
from scannery.serving.live.sqlite_log import SqliteLog

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

    """
    folder = log_folder(log_root or store.local_root, index)
    with scratch_folder("backup") as place:
        copy = place / LOG_FILE
        manifest, sequence = _consistent(store, index, folder, copy)
        _check_absent(target, index)
        size_bytes = _copy_files(store, target, manifest)
        if copy.exists():
            target.write_file(_log_key(index), copy)
            size_bytes += copy.stat().st_size
        # Last: it is what makes the copy one.
        _publish(target, manifest)
    return _report(manifest, sequence, size_bytes, with_log=sequence > manifest.log_sequence)


def restore(backup: Store, index: str, store: Store, *, log_root: Path | None = None) -> BackupReport:
    """Copy an index back from a store that `snapshot` has written.

    Raises:
        NotFoundError: the backup does not have the index.
        CorruptError: a file of the backup is damaged.
        AlreadyExistsError: the store has it: restore into another store, or remove it first.
        ReadOnlyError: there is a log, and no local folder to put it.

    """
    manifest = read_manifest(backup, index)
    _check_absent(store, index)
    folder = log_folder(log_root or store.local_root, index)
    size_bytes = _copy_files(backup, store, manifest)
    sequence = manifest.log_sequence
    try:
        with backup.open_file(_log_key(index)) as path:
            if folder is None:
                raise ReadOnlyError(
                    f"the backup of index {index!r} has a log of live updates, which needs a local folder (--log)"
                )
            sequence = max(sequence, _place_log(path, folder))
            size_bytes += path.stat().st_size
    except NotFoundError:
        pass
    _publish(store, manifest)
    return _report(manifest, sequence, size_bytes, with_log=sequence > manifest.log_sequence)


def _consistent(store: Store, index: str, folder: Path | None, copy: Path) -> tuple[Manifest, int]:
    """Return a manifest, with a copy of the log that has all that comes after it, and the last sequence."""
    for _ in range(MAX_ATTEMPTS):
        manifest = read_manifest(store, index)
        try:
            log = SqliteLog(folder) if folder else None
        except FileNotFoundError:
            log = None
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


def _place_log(path: Path, folder: Path) -> int:
    """Copy a log to where it belongs, durably, and return its last sequence."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".tmp-{LOG_FILE}"
    draft.write_bytes(path.read_bytes())
    draft.rename(folder / LOG_FILE)
    sync_folder(folder)
    log = SqliteLog(folder)
    try:
        return log.position()
    finally:
        log.close()


def _publish(store: Store, manifest: Manifest) -> None:
    store.create(f"{manifest.index}/versions/{manifest.version:08d}.json", manifest.to_json())


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

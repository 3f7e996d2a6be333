"""Backup: a consistent copy of an index (version and log) while it is served and written to.

The copy is in another store with the same layout: it can be verified, restored and, in a folder, served directly. It is
a separate index with its own ids: both may be written to afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator, Sequence
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
    check_no_alias,
    manifest_key,
    new_index_id,
    read_manifest,
    segment_key,
)
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.models.files import copy_model
from scannery.indexer.models.manifest import EncoderVersion
from scannery.indexer.spec.model_reference import stored_references
from scannery.indexer.versions.leases import WorkLease, working
from scannery.indexer.versions.versions import hold_current
from scannery.live.log.files import LOG_FILE
from scannery.live.log.homes import checked_log, log_home
from scannery.live.log.location import LOG_FOLDER, LogRoot
from scannery.live.log.mutation_log import LogHome, WrongLogError
from scannery.live.log.registry import register, registered, registration_key
from scannery.live.log.sqlite_log import SqliteLog, rename_log
from scannery.runtime.errors import ReadOnlyError

__all__ = ["BackupReport", "restore", "snapshot"]

_LOG = logging.getLogger(__name__)
MAX_ATTEMPTS = 10
"""Attempts to copy the log, if versions are committed meanwhile."""


@dataclass(frozen=True, kw_only=True)
class BackupReport:
    """Content of a copy."""

    index: str
    version: int
    sequence: int
    """Last mutation in the copy."""
    files: int
    """Files, including the manifest and the log."""
    size_bytes: int
    """Size of segments, log, and models of the store that the spec names."""


def snapshot(store: Store, index: str, target: Store, *, log_root: LogRoot | None = None) -> BackupReport:
    """Copy the current version of an index, and the log after it, to a store that does not have the index.

    Args:
        store: of the index.
        index: its name.
        target: store of the copy.
        log_root: parent folder of all logs, or their database; None: the folder of the store.

    Raises:
        NotFoundError: there is no such index.
        AlreadyExistsError: the target has the index, or another model of a name and number in its spec.
        CorruptError: a file of the version is damaged.
        WrongLogError: the log of the index is not in that place.

    """
    home = log_home(store, index, log_root)
    if not home.writable and (registration := registered(store, index)) is not None:
        raise WrongLogError(
            f"the log of index {index!r} is {registration.where}; pass its place with --log, or the copy would lack "
            "the live updates that are not sealed"
        )
    with scratch_folder("backup") as folder, _lease(store, index) as lease:
        copy = folder / LOG_FILE
        manifest, sequence = _consistent(store, index, home, copy, lease)
        _check_absent(target, index)
        fork = _Fork.of(manifest)
        models = _copy_models(store, target, manifest)
        size_bytes = _copy_files(store, target, manifest)
        if copy.exists():
            fork.rename(copy)
            target.write_file(_log_key(index), copy)
            size_bytes += copy.stat().st_size
            register(target, index, fork.log_id, None)
        # Last: the manifest makes the copy visible.
        target.create(manifest_key(index, manifest.version), fork.manifest.to_json())
    return _report(manifest, sequence, size_bytes, models, with_log=sequence > manifest.log_sequence)


def restore(backup: Store, index: str, store: Store, *, log_root: LogRoot | None = None) -> BackupReport:
    """Copy an index back from a store that `snapshot` wrote.

    The restored index is a fork: the original or other copies may still be written to. So its version and its log get
    new ids, which keep the logs of forks apart.

    Args:
        backup: store of the copy.
        index: name of the index.
        store: where to restore it.
        log_root: parent folder of all logs, or their database; None: the folder of the store.

    Raises:
        NotFoundError: the backup does not have the index.
        CorruptError: a file of the backup is damaged.
        AlreadyExistsError: the store has the index, there is a log of it already, or another model has a name and
            number of its spec: restore into another store, or remove them first.
        ReadOnlyError: the backup has a log, and there is no place for it.

    """
    read_manifest(backup, index)  # raises NotFoundError before anything is written
    _check_absent(store, index)
    check_no_alias(store, index)
    home = log_home(store, index, log_root)
    home.check_absent()
    with scratch_folder("restore") as scratch:
        path = scratch / LOG_FILE
        manifest, sequence = _from_backup(backup, index, path)
        fork = _Fork.of(manifest)
        models = _copy_models(backup, store, manifest)
        size_bytes = _copy_files(backup, store, manifest)
        if path.exists():
            if not home.writable:
                raise ReadOnlyError(
                    f"the backup of index {index!r} has a log of live updates, which needs a place (--log)"
                )
            sequence = max(sequence, home.place(path, log_id=fork.log_id, index_id=fork.index_id))
            size_bytes += path.stat().st_size
    store.create(manifest_key(index, manifest.version), fork.manifest.to_json())
    return _report(manifest, sequence, size_bytes, models, with_log=sequence > manifest.log_sequence)


@dataclass(frozen=True)
class _Fork:
    """New ids for a copy of an index."""

    manifest: Manifest
    index_id: str
    log_id: str

    @classmethod
    def of(cls, manifest: Manifest) -> _Fork:
        index_id = new_index_id()
        return cls(manifest.model_copy(update={"index_id": index_id}), index_id, new_index_id())

    def rename(self, copy: Path) -> None:
        """Set the ids of the fork in a log that is not in use yet."""
        rename_log(copy, log_id=self.log_id, index_id=self.index_id)


def _from_backup(backup: Store, index: str, copy: Path) -> tuple[Manifest, int]:
    """Return the manifest of a backup and its last sequence, and copy its log, if any, to `copy`."""
    home = log_home(backup, index)
    if home.writable:  # servers may have written to the backup since: then its log has several files
        return _consistent(backup, index, home, copy)
    manifest = read_manifest(backup, index)
    if backup.exists(_log_key(index)):
        with backup.open_file(_log_key(index)) as path:
            shutil.copyfile(path, copy)
    elif registered(backup, index) is not None:
        raise NotFoundError(f"the backup of index {index!r} lacks its log: there is no {_log_key(index)}")
    return manifest, manifest.log_sequence


@contextmanager
def _lease(store: Store, index: str) -> Iterator[WorkLease | None]:
    """Give a lease that keeps the copied version from garbage collection; None if the store cannot be written."""
    with ExitStack() as stack:
        lease = None
        with suppress(StoreError):
            lease = stack.enter_context(working(store, index))
        yield lease


def _consistent(
    store: Store, index: str, home: LogHome, copy: Path, lease: WorkLease | None = None
) -> tuple[Manifest, int]:
    """Return a manifest and the last sequence, and copy the log with all mutations after the manifest to `copy`."""
    for _ in range(MAX_ATTEMPTS):
        held = hold_current(store, index, lease) if lease else None
        manifest = held or read_manifest(store, index)
        log = checked_log(home, manifest)
        if log is None:
            return manifest, manifest.log_sequence
        try:
            copy.unlink(missing_ok=True)
            log.copy_to(copy)
        finally:
            log.close()
        copied = SqliteLog(copy.parent)
        try:
            # Neither a log that begins after this version can be read with it, nor one that goes on in a later one.
            goes_on = read_manifest(store, index).columns_version > manifest.version
            if not goes_on and copied.truncated() <= manifest.log_sequence:
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
            f"{store.uri} has {registration_key(index)} of an index {index!r} that was removed; remove the file first"
        )


def _copy_models(source: Store, target: Store, manifest: Manifest) -> list[EncoderVersion]:
    """Copy the models of the store that a spec names; without one, the copy answers vectors, as the original does."""
    models = []
    for reference in sorted({*stored_references(manifest.spec.model_dump(mode="json"))}):
        try:
            models.append(copy_model(source, target, reference))
        except NotFoundError as error:
            _LOG.warning("a model of index %s is not copied: %s", manifest.index, error)
    return models


def _copy_files(source: Store, target: Store, manifest: Manifest) -> int:
    """Copy the files of a version and return their size; CorruptError if a hash differs from the manifest."""
    size_bytes = 0
    for key, sha256 in _hashes(manifest).items():
        full = segment_key(manifest.index, key)
        with contextlib.ExitStack() as stack:
            try:
                path = stack.enter_context(source.open_checked(full, sha256=sha256))
            except CorruptError as error:
                raise CorruptError(f"{error.message}; it was not copied") from error
            target.write_file(full, path)
            size_bytes += path.stat().st_size
    return size_bytes


def _hashes(manifest: Manifest) -> dict[str, str]:
    """Return the SHA-256 of each file of a version by key."""
    hashes = {file.key: file.sha256 for file in manifest.files}
    queries_key = manifest.recall.given_queries if manifest.recall else None
    return hashes | ({queries_key: Path(queries_key).stem} if queries_key else {})


def _log_key(index: str) -> str:
    return f"{index}/{LOG_FOLDER}/{LOG_FILE}"


def _report(
    manifest: Manifest, sequence: int, size_bytes: int, models: Sequence[EncoderVersion], *, with_log: bool
) -> BackupReport:
    files = len(_hashes(manifest)) + 1 + with_log + sum(len(model.files) for model in models)
    return BackupReport(
        index=manifest.index,
        version=manifest.version,
        sequence=sequence,
        files=files,
        size_bytes=size_bytes + sum(model.size_bytes for model in models),
    )

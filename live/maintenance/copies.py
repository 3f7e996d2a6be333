"""Copies of an index that is served and written to: backups, restored backups, and branches beside it.

A copy is made of the same parts each time: a consistent pair of a version and of the log after it, the files that the
version names, the models of its spec, and new ids. So it is an index of its own, and both may be written to afterwards.
In another store its files are copies; in the same store they are other names of the same bytes (`Store.share`), which
no index changes, so that each removes its own.

The manifest is put last. Until then a lease keeps other processes from making an index of that name, and what a killed
process leaves is removed by `scannery index gc`, or a drop.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from scannery.indexer import (
    AlreadyExistsError,
    CorruptError,
    InvalidSpecError,
    Manifest,
    NotFoundError,
    Store,
    StoreError,
    list_versions,
    new_index_id,
    read_manifest,
    segment_key,
)
from scannery.indexer.errors import IndexerError
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.models.files import copy_model
from scannery.indexer.models.manifest import EncoderVersion
from scannery.indexer.spec.model import INDEX_NAME
from scannery.indexer.spec.model_reference import stored_references
from scannery.indexer.versions.leases import WorkLease, claimed, working
from scannery.indexer.versions.levels import level_of
from scannery.indexer.versions.versions import check_absent, commit_copy, hold_current, hold_version
from scannery.live.log.files import LOG_FILE
from scannery.live.log.homes import checked_log, log_home
from scannery.live.log.location import LOG_FOLDER, LogRoot
from scannery.live.log.mutation_log import LogHome, WrongLogError
from scannery.live.log.registry import forget, register, registered, registration_key
from scannery.live.log.sqlite_log import SqliteLog, rename_log
from scannery.runtime.errors import ReadOnlyError

__all__ = ["CopyReport", "branch", "branch_of", "restore", "snapshot"]

_LOG = logging.getLogger(__name__)
MAX_ATTEMPTS = 10
"""Attempts to copy the log, if versions are committed meanwhile."""


@dataclass(frozen=True, kw_only=True)
class CopyReport:
    """Content of a copy."""

    index: str
    version: int
    sequence: int
    """Last mutation in the copy."""
    files: int
    """Files, including the manifest and the log."""
    size_bytes: int
    """Size of segments and log, and of the models that were copied."""


def snapshot(store: Store, index: str, target: Store, *, log_root: LogRoot | None = None) -> CopyReport:
    """Copy the current version of an index, and the log after it, to a store that does not have the index.

    Args:
        store: of the index.
        index: its name.
        target: store of the copy, which has the same layout: it can be verified, restored and, in a folder, served.
        log_root: parent folder of all logs, or their database; None: the folder of the store.

    Raises:
        NotFoundError: there is no such index.
        AlreadyExistsError: the target has the index, or another model of a name and number in its spec.
        InUseError: another process makes an index of this name in the target.
        CorruptError: a file of the version is damaged.
        WrongLogError: the log of the index is not in that place.

    """
    return _copied(_Origin(store, index, log_root), _Copy(target, index, None, keeps_file=True))


def restore(backup: Store, index: str, store: Store, *, log_root: LogRoot | None = None) -> CopyReport:
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
        InUseError: another process makes an index of this name.
        ReadOnlyError: the backup has a log, and there is no place for it.

    """
    return _copied(_Origin(backup, index, None), _Copy(store, index, log_root))


def branch(
    store: Store,
    index: str,
    name: str,
    *,
    version: int | None = None,
    time: datetime | None = None,
    log_root: LogRoot | None = None,
    request_id: str = "",
) -> CopyReport:
    """Make an index of its own in the same store that has the content of another one, and shares its files.

    Args:
        store: of both.
        index: name of the origin.
        name: of the branch.
        version: of the origin, without the live updates after it; None: the present state with all of them.
        time: takes the newest version that was committed then or before, in place of `version`; None: no time.
        log_root: parent folder of all logs, or their database; None: the folder of the store.
        request_id: kept with the branch, for `branch_of`.

    Raises:
        InvalidSpecError: no index can have this name.
        NotFoundError: there is no such index or version, or none of that time.
        AlreadyExistsError: there is an index or an alias of this name, or what is left of one.
        InUseError: an index of this name is being made, or removed.
        WrongLogError: the log of the index is not in that place.
        ReadOnlyError: the index has live updates, and there is no place for a log.
        StoreError: the store cannot be written.

    """
    if not INDEX_NAME.fullmatch(name):
        raise InvalidSpecError(f"branch: must match {INDEX_NAME.pattern}, got {name!r:.100}", field="branch")
    origin = _Origin(store, index, log_root, version=version, time=time)
    return _copied(origin, _Copy(store, name, log_root, request_id=request_id))


def branch_of(store: Store, name: str, request_id: str) -> Manifest | None:
    """Return the version that `branch` made for an earlier attempt of a request; None: there is none, or no longer."""
    for number in list_versions(store, name)[:1] if request_id else ():
        with suppress(NotFoundError):
            manifest = read_manifest(store, name, number)
            if manifest.statistics.get(_BRANCH, {}).get("request_id") == request_id:
                return manifest
    return None


_BRANCH = "branch"
"""Key in the statistics of a version for where an index was branched from."""


class _Origin:
    """The index that is copied, in its present state or in one version."""

    def __init__(
        self,
        store: Store,
        index: str,
        log_root: LogRoot | None,
        *,
        version: int | None = None,
        time: datetime | None = None,
    ) -> None:
        self.store, self.index = store, index
        self._home = log_home(store, index, log_root)
        self._version, self._time = version, time

    def state(self, lease: WorkLease | None, log: Path) -> tuple[Manifest, int]:
        """Return a version, leased, and its last sequence; copy the log with all mutations after it, if any, to `log`.

        Raises as `snapshot`.
        """
        if self._version is not None or self._time is not None:
            manifest = self._chosen()
            if lease is not None:
                hold_version(self.store, manifest, lease)
            return manifest, manifest.log_sequence
        if self._home.writable:
            return _consistent(self.store, self.index, self._home, log, lease)
        manifest = _current(self.store, self.index, lease)
        registration, key = registered(self.store, self.index), _log_key(self.index)
        if registration is not None and registration.path is not None:
            raise WrongLogError(
                f"the log of index {self.index!r} is {registration.where}; pass its place with --log, or the copy "
                "would lack the live updates that are not sealed"
            )
        if registration is not None:  # a backup in a bucket
            if not self.store.exists(key):
                raise NotFoundError(f"the backup of index {self.index!r} lacks its log: there is no {key}")
            with self.store.open_file(key) as path:
                shutil.copyfile(path, log)
            with _opened_copy(log) as copy:
                return manifest, max(copy.position(), manifest.log_sequence)
        return manifest, manifest.log_sequence

    def _chosen(self) -> Manifest:
        if self._time is None:
            return read_manifest(self.store, self.index, self._version)
        oldest = read_manifest(self.store, self.index)  # raises NotFoundError if there is no such index
        for number in reversed(list_versions(self.store, self.index)):
            with suppress(NotFoundError):  # gc removed it meanwhile
                oldest = read_manifest(self.store, self.index, number)
                if oldest.created_at <= self._time:
                    return oldest
        raise NotFoundError(
            f"time: index {self.index!r} has no version of {self._time.isoformat()} or before; the oldest, version "
            f"{oldest.version}, is of {oldest.created_at.isoformat()}",
            field="time",
        )


@dataclass(frozen=True)
class _Copy:
    """The index that is made."""

    store: Store
    index: str
    log_root: LogRoot | None
    keeps_file: bool = False
    """Whether the log may lie in a bucket as a file, which `restore` reads; no process can write to it there."""
    request_id: str = ""

    @property
    def home(self) -> LogHome:
        return log_home(self.store, self.index, self.log_root)

    def check_free(self) -> None:
        check_absent(self.store, self.index)
        if registered(self.store, self.index) is not None:
            raise AlreadyExistsError(
                f"{registration_key(self.index)} is left of an index {self.index!r} that was removed, or not finished: "
                f"`scannery index drop {self.index}` removes it"
            )
        self.home.check_absent()

    def fork(self, manifest: Manifest) -> Manifest:
        """Return the manifest of the copy: with an id and a name of its own, and where it is from."""
        statistics = dict(manifest.statistics)
        if self.index != manifest.index:
            origin = {"index": manifest.index, "version": manifest.version, "request_id": self.request_id}
            statistics[_BRANCH] = origin
        return manifest.model_copy(
            update={
                "index": self.index,
                "index_id": new_index_id(),
                "spec": manifest.spec.model_copy(update={"index": self.index}),
                "mirror": None,  # a copy follows no index
                "statistics": statistics,
            }
        )

    def check_log(self) -> None:
        """Raise ReadOnlyError unless there is a place for a log."""
        if not self.home.writable and not self.keeps_file:
            raise ReadOnlyError(
                f"index {self.index!r} would have a log of live updates, which needs a place (--log)"
            )

    def place(self, log: Path, fork: Manifest, log_id: str) -> None:
        """Make a file the log of the copy, with an id of its own."""
        assert fork.index_id is not None
        if self.home.writable:
            self.home.place(log, log_id=log_id, index_id=fork.index_id)
        else:
            rename_log(log, log_id=log_id, index_id=fork.index_id)
            self.store.write_file(_log_key(self.index), log)
            register(self.store, self.index, log_id, None)

    def take_back(self, fork: Manifest, keys: Iterable[str], log_id: str) -> None:
        """Remove what was written, as far as that can be, unless it is the index that there is now.

        Files stay if another index was created under the name meanwhile: they may be its own, and gc removes the
        others.
        """
        with suppress(IndexerError):
            versions = list_versions(self.store, self.index)
            if versions and read_manifest(self.store, self.index).index_id == fork.index_id:
                return
            registration = registered(self.store, self.index)
            if registration is not None and registration.log_id == log_id:
                self.home.remove(log_id)
                forget(self.store, self.index)
            for key in keys if not versions else ():
                self.store.delete(key)


def _copied(origin: _Origin, copy: _Copy) -> CopyReport:
    read_manifest(origin.store, origin.index)  # raises NotFoundError before anything is written
    copy.check_free()
    with (
        scratch_folder("copy") as folder,
        _lease(origin.store, origin.index) as lease,
        _claimed(copy.store, copy.index) as claim,
    ):
        log = folder / LOG_FILE
        manifest, sequence = origin.state(lease, log)
        copy.check_free()
        if log.exists():
            copy.check_log()
        fork = copy.fork(manifest)
        models = _copy_models(origin.store, copy.store, manifest)
        keys = [segment_key(copy.index, key) for key in _hashes(manifest)]
        # Shared files are as old as those of the origin, so that gc would take them for garbage.
        claim.hold(files=keys)
        log_id = new_index_id()
        try:
            size_bytes = _copy_files(origin.store, copy.store, manifest, copy.index)
            if log.exists():
                copy.place(log, fork, log_id)
                size_bytes += log.stat().st_size
            commit_copy(copy.store, fork, claim, first_level=level_of(origin.store))
        except BaseException:
            copy.take_back(fork, keys, log_id)
            raise
        return CopyReport(
            index=copy.index,
            version=manifest.version,
            sequence=sequence,
            files=len(_hashes(manifest)) + 1 + log.exists() + sum(len(model.files) for model in models),
            size_bytes=size_bytes + sum(model.size_bytes for model in models),
        )


@contextmanager
def _lease(store: Store, index: str) -> Iterator[WorkLease | None]:
    """Give a lease that keeps the copied version from garbage collection; None if the store cannot be written."""
    with ExitStack() as stack:
        lease = None
        with suppress(StoreError):
            lease = stack.enter_context(working(store, index))
        yield lease


@contextmanager
def _claimed(store: Store, index: str) -> Iterator[WorkLease]:
    """Give the lease of a copy that is made; an error leaves no empty folders."""
    try:
        with claimed(store, index) as claim:
            yield claim
    except BaseException:
        store.remove_empty_folders(index)
        raise


def _current(store: Store, index: str, lease: WorkLease | None) -> Manifest:
    held = hold_current(store, index, lease) if lease else None
    return held or read_manifest(store, index)


@contextmanager
def _opened_copy(path: Path) -> Iterator[SqliteLog]:
    copy = SqliteLog(path.parent)
    try:
        yield copy
    finally:
        copy.close()


def _consistent(
    store: Store, index: str, home: LogHome, copy: Path, lease: WorkLease | None
) -> tuple[Manifest, int]:
    """Return a manifest and the last sequence, and copy the log with all mutations after the manifest to `copy`."""
    for _ in range(MAX_ATTEMPTS):
        manifest = _current(store, index, lease)
        log = checked_log(home, manifest)
        if log is None:
            return manifest, manifest.log_sequence
        try:
            copy.unlink(missing_ok=True)
            log.copy_to(copy, after=manifest.log_sequence)
        finally:
            log.close()
        with _opened_copy(copy) as copied:
            # Neither a log that begins after this version can be read with it, nor one that goes on in a later one.
            goes_on = read_manifest(store, index).columns_version > manifest.version
            if not goes_on and copied.truncated() <= manifest.log_sequence:
                return manifest, max(copied.position(), manifest.log_sequence)
    raise AlreadyExistsError(
        f"index {index!r} gets new versions faster than its log can be copied; try again"
    )


def _copy_models(source: Store, target: Store, manifest: Manifest) -> list[EncoderVersion]:
    """Copy the models of the store that a spec names; without one, the copy answers vectors, as the original does."""
    models: list[EncoderVersion] = []
    if source is target:
        return models
    for reference in sorted({*stored_references(manifest.spec.model_dump(mode="json"))}):
        try:
            models.append(copy_model(source, target, reference))
        except NotFoundError as error:
            _LOG.warning("a model of index %s is not copied: %s", manifest.index, error)
    return models


def _copy_files(source: Store, target: Store, manifest: Manifest, index: str) -> int:
    """Give a copy the files of a version, and return their size; CorruptError if one that is copied is damaged."""
    pairs = {segment_key(manifest.index, key): segment_key(index, key) for key in _hashes(manifest)}
    if source is target:
        source.share_all(pairs)
        return sum(file.size_bytes for file in manifest.files)
    size_bytes = 0
    for (key, copied), sha256 in zip(pairs.items(), _hashes(manifest).values(), strict=True):
        with ExitStack() as stack:
            try:
                path = stack.enter_context(source.open_checked(key, sha256=sha256))
            except CorruptError as error:
                raise CorruptError(f"{error.message}; it was not copied") from error
            target.write_file(copied, path)
            size_bytes += path.stat().st_size
    return size_bytes


def _hashes(manifest: Manifest) -> Mapping[str, str]:
    """Return the SHA-256 of each file of a version by key."""
    hashes = {file.key: file.sha256 for file in manifest.files}
    queries_key = manifest.recall.given_queries if manifest.recall else None
    return hashes | ({queries_key: Path(queries_key).stem} if queries_key else {})


def _log_key(index: str) -> str:
    return f"{index}/{LOG_FOLDER}/{LOG_FILE}"

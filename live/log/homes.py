"""Find the log of an index, in a folder or in a database; check a log in a folder; give up one that is lost.

The versions of an index, its log, and the registration of the log in the store (registry.py) carry random ids, which
are compared. If the log file is missing, the index has never been written to only if no log is registered.
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import closing, suppress
from pathlib import Path

from scannery.indexer import AlreadyExistsError, CorruptError, Manifest, Store, commit, read_manifest
from scannery.indexer.store.changes import Changes, FolderChanges, NoChanges
from scannery.indexer.versions.levels import level_of
from scannery.live.log.files import (
    DRAFT_FILE,
    LOG_FILE,
    files_of_log,
    make_folders,
    open_private,
    read_mark,
    sync_files,
)
from scannery.live.log.location import DatabaseUrl, LogRoot, log_folder
from scannery.live.log.mutation_log import (
    LogHome,
    LogRefusedError,
    LogReplacedError,
    MutationLog,
    WrongLogError,
)
from scannery.live.log.registry import (
    ADVICE,
    FORGET,
    Registration,
    check_begun,
    check_current,
    check_index,
    check_registered,
    forget,
    register,
    registered,
)
from scannery.live.log.sqlite_log import SqliteLog, rename_log
from scannery.runtime.errors import ReadOnlyError

__all__ = [
    "LogPlace",
    "check_log_root",
    "checked_log",
    "forget_log",
    "log_changes",
    "log_home",
    "remove_files",
]


_LOG = logging.getLogger(__name__)


class LogPlace:
    """A `LogHome` in a local folder, or without any."""

    def __init__(self, store: Store, index: str, root: Path | None = None) -> None:
        """Derive the folder of the log.

        Args:
            store: of the index.
            index: its name.
            root: parent folder of all logs; None: the folder of the store. A store in a bucket has none.

        """
        self._store = store
        self._index = self.key = index
        folder = log_folder(root or store.local_root, index)
        self._path = None if folder is None else folder.absolute() / LOG_FILE

    @property
    def folder(self) -> Path | None:
        """The folder of the log; None if the store is a bucket and no `root` was given."""
        return None if self._path is None else self._path.parent

    @property
    def where(self) -> str:
        """The place of the log, for messages."""
        return f"in {self.folder}"

    @property
    def writable(self) -> bool:
        """Whether there is a folder for a log."""
        return self._path is not None

    def open(self) -> SqliteLog | None:
        """Return the opened log, None if it does not exist; see LogHome."""
        # Without a watcher, every query of an index without a log gets here. Path.exists takes three times as long.
        if self._path is None or not os.path.exists(self._path):  # noqa: PTH110
            return None
        try:
            return SqliteLog(self._path.parent)
        except FileNotFoundError:  # removed since the check
            return None

    def look_again(self) -> None:
        """Do nothing: `open` always looks; see LogHome."""

    def check(self, log: MutationLog | None, manifest: Manifest) -> None:
        """Check that the log is the one that the index uses; see LogHome."""
        registration = registered(self._store, self._index)
        if log is None:
            self._check_missing(registration, manifest)
            return
        check_index(log, manifest, where=self.where)
        if registration is not None:
            check_registered(
                log, self._index, registration.log_id, where=self.where, registered=registration.where
            )
            self._check_not_copied(registration)

    def claim(self, log: MutationLog | None, manifest: Manifest) -> MutationLog:
        """Return the log to write to; see LogHome."""
        if self._path is None:
            raise ReadOnlyError(f"index {self._index!r} has no folder for a log (--log)")
        new_log = None
        level_of(self._store)
        check_current(self._store, self._index, manifest)
        if log is None:
            self.check(None, manifest)
            log = new_log = SqliteLog(self._path.parent, create=True)
        try:
            check_index(log, manifest, where=self.where)
            with log.transaction(after=0, index_id=manifest.index_id):
                pass  # gives the log an id
            log_id = log.identity().log_id
            assert log_id is not None
            register(self._store, self._index, log_id, self._path.parent)
            if new_log is not None:
                self._check_own(new_log, log_id, manifest)
        except BaseException:
            if new_log is not None:
                new_log.close()
            raise
        return log

    def _check_own(self, log: SqliteLog, log_id: str, manifest: Manifest) -> None:
        """Check again after a log was begun, and remove it if its index was dropped meanwhile."""
        try:
            check_begun(self._store, self._index, manifest, log_id)
        except LogReplacedError:
            names = files_of_log(log.path.parent) if log.position() == 0 else []
            log.close()
            for name in names:
                (log.path.parent / name).unlink(missing_ok=True)
            raise

    def _check_missing(self, registration: Registration | None, manifest: Manifest) -> None:
        if self._path is not None and self._path.exists():
            return  # another process created it since; it is checked when it is opened
        if registration is None:
            acknowledged = 0 if self._path is None else read_mark(self._path).sequence
            if acknowledged > manifest.log_sequence:
                raise CorruptError(
                    f"the log of index {self._index!r} is gone: {self._path} does not exist, but mutations up to "
                    f"{acknowledged} were acknowledged, and the version has those up to {manifest.log_sequence}"
                )
            return
        if self._path is None:
            _LOG.warning(
                "index %s: its log is %s, and this process was started without --log: live updates become visible "
                "when they are sealed", self._index, registration.where,
            )  # fmt: skip
            return
        if registration.is_in(self._store, self._path.parent):
            raise CorruptError(
                f"the log of index {self._index!r} is gone: {self._path} does not exist; restore a copy, "
                f"or {FORGET}"
            )
        raise WrongLogError(
            f"index {self._index!r} has live updates in a log {registration.where}, and there is none in "
            f"{self.folder}: {ADVICE}"
        )

    def _check_not_copied(self, registration: Registration) -> None:
        """Raise WrongLogError if the registered folder holds another copy of the log: both would take writes."""
        assert self._path is not None
        former = registration.folder(self._store, self._index)
        if former is None or former == self._path.parent:
            return
        path = former / LOG_FILE
        with suppress(OSError):  # it was moved, or this machine cannot check it
            if path.exists() and not path.samefile(self._path):
                raise WrongLogError(
                    f"the log in {self.folder} is a copy of that in {former}, which still exists; only one of them "
                    f"may be written to: stop the processes that use {former}, and move that folder away"
                )

    def check_absent(self) -> None:
        """Check that no file of a log is left; see LogHome."""
        if self.folder is not None:
            check_no_files(self.folder)

    def place(self, copy: Path, *, log_id: str, index_id: str) -> int:
        """Copy a log to the folder, durably, and return its last sequence; see LogHome."""
        if self._path is None:
            raise ReadOnlyError(f"the log of live updates of index {self._index!r} needs a place (--log)")
        folder = self._path.parent
        make_folders(folder)
        draft = folder / DRAFT_FILE
        os.close(open_private(draft))
        with copy.open("rb") as source, draft.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 22)
        rename_log(draft, log_id=log_id, index_id=index_id)
        # Not renamed: an index that was created under this name meanwhile may have a log.
        try:
            self._path.hardlink_to(draft)
        except FileExistsError as error:
            raise AlreadyExistsError(f"{self._path} was created meanwhile") from error
        finally:
            draft.unlink()
        sync_files(folder)
        try:
            register(self._store, self._index, log_id, folder)
        except BaseException:
            remove_files(folder)
            raise
        with closing(SqliteLog(folder)) as log:
            return log.position()

    def remove(self, log_id: str | None) -> bool:
        """Remove the files of the log, whatever its id; see LogHome."""
        if self.folder is None or not self.folder.is_dir():
            return False
        remove_files(self.folder)
        return True


def check_no_files(folder: Path) -> None:
    """Check that a folder has no file of a log: SQLite would apply a write-ahead log left by another database.

    Raises:
        AlreadyExistsError: it has.

    """
    if files := files_of_log(folder):
        raise AlreadyExistsError(
            f"{folder} has a log already ({', '.join(files)}): seal it, or move that folder away first"
        )


def remove_files(folder: Path) -> None:
    """Remove the files of a log, and its folder if nothing else is in it: it comes from a file of the store."""
    with suppress(OSError):
        for name in files_of_log(folder):
            (folder / name).unlink()
        for lock in folder.glob("*.lock"):  # of maintenance
            lock.unlink(missing_ok=True)
        (folder / DRAFT_FILE).unlink(missing_ok=True)
        folder.rmdir()


def log_home(store: Store, index: str, root: LogRoot | None = None) -> LogHome:
    """Return the place of the log of an index.

    Args:
        store: of the index.
        index: its name.
        root: parent folder of all logs, or the database with them; None: the folder of the store. A store in a bucket
            has none.

    Raises:
        LogRefusedError: the package for databases is not installed.

    """
    if not isinstance(root, DatabaseUrl):
        return LogPlace(store, index, root)
    _check_installed()
    from scannery.live.log.postgres.home import PostgresHome

    return PostgresHome(store, index, root)


def log_changes(root: LogRoot | None) -> Changes:
    """Return a reader of which logs of a root have changed, by their keys (`LogHome.key`); None: there is no root.

    Raises:
        LogRefusedError: the package for databases is not installed.

    """
    if root is None:
        return NoChanges()
    if not isinstance(root, DatabaseUrl):
        return FolderChanges(root)
    _check_installed()
    from scannery.live.log.postgres.database import Database

    return Database.of(root).positions.changes()


def checked_log(home: LogHome, manifest: Manifest) -> MutationLog | None:
    """Return the opened and checked log of an index; None if the index was never written to.

    Raises:
        WrongLogError, CorruptError, FormatError, StoreError: as `LogHome.open` and `LogHome.check`.

    """
    log = home.open()
    try:
        home.check(log, manifest)
    except BaseException:
        if log is not None:
            log.close()
        raise
    return log


def check_log_root(root: LogRoot | None) -> None:
    """Check that a database of logs can be used now; a folder is checked when it is written to.

    Raises:
        LogUnavailableError: it does not answer.
        LogRefusedError: it refuses this process, or is too old.
        FormatError: a later release made its tables.

    """
    if isinstance(root, DatabaseUrl):
        _check_installed()
        from scannery.live.log.postgres.database import Database

        database = Database.of(root)
        with database.connection():
            pass
        database.drop_idle()  # the caller may fork


def _check_installed() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise LogRefusedError(
            "logs in PostgreSQL need a package that is not installed: pip install 'scannery[postgres]'"
        ) from error


def forget_log(store: Store, index: str, *, log_root: LogRoot | None = None) -> Registration | None:
    """Let an index begin a new log, and return the registration of its former log; None if it had none.

    Mutations of the former log that were not sealed are lost. It must be set aside first: processes that have it open
    notice that, and stop writing to it.

    Raises:
        NotFoundError: there is no such index.
        AlreadyExistsError: the former log is still there.

    """
    manifest = read_manifest(store, index)
    registration = registered(store, index)
    log_home(store, index, log_root).check_absent()
    folder = registration.folder(store, index) if registration is not None else None
    if folder is not None:
        check_no_files(folder)
    if manifest.log_sequence < manifest.log_reached:
        # A build expects records of the former log to be applied to it; records of a new log must not replace them.
        reached = {"log_sequence": manifest.log_reached, "log_floor": manifest.log_reached}
        commit(store, manifest.model_copy(update={"parent": manifest.version, **reached}))
    if registration is not None:
        forget(store, index)
    return registration

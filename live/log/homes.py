"""Find the log of an index, in a folder or in a database.

Give up a lost log, so that an index takes writes again.
"""

from __future__ import annotations

from scannery.indexer import Manifest, Store, commit, read_manifest
from scannery.indexer.store.changes import Changes, FolderChanges, NoChanges
from scannery.live.log.home import LogPlace, check_no_files
from scannery.live.log.location import DatabaseUrl, LogRoot
from scannery.live.log.mutation_log import LogHome, LogRefusedError, MutationLog
from scannery.live.log.registry import Registration, forget, registered

__all__ = ["check_log_root", "checked_log", "forget_log", "log_changes", "log_home"]


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

"""Find the log of an index, and check that it is the one that the index uses.

The versions of an index, its log, and the registration of the log in the store (registry.py) carry random ids, which
are compared. If the log file is missing, the index has never been written to only if no log is registered.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from scannery.indexer import CorruptError, FormatError, Manifest, NotFoundError, Store, read_manifest
from scannery.live.log.files import LOG_FILE, files_of_log, read_mark
from scannery.live.log.location import log_folder
from scannery.live.log.mutation_log import LogReplacedError, MutationLog, WrongLogError
from scannery.live.log.registry import Registration, forget, register, registered
from scannery.live.log.sqlite_log import SqliteLog
from scannery.runtime.errors import ReadOnlyError

__all__ = ["LogPlace"]

_LOG = logging.getLogger(__name__)

_FORGET = "begin a new log with `scannery index log --forget`, which loses the mutations that were not sealed"
_ADVICE = f"pass the folder of that log with --log, or, if it is lost, {_FORGET}"


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
        self._index = index
        folder = log_folder(root or store.local_root, index)
        self._path = None if folder is None else folder.absolute() / LOG_FILE

    @property
    def folder(self) -> Path | None:
        """The folder of the log; None if the store is a bucket and no `root` was given."""
        return None if self._path is None else self._path.parent

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

    def checked(self, manifest: Manifest) -> SqliteLog | None:
        """Return the opened and checked log; None if the index was never written to.

        Raises:
            WrongLogError, CorruptError, FormatError, StoreError: as `open` and `check`.

        """
        log = self.open()
        try:
            self.check(log, manifest)
        except BaseException:
            if log is not None:
                log.close()
            raise
        return log

    def check(self, log: MutationLog | None, manifest: Manifest) -> None:
        """Check that the log is the one that the index uses; see LogHome."""
        known = registered(self._store, self._index)
        if log is None:
            self._check_missing(known, manifest)
            return
        self._check_index(log, manifest)
        found = log.identity().log_id
        if known is not None and found != known.log_id:
            raise WrongLogError(
                f"the log in {self.folder} is not the one that index {self._index!r} uses, which is {known.where}: "
                f"{_ADVICE}"
            )
        if known is not None:
            self._check_not_copied(known)

    def claim(self, log: MutationLog | None, manifest: Manifest) -> MutationLog:
        """Return the log to write to; see LogHome."""
        if self._path is None:
            raise ReadOnlyError(f"index {self._index!r} has no folder for a log (--log)")
        own = None
        self._check_current(manifest)
        if log is None:
            self.check(None, manifest)
            log = own = SqliteLog(self._path.parent, create=True)
        try:
            self._check_index(log, manifest)
            with log.transaction(after=0, index_id=manifest.index_id):
                pass  # gives the log an id
            log_id = log.identity().log_id
            assert log_id is not None
            register(self._store, self._index, log_id, self._path.parent)
            if own is not None:
                self._check_own(own, log_id, manifest)
        except BaseException:
            if own is not None:
                own.close()
            raise
        return log

    def _check_current(self, manifest: Manifest) -> None:
        """Raise LogReplacedError if the index was dropped, or created again, since the version was opened."""
        try:
            known = read_manifest(self._store, self._index).index_id
        except NotFoundError as error:
            raise LogReplacedError(f"index {self._index!r} was dropped") from error
        except (CorruptError, FormatError):
            return  # an earlier version is open, and takes writes
        if manifest.index_id is not None and known != manifest.index_id:
            raise LogReplacedError(f"index {self._index!r} was dropped and created again")

    def _check_own(self, log: SqliteLog, log_id: str, manifest: Manifest) -> None:
        """Check again after a log was begun, and remove it if its index was dropped meanwhile.

        A drop that begins later finds the log, and removes it.
        """
        try:
            self._check_current(manifest)
        except LogReplacedError:
            known = registered(self._store, self._index)
            if known is not None and known.log_id == log_id:
                forget(self._store, self._index)
            names = files_of_log(log.path.parent) if log.position() == 0 else []
            log.close()
            for name in names:
                (log.path.parent / name).unlink(missing_ok=True)
            raise

    def _check_missing(self, known: Registration | None, manifest: Manifest) -> None:
        if self._path is not None and self._path.exists():
            return  # another process created it since; it is checked when it is opened
        if known is None:
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
                "when they are sealed", self._index, known.where,
            )  # fmt: skip
            return
        if known.is_in(self._store, self._path.parent):
            raise CorruptError(
                f"the log of index {self._index!r} is gone: {self._path} does not exist; restore a copy, "
                f"or {_FORGET}"
            )
        raise WrongLogError(
            f"index {self._index!r} has live updates in a log {known.where}, and there is none in {self.folder}: "
            f"{_ADVICE}"
        )

    def _check_not_copied(self, known: Registration) -> None:
        """Raise WrongLogError if the registered folder holds another copy of the log: both would take writes."""
        assert self._path is not None
        former = known.folder(self._store, self._index)
        if former is None or former == self._path.parent:
            return
        path = former / LOG_FILE
        with suppress(OSError):  # it was moved, or this machine cannot check it
            if path.exists() and not path.samefile(self._path):
                raise WrongLogError(
                    f"the log in {self.folder} is a copy of that in {former}, which still exists; only one of them "
                    f"may be written to: stop the processes that use {former}, and move that folder away"
                )

    def _check_index(self, log: MutationLog, manifest: Manifest) -> None:
        found = log.identity().index_id
        if found is None:
            # Releases without ids wrote this log: it can only belong to an index that they created.
            wrong = manifest.index_id is not None and manifest.parent is None and log.position() > 0
        else:
            wrong = manifest.index_id is not None and manifest.index_id != found
        if wrong:
            raise WrongLogError(
                f"the log in {self.folder} does not belong to the present index {self._index!r}, which was created "
                "again or restored: move that folder away"
            )

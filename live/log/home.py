"""The log of an index: where it lies, and whether it is the one that the index has used.

Three things carry random ids and are compared wherever they meet: the versions of an index, its log, and the
registration of the log in the store (log_registry.py). A log that is missing is an index that was never written to only
if none was ever registered.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from scannery.indexer import CorruptError, Manifest, Store
from scannery.live.log.files import LOG_FILE, marked
from scannery.live.log.location import log_folder
from scannery.live.log.mutation_log import MutationLog, WrongLogError
from scannery.live.log.registry import Registration, register, registered
from scannery.live.log.sqlite_log import SqliteLog
from scannery.runtime.errors import ReadOnlyError

__all__ = ["LogPlace"]

_LOG = logging.getLogger(__name__)

_FORGET = "begin a new log with `scannery index log --forget`, which loses what was not sealed"
_ADVICE = f"give the folder of that log with --log, or, if it is lost, {_FORGET}"


class LogPlace:
    """A `LogHome` in a local folder, or nowhere."""

    def __init__(self, store: Store, index: str, root: Path | None = None) -> None:
        """Take the folder of all logs; by default that of the store, if it is one."""
        self._store = store
        self._index = index
        folder = log_folder(root or store.local_root, index)
        self._path = None if folder is None else folder.absolute() / LOG_FILE

    @property
    def folder(self) -> Path | None:
        """The folder of the log; None where there is no place for one."""
        return None if self._path is None else self._path.parent

    @property
    def writable(self) -> bool:
        """Whether there is a place for a log at all."""
        return self._path is not None

    def open(self) -> SqliteLog | None:
        """Return the log, opened, None if it was never made; see LogHome."""
        # Without a watcher, every query of an index that was never written to asks. Path.exists takes three times as
        # long.
        if self._path is None or not os.path.exists(self._path):  # noqa: PTH110
            return None
        try:
            return SqliteLog(self._path.parent)
        except FileNotFoundError:  # removed this moment
            return None

    def checked(self, manifest: Manifest) -> SqliteLog | None:
        """Return the log, opened and compared with what the index must have; None if it was never written to.

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
        """Compare what was found with what the index must have; see LogHome."""
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
        if log is None:
            self.check(None, manifest)
            log = own = SqliteLog(self._path.parent, create=True)
        try:
            self._check_index(log, manifest)
            with log.transaction(after=0, index_id=manifest.index_id):
                pass  # from here on it has an id
            log_id = log.identity().log_id
            assert log_id is not None
            register(self._store, self._index, log_id, self._path.parent)
        except BaseException:
            if own is not None:
                own.close()
            raise
        return log

    def _check_missing(self, known: Registration | None, manifest: Manifest) -> None:
        if self._path is not None and self._path.exists():
            return  # another process has made it since it was looked for; it is compared when it is opened
        if known is None:
            noted = 0 if self._path is None else marked(self._path).sequence
            if noted > manifest.log_sequence:
                raise CorruptError(
                    f"the log of index {self._index!r} is gone: {self._path} does not exist, but mutations up to "
                    f"{noted} were acknowledged, and the version has those up to {manifest.log_sequence}"
                )
            return
        if self._path is None:
            _LOG.warning(
                "index %s: its live updates are in a log %s, which this process was not given (--log): they are seen "
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
        """Raise WrongLogError if the log is where it was registered, too: each of the two would take writes."""
        assert self._path is not None
        former = known.folder(self._store, self._index)
        if former is None or former == self._path.parent:
            return
        path = former / LOG_FILE
        with suppress(OSError):  # it was moved, or cannot be told here
            if path.exists() and not path.samefile(self._path):
                raise WrongLogError(
                    f"the log in {self.folder} is a copy of that in {former}, which is still there; only one of them "
                    f"may be written to: stop what uses {former}, and move that folder away"
                )

    def _check_index(self, log: MutationLog, manifest: Manifest) -> None:
        found = log.identity().index_id
        if found is None:
            # A log of early days. It can be of an index that was made before there were ids, and of no other.
            wrong = manifest.index_id is not None and manifest.parent is None and log.position() > 0
        else:
            wrong = manifest.index_id is not None and manifest.index_id != found
        if wrong:
            raise WrongLogError(
                f"the log in {self.folder} is not of the index that is named {self._index!r} now, which was made "
                "anew or restored: move that folder away"
            )

"""Credential files: replaced as a whole by one writer at a time, keeping owner and permissions.

Reload files that change while a server runs: certificates, keys.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from scannery.runtime.errors import ConfigError

__all__ = ["WatchedValue", "locked", "read_private", "replaced"]


LOCK_WITHIN_S = 10.0
"""A writer holds the lock for milliseconds."""
_POLL_S = 0.05
_ACL = "system.posix_acl_access"


def read_private(path: str | Path, field: str) -> bytes:
    """Return the content of a credential file.

    Args:
        path: the file.
        field: the option that names it, for errors.

    Raises:
        ConfigError: it cannot be read, or its group or other users may write it.

    """
    try:
        with Path(path).open("rb") as file:
            _check_private(path, os.fstat(file.fileno()), field)
            return file.read()
    except OSError as error:
        raise ConfigError(f"{field}: cannot read {path}: {error.strerror}", field=field) from error


def _check_private(path: str | Path, status: os.stat_result, field: str) -> None:
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"{field}: {path} may be written by others than its owner (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"chmod go-w {path}",
            field=field,
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file while it is changed: two writers at once could lose a key or restore a revoked one.

    Raises:
        ConfigError: another process holds the lock for more than LOCK_WITHIN_S, or the folder cannot be written.

    """
    target = path.resolve()
    try:
        descriptor = _open_lock(target.with_name(f".{target.name}.lock"), _status(target))
    except OSError as error:
        raise _cannot_change(path, error) from error
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def replaced(path: Path, text: str) -> None:
    """Write a file as a whole: a new one with mode 0600, an existing one with its owner and permissions kept.

    A symbolic link stays; its target is replaced.

    Raises:
        ConfigError: it cannot be written, or its owner cannot be kept.

    """
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    before = _status(target)
    try:
        with suppress(FileNotFoundError):
            draft.unlink()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            if before is not None:
                _copy_permissions(before, target, file.fileno())
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
        from scannery.indexer.store.folder_backend import sync_folder  # late: Arrow

        sync_folder(target.parent)
    except OSError as error:
        raise _cannot_change(path, error) from error
    finally:
        draft.unlink(missing_ok=True)


def _copy_permissions(before: os.stat_result, target: Path, descriptor: int) -> None:
    """Give the open draft the owner, mode and access list of the file that it replaces."""
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except OSError as error:
            raise ConfigError(
                f"keys_file: {target} belongs to user {before.st_uid} and group {before.st_gid}, and would belong to "
                f"{now.st_uid} and {now.st_gid} afterwards; change it as its owner or as root",
                field="keys_file",
            ) from error
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
    if _ACL in os.listxattr(target):
        os.setxattr(descriptor, _ACL, os.getxattr(target, _ACL))


def _open_lock(path: Path, guarded: os.stat_result | None) -> int:
    """Return the lock file, open, with mode 0600: a user who could read it could hold the lock indefinitely.

    Root gives it to the owner of the guarded file, who could not open it otherwise.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    status, user = os.fstat(descriptor), os.geteuid()
    if status.st_uid == user and stat.S_IMODE(status.st_mode) != 0o600:
        os.fchmod(descriptor, 0o600)
    owner = (status.st_uid, status.st_gid)
    if user == 0 and guarded is not None and owner != (guarded.st_uid, guarded.st_gid):
        os.fchown(descriptor, guarded.st_uid, guarded.st_gid)
    return descriptor


def _lock(descriptor: int, path: Path) -> None:
    until_s = time.monotonic() + LOCK_WITHIN_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > until_s:
                raise ConfigError(
                    f"keys_file: another process has kept {path} locked for {LOCK_WITHIN_S:g} s",
                    field="keys_file",
                ) from error
            # flock has no timeout.
            time.sleep(_POLL_S)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _cannot_change(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"keys_file: cannot change {path}: {error.strerror or error}", field="keys_file")


_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class WatchedValue(Generic[T]):
    """A value loaded from files, loaded again when their content changes. Safe to use from several threads.

    If loading fails, the last good value stays in force, and the next check tries again.
    """

    def __init__(
        self,
        what: str,
        paths: Sequence[str],
        make: Callable[[], T],
        *,
        every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load the value; raises what `make` raises.

        Args:
            what: name of the value, for the log.
            paths: the files; empty paths are skipped.
            make: loads the value from the files.
            every_s: seconds between two checks.
            clock: monotonic, in seconds: a wall clock that is set back could stop the checks for hours.

        """
        self._what, self._paths, self._make = what, [path for path in paths if path], make
        self._every_s, self._clock = every_s, clock
        self._lock = threading.Lock()
        # Before the value is loaded: the next check sees a change between the two.
        self._digests = self._hash_files()
        self.value = make()
        """The last good value."""
        self._problem = ""
        self._checked_at_s = self._good_at_s = clock()

    @property
    def stale_s(self) -> float:
        """Seconds since the files could last be used; 0 if the last check succeeded."""
        return self._clock() - self._good_at_s if self._problem else 0.0

    def look(self) -> bool:
        """Check the files if a check is due; return whether the value was loaded again."""
        now_s = self._clock()
        if now_s - self._checked_at_s < self._every_s or not self._lock.acquire(blocking=False):
            return False
        try:
            self._checked_at_s = now_s
            return self._reload()
        finally:
            self._lock.release()

    def _reload(self) -> bool:
        try:
            digests = self._hash_files()
            changed = None in digests or digests != self._digests
            if changed:
                self.value = self._make()
                self._digests = digests
                _LOG.info("%s: reloaded", self._what)
        except Exception as error:  # noqa: BLE001  the server keeps running with the last good value
            problem = str(error)
            if problem != self._problem:
                _LOG.error(
                    "%s: cannot be reloaded, the last good one stays in force: %s", self._what, problem
                )
            self._problem = problem
            return False
        self._problem, self._good_at_s = "", self._checked_at_s
        return changed

    def _hash_files(self) -> list[bytes | None]:
        return [_digest(path) for path in self._paths]


def _digest(path: str) -> bytes | None:
    """Return the SHA-256 of a file, None if it cannot be read. A change may keep modification time and size."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:
        return None

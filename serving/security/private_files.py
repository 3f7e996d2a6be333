"""Files that hold credentials: replaced as a whole, with the owner and rights they had, by one writer at a time."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scannery.indexer.store.object_store import sync_folder
from scannery.runtime.errors import ConfigError

__all__ = ["locked", "read_private", "replaced"]

LOCK_WITHIN_S = 10.0
"""Another writer takes milliseconds."""
_LOOK_EVERY_S = 0.05
_ACL = "system.posix_acl_access"


def read_private(path: str | Path, field: str) -> bytes:
    """Return the content of a file that decides who may call.

    Raises:
        ConfigError: it cannot be read, or others than its owner may write it.

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
    """Be the only one who changes a file: two at once could lose a key, or bring a revoked one back.

    Raises:
        ConfigError: another process does not let go of it, or the folder cannot be written.

    """
    place = _real(path)
    try:
        descriptor = _opened(place.with_name(f".{place.name}.lock"), _status(place))
    except OSError as error:
        raise _refused(path, error) from error
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def replaced(path: Path, text: str) -> None:
    """Write a file as a whole; a new one is for its owner only, another one keeps its owner and its rights.

    Raises:
        ConfigError: it cannot be written, or would belong to somebody else.

    """
    place = _real(path)
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    before = _status(place)
    try:
        with suppress(FileNotFoundError):
            draft.unlink()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            if before is not None:
                _keep(file.fileno(), before, place)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(place)
        sync_folder(place.parent)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        draft.unlink(missing_ok=True)


def _keep(descriptor: int, before: os.stat_result, place: Path) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except OSError as error:
            raise ConfigError(
                f"keys_file: {place} belongs to user {before.st_uid} and group {before.st_gid}, and would belong to "
                f"{now.st_uid} and {now.st_gid} afterwards; change it as its owner or as root",
                field="keys_file",
            ) from error
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
    if _ACL in os.listxattr(place):
        os.setxattr(descriptor, _ACL, os.getxattr(place, _ACL))


def _opened(place: Path, like: os.stat_result | None) -> int:
    """Return the lock file, for the owner of what it guards only: a user who can read it could hold it for ever."""
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    status = os.fstat(descriptor)
    mine = status.st_uid == os.geteuid()
    if mine and stat.S_IMODE(status.st_mode) != 0o600:
        os.fchmod(descriptor, 0o600)
    if (
        os.geteuid() == 0
        and like is not None
        and (status.st_uid, status.st_gid) != (like.st_uid, like.st_gid)
    ):
        # Made by root, it would lock the owner out.
        os.fchown(descriptor, like.st_uid, like.st_gid)
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
            # The system call knows no time limit.
            time.sleep(_LOOK_EVERY_S)


def _real(path: Path) -> Path:
    # A link stays a link.
    return path.resolve()


def _status(place: Path) -> os.stat_result | None:
    try:
        return place.stat()
    except FileNotFoundError:
        return None


def _refused(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"keys_file: cannot change {path}: {error.strerror or error}", field="keys_file")

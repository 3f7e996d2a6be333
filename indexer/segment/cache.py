"""The local cache of unpacked segments, as files that processes memory-map.

A segment is unpacked once per machine, into a folder named by its SHA-256, and every process maps it from there. Each
folder has `checks.json` with the size and SHA-256 of the other files; they are compared before a file is mapped or read
by native code, and a folder that differs is unpacked again from the store. Only the user of this process can write to
the cache.

A folder is locked while it is opened, so that it is not evicted meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from scannery.indexer.errors import StoreError
from scannery.indexer.local.private_folders import is_private, make_private
from scannery.indexer.segment.segment_writer import file_sha256

__all__ = ["SegmentCache", "default_cache_folder"]

_LOG = logging.getLogger(__name__)
_CHECKS = "checks.json"
_DRAFT = "draft-"
_TRIES = 10
_DRAFT_AGE_S = 24 * 3600
"""Age above which a draft is one of a killed process: unpacking takes minutes at most."""
# Version of the unpacked files: code that changes their layout uses another folder.
_LAYOUT = "v6"


def default_cache_folder() -> Path:
    """Return `$SCANNERY_CACHE_DIR`, or `scannery` in the user's cache folder."""
    named = os.environ.get("SCANNERY_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else Path(base or Path.home() / ".cache") / "scannery"


class SegmentCache:
    """Folders of unpacked segments; the least recently opened are evicted when all exceed `max_bytes`."""

    def __init__(self, folder: Path | None = None, *, max_bytes: int = 64 << 30) -> None:
        """Set the place and size; folders are created when they are needed.

        Args:
            folder: None: `default_cache_folder()`.
            max_bytes: size of all segments above which some are evicted.

        """
        # Absolute, since the process may change its current folder.
        self.folder = (folder or default_cache_folder()).absolute() / "segments" / _LAYOUT
        self.max_bytes = max_bytes

    @contextlib.contextmanager
    def opened(self, sha256: str, unpack: Callable[[Path], None]) -> Iterator[Path]:
        """Give the checked folder of a segment, which no process removes within the context.

        Files that were mapped within the context stay readable after it, even if they are removed.

        Args:
            sha256: of the segment.
            unpack: fills an empty folder; called if the cache does not have the segment.

        Raises:
            StoreError: the cache belongs to another user.
            OSError: it cannot be written.

        """
        make_private(self.folder, "the cache of segments (SCANNERY_CACHE_DIR)")
        final = self.folder / sha256
        lock = self._found(final)
        for _ in range(_TRIES):
            if lock is not None:
                break
            lock = self._filled(final, unpack)
            lock = self._found(final) if lock is None else lock
        if lock is None:
            raise StoreError(f"other processes remove cached segment {sha256[:12]} each time it is unpacked")
        try:
            os.utime(final)
            yield final
        finally:
            _release(lock)

    def _found(self, final: Path) -> int | None:
        """Return a locked descriptor of the folder; None if it does not exist, or is damaged and was removed."""
        lock = _locked(final, fcntl.LOCK_SH)
        if lock is None or _intact(final):
            return lock
        _LOG.warning("cached segment %s is damaged; unpacking it again", final.name[:12])
        if _is(final, lock):
            _discard(final)
        _release(lock)
        return None

    def _filled(self, final: Path, unpack: Callable[[Path], None]) -> int | None:
        """Unpack into the folder, and return its locked descriptor; None if another process was faster."""
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self.folder))
        lock = None
        try:
            unpack(draft)
            checks = {
                path.relative_to(draft).as_posix(): [path.stat().st_size, file_sha256(path)]
                for path in _files(draft)
            }
            (draft / _CHECKS).write_text(json.dumps(checks))
            # The lock is on the folder, and renaming keeps it.
            lock = _locked(draft, fcntl.LOCK_SH)
            draft.rename(final)
        except OSError as error:
            _release(lock)
            # Another process was faster; its folder may be evicted again by now.
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) or final.exists():
                return None
            raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        self._remove_old_drafts()
        self._evict(keep=final)
        return lock

    def _remove_old_drafts(self) -> None:
        for path in self.folder.glob(f"{_DRAFT}*"):
            if 0 < _changed_at(path) < time.time() - _DRAFT_AGE_S:
                shutil.rmtree(path, ignore_errors=True)

    def _evict(self, *, keep: Path) -> None:
        folders = [path for path in self.folder.iterdir() if not path.name.startswith(_DRAFT)]
        sizes = {path: _size(path) for path in folders}
        total = sum(sizes.values())
        for path in sorted(folders, key=_changed_at):
            if total <= self.max_bytes:
                return
            if path == keep or (lock := _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
                continue  # another process is opening it
            # Processes that mapped its files can still read them: an unlinked file is kept until it is unmapped.
            _discard(path)
            _release(lock)
            total -= sizes[path]


def _locked(folder: Path, how: int) -> int | None:
    """Return a locked descriptor of the folder; None if it does not exist, or another lock conflicts with LOCK_NB."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass  # a file system without locks: a segment may be evicted while it is opened, which then is repeated
    if _is(folder, descriptor):
        return descriptor
    _release(descriptor)  # removed while this call waited
    return None


def _release(lock: int | None) -> None:
    if lock is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(
                lock, fcntl.LOCK_UN
            )  # closing does not suffice: a forked process may have it open too
        os.close(lock)


def _is(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.lstat())
    except FileNotFoundError:
        return False


def _intact(folder: Path) -> bool:
    try:
        # Other users must not be able to change both a file and its checksum.
        if not is_private(folder):
            return False
        checks = json.loads((folder / _CHECKS).read_text())
        return all(
            (folder / name).stat().st_size == size and file_sha256(folder / name) == sha256
            for name, (size, sha256) in checks.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _size(folder: Path) -> int:
    size_bytes = 0
    for path in _files(folder):
        with contextlib.suppress(FileNotFoundError):  # evicted by another process
            size_bytes += path.stat().st_size
    return size_bytes


def _changed_at(folder: Path) -> float:
    """Return the time of the last change in seconds since 1970; 0 if the folder does not exist."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _files(folder: Path) -> Iterator[Path]:
    # Not `rglob`, which fails if another process removes a folder meanwhile.
    return (
        path for place, _, names in os.walk(folder) for name in names if (path := Path(place, name)).is_file()
    )


def _discard(folder: Path) -> None:
    # Renamed first, so that no process finds it partly removed.
    draft = folder.with_name(f"{_DRAFT}{folder.name}-{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        folder.rename(draft)
    shutil.rmtree(draft, ignore_errors=True)

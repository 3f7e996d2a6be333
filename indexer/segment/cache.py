"""The local cache of opened segments: their parts as files that can be memory-mapped.

A segment is unpacked once per machine, into a folder named by its SHA-256, and mapped from there by every process.
Each folder has `checks.json` with the size and SHA-256 of the other files; they are compared before anything is
mapped or handed to native code, and a folder that fails is unpacked again from the store. The cache belongs to the user
who runs this, and only that user can write there.

A folder is locked while it is opened, so that eviction leaves it alone meanwhile.
"""

from __future__ import annotations

import contextlib
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
"""From which on a draft is one of a process that was killed: unpacking takes minutes at most."""
# Unpacked parts depend on the code that unpacks; a change of their layout takes a new folder.
_LAYOUT = "v6"


def default_cache_folder() -> Path:
    """Return `$SCANNERY_CACHE_DIR`, or `scannery` in the user's cache folder."""
    named = os.environ.get("SCANNERY_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else Path(base or Path.home() / ".cache") / "scannery"


class SegmentCache:
    """Folders of unpacked segments, least recently opened first out when they exceed `max_bytes`."""

    def __init__(self, folder: Path | None = None, *, max_bytes: int = 64 << 30) -> None:
        # Absolute from now on: the process may go to another folder.
        self.folder = (folder or default_cache_folder()).absolute() / "segments" / _LAYOUT
        self.max_bytes = max_bytes

    @contextlib.contextmanager
    def opened(self, sha256: str, unpack: Callable[[Path], None]) -> Iterator[Path]:
        """Give the checked folder of a segment; `unpack` fills an empty one if there is none.

        Within the context no process removes it. What is mapped by its end stays readable, even if it is removed then.

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
            raise StoreError(f"cached segment {sha256[:12]} is removed by others as soon as it is there")
        try:
            os.utime(final)
            yield final
        finally:
            _let_go(lock)

    def _found(self, final: Path) -> int | None:
        """Return the folder, intact, open and locked; None if there is none."""
        lock = _held(final, fcntl.LOCK_SH)
        if lock is None or _intact(final):
            return lock
        _LOG.warning("cached segment %s is damaged; unpacking it again", final.name[:12])
        if _is(final, lock):
            _discard(final)
        _let_go(lock)
        return None

    def _filled(self, final: Path, unpack: Callable[[Path], None]) -> int | None:
        """Unpack, and return the folder, open and locked; None if another process was faster."""
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self.folder))
        lock = None
        try:
            unpack(draft)
            checks = {
                path.relative_to(draft).as_posix(): [path.stat().st_size, file_sha256(path)]
                for path in _files(draft)
            }
            (draft / _CHECKS).write_text(json.dumps(checks))
            # The lock is on the folder, whatever it is called.
            lock = _held(draft, fcntl.LOCK_SH)
            draft.rename(final)
        except OSError:
            _let_go(lock)
            if not final.exists():
                raise
            return None
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
            if path == keep or (lock := _held(path, fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
                continue  # somebody is opening it
            # Processes that mapped its files keep them: an unlinked file lives until it is unmapped.
            _discard(path)
            _let_go(lock)
            total -= sizes[path]


def _held(folder: Path, how: int) -> int | None:
    """Return the folder, open and locked; None if it is not there, or is locked by others and `how` does not wait."""
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
        pass  # a file system without locks: a segment may be removed while it is opened, and is opened again then
    if _is(folder, descriptor):
        return descriptor
    _let_go(descriptor)  # removed while we waited
    return None


def _let_go(lock: int | None) -> None:
    if lock is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open, too
        os.close(lock)


def _is(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.lstat())
    except FileNotFoundError:
        return False


def _intact(folder: Path) -> bool:
    try:
        # Its checks vouch for the files, and its owner for the checks.
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
        with contextlib.suppress(FileNotFoundError):  # another process evicts, too
            size_bytes += path.stat().st_size
    return size_bytes


def _changed_at(folder: Path) -> float:
    """Return seconds since 1970; 0 if it is gone."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _files(folder: Path) -> Iterator[Path]:
    # Unlike `rglob`, no error where another process removes a folder meanwhile.
    return (
        path for place, _, names in os.walk(folder) for name in names if (path := Path(place, name)).is_file()
    )


def _discard(folder: Path) -> None:
    # Renamed first, so that nobody finds it half removed.
    grave = folder.with_name(f"{_DRAFT}{folder.name}-{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        folder.rename(grave)
    shutil.rmtree(grave, ignore_errors=True)

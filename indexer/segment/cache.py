"""The local cache of unpacked segments, as files that processes memory-map.

A segment is unpacked once per machine, into a folder named by its SHA-256, and every process maps it from there. Each
folder has `checks.json` with the size and SHA-256 of the other files; they are compared before a file is mapped or read
by native code, and a folder that differs is unpacked again from the store. Only the user of this process can write to
the cache.

A folder is locked while any process has its segment open, so that it is not evicted meanwhile. While it is unpacked,
its draft is locked: other processes wait for it, and the draft of a killed one is removed. The kernel ends the locks of
a process with it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from scannery.indexer.errors import StoreError
from scannery.indexer.local.files import file_sha256, is_private, make_private

__all__ = ["Hold", "SegmentCache", "default_cache_folder", "file_sizes"]

_LOG = logging.getLogger(__name__)
_CHECKS = "checks.json"
_DRAFT = "draft-"
_TRIES = 10
_DRAFT_AGE_S = 24 * 3600
"""Age of drafts of killed processes where there are no locks: unpacking takes minutes at most."""
MAX_BYTES = 64 << 30
"""Default size of the cache; the environment variable SCANNERY_CACHE_BYTES replaces it."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WRITING: set[int] = set()
"""Locked descriptors of drafts that this process writes."""
# Version of the unpacked files: code that changes their layout uses another folder.
_LAYOUT = "v7"


def default_cache_folder() -> Path:
    """Return `$SCANNERY_CACHE_DIR`, or `scannery` in the user's cache folder."""
    named = os.environ.get("SCANNERY_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else Path(base or Path.home() / ".cache") / "scannery"


class SegmentCache:
    """Folders of unpacked segments; the least recently used are evicted when all exceed `max_bytes`.

    Those that a process has open stay, so they may exceed it.
    """

    def __init__(self, folder: Path | None = None, *, max_bytes: int | None = None) -> None:
        """Set the place and size; folders are created when they are needed.

        Args:
            folder: None: `default_cache_folder()`.
            max_bytes: size of all segments above which some are evicted; None: `$SCANNERY_CACHE_BYTES`, or `MAX_BYTES`.

        Raises:
            StoreError: the variable is not a number of bytes.

        """
        # Absolute, since the process may change its current folder.
        self.folder = (folder or default_cache_folder()).absolute() / "segments" / _LAYOUT
        self.max_bytes = _max_bytes(os.environ) if max_bytes is None else max_bytes
        self._has_warned = False
        self._problem: str | None = None
        """Why it could not be used, as it was last logged."""

    @contextlib.contextmanager
    def opened(self, sha256: str, unpack: Callable[[Path], None], *, size_bytes: int = 0) -> Iterator[Path]:
        """Give the checked folder of a segment, which no process removes within the context.

        Files that were mapped within the context stay readable after it, even if they are removed; `Hold` keeps them.

        Args:
            sha256: of the segment.
            unpack: fills an empty folder; called if the cache does not have the segment.
            size_bytes: about what is unpacked, for which room is made before.

        Raises:
            StoreError: the cache belongs to another user.
            OSError: it cannot be written.

        """
        final = self.folder / sha256
        try:
            lock = self._held(final, unpack, size_bytes)
        except OSError as error:
            if (
                error.strerror != self._problem
            ):  # callers of a server do not see its paths, so the log has them
                self._problem = error.strerror
                _LOG.error(
                    "the cache of segments in %s (SCANNERY_CACHE_DIR) cannot be used: %s",
                    self.folder,
                    self._problem,
                )
            raise
        try:
            os.utime(final)
            yield final
        finally:
            _release(lock)

    def discard(self, sha256: str) -> bool:
        """Remove what was unpacked of a segment, unless a process has it open; return whether nothing is left."""
        kept = [path for path in self.folder.glob(f"{sha256}*") if not _discard_unused(path)]
        return not kept

    def _held(self, final: Path, unpack: Callable[[Path], None], size_bytes: int) -> int:
        """Return the locked descriptor of the folder of a segment, which is unpacked if it is not there."""
        make_private(self.folder, "the cache of segments (SCANNERY_CACHE_DIR)")
        lock = self._intact_lock(final)
        for _ in range(_TRIES):
            if lock is not None:
                break
            lock = self._filled(final, unpack, size_bytes)
            lock = self._intact_lock(final) if lock is None else lock
        if lock is None:
            raise StoreError(
                f"other processes remove cached segment {final.name[:12]} each time it is unpacked"
            )
        return lock

    def _intact_lock(self, final: Path) -> int | None:
        """Return a locked descriptor of the folder; None if it does not exist, or is damaged and was removed."""
        lock = _locked(final, fcntl.LOCK_SH)
        if lock is None or _intact(final):
            return lock
        _LOG.warning("cached segment %s is damaged; unpacking it again", final.name[:12])
        try:
            if _is(final, lock):
                _discard(final)
        finally:
            _release(lock)
        return None

    def _filled(self, final: Path, unpack: Callable[[Path], None], size_bytes: int) -> int | None:
        """Unpack into the folder, and return its locked descriptor; None if another process did."""
        draft, writing = _locked_draft(self.folder, final.name)
        lock = None
        try:
            if final.exists():  # unpacked by another process, for which this one waited
                return None
            self._remove_old_drafts()
            self._evict(keep=final, more_bytes=size_bytes)
            self._unpack(draft, final, unpack)
            checks = {
                path.relative_to(draft).as_posix(): [path.stat().st_size, file_sha256(path)]
                for path in _files(draft)
            }
            (draft / _CHECKS).write_text(json.dumps(checks))
            draft.rename(final)
            # The lock is on the folder, and renaming keeps it.
            lock = _shared(final, writing)
        except OSError as error:
            # Another process was faster; its folder may be evicted again by now.
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) or final.exists():
                return None
            raise
        finally:
            if lock is None:
                if _is(draft, writing):
                    shutil.rmtree(draft, ignore_errors=True)
                _release(writing)
        self._evict(keep=final)
        return lock

    def _unpack(self, draft: Path, final: Path, unpack: Callable[[Path], None]) -> None:
        """Unpack; if the disk is full, once more without all that no process has open."""
        try:
            unpack(draft)
        except OSError as error:
            if error.errno not in _FULL or not self._evict(keep=final, most_bytes=0):
                raise
            _LOG.warning("the disk of the cache is full; unused segments were removed")
            _empty(draft)
            unpack(draft)

    def _remove_old_drafts(self) -> None:
        for path in self.folder.glob(f"{_DRAFT}*"):
            if (lock := _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
                continue  # it is being written
            try:
                if _has_locks(lock) or 0 < _changed_at(path) < time.time() - _DRAFT_AGE_S:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                _release(lock)

    def _evict(self, *, keep: Path, more_bytes: int = 0, most_bytes: int | None = None) -> bool:
        """Remove the least recently used segments until there is room for some bytes more; return whether any was."""
        most_bytes = self.max_bytes if most_bytes is None else most_bytes
        sizes = {path: _known_size(path) for path in self.folder.iterdir()}
        total, evicted = sum(sizes.values()) + more_bytes, False
        for path in sorted(sizes, key=_changed_at) if total > most_bytes else ():
            if total <= most_bytes:
                return evicted
            if path == keep or path.name.startswith(_DRAFT):
                continue
            if _discard_unused(path):
                total, evicted = total - sizes[path], True
        if total > self.max_bytes and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "the open segments take %d bytes of the cache, more than SCANNERY_CACHE_BYTES (%d)",
                total,
                self.max_bytes,
            )
        return evicted


class Hold:
    """Keeps a folder of the cache while this object exists, in this process and those forked from it."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder; nothing happens if it does not exist any more.

        Args:
            folder: given by `SegmentCache.opened`, whose context has not ended.

        """
        self.folder = folder
        """The folder."""
        self._lock = _locked(folder, fcntl.LOCK_SH)

    def __del__(self) -> None:
        """Note the time of use, and close the lock, which ends when all processes that were forked close it, too."""
        if (lock := getattr(self, "_lock", None)) is not None:
            with contextlib.suppress(OSError):
                os.utime(lock)
            os.close(lock)


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of the files of a folder of the cache by their paths in it, as its `checks.json` has them.

    Raises:
        OSError, ValueError: there is no such folder, or the file is damaged.

    """
    checks = json.loads((folder / _CHECKS).read_text())
    return {name: int(size) for name, (size, _) in checks.items()}


def _max_bytes(environment: Mapping[str, str]) -> int:
    text = environment.get("SCANNERY_CACHE_BYTES", "")
    if text and not re.fullmatch("[1-9][0-9]{0,17}", text):
        raise StoreError(f"SCANNERY_CACHE_BYTES must be a number of bytes from 1 on, got {text!r:.80}")
    return int(text) if text else MAX_BYTES


def _locked_draft(folder: Path, name: str) -> tuple[Path, int]:
    """Return an empty folder to unpack into, which other processes wait for, and its locked descriptor."""
    draft = folder / f"{_DRAFT}{name}"
    while True:
        with contextlib.suppress(FileExistsError):
            draft.mkdir(mode=0o700)
        try:
            lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Not exclusively, since the process that writes will have it open as a reader.
            fcntl.flock(lock, fcntl.LOCK_SH)
            _release(lock)
            continue
        except OSError:  # a file system without locks: no process waits for another
            os.close(lock)
            draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=folder))
            return draft, os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not _is(draft, lock):
            _release(lock)  # another process renamed or removed it
            continue
        _WRITING.add(lock)
        try:
            _empty(draft)  # of what a killed process left
        except BaseException:
            _release(lock)  # this process, too, would wait for it for ever
            raise
        return draft, lock


def _shared(folder: Path, lock: int) -> int | None:
    """Make a writer's lock one of readers, and return it; None if the folder was evicted in between."""
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_SH)
    return lock if _is(folder, lock) else None


def _has_locks(descriptor: int) -> bool:
    """Return whether the file system has locks; a lock of this descriptor stays."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _locked(folder: Path, operation: int) -> int | None:
    """Return a locked descriptor of the folder; None if it does not exist, or another lock conflicts with LOCK_NB."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass  # a file system without locks: a segment may be evicted while it is opened, which then is repeated
    if _is(folder, descriptor):
        return descriptor
    _release(descriptor)  # removed while this call waited
    return None


def _forget_drafts() -> None:
    """Close the drafts of the parent after a fork: else no process could write them until this one ends, too."""
    while _WRITING:
        os.close(_WRITING.pop())


os.register_at_fork(after_in_child=_forget_drafts)


def _release(lock: int | None) -> None:
    if lock is not None:
        _WRITING.discard(lock)
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


_SIZES: dict[Path, int] = {}
"""Bytes of folders that are complete: their files do not change, but for the costs of plans."""


def _known_size(folder: Path) -> int:
    """Return `_size`, which is computed once for a complete folder: else a thousand segments would need a million."""
    if folder.name.startswith(_DRAFT):
        return _size(folder)
    if folder not in _SIZES:
        _SIZES[folder] = _size(folder)
    return _SIZES[folder]


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
        path
        for parent, _, names in os.walk(folder)
        for name in names
        if (path := Path(parent, name)).is_file()
    )


def _discard_unused(folder: Path) -> bool:
    """Remove a folder of the cache unless a process has it open; return whether it was removed."""
    if (lock := _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
        return False
    try:
        _discard(folder)
    finally:
        _release(lock)
    return True


def _discard(folder: Path) -> None:
    # Renamed first, so that no process finds it partly removed.
    draft = folder.with_name(f"{_DRAFT}{folder.name}-{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        folder.rename(draft)
    _SIZES.pop(folder, None)
    shutil.rmtree(draft, ignore_errors=True)

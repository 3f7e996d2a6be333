"""Which folders of a store have changed, asked for all of them at once.

A server watches each of its indexes. Asked one by one, a thousand indexes that nobody writes to would cost it a core;
so whoever changes a folder notes its name, and a watcher asks for all notes together.

Notes are hints: they may be missing (the disk was full, a release without notes wrote, the place is read-only), or name
folders that did not change. A watcher also looks at each folder by itself, now and then.

    .changes          in a local folder: 4,096 random words; the word of a name's hash changes with each note
    _changes/NAME     in a bucket: an object for each folder that was noted, written anew with each note
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np

__all__ = [
    "CHANGES_FILE",
    "CHANGES_FOLDER",
    "Changes",
    "FolderChanges",
    "NoChanges",
    "ObjectChanges",
    "note_change",
]

CHANGES_FILE = ".changes"
CHANGES_FOLDER = "_changes"
SLOTS = 4096
_WORD_BYTES = 8
_SIZE_BYTES = SLOTS * _WORD_BYTES
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class Changes(Protocol):
    """Reads notes of changes. Not safe to use from several threads."""

    def changed(self) -> Container[str] | None:
        """Return the names that were noted since the last call, perhaps with others; None: none was.

        Raises:
            StoreError: the notes cannot be read now.

        """

    def close(self) -> None:
        """Close its files."""


def note_change(root: Path, name: str) -> None:
    """Note that a folder of a local root has changed; a root that nobody watches gets no note."""
    with suppress(OSError):
        descriptor = os.open(root / CHANGES_FILE, os.O_WRONLY | _FLAGS)
        try:
            # Random and not the next number: two processes that count at once would write the same one.
            os.pwrite(descriptor, secrets.token_bytes(_WORD_BYTES), _slot(name) * _WORD_BYTES)
        finally:
            os.close(descriptor)


class FolderChanges:
    """The `Changes` of a local root.

    The file is read, not mapped: a mapped page whose block cannot be allocated, or that was cut off, ends the process.
    """

    def __init__(self, root: Path) -> None:
        """Open the file at the first call of `changed`.

        Args:
            root: parent of the folders.

        """
        self._root, self._path = root, root / CHANGES_FILE
        self._descriptor = -1
        self._words = b""

    def changed(self) -> Container[str] | None:
        """Return the names that were noted since the last call, and others of the same hash."""
        words = self._read()
        if words == self._words:
            return None
        before, self._words = self._words, words
        if len(before) != len(words):
            # At the first call, nothing was looked at before; else another file takes the place of the one that had
            # the notes of all changes until now.
            return _All() if before else None
        differ = np.frombuffer(before, np.uint64) != np.frombuffer(words, np.uint64)
        return _Slots(frozenset(np.flatnonzero(differ).tolist()))

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> bytes:
        try:
            if self._descriptor < 0:
                self._descriptor = _opened(self._root)
            elif not os.path.samestat(os.lstat(self._path), os.fstat(self._descriptor)):
                self.close()  # another folder took the place of the root: writers use its file
                return b""
            return os.pread(self._descriptor, _SIZE_BYTES, 0)
        except OSError:  # it was removed, or a server of files was started anew
            self.close()
            return b""


class ObjectChanges:
    """The `Changes` of a bucket."""

    def __init__(self, stamps: Callable[[], Mapping[str, object]]) -> None:
        """Read nothing yet.

        Args:
            stamps: returns a stamp for each name that was ever noted, which differs after each note.

        """
        self._stamps = stamps
        self._last: Mapping[str, object] | None = None

    def changed(self) -> Container[str] | None:
        """Return the names that were noted since the last call; raises as `stamps`."""
        before, self._last = self._last, self._stamps()
        if before is None:
            return None
        return {name for name, stamp in self._last.items() if before.get(name) != stamp} or None

    def close(self) -> None:
        """Do nothing: no file is open."""


class NoChanges:
    """The `Changes` of a place that has no notes."""

    def changed(self) -> Container[str] | None:
        """Return None."""
        return None

    def close(self) -> None:
        """Do nothing: no file is open."""


class _All(Container[str]):
    """All names."""

    def __contains__(self, name: object) -> bool:
        return True


class _Slots(Container[str]):
    """Names by the slots of their hashes."""

    def __init__(self, slots: frozenset[int]) -> None:
        self._slots = slots

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _slot(name) in self._slots


def _slot(name: str) -> int:
    return zlib.crc32(name.encode()) % SLOTS


def _opened(root: Path) -> int:
    """Return the descriptor of the file, created with the owner and the mode of its folder if it is missing."""
    path = root / CHANGES_FILE
    with suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | _FLAGS)
    folder = root.stat()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    with suppress(OSError):  # another user's file is complete, or its owner completes it
        os.fchmod(descriptor, folder.st_mode & 0o666)
        if os.geteuid() == 0 != folder.st_uid:
            os.fchown(descriptor, folder.st_uid, folder.st_gid)
        os.ftruncate(descriptor, _SIZE_BYTES)
    return descriptor

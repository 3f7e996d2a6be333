"""A local folder as a place for objects.

A folder created for a store has mode 0700. Files and folders in it get the mode of the store's folder (files without
the execute bits), so an existing folder can be shared with a group. Every write goes to a temporary file, is synced to
disk, and is then renamed; obstore's own local store (0.12) does not sync, so a power cut could leave a visible but
empty manifest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from scannery.indexer.errors import AlreadyExistsError, NotFoundError, StoreError, StoreUriError
from scannery.indexer.local.files import new_draft, remove_draft
from scannery.indexer.store.backend import StoredObject, check_size
from scannery.indexer.store.changes import Changes, FolderChanges, note_change

__all__ = ["FolderBackend", "store_folder", "sync_folder"]

# Prefix of files that are being written, or that a killed writer left; never listed as objects.
_TEMPORARY = ".tmp-"
_BLOCK = 1 << 20
_ATTEMPTS = 5
"""Most attempts to write a file whose folder is removed by another process meanwhile."""
_OWNER_ONLY = 0o700
"""Mode of a folder created for a store. Not set by a umask, which all threads of a process share."""


class FolderBackend:
    """A local folder."""

    def __init__(self, root: Path) -> None:
        """Look up the mode of the folder.

        Args:
            root: the folder, which exists.

        """
        self.root = root
        with _os_errors("the store"):
            self._mode = root.stat().st_mode & 0o777

    def read(self, key: str) -> bytes:
        """Return the bytes of an object."""
        with _os_errors(key):
            return (self.root / key).read_bytes()

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return the bytes of a range; fewer if the object ends before."""
        with _os_errors(key), (self.root / key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def map_range(self, key: str, start: int, length: int) -> memoryview:
        """Return a view of the file itself, which the operating system reads page by page."""
        with _os_errors(key), (self.root / key).open("rb") as file:
            page = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            # A page after the end of a file cannot be read, and ends the process: never map more than there is.
            end = min(start + length, os.fstat(file.fileno()).st_size)
            if end <= start:
                return memoryview(b"")
            view = mmap.mmap(file.fileno(), end - page, offset=page, access=mmap.ACCESS_READ)
            return memoryview(view)[start - page :]

    def download(
        self,
        key: str,
        path: Path,
        *,
        size_bytes: int | None = None,
        seen: Callable[[memoryview], object] | None = None,
    ) -> None:
        """Write the bytes of an object to a local file (`Backend.download`)."""
        with _os_errors(key):
            source = (self.root / key).open("rb")
        with source, path.open("wb") as file:
            check_size(key, os.fstat(source.fileno()).st_size, size_bytes)
            while block := source.read(_BLOCK):
                file.write(block)
                if seen is not None:
                    seen(memoryview(block))

    def write(self, key: str, data: bytes | Path, *, only_if_absent: bool) -> None:
        """Write an object; with `only_if_absent` raise AlreadyExistsError if it exists."""
        final = self.root / key
        with _os_errors(key):
            for attempt in range(_ATTEMPTS):
                _make_folders(final.parent, self._mode)
                temporary = final.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
                try:
                    with new_draft(temporary, self._mode & 0o666) as file:
                        _write_synced(file, data)
                        # A hard link fails if the name exists, a rename replaces it; both are atomic.
                        (os.link if only_if_absent else os.replace)(temporary, final)
                    sync_folder(final.parent)
                    return
                except FileNotFoundError:
                    # Another process removed the folder. What must not exist yet is not tried again: a manifest would
                    # become visible behind a drop of its index.
                    if only_if_absent or attempt == _ATTEMPTS - 1 or not self.root.is_dir():
                        raise
                finally:
                    temporary.unlink(missing_ok=True)

    def replace(self, key: str, data: bytes, stored: bytes | None) -> None:
        """Write an object if its bytes are `stored` (None: it does not exist), else raise AlreadyExistsError."""
        with _os_errors(key):
            folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(
                folder, fcntl.LOCK_EX
            )  # ends when the folder is closed, also if the process is killed
            current = None
            with contextlib.suppress(NotFoundError):
                current = self.read(key)
            if current != stored:
                raise AlreadyExistsError(f"{key} was changed meanwhile")
            self.write(key, data, only_if_absent=False)
        finally:
            os.close(folder)

    def share(self, key: str, target: str) -> None:
        """Make a hard link (`Backend.share`)."""
        source, final = self.root / key, self.root / target
        for attempt in range(_ATTEMPTS):
            with _os_errors(key):
                source.stat()  # else a missing source would look like a missing folder of the target
            with _os_errors(target):
                _make_folders(final.parent, self._mode)
                temporary = final.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
                try:
                    os.link(source, temporary)
                    temporary.replace(final)
                    return
                except FileNotFoundError:
                    # A drop removed the folder, or gc the draft, which is as old as the source and not locked.
                    if attempt == _ATTEMPTS - 1 or not self.root.is_dir():
                        raise
                finally:
                    temporary.unlink(missing_ok=True)  # a rename of a link to the same file does nothing

    def sync(self, prefix: str) -> None:
        """Make the names in a folder durable (`Backend.sync`)."""
        with _os_errors(prefix):
            sync_folder(self.root / prefix)

    def turn_into(self, key: str, target: str, data: bytes) -> None:
        """Rename an object, and overwrite its bytes in place (`Store.turn_into`)."""
        with _os_errors(key):
            path = self.root / key
            with path.open("r+b") as file:  # before it is renamed: perhaps it may not be written
                status = os.fstat(file.fileno())
                if status.st_nlink > 1:
                    raise StoreError(f"{key} is not written to: it is a hard link, perhaps of a backup")
                path = path.replace(self.root / target)
                file.write(data.ljust(status.st_size))
                file.flush()
                os.fsync(file.fileno())
            sync_folder(path.parent)

    def size(self, key: str) -> int:
        """Return the size of an object in bytes."""
        with _os_errors(key):
            return (self.root / key).stat().st_size

    def stamp(self, key: str) -> str:
        """Return a string that changes when the object is replaced."""
        with _os_errors(key):
            status = (self.root / key).stat()
        return f"{status.st_dev}-{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"

    def remove_drafts(self, prefix: str, before: datetime) -> None:
        """Remove drafts older than `before` of killed writers, in a folder and below."""
        for path in _files_below(self.root, prefix):
            if path.name.startswith(_TEMPORARY):
                with _failing_os(prefix):
                    remove_draft(path, before_s=before.timestamp())

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects in the folder `prefix` and below."""
        for path in _files_below(self.root, prefix):
            if not path.name.startswith(_TEMPORARY):
                with contextlib.suppress(FileNotFoundError), _failing_os(prefix):  # removed while we walk
                    yield _described(path, self.root)

    def folders(self) -> Sequence[str]:
        """Return the names of the top-level folders."""
        with _os_errors("the store"), os.scandir(self.root) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        with _os_errors(key):
            (self.root / key).unlink(missing_ok=True)

    def note_change(self, folder: str) -> None:
        """Note that a top-level folder has changed; see Backend."""
        note_change(self.root, folder)

    def changes(self) -> Changes:
        """Return a new reader of the notes."""
        return FolderChanges(self.root)


def store_folder(path: str, *, create: bool) -> Path:
    """Return the absolute path of a store's folder; `create` makes one that does not exist.

    Raises:
        NotFoundError: the folder does not exist, and `create` is false.
        StoreError: the path is not a folder, or cannot be created or opened.

    """
    root = Path(path).expanduser().absolute()
    try:
        if not root.exists():
            if not create:
                raise NotFoundError(
                    f"there is no store at {path!r}; `scannery build` creates one, and in Python "
                    f"`scannery.connect({path!r}, create=True)` an empty one"
                )
            _make_folders(root.parent)
            _make_folders(root, _OWNER_ONLY)
        if not root.is_dir():
            raise StoreUriError(f"store {path!r} is a file; a store is a folder")
    except OSError as error:
        raise StoreError(
            f"cannot {'create' if create else 'open'} a store at {path!r}: {error.strerror}"
        ) from error
    return root


def _files_below(root: Path, prefix: str) -> Iterator[Path]:
    """Yield all files in a folder of a store and below; none if the store has no such folder.

    Raises:
        StoreError: a folder cannot be listed, or the store does not exist any more.

    """

    def failed(error: OSError) -> None:
        # A folder that does not exist, or was removed meanwhile, has no files; a store that was removed is an error.
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)) or not root.is_dir():
            raise StoreError(f"{prefix or 'the store'} cannot be listed: {error.strerror}") from error

    for folder, _, names in os.walk(root / prefix, onerror=failed):
        yield from (Path(folder, name) for name in names)


def _described(path: Path, root: Path) -> StoredObject:
    status = path.stat()
    modified = datetime.fromtimestamp(status.st_mtime, timezone.utc)
    return StoredObject(path.relative_to(root).as_posix(), status.st_size, modified)


def _make_folders(folder: Path, mode: int = 0o777) -> None:
    """Create a folder and its parents durably: each new name is synced in its parent. The umask restricts `mode`."""
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    for item in reversed(missing):
        item.mkdir(mode, exist_ok=True)
        sync_folder(item.parent)


def _write_synced(file: BinaryIO, data: bytes | Path) -> None:
    if isinstance(data, Path):
        with data.open("rb") as source:
            _copy(source, file)
    else:
        file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    """Copy a file that was not read yet."""
    try:
        # By the kernel: through this process it takes three times the processor time.
        while os.sendfile(target.fileno(), source.fileno(), None, _BLOCK):
            pass
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
        shutil.copyfileobj(source, target, _BLOCK)  # pipes, and some file systems


def sync_folder(folder: Path) -> None:
    """Make the names in a local folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _os_errors(key: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise AlreadyExistsError(f"{key} exists already") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"there is no {key} in the store") from error
    except OSError as error:
        raise StoreError(f"{key}: {error.strerror or error}") from error


@contextlib.contextmanager
def _failing_os(key: str) -> Iterator[None]:
    """Turn an OSError other than FileNotFoundError into a StoreError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{key or 'the store'}: {error.strerror or error}") from error

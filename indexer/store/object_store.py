"""The object store: a folder or a bucket, with conditional puts that make publishing atomic.

Keys are relative paths with `/`. A folder created for a store has mode 0700. Files and folders in it get the mode of
the store's folder (files without the execute bits), so an existing folder can be shared with a group. In a local folder
every write goes to a temporary file, is synced to disk, and is then renamed; obstore's own local store (0.12) does not
sync, so a power cut could leave a visible but empty manifest.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError as ObjectExistsError
from obstore.exceptions import BaseError

from scannery.indexer.errors import AlreadyExistsError, NotFoundError, StoreError, StoreUriError
from scannery.indexer.local.draft_files import new_draft, remove_draft
from scannery.indexer.local.scratch_folders import scratch_folder

__all__ = ["Store", "StoredObject", "sync_folder"]

_REMOTE = re.compile(r"(?:gs|s3|az|abfs|abfss)://", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Prefix of files that are being written, or that a killed writer left; never listed as objects.
_TEMPORARY = ".tmp-"
_ATTEMPTS = 5
"""Most attempts to write a file whose folder is removed by another process meanwhile."""
_OWN = 0o700
"""Mode of a folder created for a store. Not set by a umask, which all threads of a process share."""


@dataclass(frozen=True)
class StoredObject:
    """One object of a store."""

    key: str
    size_bytes: int
    modified: datetime
    """Time of the last write, by the store's clock, UTC."""


class _Backend(Protocol):
    def read(self, key: str) -> bytes: ...
    def read_range(self, key: str, start: int, length: int) -> bytes: ...
    def write(self, key: str, data: bytes | Path, *, only_if_absent: bool) -> None: ...
    def size(self, key: str) -> int: ...
    def stamp(self, key: str) -> str: ...
    def list(self, prefix: str) -> Iterator[StoredObject]: ...
    def folders(self) -> Sequence[str]: ...
    def delete(self, key: str) -> None: ...


class Store:
    """Objects (named bytes) in one folder or bucket prefix. Safe to use from several threads and processes."""

    def __init__(self, uri: str, backend: _Backend) -> None:
        """Keep the backend; use `Store.open`.

        Args:
            uri: URI, or absolute path, that opens the store.
            backend: reads and writes its objects.

        """
        self.uri = uri
        """URI, or absolute path, that opens the store."""
        self._backend = backend

    @classmethod
    def open(cls, uri: str | Path, *, create: bool = False) -> Store:
        """Return the store at a local path, `file://`, `gs://`, `s3://` or `az://` URI.

        Cloud credentials come from their usual environment variables and files.

        Args:
            uri: the path or URI.
            create: whether to create a local folder that does not exist.

        Raises:
            NotFoundError: the local folder does not exist, and `create` is false.
            StoreError: unknown scheme, or a path that is not a folder.

        """
        text = str(uri)
        if _REMOTE.match(text):
            return cls(text.rstrip("/"), _ObjectBackend.from_url(text))
        if text.startswith("file://"):
            text = unquote(urlsplit(text).path)
        elif _SCHEME.match(text):
            raise StoreUriError(
                f"store {text!r}: unknown scheme; use a folder, file://, gs://, s3:// or az://"
            )
        root = _folder(text, create=create)
        return cls(str(root), _FolderBackend(root))

    @property
    def local_root(self) -> Path | None:
        """The folder of a local store, None for a bucket."""
        return self._backend.root if isinstance(self._backend, _FolderBackend) else None

    def read(self, key: str) -> bytes:
        """Return the bytes of an object; NotFoundError if it does not exist."""
        return self._backend.read(_checked(key))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes of an object from byte `start` on, without reading the others.

        Raises:
            NotFoundError: there is no such object.
            StoreError: the object ends before.

        """
        if length < 0 or start < 0:
            raise ValueError(f"a range must not be negative, got start {start}, length {length}")
        data = self._backend.read_range(_checked(key), start, length) if length else b""
        if len(data) != length:
            raise StoreError(f"{key}: wanted bytes {start} to {start + length}, got {len(data)} of {length}")
        return data

    def write(self, key: str, data: bytes) -> None:
        """Write or replace an object. It is durable when this returns."""
        self._backend.write(_checked(key), data, only_if_absent=False)

    def write_file(self, key: str, path: Path) -> None:
        """Copy a local file to an object, as `write` does."""
        self._backend.write(_checked(key), path, only_if_absent=False)

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist yet; of several concurrent calls exactly one succeeds.

        Raises:
            AlreadyExistsError: it exists.

        """
        self._backend.write(_checked(key), data, only_if_absent=True)

    def size(self, key: str) -> int:
        """Return the size of an object in bytes; NotFoundError if it does not exist."""
        return self._backend.size(_checked(key))

    def stamp(self, key: str) -> str:
        """Return a string that changes when the object is replaced, without reading the object.

        Raises:
            NotFoundError: there is no such object.

        """
        return self._backend.stamp(_checked(key))

    def exists(self, key: str) -> bool:
        """Return whether an object exists."""
        try:
            self.size(key)
        except NotFoundError:
            return False
        return True

    def list(self, prefix: str = "") -> Sequence[StoredObject]:
        """Return the objects in the folder `prefix` and below, sorted by key; empty if there are none.

        Raises:
            StoreError: a folder cannot be listed; a partial list would make its objects look removed.

        """
        return sorted(self._backend.list(_checked(prefix) if prefix else ""), key=lambda item: item.key)

    def folders(self) -> Sequence[str]:
        """Return the names of the top-level folders, sorted."""
        return sorted(self._backend.folders())

    def delete(self, key: str) -> None:
        """Remove an object; no error if it does not exist."""
        self._backend.delete(_checked(key))

    def remove_drafts(self, prefix: str, before: datetime) -> None:
        """Remove drafts older than `before` of killed writers, in a folder and below (folder stores only).

        Drafts that are being written stay.
        """
        if self.local_root is not None:
            for path in _files_below(self.local_root, _checked(prefix)):
                if path.name.startswith(_TEMPORARY):
                    with _failing_os(prefix):
                        remove_draft(path, before_s=before.timestamp())

    def remove_empty_folders(self, prefix: str) -> None:
        """Remove a folder and those below it that have no files (folder stores only)."""
        if self.local_root is not None:
            for folder, _, _ in os.walk(self.local_root / _checked(prefix), topdown=False):
                with contextlib.suppress(OSError):  # it has files
                    Path(folder).rmdir()

    @contextlib.contextmanager
    def open_file(self, key: str) -> Iterator[Path]:
        """Give a local path with the object's bytes, for libraries that read files; read-only.

        In a folder store it is the object itself, otherwise a temporary copy that is removed when the context ends.
        """
        root = self.local_root
        if root is not None:
            self.size(key)  # a clear NotFoundError
            yield root / _checked(key)
            return
        with scratch_folder("object") as folder:
            path = folder / "object"
            path.write_bytes(self.read(key))
            yield path


class _FolderBackend:
    """A local folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with _os_errors("the store"):
            self._mode = root.stat().st_mode & 0o777

    def read(self, key: str) -> bytes:
        with _os_errors(key):
            return (self.root / key).read_bytes()

    def read_range(self, key: str, start: int, length: int) -> bytes:
        with _os_errors(key), (self.root / key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def write(self, key: str, data: bytes | Path, *, only_if_absent: bool) -> None:
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

    def size(self, key: str) -> int:
        with _os_errors(key):
            return (self.root / key).stat().st_size

    def stamp(self, key: str) -> str:
        with _os_errors(key):
            status = (self.root / key).stat()
        return f"{status.st_dev}-{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for path in _files_below(self.root, prefix):
            if not path.name.startswith(_TEMPORARY):
                with contextlib.suppress(FileNotFoundError), _failing_os(prefix):  # removed while we walk
                    yield _described(path, self.root)

    def folders(self) -> Sequence[str]:
        with _os_errors("the store"), os.scandir(self.root) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def delete(self, key: str) -> None:
        with _os_errors(key):
            (self.root / key).unlink(missing_ok=True)


class _ObjectBackend:
    """A bucket, through obstore."""

    def __init__(self, store: obstore.store.ObjectStore) -> None:
        self._store = store

    @classmethod
    def from_url(cls, url: str) -> _ObjectBackend:
        try:
            return cls(obstore.store.from_url(url))
        except (BaseError, ValueError) as error:
            raise StoreUriError(f"cannot open the store {url}: {_short(error)}") from error

    def read(self, key: str) -> bytes:
        with _object_errors(key):
            return bytes(obstore.get(self._store, key).bytes())

    def read_range(self, key: str, start: int, length: int) -> bytes:
        with _object_errors(key):
            return bytes(obstore.get_range(self._store, key, start=start, length=length))

    def write(self, key: str, data: bytes | Path, *, only_if_absent: bool) -> None:
        with _object_errors(key):
            obstore.put(self._store, key, data, mode="create" if only_if_absent else "overwrite")

    def size(self, key: str) -> int:
        with _object_errors(key):
            return obstore.head(self._store, key)["size"]

    def stamp(self, key: str) -> str:
        with _object_errors(key):
            meta = obstore.head(self._store, key)
        return f"{meta['e_tag']}-{meta['last_modified'].timestamp()}-{meta['size']}"

    def list(self, prefix: str) -> Iterator[StoredObject]:
        with _object_errors(prefix):
            for page in obstore.list(self._store, prefix or None):
                yield from (StoredObject(item["path"], item["size"], item["last_modified"]) for item in page)

    def folders(self) -> Sequence[str]:
        with _object_errors("the store"):
            return [str(p) for p in obstore.list_with_delimiter(self._store)["common_prefixes"]]

    def delete(self, key: str) -> None:
        with contextlib.suppress(NotFoundError), _object_errors(key):
            obstore.delete(self._store, key)


def _folder(path: str, *, create: bool) -> Path:
    root = Path(path).expanduser().absolute()
    try:
        if not root.exists():
            if not create:
                raise NotFoundError(
                    f"there is no store at {path!r}; `scannery build` creates one, and in Python "
                    f"`scannery.connect({path!r}, create=True)` an empty one"
                )
            _make_folders(root.parent)
            _make_folders(root, _OWN)
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


def _checked(key: str) -> str:
    # Keys may come from manifests, which other users may have written: they must stay inside the store.
    parts = key.split("/")
    if not key or "\\" in key or "\0" in key or any(part in ("", ".", "..") for part in parts):
        raise StoreError(f"invalid object key {key!r}")
    return key


def _make_folders(folder: Path, mode: int = 0o777) -> None:
    """Create a folder and its parents durably: each new name is synced in its parent. The umask restricts `mode`."""
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    for item in reversed(missing):
        item.mkdir(mode, exist_ok=True)
        sync_folder(item.parent)


def _write_synced(file: BinaryIO, data: bytes | Path) -> None:
    if isinstance(data, Path):
        with data.open("rb") as source:
            shutil.copyfileobj(source, file, 1 << 22)
    else:
        file.write(data)
    file.flush()
    os.fsync(file.fileno())


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


@contextlib.contextmanager
def _object_errors(key: str) -> Iterator[None]:
    try:
        yield
    except ObjectExistsError as error:
        raise AlreadyExistsError(f"{key} exists already") from error
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no {key} in the store") from error
    except (BaseError, OSError) as error:
        raise StoreError(f"{key}: {_short(error)}") from error


def _short(error: Exception) -> str:
    # Without the library's state, hundreds of words of internals; the cause of the error keeps them.
    return str(error).partition("\n\nDebug source")[0]

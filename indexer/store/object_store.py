"""The object store: a folder or a bucket, with conditional puts that make publishing atomic.

Keys are relative paths with `/`.

Here too: a mapping in one JSON object, changed by conditional puts; an object as a file that is read by ranges; and
URIs as messages show them, without the password or the key that a user may have put into one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from scannery.indexer.errors import (
    AlreadyExistsError,
    CorruptError,
    FormatError,
    NotFoundError,
    StoreError,
    StoreUriError,
)
from scannery.indexer.local.files import file_sha256, scratch_folder
from scannery.indexer.store.backend import Backend, StoredObject, check_size
from scannery.indexer.store.bucket_backend import BucketBackend
from scannery.indexer.store.changes import Changes
from scannery.indexer.store.folder_backend import FolderBackend, store_folder

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = [
    "JsonObject",
    "RangeFile",
    "ReadOnlyFile",
    "Store",
    "StoredObject",
    "without_credentials",
]


def without_credentials(text: str) -> str:
    """Return a URI without user, password and options; a connection string of other form is not shown at all."""
    scheme, separator, location = text.partition("://")
    if not separator:
        return "(not shown: it may have a password)" if "=" in text else text
    # Up to the last "@": a password may have others, and slashes, that should have been written as %XX.
    return f"{scheme}://{location.partition('?')[0].rpartition('@')[2]}"


def has_credentials(uri: str) -> bool:
    """Return whether the URI of a bucket has what none needs: a password, or options."""
    _, _, location = uri.partition("://")
    return ":" in location.partition("/")[0] or "?" in location


_LOG = logging.getLogger(__name__)
PARALLEL_SHARES = 16
"""Objects that get another key side by side: each is a request to a bucket."""
_MOST_DOWNLOADS = 2
"""Bytes may be damaged on the way, which a second download tells from an object that is damaged."""
_WATCHED = re.compile(r"([^/]+)/versions/[^/]+")
"""Keys that servers watch: the manifests of an index, and the mark that it was dropped."""
_REMOTE = re.compile(r"(?:gs|s3|az|abfs|abfss)://", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Store:
    """Objects (named bytes) in one folder or bucket prefix. Safe to use from several threads and processes."""

    def __init__(self, uri: str, backend: Backend) -> None:
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
            if has_credentials(text):
                raise StoreUriError(
                    f"store {without_credentials(text)}: must have no password, keys or options; they belong in "
                    "environment variables, such as AWS_ACCESS_KEY_ID (all of it is not shown)"
                )
            return cls(text.rstrip("/"), BucketBackend.from_url(text))
        if text.startswith("file://"):
            text = unquote(urlsplit(text).path)
        elif _SCHEME.match(text):
            raise StoreUriError(
                f"store {without_credentials(text)!r}: unknown scheme; use a folder, file://, gs://, s3:// or az://"
            )
        root = store_folder(text, create=create)
        return cls(str(root), FolderBackend(root))

    @property
    def local_root(self) -> Path | None:
        """The folder of a local store, None for a bucket."""
        return self._backend.root if isinstance(self._backend, FolderBackend) else None

    def read(self, key: str) -> bytes:
        """Return the bytes of an object; NotFoundError if it does not exist."""
        return self._backend.read(_checked(key))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes of an object from byte `start` on, without reading the others.

        Raises:
            NotFoundError: there is no such object.
            StoreError: the object ends before.

        """
        _check_range(start, length)
        data = self._backend.read_range(_checked(key), start, length) if length else b""
        _check_length(key, start, length, data)
        return data

    def map_range(self, key: str, start: int, length: int) -> memoryview:
        """Return a range as `read_range` does; in a folder store it is mapped from the file, and not copied."""
        _check_range(start, length)
        data = self._backend.map_range(_checked(key), start, length) if length else memoryview(b"")
        _check_length(key, start, length, data)
        return data

    def write(self, key: str, data: bytes) -> None:
        """Write or replace an object. It is durable when this returns."""
        self._backend.write(_checked(key), data, only_if_absent=False)
        self._note(key)

    def write_file(self, key: str, path: Path) -> None:
        """Copy a local file to an object, as `write` does."""
        self._backend.write(_checked(key), path, only_if_absent=False)

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist yet; of several concurrent calls exactly one succeeds.

        Raises:
            AlreadyExistsError: it exists.

        """
        self._backend.write(_checked(key), data, only_if_absent=True)
        self._note(key)

    def create_file(self, key: str, path: Path) -> None:
        """Copy a local file to an object that must not exist yet.

        In a bucket two concurrent calls may both succeed: large objects are written in parts, without a condition.

        Raises:
            AlreadyExistsError: it exists.

        """
        if self.local_root is not None:
            self._backend.write(_checked(key), path, only_if_absent=True)
        elif self.exists(key):
            raise AlreadyExistsError(f"{key} exists")
        else:
            self.write_file(key, path)

    def replace(self, key: str, data: bytes, *, stored: bytes | None) -> None:
        """Write an object that has not changed since it was read; of several concurrent calls exactly one succeeds.

        For small objects: they are compared by their bytes.

        Args:
            key: of the object.
            data: the new bytes.
            stored: the bytes that were read; None: there was no such object.

        Raises:
            AlreadyExistsError: it has other bytes now.

        """
        self._backend.replace(_checked(key), data, stored)

    def share(self, key: str, target: str) -> None:
        """Give the bytes of an object that never changes another key; a target that exists is replaced.

        Each key has its own life: deleting or replacing one leaves the bytes of the other. A folder store makes a hard
        link, with the mode and the time of the last write of the object; a bucket copies. Where they cannot, as between
        file systems, the bytes are copied through this machine. The key is durable when this returns.

        Raises:
            NotFoundError: there is no such object.
            StoreError: the target cannot be written.

        """
        self.share_all({key: target})

    def share_all(self, targets: Mapping[str, str]) -> None:
        """Do what `share` does for many objects, in a fraction of the time.

        Args:
            targets: the new key of each object by its present one.

        Raises:
            NotFoundError, StoreError: as `share`; others may have got their keys.

        """
        with ThreadPoolExecutor(PARALLEL_SHARES) as pool:
            for _ in pool.map(self._share, targets.keys(), targets.values()):
                pass
        for folder in sorted({target.rpartition("/")[0] for target in targets.values()}):
            self._backend.sync(folder)

    def _share(self, key: str, target: str) -> None:
        try:
            self._backend.share(_checked(key), _checked(target))
        except StoreError as error:
            _LOG.debug("%s is copied, since its bytes cannot be shared: %s", key, error)
            with self.open_file(key) as path:
                self.write_file(target, path)
        self._note(target)

    def turn_into(self, key: str, target: str, data: bytes) -> None:
        """Make a small JSON object of a larger object, which is gone afterwards; possible on a disk without space.

        Args:
            key: of the larger object.
            target: key of the small one.
            data: JSON; spaces may follow it.

        Raises:
            NotFoundError: the larger object does not exist.
            StoreError: it cannot be written, or is a hard link to a file that is also elsewhere.

        """
        self._backend.turn_into(_checked(key), _checked(target), data)
        self._note(target)

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
        self._note(key)

    def changes(self) -> Changes:
        """Return a reader of the names of the folders whose objects in `versions/` were written or removed.

        It has the changes after its first call, by any process, within the limits that changes.py tells.
        """
        return self._backend.changes()

    def _note(self, key: str) -> None:
        if match := _WATCHED.fullmatch(key):
            self._backend.note_change(match[1])

    def remove_drafts(self, prefix: str, before: datetime) -> None:
        """Remove drafts older than `before` of killed writers, in a folder and below (folder stores only).

        Drafts that are being written stay.
        """
        if isinstance(self._backend, FolderBackend):
            self._backend.remove_drafts(_checked(prefix), before)

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
            with _temporary_file(key):
                self._backend.download(_checked(key), path)
            yield path

    @contextlib.contextmanager
    def open_checked(
        self, key: str, *, sha256: str, size_bytes: int | None = None, folder: Path | None = None
    ) -> Iterator[Path]:
        """Give a local path as `open_file` does, of a file whose bytes have a SHA-256.

        An object of a bucket is hashed while it arrives, and is fetched once more if it arrives damaged.

        Args:
            key: of the object.
            sha256: in hex.
            size_bytes: of the object, which saves a request; None: not known.
            folder: for the temporary copy, whose errors are then OSError; None: one of its own in the temporary folder.

        Raises:
            NotFoundError: there is no such object.
            CorruptError: it has another size or SHA-256.
            StoreError: it cannot be read, or the copy not be written, as when the disk is full.

        """
        root = self.local_root
        if root is not None:
            path = root / _checked(key)
            check_size(key, self.size(key), size_bytes)
            if file_sha256(path) != sha256:
                raise _damaged(key)
            yield path
            return
        with contextlib.nullcontext(folder) if folder else scratch_folder("object") as parent:
            path = parent / "object"
            try:
                with contextlib.nullcontext() if folder else _temporary_file(key):
                    self._fetch_checked(key, path, sha256, size_bytes)
                yield path
            finally:
                path.unlink(missing_ok=True)

    def _fetch_checked(self, key: str, path: Path, sha256: str, size_bytes: int | None) -> None:
        for _ in range(_MOST_DOWNLOADS):
            digest = hashlib.sha256()
            self._backend.download(_checked(key), path, size_bytes=size_bytes, seen=digest.update)
            if digest.hexdigest() == sha256:
                return
            _LOG.warning("%s arrived with another SHA-256 than that of its name in the index", key)
        raise _damaged(key)


@contextlib.contextmanager
def _temporary_file(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{key} cannot be written to a temporary file: {error.strerror}") from error


def _damaged(key: str) -> CorruptError:
    return CorruptError(f"{key} is damaged: its SHA-256 is not the one in the manifest")


def _checked(key: str) -> str:
    # Keys may come from manifests, which other users may have written: they must stay inside the store.
    parts = key.split("/")
    if not key or "\\" in key or "\0" in key or any(part in ("", ".", "..") for part in parts):
        raise StoreError(f"invalid object key {key!r}")
    return key


def _check_range(start: int, length: int) -> None:
    if length < 0 or start < 0:
        raise ValueError(f"a range must not be negative, got start {start}, length {length}")


def _check_length(key: str, start: int, length: int, data: bytes | memoryview) -> None:
    if len(data) != length:
        raise StoreError(f"{key}: wanted bytes {start} to {start + length}, got {len(data)} of {length}")


FORMAT = 1
"""Version of the objects that this code writes; later ones are refused."""
MAX_ATTEMPTS = 50
"""Attempts to replace an object while other processes replace it; each failure is the success of another one."""

Content: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object `{"format": 1, FIELD: {…}}`, which need not exist: then the mapping is empty."""

    store: Store
    key: str
    field: str
    """Name of the mapping in the object."""
    kind: type
    """Kind of its values."""

    def read(self) -> Content:
        """Return the mapping.

        Raises:
            CorruptError: the object is damaged.
            FormatError: a later release wrote it.
            StoreError: it cannot be read.

        """
        return self._parsed(self._stored())

    def change(self, change: Callable[[Content], Content]) -> tuple[Content, Content]:
        """Replace the mapping by `change` of it, and return the one before and the new one.

        Args:
            change: returns the new mapping, and leaves the given one as it is; called again if another process was
                quicker. Its errors end the call, and nothing is changed.

        Raises:
            AlreadyExistsError: other processes were quicker in each of MAX_ATTEMPTS attempts.
            CorruptError, FormatError, StoreError: as `read`.

        """
        for attempt in range(MAX_ATTEMPTS):
            stored = self._stored()
            before = self._parsed(stored)
            after = change(before)
            if after == before:
                return before, before
            try:
                self.store.replace(self.key, self._to_json(after), stored=stored)
            except AlreadyExistsError:
                if attempt + 1 == MAX_ATTEMPTS:
                    raise
            else:
                return before, after
        raise AssertionError

    def _stored(self) -> bytes | None:
        with contextlib.suppress(NotFoundError):
            return self.store.read(self.key)
        return None

    def _parsed(self, data: bytes | None) -> Content:
        if data is None:
            return {}
        try:
            content = json.loads(data)
            if content["format"] > FORMAT:
                raise FormatError(
                    f"{self.key} has format {content['format']}, this Scannery reads up to {FORMAT}; upgrade it"
                )
            items: Content = dict(content[self.field].items())
            if not all(isinstance(value, self.kind) for value in items.values()):
                raise TypeError(f"the values of {self.field!r} must be of type {self.kind.__name__}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"{self.key} is damaged: {error!r}") from error
        return items

    def _to_json(self, content: Content) -> bytes:
        return json.dumps({"format": FORMAT, self.field: content}, indent=2, sort_keys=True).encode() + b"\n"


class ReadOnlyFile(io.RawIOBase):
    """A file of which ranges are read."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size, self._at = size_bytes, 0

    def range_of(self, start: int, length: int) -> bytes | memoryview:
        """Return bytes of the file, which are in it."""
        raise NotImplementedError

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read into a buffer, and return the number of bytes; 0 at the end. Raises as `range_of`."""
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._size - self._at))
        if length:
            view[:length] = self.range_of(self._at, length)
            self._at += length
        return length


class RangeFile(ReadOnlyFile):
    """A file over an object. Each read is one request; the reader checks what it reads."""

    def __init__(self, store: Store, key: str, size_bytes: int) -> None:
        """Open nothing yet.

        Args:
            store: that has the object.
            key: of the object.
            size_bytes: its size.

        """
        super().__init__(size_bytes)
        self._store, self._key = store, key

    def range_of(self, start: int, length: int) -> bytes | memoryview:
        """Return bytes of the object; raises NotFoundError and StoreError."""
        return self._store.read_range(self._key, start, length)

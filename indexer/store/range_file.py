"""An object of a store as a file that is read by ranges, for readers that need a small part of it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from scannery.indexer.store.object_store import Store

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["RangeFile", "ReadOnlyFile"]


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

"""An object of a store as a file of which only the parts that are read are fetched."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

from scannery.indexer.store.object_store import Store

__all__ = ["ranged_file"]


def ranged_file(store: Store, key: str) -> BinaryIO:
    """Return a seekable reader of an object: each read is one request for these bytes.

    Raises:
        NotFoundError: there is no such object.

    """
    return _RangedFile(store, key)  # type: ignore[return-value]  # a raw reader, which Arrow takes


class _RangedFile(io.RawIOBase):
    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self._size = store.size(key)
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        length = max(0, min(len(buffer), self._size - self._place))
        buffer[:length] = self._store.read_range(self._key, self._place, length)
        self._place += length
        return length

"""A bucket in a folder that counts the bytes and the requests by the kind of object."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore

from scannery.indexer import Store
from scannery.indexer.store.bucket_backend import BucketBackend

__all__ = ["CountingBucket", "counted_stores"]


class CountingBucket(BucketBackend):
    """A bucket whose objects are files; `read_bytes`, `written_bytes` and `requests` are by the second part of keys."""

    def __init__(self, folder: Path, told: Callable[[str, str, int], None] | None = None) -> None:
        """Make the folder.

        Args:
            folder: where the objects are.
            told: called with `read` or `write`, the kind of object and its number of bytes.

        """
        folder.mkdir(exist_ok=True)
        super().__init__(LocalStore(folder))
        self.read_bytes: Counter[str] = Counter()
        self.written_bytes: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self._told, self._lock = told, threading.Lock()

    def read(self, key: str) -> bytes:
        data = super().read(key)
        self._count(self.read_bytes, key, len(data))
        return data

    def read_range(self, key: str, start: int, length: int) -> bytes:
        data = super().read_range(key, start, length)
        self._count(self.read_bytes, key, len(data))
        return data

    def download(self, key: str, path: Path, **options: Any) -> None:
        super().download(key, path, **options)
        self._count(self.read_bytes, key, path.stat().st_size)

    def write(self, key: str, data: bytes | Path, *, only_if_absent: bool) -> None:
        super().write(key, data, only_if_absent=only_if_absent)
        self._count(self.written_bytes, key, data.stat().st_size if isinstance(data, Path) else len(data))

    def _count(self, counter: Counter[str], key: str, size_bytes: int) -> None:
        kind = key.split("/")[min(1, key.count("/"))]  # a key of the store itself has no folder
        with self._lock:
            counter[kind] += size_bytes
            self.requests[kind] += counter is self.read_bytes
        if self._told:
            self._told("read" if counter is self.read_bytes else "write", kind, size_bytes)


def counted_stores(
    monkeypatch: pytest.MonkeyPatch, told: Callable[[str, str, int], None] | None = None
) -> Callable[[Path], CountingBucket]:
    """Let `Store.open` give counting buckets, and return the function that gives the bucket of a folder."""
    buckets: dict[str, CountingBucket] = {}

    def bucket(uri: object) -> CountingBucket:
        if str(uri) not in buckets:
            buckets[str(uri)] = CountingBucket(Path(str(uri)), told)
        return buckets[str(uri)]

    monkeypatch.setattr(Store, "open", lambda uri, *, create=False: Store(str(uri), bucket(uri)))
    return bucket

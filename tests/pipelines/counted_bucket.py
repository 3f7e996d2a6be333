"""A bucket in a local folder, reached as any bucket is, which counts requests and bytes by key."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore

from scannery.indexer.store.object_store import StoredObject, _ObjectBackend

URI = "s3://counted"


class Traffic:
    """What was read since the last `clear`."""

    def __init__(self) -> None:
        self.read = Counter[str]()
        """Bytes by key."""
        self.requests = Counter[str]()
        """Number by method."""

    def clear(self) -> None:
        self.read.clear()
        self.requests.clear()

    def bytes_of(self, folder: str) -> int:
        """Return the bytes read of keys that contain `folder`."""
        return sum(size for key, size in self.read.items() if folder in key)


class _Counting(_ObjectBackend):
    def __init__(self, folder: Path, traffic: Traffic) -> None:
        super().__init__(LocalStore(folder, mkdir=True))
        self._traffic = traffic

    def read(self, key: str) -> bytes:
        self._traffic.requests["read"] += 1
        data = super().read(key)
        self._traffic.read[key] += len(data)
        return data

    def read_range(self, key: str, start: int, length: int) -> bytes:
        self._traffic.requests["read_range"] += 1
        self._traffic.read[key] += length
        return super().read_range(key, start, length)

    def size(self, key: str) -> int:
        self._traffic.requests["size"] += 1
        return super().size(key)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._traffic.requests["list"] += 1
        with contextlib.suppress(StopIteration):
            yield from super().list(prefix)


def counted_bucket(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Traffic:
    """Let `URI` be a bucket in `folder`, and return what is read of it."""
    traffic = Traffic()

    def from_url(_: str) -> Any:
        return _Counting(folder, traffic)

    monkeypatch.setattr(_ObjectBackend, "from_url", staticmethod(from_url))
    return traffic

"""A cache with a bound of memory, which counts all that it holds: values, keys, and what an entry takes besides."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["ENTRY_BYTES", "BoundedCache"]

ENTRY_BYTES = 1024
"""Bytes of an entry besides its key and its value: places in the dictionary, tuples, array headers, objects around
them.
"""

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class BoundedCache(Generic[KeyT, ValueT]):
    """Values by key within a bound of memory, least recently used first out. Safe to use from several threads."""

    def __init__(self, max_bytes: int, *, max_entries: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._values: OrderedDict[KeyT, tuple[ValueT, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.size_bytes = 0
        """What the entries take."""
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._values)

    def find(self, key: KeyT) -> ValueT | None:
        """Return the value of a key, None if there is none."""
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                self.misses += 1
                return None
            self._values.move_to_end(key)
            self.hits += 1
            return entry[0]

    def keep(self, key: KeyT, value: ValueT, size_bytes: int) -> None:
        """Keep a value, if there is none of this key; `size_bytes` is what key and value take."""
        size_bytes += ENTRY_BYTES
        with self._lock:
            if key in self._values or size_bytes > self._max_bytes:
                return
            self._values[key] = (value, size_bytes)
            self.size_bytes += size_bytes
            self._drop()

    def recount(self, key: KeyT, size_bytes: int) -> None:
        """Count a value that has grown since it was kept; nothing happens if it is not there any more."""
        size_bytes += ENTRY_BYTES
        with self._lock:
            entry = self._values.get(key)
            if entry is not None and entry[1] != size_bytes:
                self._values[key] = (entry[0], size_bytes)
                self.size_bytes += size_bytes - entry[1]
                self._drop()

    def _drop(self) -> None:
        while self.size_bytes > self._max_bytes or self._is_crowded():
            _, (_, dropped_bytes) = self._values.popitem(last=False)
            self.size_bytes -= dropped_bytes

    def _is_crowded(self) -> bool:
        return self._max_entries is not None and len(self._values) > self._max_entries

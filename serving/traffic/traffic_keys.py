"""The keys of a store as a process has them: the newest signs, and keys that others have made are read when needed."""

from __future__ import annotations

import threading
import time

from scannery.indexer import Store
from scannery.indexer.traffic.keys import TrafficKey, usable_keys

__all__ = ["TrafficKeys"]

READ_AGAIN_S = 1.0
"""Least time between two looks into the store for a key that an id names, which may be made up."""


class TrafficKeys:
    """The keys of one store. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        """Read none yet."""
        self._store = store
        self._keys: dict[int, TrafficKey] = {}
        self.newest: TrafficKey | None = None
        """The key that signs; None: none was read so far."""
        self._read_at_s = float("-inf")
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Read the keys of the store, of which the first is made if there is none; raises as `usable_keys`."""
        with self._lock:
            self._read_at_s = time.monotonic()
            self._keys = keys = usable_keys(self._store)
            self.newest = keys[max(keys)]

    def key_of(self, number: int) -> TrafficKey | None:
        """Return the key of a number, None if there is none; raises as `refresh`."""
        if number not in self._keys and time.monotonic() - self._read_at_s >= READ_AGAIN_S:
            self.refresh()
        return self._keys.get(number)

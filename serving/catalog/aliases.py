"""The aliases of a store as a process knows them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from scannery.indexer import ALIASES_KEY, Aliases, NotFoundError, Store, read_aliases

__all__ = ["AliasTable"]


class AliasTable:
    """A copy of the aliases, read again when their object changed. Safe to use from several threads."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        """Begin with none; `refresh` reads them.

        Args:
            store: with the aliases.
            clock: returns seconds.

        """
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._stamp: str | None = None
        """Of the object that was read; None: none was read, empty: there was none."""
        self.known: Aliases = {}
        """As of the last `refresh`."""
        self._checked_at_s = float("-inf")

    def refresh(self, *, older_than_s: float = 0.0) -> None:
        """Read the aliases if they changed; look for that only if the last look was more than `older_than_s` ago.

        Raises:
            StoreError, CorruptError, FormatError: they cannot be read; those known before stay.

        """
        if self._clock() - self._checked_at_s <= older_than_s:
            return
        with self._lock:  # or an older copy could replace a newer one
            self._checked_at_s = self._clock()
            stamp = self._current_stamp()
            if stamp != self._stamp:
                self.known, self._stamp = read_aliases(self._store), stamp

    def of(self, index: str) -> list[str]:
        """Return the aliases of an index, sorted."""
        return sorted(alias for alias, target in self.known.items() if target == index)

    def _current_stamp(self) -> str:
        try:
            return self._store.stamp(ALIASES_KEY)
        except NotFoundError:
            return ""

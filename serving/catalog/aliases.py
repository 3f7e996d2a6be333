"""The aliases of a store, as a process knows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from scannery.indexer import ALIASES_KEY, IndexerError, NotFoundError, Store, read_aliases
from scannery.serving.catalog.published_versions import Upkeep
from scannery.serving.security.principal import is_visible

__all__ = ["Aliases"]


class Aliases:
    """A copy of the aliases, read again when their object changed. Safe to use from several threads.

    An alias of an index that the caller cannot see is not known to it.
    """

    def __init__(
        self,
        store: Store,
        upkeep: Upkeep,
        clock: Callable[[], float],
        *,
        serves: Callable[[str], bool],
        is_open: Callable[[str], bool],
    ) -> None:
        """Begin with none; `refresh` reads them.

        Args:
            store: with the aliases.
            upkeep: who looks for changes.
            clock: returns seconds.
            serves: returns whether an index is served here.
            is_open: returns whether a name is that of an index that is known here.

        """
        self._store, self._upkeep, self._clock = store, upkeep, clock
        self._serves, self._is_open = serves, is_open
        self._lock, self._looks = threading.Lock(), threading.Lock()
        self._stamp: str | None = None
        """Stamp of the object that was read; None: none was read, empty: there was none."""
        self._aliases: Mapping[str, str] = {}
        """The index of each, as of the last look."""
        self._checked_at_s = float("-inf")

    def resolve(self, name: str, *, look: bool = True) -> str:
        """Return the index that a name stands for: that of an alias, or the name itself.

        Args:
            name: of an index, or an alias.
            look: whether the store may be read; False: the aliases of the last look are used.

        """
        if look:
            # If the store cannot be read, the names that are known keep working.
            with suppress(IndexerError):
                self._look_for(name)
        index = self._aliases.get(name)
        return index if index is not None and self._is_told(index) else name

    def visible(self) -> dict[str, str]:
        """Return the index of each alias, as of the last look."""
        return {alias: index for alias, index in sorted(self._aliases.items()) if self._is_told(index)}

    def of(self, index: str) -> list[str]:
        """Return the aliases of an index, sorted, as of the last look."""
        return sorted(alias for alias, target in self._aliases.items() if target == index)

    def refresh(self) -> None:
        """Read the aliases if they changed.

        Raises:
            StoreError, CorruptError, FormatError: they cannot be read; those known before stay.

        """
        with self._lock:  # or an older copy could replace a newer one
            self._checked_at_s = self._clock()
            try:
                stamp = self._store.stamp(ALIASES_KEY)
            except NotFoundError:
                stamp = ""
            if stamp != self._stamp:
                self._aliases, self._stamp = read_aliases(self._store), stamp

    def _look_for(self, name: str) -> None:
        """Refresh the aliases if a name may be a new one, or if they may be old."""
        age_s = self._clock() - self._checked_at_s
        is_known = name in self._aliases or self._is_open(name)
        if is_known and (self._upkeep.watched or age_s <= self._upkeep.every_s):
            return
        # Another process may have set it, and its caller may use it at once. One request at a time: those for unknown
        # names must not load the store.
        if self._looks.acquire(timeout=self._upkeep.wait_s):
            try:
                self.refresh()
            finally:
                self._looks.release()

    def _is_told(self, index: str) -> bool:
        return self._serves(index) and is_visible(index)

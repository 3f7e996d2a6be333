"""Resources that are not indexes (descriptions, endpoints, deployments, …), in one object of the store.

All of them change with one conditional put, as aliases do: a deployment and the deletion of its index cannot both
succeed, whichever worker or server does them.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from scannery.indexer import NotFoundError, Store
from scannery.indexer.store.json_object import JsonObject

__all__ = ["RESOURCES_KEY", "JsonDocument", "Resources"]

RESOURCES_KEY = "vertex.json"
RECENT_S = 0.5
"""A query may use resources as they were this long ago."""

Resources: TypeAlias = dict[str, dict[str, Any]]
"""Resources as JSON values, by kind and id."""


class JsonDocument:
    """A JSON document in a store, of resources by kind and id. Safe to use from several threads and processes."""

    def __init__(
        self, store: Store, key: str = RESOURCES_KEY, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Name the object, which need not exist.

        Args:
            store: where it is.
            key: its name.
            clock: returns seconds.

        """
        self._store, self._key, self._clock = store, key, clock
        self._object = JsonObject(store, key, "resources", dict)
        self._lock = threading.Lock()
        self._known: Resources = {}
        self._stamp: str | None = None
        self._checked_at_s = float("-inf")

    def read(self) -> Resources:
        """Return the resources as they are now. They are shared: callers do not change them.

        Raises:
            CorruptError, FormatError, StoreError: they cannot be read.

        """
        with self._lock:
            self._checked_at_s = self._clock()
            stamp = self._current_stamp()
            if stamp != self._stamp:
                self._known, self._stamp = self._object.read(), stamp
            return self._known

    def recent(self) -> Resources:
        """Return the resources as they were at most RECENT_S ago, mostly without access to the store."""
        if self._stamp is not None and self._clock() - self._checked_at_s <= RECENT_S:
            return self._known
        return self.read()

    def change(self, change: Callable[[Resources], object]) -> Resources:
        """Change the resources, and return them as they are then.

        Args:
            change: changes the copy that it gets; called again if another process was quicker. Its errors end the call,
                and nothing is changed.

        Raises:
            AlreadyExistsError: other processes were quicker in each attempt.
            CorruptError, FormatError, StoreError: as `read`.

        """

        def changed(before: Resources) -> Resources:
            after = copy.deepcopy(before)
            change(after)
            return after

        _, after = self._object.change(changed)
        self._checked_at_s = float("-inf")  # what this process did is visible here at once
        return after

    def _current_stamp(self) -> str:
        try:
            return self._store.stamp(self._key)
        except NotFoundError:
            return ""

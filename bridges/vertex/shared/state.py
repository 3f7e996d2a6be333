"""Resources that are not indexes (descriptions, endpoints, deployments, …), in one object of the store.

All of them change with one conditional put, as aliases do: a deployment and the deletion of its index cannot both
succeed, whichever worker or server does them.

Leaves of an index, of which the managed service's clients ask for a share.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from scannery.indexer import NotFoundError, Segment, Store
from scannery.indexer.store.object_store import JsonObject
from scannery.runtime.sharing import SharedMarks

__all__ = ["RESOURCES_KEY", "JsonDocument", "Resources", "most_leaves"]


RESOURCES_KEY = "vertex.json"
RECENT_S = 0.5
"""A query may use resources as they were this long ago, as far as other servers of the store have changed them."""

Resources: TypeAlias = dict[str, dict[str, Any]]
"""Resources as JSON values, by kind and id."""


class JsonDocument:
    """A JSON document in a store, of resources by kind and id. Safe to use from several threads and processes."""

    def __init__(
        self,
        store: Store,
        key: str = RESOURCES_KEY,
        *,
        marks: SharedMarks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Name the object, which need not exist.

        Args:
            store: where it is.
            key: its name.
            marks: that the workers of this server share: what one of them changes, the others know at once.
            clock: returns seconds.

        """
        self._store, self._key, self._clock = store, key, clock
        self._marks, self._mark = marks or SharedMarks(), -1
        self._object = JsonObject(store, key, "resources", dict)
        self._lock = threading.Lock()
        self._resources: Resources = {}
        self._stamp: str | None = None
        self._checked_at_s = float("-inf")

    def read(self) -> Resources:
        """Return the resources as they are now. They are shared: callers do not change them.

        Raises:
            CorruptError, FormatError, StoreError: they cannot be read.

        """
        with self._lock:
            # Before the store is read: what changes from now on is read the next time.
            checked_at_s, mark = self._clock(), self._marks.of(self._key)
            stamp = self._current_stamp()
            if stamp != self._stamp:
                self._resources, self._stamp = self._object.read(), stamp
            self._checked_at_s, self._mark = checked_at_s, mark
            return self._resources

    def recent(self) -> Resources:
        """Return the resources as they were at most RECENT_S ago, mostly without access to the store.

        What a worker of this server has changed is there at once.
        """
        is_recent = self._clock() - self._checked_at_s <= RECENT_S
        if self._stamp is not None and is_recent and self._mark == self._marks.of(self._key):
            return self._resources
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

        try:
            _, after = self._object.change(changed)
        finally:  # also if it fails after the object was written
            self._marks.change(self._key)
        return after

    def _current_stamp(self) -> str:
        try:
            return self._store.stamp(self._key)
        except NotFoundError:
            return ""


def most_leaves(segments: Iterable[Segment]) -> int:
    """Return the leaves of the segment that has most: an effort is a number of leaves of each. 0: none has any."""
    return max((segment.tree_leaves for segment in segments), default=0)

"""Resources that are not indexes (descriptions, endpoints, deployments, …), in one object of the store.

All of them change with one conditional put, as aliases do: a deployment and the deletion of its index cannot both
succeed, whichever worker or server does them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from scannery.indexer import AlreadyExistsError, CorruptError, FormatError, NotFoundError, Store

__all__ = ["RESOURCES_KEY", "JsonDocument", "Resources"]

RESOURCES_KEY = "vertex.json"
FORMAT = 1
"""Version of the objects that this code writes; later ones are refused."""
MAX_ATTEMPTS = 50
"""Attempts to replace an object while other processes replace it; each failure is the success of another one."""
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
                self._known, self._stamp = self._parsed(self._stored()), stamp
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
            AlreadyExistsError: other processes were quicker in each of MAX_ATTEMPTS attempts.
            CorruptError, FormatError, StoreError: as `read`.

        """
        for attempt in range(MAX_ATTEMPTS):
            stored = self._stored()
            before = self._parsed(stored)
            after = copy.deepcopy(before)
            change(after)
            if after == before:
                return before
            try:
                self._store.replace(self._key, _to_json(after), known=stored)
            except AlreadyExistsError:
                if attempt + 1 == MAX_ATTEMPTS:
                    raise
            else:
                self._checked_at_s = float("-inf")  # what this process did is visible here at once
                return after
        raise AssertionError

    def _current_stamp(self) -> str:
        try:
            return self._store.stamp(self._key)
        except NotFoundError:
            return ""

    def _stored(self) -> bytes | None:
        with contextlib.suppress(NotFoundError):
            return self._store.read(self._key)
        return None

    def _parsed(self, data: bytes | None) -> Resources:
        if data is None:
            return {}
        try:
            content = json.loads(data)
            if content["format"] > FORMAT:
                raise FormatError(
                    f"{self._key} has format {content['format']}, this Scannery reads up to {FORMAT}; upgrade it"
                )
            return {str(kind): dict(items) for kind, items in content["resources"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"{self._key} is damaged: {error!r}") from error


def _to_json(resources: Resources) -> bytes:
    return json.dumps({"format": FORMAT, "resources": resources}, sort_keys=True).encode() + b"\n"

"""A mapping in one JSON object of a store, changed by conditional puts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from scannery.indexer.errors import AlreadyExistsError, CorruptError, FormatError, NotFoundError
from scannery.indexer.store.object_store import Store

__all__ = ["JsonObject"]

FORMAT = 1
"""Version of the objects that this code writes; later ones are refused."""
MAX_ATTEMPTS = 50
"""Attempts to replace an object while other processes replace it; each failure is the success of another one."""

Content: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object `{"format": 1, FIELD: {…}}`, which need not exist: then the mapping is empty."""

    store: Store
    key: str
    field: str
    """Name of the mapping in the object."""
    kind: type
    """Of its values."""

    def read(self) -> Content:
        """Return the mapping.

        Raises:
            CorruptError: the object is damaged.
            FormatError: a later release wrote it.
            StoreError: it cannot be read.

        """
        return self._parsed(self._stored())

    def change(self, change: Callable[[Content], Content]) -> tuple[Content, Content]:
        """Replace the mapping by `change` of it, and return the one before and the new one.

        Args:
            change: returns the new mapping, and leaves the given one as it is; called again if another process was
                quicker. Its errors end the call, and nothing is changed.

        Raises:
            AlreadyExistsError: other processes were quicker in each of MAX_ATTEMPTS attempts.
            CorruptError, FormatError, StoreError: as `read`.

        """
        for attempt in range(MAX_ATTEMPTS):
            stored = self._stored()
            before = self._parsed(stored)
            after = change(before)
            if after == before:
                return before, before
            try:
                self.store.replace(self.key, self._to_json(after), known=stored)
            except AlreadyExistsError:
                if attempt + 1 == MAX_ATTEMPTS:
                    raise
            else:
                return before, after
        raise AssertionError

    def _stored(self) -> bytes | None:
        with contextlib.suppress(NotFoundError):
            return self.store.read(self.key)
        return None

    def _parsed(self, data: bytes | None) -> Content:
        if data is None:
            return {}
        try:
            content = json.loads(data)
            if content["format"] > FORMAT:
                raise FormatError(
                    f"{self.key} has format {content['format']}, this Scannery reads up to {FORMAT}; upgrade it"
                )
            found: Content = dict(content[self.field].items())
            if not all(isinstance(value, self.kind) for value in found.values()):
                raise TypeError(f"the values of {self.field!r} must be of type {self.kind.__name__}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"{self.key} is damaged: {error!r}") from error
        return found

    def _to_json(self, content: Content) -> bytes:
        return json.dumps({"format": FORMAT, self.field: content}, indent=2, sort_keys=True).encode() + b"\n"

"""What a place for objects can do: the interface of folders and buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from scannery.indexer.errors import CorruptError
from scannery.indexer.store.changes import Changes

__all__ = ["Backend", "StoredObject", "check_size"]


@dataclass(frozen=True)
class StoredObject:
    """One object of a store."""

    key: str
    size_bytes: int
    modified: datetime
    """Time of the last write, by the store's clock, UTC."""


def check_size(key: str, size_bytes: int, wanted_bytes: int | None) -> None:
    """Raise CorruptError if an object has another size than the manifest says; None: it says none."""
    if wanted_bytes not in (None, size_bytes):
        raise CorruptError(f"{key} has {size_bytes} bytes, {wanted_bytes} in the manifest: it is damaged")


class Backend(Protocol):
    """Objects by key. Keys are checked by the `Store`; errors are those of its methods."""

    def read(self, key: str) -> bytes:
        """Return the bytes of an object."""

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return the bytes of a range; fewer if the object ends before."""

    def map_range(self, key: str, start: int, length: int) -> memoryview:
        """Return a range without a copy where that is possible; fewer bytes if the object ends before."""

    def download(
        self,
        key: str,
        path: Path,
        *,
        size_bytes: int | None = None,
        seen: Callable[[memoryview], object] | None = None,
    ) -> None:
        """Write the bytes of an object to a local file.

        Args:
            key: of the object.
            path: of the file.
            size_bytes: of the object, if it is known; CorruptError if it has another.
            seen: gets the bytes, in order, while they arrive.

        Raises:
            OSError: the file cannot be written.

        """

    def write(self, key: str, data: bytes | Path, *, only_if_absent: bool) -> None:
        """Write an object; with `only_if_absent` raise AlreadyExistsError if it exists."""

    def replace(self, key: str, data: bytes, stored: bytes | None) -> None:
        """Write an object if its bytes are `stored` (None: it does not exist), else raise AlreadyExistsError."""

    def share(self, key: str, target: str) -> None:
        """Give the bytes of an object another key, without passing them through this machine.

        The key is durable after `sync`.

        Raises:
            StoreError: the folder or bucket cannot do that with this object.

        """

    def sync(self, prefix: str) -> None:
        """Make the names in a folder durable."""

    def turn_into(self, key: str, target: str, data: bytes) -> None:
        """Rename an object, and replace its bytes by fewer ones, perhaps with spaces behind them."""

    def size(self, key: str) -> int:
        """Return the size of an object in bytes."""

    def stamp(self, key: str) -> str:
        """Return a string that changes when the object is replaced."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects in the folder `prefix` and below."""

    def folders(self) -> Sequence[str]:
        """Return the names of the top-level folders."""

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""

    def note_change(self, folder: str) -> None:
        """Note for `changes` that a top-level folder has changed; a note that cannot be written is left out."""

    def changes(self) -> Changes:
        """Return a new reader of the notes, which has those from its first call on."""

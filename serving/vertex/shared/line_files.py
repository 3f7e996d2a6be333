"""Files of JSON lines that operations write: first to a temporary folder, then whole to the folder of the request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from scannery.indexer import Store

__all__ = ["LineFiles"]

PART_BYTES = 256 << 20


class LineFiles:
    """Lines that become files `NAME-00000-of-00002.jsonl`, …, when all of them are there. For one thread."""

    def __init__(self, folder: Path, name: str, *, part_bytes: int = PART_BYTES) -> None:
        """Write nothing yet.

        Args:
            folder: a temporary one.
            name: front of the names of the files.
            part_bytes: a file of this size takes no further lines.

        """
        self._folder, self._name, self._part_bytes = folder, name, part_bytes
        self._parts: list[Path] = []
        self._file: BinaryIO | None = None
        self._part_size_bytes = 0
        self.lines = self.size_bytes = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        data = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
        if self._file is None or self._part_size_bytes >= self._part_bytes:
            self._begin_part()
        assert self._file is not None
        self._file.write(data)
        self._part_size_bytes += len(data)
        self.size_bytes += len(data)
        self.lines += 1

    def __enter__(self) -> LineFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is buffered; `add` is not called after it."""
        if self._file is not None:
            self._file.close()

    def publish(self, place: str) -> list[str]:
        """Copy the files to a folder or bucket prefix, and return their names. Each is visible only when it is whole.

        Raises:
            AlreadyExistsError, StoreError: one exists, or cannot be written; those before it are removed.

        """
        self.close()
        if not self._parts:
            return []
        store = Store.open(place, create=True)
        count = len(self._parts)
        names = [f"{self._name}-{number:05}-of-{count:05}.jsonl" for number in range(count)]
        written: list[str] = []
        try:
            for name, path in zip(names, self._parts, strict=True):
                store.create_file(name, path)
                written.append(name)
        except BaseException:
            for name in written:
                store.delete(name)
            raise
        return names

    def _begin_part(self) -> None:
        self.close()
        path = self._folder / f"{self._name}-{len(self._parts)}"
        self._file, self._part_size_bytes = path.open("wb"), 0
        self._parts.append(path)

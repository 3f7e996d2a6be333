"""JSON lines that are added to: each is on the disk when it is added, and an interrupted one is removed."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scannery.indexer.store.folder_backend import sync_folder
from scannery.pipelines.errors import CollectionError

__all__ = ["GrowingFile", "growing_file"]


@contextmanager
def growing_file(path: Path, first_key: str) -> Iterator[GrowingFile]:
    """Open a file, which is made if it does not exist; others that open it so wait until it is closed.

    Args:
        path: of the file.
        first_key: first key of each line, by which an unfinished one is told from the content of another file.

    Raises:
        CollectionError: it ends with an unfinished line that is not one of these.
        OSError: it cannot be written.

    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        _repair(file, path, first_key)
        yield GrowingFile(file, path)
    finally:
        os.close(file)


class GrowingFile:
    """The file while it is locked; `growing_file` opens it."""

    def __init__(self, file: int, path: Path) -> None:
        self._file, self._path = file, path

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add a line for each record: all of them, or none; they are on the disk when this returns.

        Raises:
            CollectionError: a text is no Unicode.
            OSError: the disk is full, or the like.

        """
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        try:
            data = lines.encode()
        except UnicodeEncodeError as error:
            raise CollectionError("text: is no Unicode", field="text") from error
        end = os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, end)
            raise
        sync_folder(self._path.parent)


def _repair(file: int, path: Path, first_key: str) -> None:
    """Complete or remove a last line without its line feed."""
    data = path.read_bytes()
    if not data or data.endswith(b"\n"):
        return
    start = data.rfind(b"\n") + 1
    last = data[start:]
    try:
        json.loads(last)
    except ValueError:
        begin = f'{{"{first_key}": '.encode()
        if not (last.startswith(begin) or begin.startswith(last)):
            raise CollectionError(
                f"{path} ends with an unfinished line of other content", field="output"
            ) from None
        os.ftruncate(file, start)
        return
    os.write(file, b"\n")

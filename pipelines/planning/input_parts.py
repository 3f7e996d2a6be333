"""Cut the input into parts: several files at once, and not again those that the last build cut.

To cut a file is to read and hash all of it: 600 GB take a core ten minutes from a fast disk, and hours from a bucket.
So the parts of large inputs are remembered in the store, by what a file looks like without reading it: its size, times
and inode, or the object store's tag. Workers check the same when they read a part, but for the time of the last status
change, which a copy of the file or a change of its rights sets too.
"""

from __future__ import annotations

import dataclasses
import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scannery.indexer.errors import IndexerError
from scannery.indexer.store.object_store import Store
from scannery.pipelines.sources import InputFile, Part, split_file
from scannery.pipelines.sources.locations import stamp_of
from scannery.pipelines.state.job import stage_key

__all__ = ["CutMemory", "cut_files"]

FORMAT_VERSION = 1
"""Raise it when the same file would be cut otherwise."""

READERS = 8
"""Files that are read at once; hashing releases the interpreter's lock."""

FILES_AHEAD = 1024
REMEMBERED_BYTES = 2**26
"""Least size of an input whose parts are remembered: a smaller one is hashed in a tenth of a second."""

SETTLED_S = 2.0
"""Least age of a local file that is remembered: a change within the resolution of file times would not be seen."""

_SAVED_EVERY_S = 60.0
_MOST_RATIO = 100
"""Most bytes of a memory for one that is stored: a part has a hash of 16 random bytes, and about 500 bytes."""


def cut_files(
    files: Sequence[InputFile],
    limit: int,
    *,
    memory: CutMemory | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> list[Part]:
    """Return the parts of all files in input order, about `limit` bytes each.

    Args:
        files: the input.
        limit: size of a part.
        memory: of earlier builds; None: every file is read.
        report: called with the size of each file that is done.

    """
    parts: list[Part] = []
    for file, file_parts in zip(files, _cut(files, limit, memory), strict=True):
        parts += file_parts
        report(file.size_bytes)
    if memory is not None:
        memory.save()
    return parts


def _cut(files: Sequence[InputFile], limit: int, memory: CutMemory | None) -> Iterator[list[Part]]:
    def cut(file: InputFile) -> list[Part]:
        return [*split_file(file, limit)] if memory is None else memory.cut(file, limit)

    if len(files) < 2:
        yield from map(cut, files)
        return
    with ThreadPoolExecutor(READERS, "scannery-cut") as pool:
        for some in _batches(files, FILES_AHEAD):
            yield from pool.map(cut, some)
            if memory is not None:
                memory.save_now_and_then()


def _batches(files: Sequence[InputFile], size: int) -> Iterable[Sequence[InputFile]]:
    return (files[start : start + size] for start in range(0, len(files), size))


class CutMemory:
    """The parts of the files that the last build of an index had.

    Args:
        store: of the index.
        index: its name.

    """

    def __init__(self, store: Store, index: str) -> None:
        self._store, self._key = store, stage_key(index, "cuts", "last.json.z")
        self._stored = self._read()
        self._kept: dict[str, list[Part]] = {}
        self._new = 0
        self._saved_at = time.monotonic()

    @classmethod
    def of(cls, files: Sequence[InputFile], store: Store, index: str) -> CutMemory | None:
        """Return the memory for an input that is worth it, else None."""
        large = sum(file.size_bytes for file in files) >= REMEMBERED_BYTES
        return cls(store, index) if large else None

    def cut(self, file: InputFile, limit: int) -> list[Part]:
        """Return the parts of a file, from memory if it looks as it did."""
        looks, changed_ns = _looks(file), _changed_ns(file)
        name = f"{file!r} {limit} {looks} {changed_ns}"
        parts = [] if looks is None else _remembered(self._stored.get(name), file, looks)
        if not parts:
            parts = [*split_file(file, limit)]
            self._new += 1
        if looks is not None and all(_is_plain(part, looks) for part in parts):
            self._kept[name] = parts
        return parts

    def save(self) -> None:
        """Store the parts of all files that were cut, if some are new."""
        if not self._new:
            return
        content = {name: [*map(dataclasses.asdict, parts)] for name, parts in self._kept.items()}
        data = json.dumps({"version": FORMAT_VERSION, "files": content}).encode()
        self._store.write(self._key, zlib.compress(data, 1))
        self._new, self._saved_at = 0, time.monotonic()

    def save_now_and_then(self) -> None:
        """Save once a minute, so that a killed launcher does not begin anew."""
        if time.monotonic() - self._saved_at > _SAVED_EVERY_S:
            self.save()

    def _read(self) -> dict[str, list[dict[str, Any]]]:
        try:
            content = json.loads(_unpacked(self._store.read(self._key)))
            return dict(content["files"]) if content["version"] == FORMAT_VERSION else {}
        except (IndexerError, zlib.error, ValueError, KeyError, TypeError, RecursionError):
            return {}  # none, or a damaged one: all files are read


def _unpacked(data: bytes) -> bytes:
    """Return the content of a memory; ValueError if it is much larger than that of parts."""
    stream = zlib.decompressobj()
    content = stream.decompress(data, _MOST_RATIO * len(data))
    if not stream.eof:
        raise ValueError("it ends early, or is not one of parts")
    return content


def _remembered(stored: object, file: InputFile, looks: str) -> list[Part]:
    """Return the parts of a file that the store remembers; none if these cannot be parts of this file.

    Others who can write to the store must not choose which files of this machine are read.
    """
    try:
        parts = [Part(**part) for part in stored] if isinstance(stored, list) else []
    except TypeError:
        return []
    return parts if all(_is_of(part, file, looks) for part in parts) else []


def _is_of(part: Part, file: InputFile, looks: str) -> bool:
    numbers: tuple[Any, ...] = (
        part.start,
        part.end or 0,
        part.first,
        part.records,
        part.size_bytes,
        part.companion_start,
    )
    texts: tuple[Any, ...] = (part.format, part.compression, part.dialect, part.digest)
    return (
        (part.base, part.path, part.fetch) == (file.base, file.path, ())
        and all(isinstance(number, int) and number >= 0 for number in numbers)
        and all(isinstance(text, str) for text in texts)
        and _is_plain(part, looks)
    )


def _looks(file: InputFile) -> str | None:
    """Return what tells the content of a file without reading it; None if it could change unseen."""
    if file.companions or file.fetch:
        return None
    if file.tag is not None:
        return file.tag
    try:
        age_s = time.time() - (Path(file.base) / file.path).stat().st_mtime
        return stamp_of(file.base, file.path) if age_s > SETTLED_S else None
    except OSError:
        return None


def _changed_ns(file: InputFile) -> int:
    """Return when a local file or its status changed last, in ns; 0 for others.

    Size, modification time and inode can stay: archives are unpacked with the times that they have, and a file system
    gives the inode of a removed file to the next one. No program can set this time.
    """
    if file.tag is not None:
        return 0
    try:
        return (Path(file.base) / file.path).stat().st_ctime_ns
    except OSError:
        return 0


def _is_plain(part: Part, looks: str) -> bool:
    """Return whether a part depends on nothing but the file, and was read from it as it looks."""
    return part.problem is None and not part.companions and part.format != "feed" and part.stamp == looks

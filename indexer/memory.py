"""The memory that an open index takes, by component: what it needs, and what the kernel may take back.

`COMPONENTS` is the one list of them. What a component takes follows from the files of the local cache and from arrays,
so it is the same before a segment is opened (`memory_of_opening`) and while it is open (`index_memory`).

Shapes: N rows of a segment, L documents of it, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from pathlib import Path
from typing import TypeAlias
from weakref import WeakKeyDictionary

from scannery.indexer.errors import CorruptError
from scannery.indexer.manifest import Manifest, SegmentEntry
from scannery.indexer.reader import OpenIndex
from scannery.indexer.scann.assets import searcher_bytes
from scannery.indexer.segment import segment_files as files
from scannery.indexer.segment.cache import Hold, SegmentCache, file_sizes
from scannery.indexer.segment.cold.cold_files import PAGES
from scannery.indexer.segment.cold.cold_vectors import ColdReads
from scannery.indexer.segment.memory_segment import MemorySegment
from scannery.indexer.segment.opening import cached_folder, unpacked_segment
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store

__all__ = [
    "COMPONENTS",
    "DELETIONS",
    "MEMTABLE",
    "Component",
    "IndexMemory",
    "MemoryBytes",
    "StoredSegment",
    "added_memory",
    "cached_memory",
    "index_memory",
    "live_memory",
    "memory_of_opening",
    "open_files",
    "stored_memory",
]


@dataclass(frozen=True, slots=True)
class MemoryBytes:
    """Bytes of memory of a component."""

    heap: int = 0
    """Bytes on the heap of the process that opened it, which processes that are forked later share."""
    read: int = 0
    """Bytes of mapped files that all searches of a kind read: they have to stay in memory."""
    mapped: int = 0
    """Other bytes of mapped files: read when needed, and the kernel takes their memory back where it is short."""

    @property
    def needed(self) -> int:
        """Bytes that have to stay in memory."""
        return self.heap + self.read

    @property
    def total(self) -> int:
        """All bytes."""
        return self.needed + self.mapped

    def __add__(self, other: MemoryBytes) -> MemoryBytes:
        return MemoryBytes(self.heap + other.heap, self.read + other.read, self.mapped + other.mapped)

    def times(self, copies: int) -> MemoryBytes:
        """Return the bytes of several processes: each has the heap, and all map the same files."""
        return MemoryBytes(copies * self.heap, self.read, self.mapped)


IndexMemory: TypeAlias = dict[str, MemoryBytes]
"""Bytes by the name of the component; those without any are left out."""


@dataclass(frozen=True)
class StoredSegment:
    """What the local cache has of one file of a segment: its rows, or the vectors of a name."""

    entry: SegmentEntry
    folder: Path
    """Folder of the cache."""
    sizes: Mapping[str, int]
    """Bytes of its files by their paths in it."""
    is_named: bool = False
    """Whether it has the vectors of a name."""
    counts_documents: bool = False
    """Whether searches by words score the documents of rows, too."""
    searcher_bytes: int | None = None
    """Heap of ScaNN's searcher; None: as its files say."""

    def bytes_of(self, *names: str) -> int:
        """Return the size of files, and of all files in folders, by their names."""
        return sum(size for path, size in self.sizes.items() if path.split("/", 1)[0] in names)

    @cached_property
    def is_scanned(self) -> bool:
        """Whether each search reads all vectors, or all of those in 8 bits a number: there is no ScaNN's data."""
        return not self.bytes_of(files.SCANN)


@dataclass(frozen=True, slots=True)
class Component:
    """A component of an index that is open."""

    name: str
    """Name in metrics and reports."""
    what: str
    """Content, in a few words."""
    count: Callable[[StoredSegment], MemoryBytes] = lambda stored: MemoryBytes()
    """Function from a file of a segment to what it takes."""


def _codes(stored: StoredSegment) -> MemoryBytes:
    if stored.searcher_bytes is not None:
        return MemoryBytes(stored.searcher_bytes)
    return MemoryBytes(searcher_bytes(stored.folder / files.SCANN) if stored.bytes_of(files.SCANN) else 0)


def _vectors(stored: StoredSegment) -> MemoryBytes:
    searched, unscaled = stored.bytes_of(files.VECTORS), stored.bytes_of(files.UNSCALED, PAGES)
    is_scanned = stored.is_scanned and not stored.bytes_of(files.QUANTIZED)
    return MemoryBytes(0, searched, unscaled) if is_scanned else MemoryBytes(0, 0, searched + unscaled)


def _quantized(stored: StoredSegment) -> MemoryBytes:
    size = stored.bytes_of(files.QUANTIZED)
    return MemoryBytes(read=size) if stored.is_scanned else MemoryBytes(mapped=size)


def _words(stored: StoredSegment) -> MemoryBytes:
    mapped = stored.bytes_of(files.WORDS, files.DOCUMENT_WORDS)
    if not mapped or not stored.counts_documents:
        return MemoryBytes(mapped=mapped)
    rows, documents = stored.entry.rows, stored.entry.documents or stored.entry.rows
    # `DocumentNumbers`: two int32 of each row, 20 bytes of each document; 12 more among those of the index.
    return MemoryBytes(8 * rows + 32 * documents, mapped=mapped)


def _ids(stored: StoredSegment) -> MemoryBytes:
    # `NamedVectors`: the row of each vector, int64, and the vector of each row, int32.
    heap = 12 * stored.entry.rows if stored.is_named else 0
    return MemoryBytes(heap, mapped=stored.bytes_of(files.HASHES, files.DOCUMENTS, files.TIES))


def _mapped(*names: str) -> Callable[[StoredSegment], MemoryBytes]:
    return lambda stored: MemoryBytes(mapped=stored.bytes_of(*names))


DELETIONS, MEMTABLE = "deletions", "memtable"

COMPONENTS = (
    Component("codes", "ScaNN's codes and tree", _codes),
    Component("vectors", "vectors as they are searched, and as they were given where that differs", _vectors),
    Component("quantized", "vectors in 8 bits a number, which searches read first", _quantized),
    Component("words", "postings of words, and documents of rows", _words),
    Component("sparse", "postings of sparse vectors", _mapped(files.SPARSE)),
    Component("attributes", "postings of attributes", _mapped(files.ATTRIBUTES)),
    Component("records", "texts, attributes and other columns", _mapped(files.COLUMNS)),
    Component("ids", "hashes and order of ids, and rows of named vectors", _ids),
    Component(
        "leaves", "statistics of leaves", lambda stored: MemoryBytes(read=stored.bytes_of(files.LEAVES))
    ),
    Component(DELETIONS, "rows that are not deleted"),
    Component(MEMTABLE, "new rows that are not in a segment yet"),
)
"""The components of an index. A new file of a segment's folder belongs into one of them."""

_UNREADABLE = (OSError, ValueError, LookupError, CorruptError)
"""What reading a folder raises that is not in the local cache, or is damaged."""
_COUNTED: WeakKeyDictionary[Hold, IndexMemory] = WeakKeyDictionary()
"""Memory of open files, which does not change, by what keeps them."""


def stored_memory(stored: StoredSegment) -> IndexMemory:
    """Return what a file of a segment takes while it is open.

    Raises:
        OSError, CorruptError: a file in the folder cannot be read.

    """
    counted = {component.name: component.count(stored) for component in COMPONENTS}
    return {name: size for name, size in counted.items() if size.total}


def added_memory(parts: Iterable[IndexMemory]) -> IndexMemory:
    """Return the sum of what several things take, in the order of `COMPONENTS`."""
    total: IndexMemory = {}
    for part in parts:
        for name, size in part.items():
            total[name] = total.get(name, MemoryBytes()) + size
    order = {component.name: number for number, component in enumerate(COMPONENTS)}
    return dict(sorted(total.items(), key=lambda item: order.get(item[0], len(order))))


def index_memory(index: OpenIndex) -> IndexMemory:
    """Return what an open index takes in this process, its memtable included, if it has one."""
    return added_memory([*open_files(index).values(), live_memory(index)])


def open_files(index: OpenIndex) -> dict[Hold, IndexMemory]:
    """Return what the files of an open index take, by what keeps each of them: versions share files."""
    parts = [(segment, False) for segment in index.segments if not isinstance(segment, MemorySegment)]
    parts += [(named.segment, True) for segment, _ in parts for named in segment.named.values()]
    return {
        hold: _counted(hold, segment.entry, index.spec, is_named=is_named)
        for segment, is_named in parts
        if (hold := segment.hold) is not None
    }


def _counted(hold: Hold, entry: SegmentEntry, spec: IndexSpec, *, is_named: bool) -> IndexMemory:
    if hold not in _COUNTED:
        try:
            _COUNTED[hold] = stored_memory(_stored(entry, hold.folder, spec, is_named=is_named))
        except (
            _UNREADABLE
        ):  # removed by another process, on a file system without locks: it is open all the same
            return {}
    return _COUNTED[hold]


def live_memory(index: OpenIndex) -> IndexMemory:
    """Return what the new rows and the deletions of an open index take in this process."""
    new, deleted = 0, 0
    for segment, alive in zip(index.segments, index.alive, strict=True):
        live_bytes = 0 if alive is None else alive.size_bytes
        if isinstance(segment, MemorySegment):
            new += segment.heap_bytes + live_bytes
        else:
            deleted += live_bytes
    sizes = {DELETIONS: MemoryBytes(deleted), MEMTABLE: MemoryBytes(new)}
    return {name: size for name, size in sizes.items() if size.heap}


def cached_memory(manifest: Manifest, cache: SegmentCache | None = None) -> IndexMemory | None:
    """Return what a version would take if the local cache has all of its segments, else None. Nothing is opened.

    Its files are not checked: `open_index` does.
    """
    cache = cache or SegmentCache()
    try:
        return added_memory(
            stored_memory(_stored(entry, cached_folder(entry, cache), manifest.spec, is_named=is_named))
            for entry, is_named in _entries(manifest.segments)
        )
    except _UNREADABLE:
        return None


def _stored(entry: SegmentEntry, folder: Path, spec: IndexSpec, *, is_named: bool) -> StoredSegment:
    counts_documents = spec.lexical is not None and spec.lexical.counts_documents
    return StoredSegment(entry, folder, file_sizes(folder), is_named, counts_documents)


def _entries(segments: Iterable[SegmentEntry]) -> Iterator[tuple[SegmentEntry, bool]]:
    """Yield the files of segments, and whether each has named vectors."""
    for entry in segments:
        yield entry, False
        for named in entry.named.values():
            yield named, True


def memory_of_opening(
    store: Store,
    manifest: Manifest,
    cache: SegmentCache,
    *,
    cold: ColdReads | None = None,
    reuse: OpenIndex | None = None,
) -> IndexMemory:
    """Return what the segments of a version will take that are not open yet. Nothing is opened.

    Segments that the local cache lacks are unpacked into it.

    Args:
        store: with the index.
        manifest: of the version, with the segments that would be opened.
        cache: the local cache.
        cold: as of `open_index`.
        reuse: likewise.

    Raises:
        As `open_index`.

    """
    shared = {segment.entry.content for segment in reuse.segments} if reuse else set()

    def counted(entry: SegmentEntry, is_named: bool) -> IndexMemory:
        def count(folder: Path) -> IndexMemory:
            return stored_memory(_stored(entry, folder, manifest.spec, is_named=is_named))

        try:
            return count(cached_folder(entry, cache, cold))
        except _UNREADABLE:  # and is then unpacked, again if it is damaged
            with unpacked_segment(store, manifest.index, entry, cache, cold) as folder:
                return count(folder)

    missing = [entry for entry in manifest.segments if entry.content not in shared]
    return added_memory(starmap(counted, _entries(missing)))

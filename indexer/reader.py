"""Open a version of an index: its manifest, its segments, and their live rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scannery.indexer.datapoints.schema import attribute_columns
from scannery.indexer.manifest import Manifest, SegmentEntry
from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.segment.cache import SegmentCache
from scannery.indexer.segment.cold.cold_vectors import ColdReads
from scannery.indexer.segment.named_vectors import NamedVectors
from scannery.indexer.segment.opening import open_segment
from scannery.indexer.segment.segment import Segment
from scannery.indexer.shard_groups import Shards
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import SearchSettings
from scannery.indexer.versions.tombstones import read_live_mask
from scannery.indexer.versions.versions import read_manifest

__all__ = ["NamedIndex", "OpenIndex", "live_rows_of", "open_index", "open_manifest"]

_PARALLEL_OPENS = 4


@dataclass(frozen=True)
class OpenIndex:
    """One version of an index, open for search. Immutable."""

    manifest: Manifest
    segments: tuple[Segment, ...]
    """Open segments in the order of the manifest. Open versions share them; `alive` has the deleted rows of each."""
    alive: tuple[AllowedRows | None, ...]
    """Rows: for each segment the rows that are not deleted; None: all rows."""
    whole: Manifest | None = None
    """The published manifest, if `manifest` has the segments of some shards alone."""

    @property
    def whole_manifest(self) -> Manifest:
        """The manifest with the segments of all shards."""
        return self.whole or self.manifest

    @property
    def spec(self) -> IndexSpec:
        """The spec that the version was built from."""
        return self.manifest.spec

    @property
    def dimensions(self) -> int:
        """Components of a vector."""
        return self.manifest.dimensions

    def with_vectors(self) -> OpenIndex:
        """Return the index without the segments whose rows have no vectors."""
        kept = [number for number, segment in enumerate(self.segments) if segment.has_vectors]
        if len(kept) == len(self.segments):
            return self
        entries = tuple(entry for entry in self.manifest.segments if entry.vectors)
        return OpenIndex(
            self.manifest.model_copy(update={"segments": entries}),
            tuple(self.segments[number] for number in kept),
            tuple(self.alive[number] for number in kept),
        )

    def live_rows(self) -> Iterator[tuple[Segment, np.ndarray]]:
        """Yield each segment with the numbers of its live rows, int64, ascending."""
        for segment, alive in zip(self.segments, self.alive, strict=True):
            yield segment, np.arange(segment.rows) if alive is None else alive.rows

    @cached_property
    def named(self) -> Mapping[str, NamedIndex]:
        """For each name of the spec's `named_vectors` the index of its vectors."""
        return {name: _named(self, name) for name in self.manifest.named_vectors}

    def settings_for(self, target_recall: float | None = None) -> tuple[SearchSettings | None, ...]:
        """Return for each segment the settings that meet a target recall (default: the spec's); None: exact search."""
        target = self.spec.target_recall if target_recall is None else target_recall
        return tuple(segment.settings_for(target) for segment in self.segments)


@dataclass(frozen=True)
class NamedIndex:
    """The vectors of one name as an index of their own, whose datapoints have nothing but an id and this vector."""

    index: OpenIndex
    """The vectors. Its segments have numbers of vectors as rows."""
    vectors: tuple[NamedVectors, ...]
    """Rows: for each of its segments the translation to rows of datapoints."""
    numbers: tuple[int, ...]
    """Numbers: for each of its segments the number of the segment with the datapoints."""


def _named(index: OpenIndex, name: str) -> NamedIndex:
    parts = [
        (number, segment.named[name], alive)
        for number, (segment, alive) in enumerate(zip(index.segments, index.alive, strict=True))
        if name in segment.named
    ]
    opened = OpenIndex(
        index.manifest.of_vectors(name),
        tuple(vectors.segment for _, vectors, _ in parts),
        tuple(vectors.allowed(alive) for _, vectors, alive in parts),
    )
    return NamedIndex(
        opened, tuple(vectors for _, vectors, _ in parts), tuple(number for number, _, _ in parts)
    )


def open_index(
    store: Store,
    index: str,
    version: int | None = None,
    *,
    cache: SegmentCache | None = None,
    reuse: OpenIndex | None = None,
    shards: Shards | None = None,
    cold: ColdReads | None = None,
) -> OpenIndex:
    """Return a version of an index with its segments open.

    Args:
        store: the store.
        index: name of the index.
        version: None: the current one.
        cache: where segments are unpacked; None: the default folder.
        reuse: an open version; segments that both have are shared, and so are equal objects of `alive`.
        shards: whose segments are opened; its `manifest` then lists no others. None: all.
        cold: by which vectors are read when a search needs them; None: they are in the cache.

    Raises:
        NotFoundError: no such index or version, or a file of it is missing.
        CorruptError, FormatError: a file is damaged, or of a later release.

    """
    manifest = read_manifest(store, index, version)
    return open_manifest(store, manifest, cache=cache, reuse=reuse, shards=shards, cold=cold)


def open_manifest(
    store: Store,
    manifest: Manifest,
    *,
    cache: SegmentCache | None = None,
    reuse: OpenIndex | None = None,
    shards: Shards | None = None,
    cold: ColdReads | None = None,
) -> OpenIndex:
    """Return the index of a manifest, published or not, with its segments open; otherwise as `open_index`."""
    whole = None
    if shards is not None:
        whole, manifest = manifest, manifest.of_shards(shards)
    index, cache = manifest.index, cache or SegmentCache()
    opened = {segment.entry.content: segment for segment in reuse.segments} if reuse else {}
    missing = [entry for entry in manifest.segments if entry.content not in opened]
    with ThreadPoolExecutor(_PARALLEL_OPENS) as pool:
        for segment in pool.map(lambda entry: open_segment(store, index, entry, cache, cold), missing):
            opened[segment.entry.content] = segment
    columns = attribute_columns(manifest.spec)
    segments = tuple(
        opened[entry.content].with_entry(entry).with_columns(columns) for entry in manifest.segments
    )
    alive_rows = _known_alive(reuse) if reuse else {}
    alive = tuple(
        alive_rows.get(entry.keys) or live_rows_of(store, index, entry, segment)
        for entry, segment in zip(manifest.segments, segments, strict=True)
    )
    return OpenIndex(manifest, segments, alive, whole)


def _known_alive(index: OpenIndex) -> dict[tuple[str, ...], AllowedRows | None]:
    return {entry.keys: alive for entry, alive in zip(index.manifest.segments, index.alive, strict=True)}


def live_rows_of(store: Store, index: str, entry: SegmentEntry, segment: Segment) -> AllowedRows | None:
    """Return the live rows of an open segment, None if no row is deleted; errors as `open_index`."""
    mask_N = read_live_mask(store, index, entry)
    return None if mask_N is None else segment.allow(mask_N)

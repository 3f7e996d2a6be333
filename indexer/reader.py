"""Open a version of an index: its manifest, its segments, and their live rows.

Shapes: R rows, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from scannery.indexer.datapoints.schema import attribute_columns
from scannery.indexer.lexical.word_index import SegmentWords, WordIndex
from scannery.indexer.manifest import Manifest, SegmentEntry
from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.segment.cache import SegmentCache
from scannery.indexer.segment.cold.cold_vectors import ColdReads
from scannery.indexer.segment.expired_rows import next_expiry, unexpired
from scannery.indexer.segment.named_vectors import NamedVectors
from scannery.indexer.segment.opening import open_segment
from scannery.indexer.segment.segment import Segment
from scannery.indexer.shard_groups import Shards
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import SearchSettings
from scannery.indexer.vectors.exact_search import NO_ROW
from scannery.indexer.vectors.vector_maps import read_map
from scannery.indexer.versions.tombstones import read_live_mask
from scannery.indexer.versions.versions import read_manifest

__all__ = ["OpenIndex", "VectorSpace", "live_rows_of", "open_index", "open_manifest"]

_PARALLEL_OPENS = 4


@dataclass(frozen=True)
class OpenIndex:
    """One version of an index, open for search. Immutable."""

    manifest: Manifest
    segments: tuple[Segment, ...]
    """Open segments in the order of the manifest. Open versions share them; `alive` has the deleted rows of each."""
    alive: tuple[AllowedRows | None, ...]
    """Rows: for each segment the rows that are not deleted, and have not expired at `second`; None: all rows."""
    whole: Manifest | None = None
    """The published manifest, if `manifest` has the segments of some shards alone."""
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Matrices of `Manifest.vector_maps`, by key."""
    second: int = 0
    """Second since 1970 at which the index is seen: what has expired by then is not alive. 0: no time is looked at."""
    undeleted: tuple[AllowedRows | None, ...] | None = None
    """Rows of each segment that are not deleted, expired or not; None: they are those of `alive`."""
    _spaces: dict[str, VectorSpace] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The vectors of each name that was searched: segments in memory make those of a name when they are first read."""

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

    @property
    def rows(self) -> int:
        """Rows that are alive."""
        pairs = zip(self.segments, self.alive, strict=True)
        return sum(segment.rows if alive is None else alive.count for segment, alive in pairs)

    def at(self, second: int) -> OpenIndex:
        """Return the index as it is seen at a second since 1970, earlier or later than this one."""
        expiry = self.spec.live.expire
        if expiry is None or second == self.second:
            return self
        undeleted = self.alive if self.undeleted is None else self.undeleted
        alive = tuple(
            unexpired(segment, rows, expiry, second)
            for segment, rows in zip(self.segments, undeleted, strict=True)
        )
        return replace(self, alive=alive, second=second, undeleted=undeleted)

    @property
    def next_expiry(self) -> int | None:
        """The second at which a further row may expire; None: none will."""
        expiry = self.spec.live.expire
        if expiry is None:
            return None
        seconds = [next_expiry(segment, expiry, self.second) for segment in self.segments]
        return min((second for second in seconds if second is not None), default=None)

    @property
    def expired_rows(self) -> int:
        """Rows that have expired, and are not deleted."""
        pairs = zip(self.segments, self.undeleted or self.alive, self.alive, strict=True)
        return sum(
            (segment.rows if undeleted is None else undeleted.count) - alive.count
            for segment, undeleted, alive in pairs
            if alive is not None and alive is not undeleted
        )

    @cached_property
    def words(self) -> WordIndex | None:
        """The words of all live rows; None: some segment has none."""
        lexical, parts = self.spec.lexical, []
        for segment, alive in zip(self.segments, self.alive, strict=True):
            if segment.postings is None or lexical is None:
                return None
            documents = segment.document_words if lexical.counts_documents else None
            parts.append(SegmentWords(segment.postings, documents, alive, segment.shard))
        return WordIndex(parts)

    def live_rows(self) -> Iterator[tuple[Segment, np.ndarray]]:
        """Yield each segment with the numbers of its live rows, int64, ascending."""
        for segment, alive in zip(self.segments, self.alive, strict=True):
            yield segment, np.arange(segment.rows) if alive is None else alive.rows

    def space(self, name: str) -> VectorSpace:
        """Return the vectors of a name, which is empty for the unnamed vector; KeyError if there is no such name."""
        space = self._spaces.get(name)
        if space is None:
            space = self._spaces[name] = _space(self, name)
        return space

    def settings_for(self, target_recall: float | None = None) -> tuple[SearchSettings | None, ...]:
        """Return for each segment the settings that meet a target recall (default: the spec's); None: exact search."""
        target = self.spec.target_recall if target_recall is None else target_recall
        return tuple(segment.settings_for(target) for segment in self.segments)


@dataclass(frozen=True, slots=True, eq=False)
class SearchedSegment:
    """One segment with vectors."""

    number: int
    """Number of the segment with the datapoints, in the index of these."""
    segment: Segment
    """Segment with the vectors."""
    vectors: NamedVectors | None
    """Translates between its rows and those of the datapoints; None: they are the same."""

    def numbers(self, rows_R: np.ndarray) -> np.ndarray:
        """Return the row of the vector of each datapoint, int64 (R,); NO_ROW where it has none."""
        return rows_R if self.vectors is None else self.vectors.numbers(rows_R)


@dataclass(frozen=True, eq=False)
class VectorSpace:
    """The vectors of one name in an open index: where they are searched, and which datapoints they belong to."""

    name: str
    """Empty: the unnamed vector."""
    index: OpenIndex
    """The index of these vectors alone, without segments whose rows have none. Named ones have no datapoint but an id,
    and numbers of vectors as rows."""
    parts: tuple[SearchedSegment, ...]
    """The segments of `index`."""

    @cached_property
    def _by_number(self) -> dict[int, SearchedSegment]:
        return {part.number: part for part in self.parts}

    def vector_of(self, number: int, row: int) -> np.ndarray | None:
        """Return the vector of a datapoint as it is searched, float32 (D,); None if it has none."""
        vectors_KD, known_R = self.vectors_of(number, np.array([row]))
        return vectors_KD[0] if known_R[0] else None

    def vectors_of(self, number: int, rows_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of those datapoints that have one, as they are searched, and which these are.

        Args:
            number: of their segment.
            rows_R: their rows, int64.

        Returns:
            float32 (K, D), in the order of the rows, and bool (R,).

        """
        part = self._by_number.get(number)
        if part is None:
            return np.empty((0, self.index.manifest.dimensions), np.float32), np.zeros(len(rows_R), bool)
        numbers_R = part.numbers(rows_R)
        known_R = numbers_R != NO_ROW
        return part.segment.searched(numbers_R[known_R]), known_R

    def scores(self, number: int, rows_R: np.ndarray, query_D: np.ndarray) -> np.ndarray:
        """Return the exact scores of datapoints, float32 (R,); NaN where one has no vector.

        Args:
            number: of their segment.
            rows_R: their rows, int64.
            query_D: as `search_ready` returns it.

        """
        scores_R = np.full(len(rows_R), np.nan, np.float32)
        part = self._by_number.get(number)
        if part is not None:
            numbers_R = part.numbers(rows_R)
            known_R = numbers_R != NO_ROW
            scores_R[known_R] = part.segment.scores_of(numbers_R[known_R], query_D)
        return scores_R


def _space(index: OpenIndex, name: str) -> VectorSpace:
    manifest, parts, alive_rows = index.manifest.of_vectors(name), [], []
    for number, (segment, alive) in enumerate(zip(index.segments, index.alive, strict=True)):
        if not name and segment.has_vectors:
            parts.append(SearchedSegment(number, segment, None))
            alive_rows.append(alive)
        elif name and (vectors := segment.named.get(name)) is not None:
            parts.append(SearchedSegment(number, vectors.segment, vectors))
            alive_rows.append(vectors.allowed(alive))
    return VectorSpace(
        name, OpenIndex(manifest, tuple(part.segment for part in parts), tuple(alive_rows)), tuple(parts)
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
        cold: by which vectors are read from the store when they are needed; None: they are in the cache.

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
    maps_before = reuse.maps if reuse else {}
    maps = {
        entry.key: maps_before[entry.key] if entry.key in maps_before else read_map(store, index, entry)
        for entry in manifest.vector_maps
    }
    return OpenIndex(manifest, segments, alive, whole, maps)


def _known_alive(index: OpenIndex) -> dict[tuple[str, ...], AllowedRows | None]:
    return {entry.keys: alive for entry, alive in zip(index.manifest.segments, index.alive, strict=True)}


def live_rows_of(store: Store, index: str, entry: SegmentEntry, segment: Segment) -> AllowedRows | None:
    """Return the live rows of an open segment, None if no row is deleted; errors as `open_index`."""
    mask_N = read_live_mask(store, index, entry)
    return None if mask_N is None else segment.allow(mask_N)

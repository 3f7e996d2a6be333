"""Open a version of an index: its manifest and all of its segments."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from scannery.indexer.cache import SegmentCache
from scannery.indexer.manifest import Manifest
from scannery.indexer.scann_config import SearchSettings
from scannery.indexer.segment import Segment, open_segment
from scannery.indexer.spec import IndexSpec
from scannery.indexer.store import Store
from scannery.indexer.versions import read_manifest

__all__ = ["OpenIndex", "open_index"]

_PARALLEL_OPENS = 4


@dataclass(frozen=True)
class OpenIndex:
    """One version of an index, open for search. Immutable; its memory goes with its last reference."""

    manifest: Manifest
    segments: tuple[Segment, ...]

    @property
    def spec(self) -> IndexSpec:
        """The spec that the version was built from."""
        return self.manifest.spec

    @property
    def dimensions(self) -> int:
        """Components of a vector."""
        return self.manifest.dimensions

    def settings_for(self, target_recall: float | None = None) -> tuple[SearchSettings | None, ...]:
        """Return the settings of each segment for a target recall, by default the one in the spec."""
        target = self.spec.target_recall if target_recall is None else target_recall
        return tuple(segment.settings_for(target) for segment in self.segments)


def open_index(
    store: Store,
    index: str,
    version: int | None = None,
    *,
    cache: SegmentCache | None = None,
    reuse: Sequence[Segment] = (),
) -> OpenIndex:
    """Return a version of an index, by default the current one, with every segment open.

    Segments of another version that this one also has can be given as `reuse` and are not opened again.

    Raises:
        NotFoundError: no such index or version, or a segment is missing.
        CorruptError, FormatError: a file cannot be read, or is not what the manifest says.

    """
    manifest = read_manifest(store, index, version)
    cache = cache or SegmentCache()
    opened = {segment.entry.sha256: segment for segment in reuse}
    missing = [entry for entry in manifest.segments if entry.sha256 not in opened]
    with ThreadPoolExecutor(_PARALLEL_OPENS) as pool:
        for segment in pool.map(lambda entry: open_segment(store, index, entry, cache), missing):
            opened[segment.entry.sha256] = segment
    return OpenIndex(manifest, tuple(opened[entry.sha256] for entry in manifest.segments))

"""What one query sees: an immutable version of an index with the mutations up to a sequence.

Shapes: D dimensions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from scannery.indexer import AllowedRows, Manifest, OpenIndex, Segment, VectorSpace, WordIndex
from scannery.indexer.datapoints.sparse import INDICES_COLUMN
from scannery.runtime.bounded_cache import BoundedCache
from scannery.runtime.errors import (
    EncoderUnavailableError,
    InvalidRequestError,
    PermissionDeniedError,
    UnknownDatapointError,
)
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.encoding.query_encoder import QueryEncoder
from scannery.serving.recall.controller import no_step
from scannery.serving.request.filter import Node, parse_filter
from scannery.serving.request.options import Options, parse_options
from scannery.serving.security.access import Seen
from scannery.serving.snapshot.filter_cache import FilterCache
from scannery.serving.snapshot.vector_checks import VectorChecks
from scannery.v1.search_pb2 import SearchOptions

__all__ = ["MAX_PARSED_BYTES", "ParsedOptions", "Snapshot", "filter_of", "readable"]


MadeT = TypeVar("MadeT")

MAX_PARSED = 256
"""Messages with options that a snapshot keeps, and messages without their filters."""
MAX_PLANS = 4 * MAX_PARSED
"""Plans that a snapshot keeps: options have one for each mode."""
MAX_PARSED_BYTES = 4096
"""Longer messages are parsed each time."""
MAX_PARTS_BYTES = 64 << 20
"""Memory of the parts of an index, seen by callers, that a snapshot keeps."""
PART_BYTES = 8 << 10
"""Memory of a part besides its rows: plans of searches, mostly."""


@dataclass(frozen=True, slots=True, eq=False)
class ParsedOptions:
    """The SearchOptions of a request, checked against one snapshot."""

    options: Options
    where: Node | None
    """The filter; None allows all rows."""
    derived: dict[int, Any] = field(default_factory=dict)
    """What `Snapshot.derived` made, by identity of the options of each mode."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A version of an index with the mutations since. Immutable: readers take no lock."""

    index: OpenIndex
    encoders: EncoderPool
    masks: FilterCache = field(default_factory=FilterCache)
    sequence: int = -1
    """Sequence of the last mutation in it; -1: that of the version."""
    vector_checks: VectorChecks = field(default_factory=VectorChecks)
    """Comparisons of vectors that callers give with those of the index."""
    recall_step: Callable[[], int] = no_step
    """Returns the steps by which target recalls are moved now, since live queries need that."""
    seen: Seen | None = None
    """The part of the index that this is; None: all of it."""
    whole_index: OpenIndex | None = None
    """All of the index; None: `index` is. No snapshot, which keeps its parts and must be freed with its last query."""
    _parsed: dict[tuple[int, bytes, bool], ParsedOptions] = field(default_factory=dict)
    """Options with filters, by recall step and serialised message: most requests repeat earlier ones."""
    _options: dict[tuple[int, bytes], Options] = field(default_factory=dict)
    """Options, by recall step and serialised message without its filter: most others repeat these."""
    _variants: dict[int, Options] = field(default_factory=dict)
    """The options that are kept, in each mode, by identity."""
    _plans: dict[int, tuple[Options, Any]] = field(default_factory=dict)
    """What `plan` made, by identity of the options: to compare options takes longer than to make it."""
    _encoders: dict[str, QueryEncoder] = field(default_factory=dict)
    """Encoders by the name of their vectors, after their first use: to find one in the pool takes longer than to find a
    vector in its cache."""
    _parts: BoundedCache[Seen, Snapshot] = field(default_factory=partial(BoundedCache, MAX_PARTS_BYTES))
    """Parts of it that callers see."""
    _later: list[Snapshot] = field(default_factory=list)
    """The same as it is seen at a later second, the latest that was asked for; at most one."""

    # Fields, since every request reads them several times.
    manifest: Manifest = field(init=False)
    """The manifest of the version."""
    segments: tuple[Segment, ...] = field(init=False)
    """The segments, open."""
    alive: tuple[AllowedRows | None, ...] = field(init=False)
    """Rows of each segment that are not deleted or expired; None: all of them."""
    until: int | None = field(init=False)
    """The second at which it looks different, since datapoints expire; None: datapoints of the index never do."""

    def __post_init__(self) -> None:
        for name in ("manifest", "segments", "alive"):
            object.__setattr__(self, name, getattr(self.index, name))
        object.__setattr__(self, "until", self._until())
        if self.sequence < 0:
            object.__setattr__(self, "sequence", self.manifest.log_sequence)

    def _until(self) -> int | None:
        if self.manifest.spec.live.expire is None:
            return None
        if not self.segments:  # other processes have the rows, and are asked for those of a second
            return self.index.second + 1
        second = self.index.next_expiry
        return sys.maxsize if second is None else second

    def at(self, second: int) -> Snapshot:
        """Return the same mutations as they are seen at a second since 1970: what has expired is not alive."""
        if self.until is None or self.index.second <= second < self.until:
            return self
        if self.seen is not None:
            return self.whole.at(second).as_seen(self.seen)
        for later in self._later:
            if later.index.second <= second < (later.until or 0):
                return later
        index = self.index.at(second)
        later = Snapshot(
            index, self.encoders, self.masks, self.sequence, self.vector_checks, self.recall_step,
            _encoders=self._encoders,
        )  # fmt: skip
        if not self._later or self._later[0].index.second < second:
            self._later[:] = [later]
        return later

    @property
    def whole(self) -> Snapshot:
        """All of the index at the same moment."""
        if self.whole_index is None:
            return self
        return Snapshot(
            self.whole_index, self.encoders, self.masks, self.sequence, recall_step=self.recall_step
        )

    def as_seen(self, seen: Seen | None) -> Snapshot:
        """Return what a caller sees: only rows that its filter allows are alive, and there are no other fields.

        So whatever reads a snapshot counts, scores and returns nothing of what the caller may not see.

        Raises:
            PermissionDeniedError: the filter does not fit the index, as its spec is now.

        """
        if seen == self.seen:
            return self
        whole = self.whole
        if seen is None:
            return whole
        part = whole._parts.find(seen)
        if part is None:
            part = whole._part(seen)
            rows_bytes = sum(rows.size_bytes for rows in part.alive if rows is not None)
            whole._parts.keep(seen, part, PART_BYTES + rows_bytes)
        return part

    def _part(self, seen: Seen) -> Snapshot:
        where, alive = filter_of(seen, self.manifest), self.alive
        if where is not None:
            pairs = zip(self.segments, alive, strict=True)
            alive = tuple(self.masks.allowed(segment, where, alive_rows) for segment, alive_rows in pairs)
        whole = self.index.whole
        index = OpenIndex(
            readable(self.manifest, seen),
            self.segments,
            alive,
            None if whole is None else readable(whole, seen),
            self.index.maps,
            self.index.second,
        )
        return Snapshot(
            index,
            self.encoders,
            self.masks,
            self.sequence,
            recall_step=self.recall_step,
            seen=seen,
            whole_index=self.index,
            # What options are parsed to depends on the spec alone.
            _options=self._options if seen.fields is None else {},
            _variants=self._variants if seen.fields is None else {},
            _encoders=self._encoders,
        )

    @property
    def words(self) -> WordIndex | None:
        """The words by which searches are weighed, of its rows or, if the caller shares these, of all rows.

        None: some segment has none.
        """
        index = self.index
        if self.seen is not None and self.seen.shares_statistics and self.whole_index is not None:
            index = self.whole_index
        return index.words

    @property
    def rows(self) -> int:
        """Datapoints."""
        return self.index.rows

    @property
    def dense_rows(self) -> int:
        """Datapoints with an unnamed vector: rows with and without one never share a segment."""
        pairs = zip(self.segments, self.alive, strict=True)
        return sum(
            segment.rows if alive is None else alive.count for segment, alive in pairs if segment.has_vectors
        )

    @property
    def sparse_rows(self) -> int:
        """Datapoints with a sparse vector."""
        count = 0
        for segment, alive in zip(self.segments, self.alive, strict=True):
            if INDICES_COLUMN in segment.table.column_names:
                has_N = segment.column(INDICES_COLUMN).is_valid().to_numpy()
                count += int((has_N if alive is None else has_N & alive.mask_N).sum())
        return count

    def space(self, name: str) -> VectorSpace:
        """Return the vectors of a name, which is empty for the unnamed vector; KeyError if there is no such name."""
        return self.index.space(name)

    def vector_of(self, name: str, number: int, row: int) -> np.ndarray | None:
        """Return the vector of a name of a row of a segment as it is searched, float32 (D,); None if it has none."""
        return self.space(name).vector_of(number, row)

    def searched_text(self, number: int, row: int) -> str:
        """Return the text of a row of a segment that is searched by words."""
        return self.segments[number].searched_texts([row])[0]

    def encoder(self, name: str = "") -> QueryEncoder:
        """Return the encoder of the vectors of a name, loaded; EncoderUnavailableError if it cannot be used."""
        encoder = self._encoders.get(name)
        if encoder is None:
            manifest = self.space(name).index.manifest
            if name and manifest.spec.encoder is None:
                raise EncoderUnavailableError(
                    f"vectors {name!r} of index {manifest.index!r} have no encoder; send a vector",
                    field="query",
                )
            encoder = self._encoders[name] = self.encoders.encoder_of(manifest)
        return encoder

    def loaded_encoder(self, name: str = "") -> QueryEncoder | None:
        """Return the encoder of the vectors of a name if it has been used."""
        return self._encoders.get(name)

    def known_vector(self, text: str, name: str = "") -> np.ndarray | None:
        """Return the vector of a text from the encoder's cache, float32 (D,); None if it is not there."""
        encoder = self._encoders.get(name)
        return None if encoder is None else encoder.cached_vector(text)

    def parsed(self, message: SearchOptions, *, joined: bool = False) -> ParsedOptions:
        """Return the options of a search, checked against this index; raises what the parsers of these raise.

        Args:
            message: the options.
            joined: as of `parse_filter`.

        """
        step, key = self.recall_step(), message.SerializeToString()
        parsed = self._parsed.get((step, key, joined))
        if parsed is None:
            parsed = self._parse(message, step, key, joined=joined)
            if len(key) <= MAX_PARSED_BYTES:
                if len(self._parsed) >= MAX_PARSED:
                    self._parsed.clear()
                self._parsed[step, key, joined] = parsed
        return parsed

    def cached(self, message: bytes) -> ParsedOptions | None:
        """Return the options of a serialised SearchOptions if they are kept; None otherwise."""
        return self._parsed.get((self.recall_step(), message, False))

    def _parse(self, message: SearchOptions, step: int, key: bytes, *, joined: bool) -> ParsedOptions:
        where = None
        if message.HasField("where"):
            unfiltered = SearchOptions()
            unfiltered.CopyFrom(message)
            unfiltered.ClearField("where")
            where, message = message.where, unfiltered
            key = message.SerializeToString()
        options = self._options.get((step, key))
        if options is None:
            options = self._parse_options(message, step, key)
        node = None if where is None else parse_filter(where, self.manifest.spec, joined=joined)
        return ParsedOptions(options, node)

    def _parse_options(self, message: SearchOptions, step: int, key: bytes) -> Options:
        has_words = all(segment.postings is not None for segment in self.segments)
        options = parse_options(message, self.manifest, has_words=has_words, maps=self.index.maps)
        options = options.raised(step, self.manifest.spec.target_recall)
        if len(key) <= MAX_PARSED_BYTES:
            if len(self._options) >= MAX_PARSED:
                for kept in (self._parsed, self._options, self._variants, self._plans):
                    kept.clear()
            self._options[step, key] = options
            self._variants.update({id(each): each for each in options.variants})
        return options

    def plan(self, options: Options, make: Callable[[Snapshot, Options], MadeT]) -> MadeT:
        """Return `make(self, options)`, kept for requests with the same options; `make` is always the same.

        For small values that depend on nothing else: the snapshot and the options are immutable.
        """
        kept = self._plans.get(id(options))
        if kept is not None and kept[0] is options:
            planned: MadeT = kept[1]
            return planned
        made = make(self, options)
        if self._variants.get(id(options)) is options:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[id(options)] = (options, made)
        return made

    def derived(
        self, parsed: ParsedOptions, options: Options, make: Callable[[Snapshot, Options, Node | None], MadeT]
    ) -> MadeT:
        """Return `make(self, options, parsed.where)`, kept as long as `parsed`; `make` is always the same.

        Args:
            parsed: the options of a request.
            options: of these, those of one mode.
            make: returns a small value that depends on nothing else.

        """
        made = parsed.derived.get(id(options))
        if made is None:
            made = parsed.derived[id(options)] = make(self, options, parsed.where)
        return made

    def find(self, identifier: str) -> tuple[int, int] | None:
        """Return the number of the segment and the row of a datapoint, or None."""
        for number, (segment, alive) in enumerate(zip(self.segments, self.alive, strict=True)):
            row = segment.row_of(identifier, alive)
            if row is not None:
                return number, row
        return None

    def require(self, identifier: str, *, path: str) -> tuple[int, int]:
        """Return what `find` does; UnknownDatapointError if there is no such datapoint."""
        location = self.find(identifier)
        if location is None:
            raise UnknownDatapointError.named(identifier, self.manifest.index, path)
        return location


def filter_of(seen: Seen, manifest: Manifest) -> Node | None:
    """Return the filter of credentials for an index; None: it allows all rows.

    Raises:
        PermissionDeniedError: the index has no such attribute, or it is of another type.

    """
    try:
        return parse_filter(seen.where, manifest.spec)
    except InvalidRequestError as error:
        raise PermissionDeniedError(
            f"the filter of these credentials is not one of index {manifest.index!r}: {error.message}"
        ) from error


def readable(manifest: Manifest, seen: Seen) -> Manifest:
    """Return a manifest without the attributes that a caller may not read."""
    if seen.fields is None:
        return manifest
    return manifest.model_copy(update={"spec": manifest.spec.readable(seen.fields)})

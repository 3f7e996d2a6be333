"""What one query sees: an immutable version of an index with some mutations, and what was derived from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from scannery.indexer import AllowedRows, Manifest, OpenIndex, Segment
from scannery.runtime.errors import UnknownDatapointError
from scannery.serving.encoding.query_encoder import EncoderPool, QueryEncoder
from scannery.serving.request.options import Options, parse_options
from scannery.serving.snapshot.filter_cache import FilterCache
from scannery.v1.search_pb2 import SearchOptions

__all__ = ["Snapshot"]

MadeT = TypeVar("MadeT")

MAX_PARSED = 256
MAX_PARSED_BYTES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A version of an index, and what was written since. Readers hold it as long as they need it, and take no lock."""

    index: OpenIndex
    encoders: EncoderPool
    masks: FilterCache = field(default_factory=FilterCache)
    sequence: int = -1
    """Mutations up to this one are in it; -1: those that the version holds."""
    _parsed: dict[bytes, Options] = field(default_factory=dict)
    """Options by their message: callers mostly send the same ones again."""
    _derived: dict[int, tuple[Options, dict[Any, Any]]] = field(default_factory=dict)
    """What was made for these very objects, by their identity: to compare options takes longer than to make it."""
    _encoder: list[QueryEncoder] = field(default_factory=list)
    """The one, when it was needed once: to find it takes longer than to find a vector in its cache."""

    def __post_init__(self) -> None:
        if self.sequence < 0:
            object.__setattr__(self, "sequence", self.manifest.log_sequence)

    @property
    def rows(self) -> int:
        """Datapoints."""
        pairs = zip(self.segments, self.alive, strict=True)
        return sum(segment.rows if alive is None else alive.count for segment, alive in pairs)

    @property
    def manifest(self) -> Manifest:
        """What the version consists of."""
        return self.index.manifest

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, open."""
        return self.index.segments

    @property
    def alive(self) -> tuple[AllowedRows | None, ...]:
        """For each segment the rows that are not deleted; None: all of them."""
        return self.index.alive

    @property
    def encoder(self) -> QueryEncoder:
        """The encoder of text queries, loaded if it was not; EncoderUnavailableError if it cannot be."""
        if not self._encoder:
            self._encoder.append(self.encoders.encoder_of(self.manifest))
        return self._encoder[0]

    def known_vector(self, text: str) -> np.ndarray | None:
        """Return the vector of a text that was asked lately, float32 (D,), without waiting for anything."""
        return self._encoder[0].known(text) if self._encoder else None

    def options(self, message: SearchOptions) -> Options:
        """Return the options of a search, checked against this index; raises what `parse_options` does."""
        key = message.SerializeToString()
        options = self._parsed.get(key)
        if options is None:
            options = parse_options(message, self.manifest)
            if len(self._parsed) >= MAX_PARSED:
                self._parsed.clear()
                self._derived.clear()
            if len(key) <= MAX_PARSED_BYTES:
                self._parsed[key] = options
                self._derived[id(options)] = (options, {})
        return options

    def known_options(self, message: SearchOptions) -> Options | None:
        """Return the options of a search that was asked before, and None of any other."""
        return self._parsed.get(message.SerializeToString())

    def derived(self, options: Options, make: Callable[[Snapshot, Options], MadeT]) -> MadeT:
        """Return `make(self, options)`, which is remembered for options that are asked with again.

        For small things that depend on nothing else: the snapshot and the options are immutable.
        """
        owner, known = self._derived.get(id(options), (None, None))
        if owner is not options or known is None:
            return make(self, options)
        made: MadeT | None = known.get(make)
        if made is None:
            made = known[make] = make(self, options)
        return made

    def find(self, identifier: str) -> tuple[int, int] | None:
        """Return the number of the segment and the row of a datapoint, or None."""
        for number, (segment, alive) in enumerate(zip(self.segments, self.alive, strict=True)):
            row = segment.row_of(identifier)
            if row is not None and (alive is None or alive.mask_N[row]):
                return number, row
        return None

    def require(self, identifier: str, *, path: str) -> tuple[int, int]:
        """Return where a datapoint is; UnknownDatapointError if it is nowhere."""
        found = self.find(identifier)
        if found is None:
            raise UnknownDatapointError(
                f"{path}: index {self.manifest.index!r} has no datapoint {identifier!r:.200}", field=path
            )
        return found

"""What one query sees: an immutable version of an index with some mutations, and what was derived from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from scannery.indexer import AllowedRows, Manifest, OpenIndex, Segment
from scannery.serving.encoding import EncoderPool, QueryEncoder
from scannery.serving.errors import UnknownDatapointError
from scannery.serving.masks import MaskCache

__all__ = ["Snapshot"]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A version of an index, and what was written since. Readers hold it as long as they need it, and take no lock."""

    index: OpenIndex
    encoders: EncoderPool
    masks: MaskCache = field(default_factory=MaskCache)
    sequence: int = -1
    """Mutations up to this one are in it; -1: those that the version holds."""

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
        return self.encoders.encoder_of(self.manifest)

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

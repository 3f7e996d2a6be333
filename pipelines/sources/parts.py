"""Types between sources and the pipeline: wanted fields, parts of files, and their records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from scannery.indexer.datapoints.schema import SPOKEN_COLUMN
from scannery.indexer.spec.spec import AttributeType, IndexSpec
from scannery.pipelines.dead_letters import DeadLetter, excerpt_of

__all__ = ["MAX_RECORD_BYTES", "SPAN", "DamagedError", "Fields", "Part", "Record"]

MAX_RECORD_BYTES = 64 * 2**20
"""A longer line is a dead letter, so that one record cannot exhaust a worker's memory."""


SPAN: Mapping[str, AttributeType] = MappingProxyType(
    {"text_start": "int", "text_end": "int", "time_start_s": "float", "time_end_s": "float"}
)
"""Fields of an exported datapoint that give the position of its text in its document."""


class DamagedError(Exception):
    """The bytes of a file end early or do not decode; the dead letter's reason is `damaged_file`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A file, or a slice of one, that one worker reads; small enough to be held in memory.

    Two parts with the same `identity` have the same records.
    """

    base: str
    """The folder that the input named: a local path or a URI."""

    path: str
    """The file relative to `base`, with `/`."""

    format: str
    """Name of the format, such as `jsonl` or `parquet`."""

    compression: str = ""
    """`gz`, `zst` or empty."""

    start: int = 0
    """First byte (lines, CSV; after decompression) or first row (Parquet, Avro)."""

    end: int | None = None
    """End of the part, exclusive; None: the end of the file, damage included."""

    first: int = 1
    """Line or row number of the first record, counted from 1."""

    records: int = 1
    """Approximate number of records: for estimates only."""

    size_bytes: int = 0
    """Uncompressed size of the part, estimated for formats with rows."""

    digest: str = ""
    """Hash of the content, or the object store's tag of the file."""

    companions: tuple[str, ...] = ()
    """Files of ids that belong to this one, relative to `base`: of its rows, or of deleted records."""

    companion_start: int = 0
    """First byte of the companion that belongs to this part (ids of rows)."""

    stamp: str = ""
    """`locations.stamp_of` the file when it was planned, by which later changes are noticed."""

    problem: str | None = None
    """Dead-letter reason why the file could not be opened for planning; `message` has the details."""

    message: str = ""
    """Details of the `problem`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "companions", tuple(self.companions))  # JSON gives a list back

    @property
    def source(self) -> str:
        """Path or URI of the file."""
        return f"{self.base.rstrip('/')}/{self.path}"

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that its records and dead letters depend on."""
        return (self.source, self.path, self.format, self.compression, self.start, self.end, self.first,
                self.digest, self.problem)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Fields:
    """The input fields that a spec needs; other columns are not read."""

    id: str
    """Field of the id."""

    vector: str | None
    """Field of the vector; None if texts are embedded."""

    names: frozenset[str]
    """All needed fields."""

    attributes: Mapping[str, AttributeType]
    """Attribute types by name."""

    sparse_vector: str | None = None
    """Field of the sparse vector, if the spec names one."""

    @classmethod
    def of(cls, spec: IndexSpec) -> Fields:
        """Return the fields that `spec` names in its source and its attributes."""
        source = spec.source
        named = {source.id, source.text, source.title, source.vector, source.document_id, source.payload,
                 source.sparse_vector}  # fmt: skip
        more: Iterable[str] = (*SPAN, SPOKEN_COLUMN) if source.format == "datapoints" else ()
        names = frozenset({name for name in named if name} | {*spec.attributes, *more})
        return cls(source.id, source.vector, names, spec.attributes, source.sparse_vector)


@dataclasses.dataclass(frozen=True)
class Record:
    """One record of a file, before any validation."""

    fields: Mapping[str, Any]
    """Values by field name."""

    source: str
    """Path or URI of the file."""

    line: int | None = None
    """Line of the record, from 1, in formats with lines."""

    row: int | None = None
    """Row of the record, from 1, in formats with rows."""

    ignored: tuple[str, ...] = ()
    """Namespaces of the record that the spec does not name (managed layout)."""

    def reject(
        self,
        reason: str,
        message: str,
        *,
        field: str | None = None,
        id: str | None = None,
        category: str | None = None,
    ) -> DeadLetter:
        """Return the dead letter for this record."""
        return DeadLetter(
            reason=reason, message=message, source=self.source, line=self.line, row=self.row, field=field,
            id=id, excerpt=excerpt_of(self.fields), category=category,
        )  # fmt: skip

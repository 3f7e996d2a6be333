"""What passes between sources and the pipeline: fields wanted, parts of files, and the records in them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.spec.spec import AttributeType, IndexSpec
from scannery.pipelines.dead_letters import DeadLetter, excerpt_of

__all__ = ["MAX_RECORD_BYTES", "DamagedError", "Fields", "NumberedColumns", "Part", "Record"]

MAX_RECORD_BYTES = 64 * 2**20
"""A longer line is a dead letter: one record must never decide how much memory a worker needs."""


class DamagedError(Exception):
    """The bytes of a file end early or do not decode; becomes a dead letter of reason `damaged_file`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A file, or a slice of one, that is read by one worker; small enough to be held in memory.

    Two parts with the same `identity` have the same records.
    """

    base: str
    """The folder that the input named: a local path or a URI."""

    path: str
    """The file relative to `base`, with `/`."""

    format: str
    compression: str = ""
    dialect: str = ""
    """How a file of CSV is written; of JSON its encoding, and whether its objects are in no list; of texts and HTML the
    encoding that the spec names; empty: as usual."""

    start: int = 0
    """First byte (lines, CSV; after decompression) or first row (Parquet, Avro)."""

    end: int | None = None
    """Where it ends, exclusive; None: at the end of the file, damage included."""

    first: int = 1
    """Line or row number of the first record, as people count."""

    records: int = 1
    """How many records it has, roughly: for estimates only."""

    size_bytes: int = 0
    digest: str = ""
    """Hash of its content, or the object store's tag of the file."""

    companions: tuple[str, ...] = ()
    """Files that say something about this one, relative to `base`: its ids, or the ids that are deleted."""

    companion_start: int = 0
    """First byte of a companion that belongs to this part (files of ids)."""

    fetch: tuple[str, ...] = ()
    """Hosts that files named by this one may be fetched from (feeds)."""

    stamp: str = ""
    """What the file looked like when it was planned (`locations.stamp_of`): tells whether it changed since."""

    problem: str | None = None
    """Why the file could not even be opened while planning: a dead-letter reason; `message` has the details."""

    message: str = ""

    def __post_init__(self) -> None:
        for name in ("companions", "fetch"):  # JSON gives a list back
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def source(self) -> str:
        """Path or URI of the file."""
        return f"{self.base.rstrip('/')}/{self.path}"

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that the records in it, and the dead letters about it, depend on."""
        return (self.source, self.path, self.format, self.compression, self.start, self.end, self.first,
                self.digest, self.problem, *([self.dialect] if self.dialect else []))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class NumberedColumns:
    """Columns with the numbers of a vector, one each, which a spec names together: `dim_*`."""

    field: str

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        before, _, behind = self.field.partition("*")
        return re.compile(f"{re.escape(before)}([0-9]{{1,6}}){re.escape(behind)}")

    def number(self, name: str) -> int | None:
        """Return the number in the name of such a column; None for another name."""
        match = self._pattern.fullmatch(name)
        return None if match is None else int(match[1])

    def of(self, names: Iterable[str]) -> dict[int, str]:
        """Return the names of such columns by their numbers."""
        return {number: name for name in names if (number := self.number(name)) is not None}


@dataclasses.dataclass(frozen=True)
class Fields:
    """The input fields that a spec needs, so that other columns are not read."""

    id: str
    vector: str | None
    names: frozenset[str]
    attributes: Mapping[str, AttributeType]
    sparse_vector: str | None = None
    dynamic: bool = False
    """Whether other fields are needed, too: they are attributes."""

    numbered: tuple[NumberedColumns, ...] = ()
    """Vectors of which each number has a column."""

    generated_id: Literal["row", "content"] | None = None
    """What ids are made from (SourceSpec.id)."""

    whole: bool = False
    """Whether all fields are needed."""

    @classmethod
    def of(cls, spec: IndexSpec) -> Fields:
        """Return the fields that `spec` names in its source and its attributes."""
        source, names = spec.source, FieldMapping.of(spec).names
        vectors = [source.vector, *(vectors.vector for vectors in spec.named_vectors.values())]
        numbered = tuple(
            NumberedColumns(name) for name in vectors if name is not None and name.count("*") == 1
        )
        generated = None if source.generated_id is None else source.generated_id.path
        return cls(
            source.id, source.vector, names, spec.attributes, source.sparse_vector, spec.dynamic, numbered,
            generated, whole=generated == "content",
        )  # fmt: skip

    def reads(self, name: str) -> bool:
        """Return whether a field of this name is needed."""
        is_named = self.whole or self.dynamic or name in self.names
        return is_named or any(columns.number(name) is not None for columns in self.numbered)


@dataclasses.dataclass(frozen=True)
class Record:
    """One record as the file has it, before any validation."""

    fields: Mapping[str, Any]
    source: str
    line: int | None = None
    row: int | None = None
    ignored: tuple[str, ...] = ()
    """What the record has and the spec does not name, where that is told (managed/)."""
    notes: tuple[str, ...] = ()
    """How it was read, where that could be wrong."""

    def with_fields(self, fields: Mapping[str, Any]) -> Record:
        """Return the record with other fields."""
        return dataclasses.replace(self, fields=fields)

    def reject(
        self,
        reason: str,
        message: str,
        *,
        field: str | None = None,
        id: str | None = None,
        category: str | None = None,
    ) -> DeadLetter:
        """Return the dead letter that says why this record is not indexed."""
        return DeadLetter(
            reason=reason, message=message, source=self.source, line=self.line, row=self.row, field=field,
            id=id, excerpt=excerpt_of(self.fields), category=category,
        )  # fmt: skip

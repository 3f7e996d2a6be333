"""Records of files for commands that write and ask: read as builds read them, each with its place."""

from __future__ import annotations

import dataclasses
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scannery.indexer import IndexSpec
    from scannery.pipelines.dead_letters import DeadLetter
    from scannery.pipelines.sources import Record

__all__ = ["STDIN", "FileRecord", "Places", "is_record_file", "read_records"]

STDIN = "-"
PART_BYTES = 32 << 20
"""Files are read in parts of about this size, each of which is in memory at once for some formats."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A record of a file, or why there is none."""

    file: str
    """As it was given, if it is in the working folder; with ", line" or ", row" where the number is one."""
    number: int
    """0: the whole file."""
    record: dict[str, Any] | None
    """None if it cannot be read."""
    problem: str = ""

    @property
    def place(self) -> str:
        """File and line or row, as messages name them."""
        return f"{self.file} {self.number}" if self.number else self.file


class Places:
    """The places of many records, in a few bytes each."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._file_of, self._number_of = array("I"), array("Q")

    def __len__(self) -> int:
        return len(self._number_of)

    def add(self, record: FileRecord) -> None:
        """Add the place of the next record."""
        self._file_of.append(self._files.setdefault(record.file, len(self._files)))
        self._number_of.append(record.number)

    def of(self, position: int) -> str:
        """Return the place of a record by its position among all, from 0."""
        return FileRecord(list(self._files)[self._file_of[position]], self._number_of[position], None).place


def read_records(files: Sequence[str], spec: IndexSpec, more: frozenset[str]) -> Iterator[FileRecord]:
    """Yield the records of files, in their order.

    Args:
        files: files, folders and patterns, as builds take them; `-` is standard input, as JSON lines.
        spec: of the index: how its sources are read.
        more: names of fields that are wanted besides those of the spec.

    Raises:
        InputNotFoundError, UnknownFormatError: there is no such file, or no reader of its format.

    """
    for file in files:
        if file == STDIN:
            yield from _read_stdin()
        else:
            yield from _read_file(file, spec, more)


def is_record_file(file: str) -> bool:
    """Return whether a file has records by its ending, and not one text per line."""
    from scannery.pipelines.sources import SUFFIXES

    suffixes = [suffix.lower() for suffix in Path(file).suffixes]
    kinds = {SUFFIXES.get(suffix) for suffix in suffixes[-2:]}
    return not kinds.isdisjoint({"jsonl", "csv", "tsv", "parquet", "arrow", "avro"})


def _read_file(file: str, spec: IndexSpec, more: frozenset[str]) -> Iterator[FileRecord]:
    from scannery.pipelines.sources import Fields, Record, arrange, find_files, read_part, split_file

    if spec.source.format != "auto":
        # The layouts of exports and of the managed service are those of builds; single files are read by their ending.
        spec = spec.model_copy(update={"source": spec.source.model_copy(update={"format": "auto"})})
    fields = Fields.of(spec)
    fields = dataclasses.replace(fields, names=fields.names | more)
    for found in arrange(find_files([file]), spec.source, fields):
        for part in split_file(found, PART_BYTES):
            for item in read_part(part, fields):
                yield _found(item) if isinstance(item, Record) else _failed(item)


def _read_stdin() -> Iterator[FileRecord]:
    from scannery.pipelines.sources import Record
    from scannery.pipelines.sources.lines import json_record

    for number, line in enumerate(sys.stdin, 1):
        if line.strip():
            item = json_record(line.encode("utf-8", "surrogateescape"), "standard input", number)
            yield _found(item) if isinstance(item, Record) else _failed(item)


def _found(record: Record) -> FileRecord:
    return FileRecord(*_place(record), dict(record.fields))


def _failed(letter: DeadLetter) -> FileRecord:
    return FileRecord(*_place(letter), None, letter.message)


def _place(item: Record | DeadLetter) -> tuple[str, int]:
    name = item.source.removeprefix(f"{Path.cwd().as_posix()}/")
    if item.line is not None:
        return f"{name}, line", item.line
    return (name, 0) if item.row is None else (f"{name}, row", item.row)

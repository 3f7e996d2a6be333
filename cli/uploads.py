"""Records and queries of files: read as builds read them, written to an index or asked, each with its place."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scannery.cli.errors import PARTIAL
from scannery.cli.output import hits_json, json_text
from scannery.client import (
    Index,
    InvalidArgumentError,
    PermissionDeniedError,
    QueryLike,
    ScanneryError,
    SearchOptions,
)
from scannery.client.errors import DeadlineExceededError, InternalError, UnavailableError
from scannery.client.request.named_vectors import with_vectors
from scannery.client.request.records import RecordReader
from scannery.client.request.writes import DATAPOINT_KEYS, RefusedRecord

if TYPE_CHECKING:
    from scannery.indexer import IndexSpec
    from scannery.pipelines.dead_letters import DeadLetter
    from scannery.pipelines.sources import Record

__all__ = [
    "STDIN",
    "Failure",
    "PointReader",
    "RecordPositions",
    "Upload",
    "answer_queries",
    "identifiers",
    "is_record_file",
]


STDIN = "-"
PART_BYTES = 32 << 20
"""Files are read in parts of about this size, each of which is in memory at once for some formats."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A record of a file, or why there is none."""

    file: str
    """Path as it was given, if it is in the working folder; with ", line" or ", row" where the number is one."""
    number: int
    """0: the whole file."""
    record: dict[str, Any] | None
    """None if it cannot be read."""
    problem: str = ""

    @property
    def location(self) -> str:
        """File and line or row, as messages name them."""
        return f"{self.file} {self.number}" if self.number else self.file


class RecordPositions:
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
        return FileRecord(
            list(self._files)[self._file_of[position]], self._number_of[position], None
        ).location


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
    for arranged in arrange(find_files([file]), spec.source, fields):
        for part in split_file(arranged, PART_BYTES):
            for item in read_part(part, fields):
                yield _file_record(item) if isinstance(item, Record) else _failed(item)


def _read_stdin() -> Iterator[FileRecord]:
    from scannery.pipelines.sources import Record
    from scannery.pipelines.sources.lines import json_record

    for number, line in enumerate(sys.stdin, 1):
        if line.strip():
            item = json_record(line.encode("utf-8", "surrogateescape"), "standard input", number)
            yield _file_record(item) if isinstance(item, Record) else _failed(item)


def _file_record(record: Record) -> FileRecord:
    return FileRecord(*_source(record), dict(record.fields))


def _failed(letter: DeadLetter) -> FileRecord:
    return FileRecord(*_source(letter), None, letter.message)


def _source(item: Record | DeadLetter) -> tuple[str, int]:
    name = item.source.removeprefix(f"{Path.cwd().as_posix()}/")
    if item.line is not None:
        return f"{name}, line", item.line
    return (name, 0) if item.row is None else (f"{name}, row", item.row)


IN_FLIGHT = 4
_OF_SERVER = (UnavailableError, DeadlineExceededError, InternalError)
_PREFIX = re.compile(r"upserts\[([0-9]+)\](\.datapoint)?[.:]? ?")


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that was not written."""

    location: str
    id: str
    problem: str


@dataclass(frozen=True, slots=True)
class UploadReport:
    """What a command wrote."""

    datapoints: int
    """Records."""
    written: int
    """Rows: passages, where texts are cut."""
    sequence: int
    failures: Sequence[Failure] = ()
    ignored: Sequence[str] = ()
    """Fields that the index has no place for."""
    warnings: Sequence[str] = ()
    """What may be wrong with what was written."""

    def exceeds(self, limit: float) -> bool:
        """Return whether more records were refused than a limit allows (scannery.indexer.spec.source_spec)."""
        from scannery.indexer.spec.source_spec import exceeds_limit

        refused = len(self.failures)
        return exceeds_limit(refused, self.datapoints + refused, limit)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        refused = [
            {"place": failure.location, "id": failure.id, "error": failure.problem}
            for failure in self.failures
        ]
        return {
            "datapoints": self.datapoints,
            "written": self.written,
            "sequence": self.sequence,
            **({"refused": refused} if refused else {}),
            **({"ignored": list(self.ignored)} if self.ignored else {}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }


class PointReader:
    """Reads files as datapoints of an index.

    Args:
        spec: of the index; None: it may not be read, and records must be datapoints.

    """

    def __init__(self, spec: Mapping[str, Any] | None) -> None:
        self._spec = _parsed_spec(spec)
        self._reader = None if spec is None else RecordReader(spec, extra="ignore")

    @property
    def ignored(self) -> list[str]:
        """Fields of the records so far that the index has no place for."""
        return [] if self._reader is None else sorted(self._reader.ignored)

    def read(self, files: Sequence[str]) -> Iterator[tuple[FileRecord, Any]]:
        """Yield each record with its datapoint, or the RefusedRecord in its place; `files` as of `read_records`."""
        columns = {f"vectors.{name}" for name in self._spec.named_vectors}
        names = DATAPOINT_KEYS | _EXPORTED | columns | self._spec.attributes.keys()
        for record in read_records(files, self._spec, names):
            yield record, self._point(record)

    def _point(self, record: FileRecord) -> Any:
        if record.record is None:
            return RefusedRecord("", record.problem)
        fields = with_vectors(record.record)
        if self._reader is None:
            return fields
        point = self._reader.datapoint(fields)
        return _read_html(point) if self._spec.source.text_format == "html" else point


class Upload:
    """Records of files on their way to an index.

    Args:
        index: takes them.
        files: as `read_records` takes them.
        batch: records in one call.
        report: told how many records are done.
        vector_model: that made given vectors; None: not known.

    """

    def __init__(
        self,
        index: Index,
        files: Sequence[str],
        batch: int,
        report: Callable[[int], object],
        *,
        vector_model: str | None = None,
    ) -> None:
        self._index, self._files, self._batch = index, files, batch
        self._report, self._vector_model = report, vector_model
        self._positions = RecordPositions()
        self._done = 0
        self._reader = PointReader(_spec_of(index))

    def upsert(self, *, skips: bool) -> UploadReport:
        """Insert or replace.

        Args:
            skips: write the others where some are refused; else the first refused one ends it.

        Raises:
            ScanneryError: a record is refused, and the message names its place; or the server failed, with or
                without `skips`.

        """
        try:
            done = self._index.upsert_many(
                self._points(),
                batch_size=self._batch,
                # One after the other, so that what was written before an error is the beginning of the input.
                in_flight=IN_FLIGHT if skips else 1,
                errors="return" if skips else "raise",
                vector_model=self._vector_model,
                progress=self._note,
            )
        except ScanneryError as error:
            raise self._explained(error) from error
        for outcome in done.failed:
            if isinstance(outcome.error, _OF_SERVER):  # the record is not the cause: it may be written later
                typer.echo(f"{done.written:,} rows were written", err=True)
                raise outcome.error
        failures = [
            Failure(self._positions.of(outcome.position), outcome.id, _problem(outcome.error))
            for outcome in done.failed
        ]
        count = len(self._positions) - len(failures)
        return UploadReport(count, done.written, done.sequence, failures, self._reader.ignored, done.warnings)

    def update(self) -> UploadReport:
        """Change fields of existing datapoints; raises as `upsert`."""
        points, count, sequence = self._points(), 0, 0
        while part := list(itertools.islice(points, self._batch)):
            try:
                done = self._index.update(part, vector_model=self._vector_model)
            except ScanneryError as error:
                raise self._explained(error, first=len(self._positions) - len(part)) from error
            count, sequence = count + done.written, done.sequence
            self._note(self._done + len(part))
        return UploadReport(self._done, count, sequence, (), self._reader.ignored)

    def _points(self) -> Iterator[Any]:
        for record, point in self._reader.read(self._files):
            self._positions.add(record)
            yield point

    def _note(self, done: int) -> None:
        self._done = done
        self._report(done)

    def _explained(self, error: ScanneryError, first: int = 0) -> ScanneryError:
        """Return an error with the place of its record."""
        match = _PREFIX.match(error.field or "") or _PREFIX.match(error.message)
        typer.echo(f"{self._done:,} datapoints were written", err=True)
        if match is None:
            return error
        location = self._positions.of(first + int(match[1]))
        return type(error)(
            f"{location}: {_problem(error)}", field=error.field, retry_after_s=error.retry_after_s
        )


def identifiers(index: Index, file: str) -> list[Any]:
    """Return the ids of the records of a file: by the spec of the index, or called `id`.

    Raises:
        InvalidArgumentError: a record cannot be read or has none.

    """
    from scannery.indexer.datapoints.field_mapping import FieldMapping

    spec = _parsed_spec(_spec_of(index))
    field = FieldMapping.of(spec).fields["id"]
    identifiers = []
    for record in read_records([file], spec, frozenset({"id"})):
        fields = record.record or {}
        value = field.value(fields)
        identifier = fields.get("id") if value is None else value
        if record.record is None or identifier is None:
            raise InvalidArgumentError(f"{record.location}: {record.problem or 'has no id'}")
        identifiers.append(identifier)
    return identifiers


def _parsed_spec(spec: Mapping[str, Any] | None) -> IndexSpec:
    from scannery.indexer import parse_spec

    source = {"id": "id", "text": "text", "vector": "vector"}
    return parse_spec({"index": "unknown", "source": source} if spec is None else spec)


_EXPORTED = frozenset({"embedding", "sparse", "_spoken"})


def _read_html(point: Any) -> Any:
    """Return a datapoint with its text and title read as HTML, as a build reads them."""
    from scannery.indexer.errors import InvalidRecordError
    from scannery.pipelines.sources.documents.html_pages import readable

    try:
        return readable(point) if isinstance(point, dict) else point
    except InvalidRecordError as error:
        return RefusedRecord(str(point.get("id", "")), error.message)


def _problem(error: ScanneryError) -> str:
    return _PREFIX.sub("", error.message, count=1)


def _spec_of(index: Index) -> Mapping[str, Any] | None:
    """Return the spec of an index; None where it may not be read."""
    try:
        return index.stats().spec
    except PermissionDeniedError:  # a key that can only write: datapoints need no spec
        return None


def answer_queries(index: Index, file: str, k: int, options: SearchOptions) -> None:
    """Print the hits of each query of a file; one that is refused has an error in the place of hits.

    Args:
        index: is asked.
        file: as `query_records` (scannery.pipelines.sources.query_files) takes it.
        k: hits of each query.
        options: of the searches.

    Raises:
        InputNotFoundError, CollectionError: the file cannot be read, or a record of it is no query.
        Exit: with code 7, if some query was refused.

    """
    ids: list[str] = []
    answered = failed = 0
    for answer in index.search_each(_queries(file, ids), k, errors="return", **options):
        line: dict[str, Any] = {"id": ids[answered]}
        if isinstance(answer, ScanneryError):
            failed += 1
            line["error"] = answer.message
        else:
            line |= {"version": answer.version, **hits_json(answer)}
        typer.echo(json_text(line))
        answered += 1
    if failed:
        typer.echo(f"{failed:,} of {answered:,} queries failed", err=True)
        raise typer.Exit(PARTIAL)


def _queries(file: str, ids: list[str]) -> Iterator[QueryLike]:
    """Yield the queries of a file, and append their ids: a query without one has its number."""
    from scannery.pipelines.sources.query_files import query_records

    for number, record in enumerate(query_records(file), 1):
        ids.append(str(number) if record.id is None else record.id)
        yield record.query.text or "" if record.query.vector is None else record.query.vector

"""Writes the records of files to an index; what is refused is told by its place in the files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from scannery.cli.records import FileRecord, Places, read_records
from scannery.client import Index, InvalidArgumentError, PermissionDeniedError, ScanneryError
from scannery.client.errors import (
    DeadlineExceededError,
    InternalError,
    UnavailableError,
)
from scannery.client.request.named_vectors import with_vectors
from scannery.client.request.records import RecordReader
from scannery.client.request.writes import DATAPOINT_KEYS, Refused

if TYPE_CHECKING:
    from scannery.indexer import IndexSpec

__all__ = ["Failure", "Upload", "Uploaded", "identifiers"]

IN_FLIGHT = 4
_OF_SERVER = (UnavailableError, DeadlineExceededError, InternalError)
_PLACE = re.compile(r"upserts\[([0-9]+)\](\.datapoint)?[.:]? ?")


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that was not written."""

    place: str
    id: str
    problem: str


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What a command wrote."""

    datapoints: int
    """Records."""
    written: int
    """Rows: passages, where texts are cut."""
    sequence: int
    failures: Sequence[Failure] = ()
    ignored: Sequence[str] = ()
    """Fields that the index has no place for."""

    def exceeds(self, limit: float) -> bool:
        """Return whether more records were refused than a limit allows (scannery.indexer.spec.error_limit)."""
        from scannery.indexer.spec.error_limit import exceeds_limit

        refused = len(self.failures)
        return exceeds_limit(refused, self.datapoints + refused, limit)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        refused = [{"place": one.place, "id": one.id, "error": one.problem} for one in self.failures]
        return {
            "datapoints": self.datapoints,
            "written": self.written,
            "sequence": self.sequence,
            **({"refused": refused} if refused else {}),
            **({"ignored": list(self.ignored)} if self.ignored else {}),
        }


class Upload:
    """Records of files on their way to an index.

    Args:
        index: takes them.
        files: as `read_records` takes them.
        batch: records in one call.
        report: told how many records are done.

    """

    def __init__(
        self, index: Index, files: Sequence[str], batch: int, report: Callable[[int], object]
    ) -> None:
        self._index, self._files, self._batch = index, files, batch
        self._report = report
        self._places = Places()
        self._done = 0
        self._reader, self._spec = _reader_of(index)

    def upsert(self, *, skips: bool) -> Uploaded:
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
                progress=self._note,
            )
        except ScanneryError as error:
            raise self._explained(error) from error
        for one in done.failed:
            if isinstance(one.error, _OF_SERVER):  # the record is not the cause: it may be written later
                typer.echo(f"{done.written:,} rows were written", err=True)
                raise one.error
        failures = [
            Failure(self._places.of(one.position), one.id, _problem(one.error)) for one in done.failed
        ]
        count = len(self._places) - len(failures)
        return Uploaded(count, done.written, done.sequence, failures, self._ignored())

    def update(self) -> Uploaded:
        """Change fields of existing datapoints; raises as `upsert`."""
        points, written, sequence = self._points(), 0, 0
        while part := list(itertools.islice(points, self._batch)):
            try:
                done = self._index.update(part)
            except ScanneryError as error:
                raise self._explained(error, first=len(self._places) - len(part)) from error
            written, sequence = written + done.written, done.sequence
            self._note(self._done + len(part))
        return Uploaded(self._done, written, sequence, (), self._ignored())

    def _points(self) -> Iterator[Any]:
        columns = {f"vectors.{name}" for name in self._spec.named_vectors}
        names = DATAPOINT_KEYS | _EXPORTED | columns | self._spec.attributes.keys()
        for record in read_records(self._files, self._spec, names):
            self._places.add(record)
            yield self._point(record)

    def _point(self, record: FileRecord) -> Any:
        if record.record is None:
            return Refused("", record.problem)
        fields = with_vectors(record.record)
        if self._reader is None:
            return fields
        point = self._reader.datapoint(fields)
        return _read_html(point) if self._spec.source.text_format == "html" else point

    def _note(self, done: int) -> None:
        self._done = done
        self._report(done)

    def _ignored(self) -> list[str]:
        return [] if self._reader is None else sorted(self._reader.ignored)

    def _explained(self, error: ScanneryError, first: int = 0) -> ScanneryError:
        """Return an error with the place of its record."""
        found = _PLACE.match(error.field or "") or _PLACE.match(error.message)
        typer.echo(f"{self._done:,} datapoints were written", err=True)
        if found is None:
            return error
        place = self._places.of(first + int(found[1]))
        return type(error)(
            f"{place}: {_problem(error)}", field=error.field, retry_after_s=error.retry_after_s
        )


def identifiers(index: Index, file: str) -> list[Any]:
    """Return the ids of the records of a file: by the spec of the index, or called `id`.

    Raises:
        InvalidArgumentError: a record cannot be read or has none.

    """
    from scannery.indexer.datapoints.field_mapping import FieldMapping

    _, spec = _reader_of(index)
    own = FieldMapping.of(spec).fields["id"]
    found = []
    for record in read_records([file], spec, frozenset({"id"})):
        fields = record.record or {}
        value = own.value(fields)
        identifier = fields.get("id") if value is None else value
        if record.record is None or identifier is None:
            raise InvalidArgumentError(f"{record.place}: {record.problem or 'has no id'}")
        found.append(identifier)
    return found


_EXPORTED = frozenset({"embedding", "sparse", "_spoken"})


def _read_html(point: Any) -> Any:
    """Return a datapoint with its text and title read as HTML, as a build reads them."""
    from scannery.indexer.errors import InvalidRecordError
    from scannery.pipelines.sources.documents.html_fields import readable

    try:
        return readable(point) if isinstance(point, dict) else point
    except InvalidRecordError as error:
        return Refused(str(point.get("id", "")), error.message)


def _problem(error: ScanneryError) -> str:
    return _PLACE.sub("", error.message, count=1)


def _reader_of(index: Index) -> tuple[RecordReader | None, IndexSpec]:
    """Return what reads records by the spec of an index, and the spec; without it where it may not be read."""
    from scannery.indexer import parse_spec

    try:
        spec = index.stats().spec
    except PermissionDeniedError:  # a key that can only write: datapoints need no spec
        source = {"id": "id", "text": "text", "vector": "vector"}
        return None, parse_spec({"index": "unknown", "source": source})
    return RecordReader(spec, extra="ignore"), parse_spec(spec)

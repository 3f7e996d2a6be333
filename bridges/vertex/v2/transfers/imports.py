"""Imports: folders of JSON lines, written into a collection in batches.

A line that cannot be written is listed in a file of errors, and the others are written. An import that ends early, say
because its server stops, can be repeated as a whole: lines replace data objects with the same id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from google.protobuf.timestamp_pb2 import Timestamp
from grpc import StatusCode

from scannery.bridges.vertex.shared.calls import Call
from scannery.bridges.vertex.shared.context import patiently
from scannery.bridges.vertex.shared.line_files import LineFiles, check_still_below
from scannery.bridges.vertex.shared.names import new_id
from scannery.bridges.vertex.shared.operations import Progress
from scannery.bridges.vertex.v2.collections import Collection, Collections
from scannery.bridges.vertex.v2.data_objects.messages import StoredObject, etag_of_revision
from scannery.bridges.vertex.v2.data_objects.store import Objects
from scannery.bridges.vertex.v2.resource_names import CollectionName
from scannery.bridges.vertex.v2.transfers.lines import Line, parsed_line
from scannery.indexer import InvalidRecordError
from scannery.indexer.contents import ContentsReader, ContentsRecord
from scannery.indexer.local.files import scratch_folder
from scannery.runtime.errors import ConditionError, InvalidRequestError
from scannery.serving.bridging import Deadline
from scannery.v1 import index_pb2
from scannery.vertex.v2 import collections_pb2 as pb

__all__ = ["BATCH_ROWS", "ImportPlaces", "Importer"]

BATCH_ROWS = 500
BATCH_BYTES = 8 << 20
"""A batch of this size takes no further lines."""
MAX_ERROR_BYTES = 1 << 30
"""An import with more refused lines ends: a small compressed file can have billions of them."""
_FIELDS = {"contents": "contents_uri", "errors": "error_uri", "output": "output_uri"}
_NUMBER = re.compile(r"lines\[(\d+)\]\.(?:data_object\.)?")


@dataclass(frozen=True, slots=True)
class ImportPlaces:
    """Folders or bucket prefixes that were checked."""

    contents: str
    errors: str
    output: str
    """Folder for the ids and etags that were written; empty: none are kept."""
    roots: tuple[str, ...]
    """Folders of the operator, which all of them are below."""

    def check(self, name: str) -> None:
        """Raise InvalidRequestError if a folder, `contents`, `errors` or `output`, became a link meanwhile."""
        if location := getattr(self, name):
            check_still_below(location, self.roots, f"gcs_import.{_FIELDS[name]}")


class Importer:
    """Writes folders into collections. Safe to use from several threads."""

    def __init__(self, reader: ContentsReader, collections: Collections, objects: Objects) -> None:
        """Use the parts of a server.

        Args:
            reader: of JSON lines.
            collections: to write to.
            objects: writes data objects.

        """
        self._reader, self._collections, self._objects = reader, collections, objects

    def run(
        self, name: CollectionName, folders: ImportPlaces, api: str, report: Progress
    ) -> pb.ImportDataObjectsResponse:
        """Write a folder into a collection.

        Args:
            name: of the collection.
            folders: where the lines are, and where the results go.
            api: package of the API that was called.
            report: called with the counts after each batch.

        Raises:
            InvalidRequestError: the folder has no lines that can be read.
            UnknownResourceError: the collection is gone.

        """
        id = new_id()
        with (
            scratch_folder("import") as folder,
            LineFiles(folder, f"import-errors-{id}") as errors,
            LineFiles(folder, f"imported-{id}") as output,
        ):
            run = _Import(self._collections, self._objects, name, api, errors, output, report)
            folders.check("contents")  # other operations may have come first
            try:
                run.write(self._reader(folders.contents))
            except InvalidRecordError as error:
                raise InvalidRequestError(f"{error.field}: {error.message}", field=error.field) from error
            return run.ended(folders)


class _Import:
    """One import."""

    def __init__(
        self,
        collections: Collections,
        objects: Objects,
        name: CollectionName,
        api: str,
        errors: LineFiles,
        output: LineFiles,
        report: Progress,
    ) -> None:
        self._collections, self._objects, self._name = collections, objects, name
        self._api, self._errors, self._output, self._report = api, errors, output, report
        self._began = _now()

    def write(self, records: Iterator[ContentsRecord]) -> None:
        """Write the lines of all files."""
        collection, batch, size_bytes = self._collection(), dict[str, Line](), 0
        for record in records:
            line = self._parsed(record, collection)
            if line is None:
                continue
            if line.object.id in batch or len(batch) == BATCH_ROWS or size_bytes >= BATCH_BYTES:
                self._write_batch(collection, list(batch.values()))
                collection, batch, size_bytes = self._collection(), {}, 0
            batch[line.object.id] = line
            size_bytes += line.size_bytes
        self._write_batch(collection, list(batch.values()))

    def ended(self, folders: ImportPlaces) -> pb.ImportDataObjectsResponse:
        """Write the files of results, and return what is said of the import."""
        folders.check("errors")
        folders.check("output")
        files = self._errors.publish(folders.errors)
        if folders.output:
            self._output.publish(folders.output)
        response = pb.ImportDataObjectsResponse()
        if self._errors.lines:
            response.status.code = StatusCode.INVALID_ARGUMENT.value[0]
            lines = self._errors.lines + self._output.lines
            refused = f"{self._errors.lines} of {lines} lines were refused"
            response.status.message = f"{refused}; {', '.join(files)} in error_uri has them"
        else:
            response.status.SetInParent()
        return response

    def _collection(self) -> Collection:
        return self._collections.get(self._name, "name", recent=True)

    def _parsed(self, record: ContentsRecord, collection: Collection) -> Line | None:
        """Return the line of a record; None if it is refused."""
        if record.fields is None:
            self._refuse(record.source, record.id, record.problem, record=record.excerpt)
            return None
        try:
            return parsed_line(record.fields, collection, record.source)
        except InvalidRequestError as error:
            self._refuse(record.source, f"{record.fields.get('id', '')!s:.512}", error.message)
            return None

    def _refuse(
        self,
        source: str,
        id: str,
        message: str,
        *,
        code: StatusCode = StatusCode.INVALID_ARGUMENT,
        record: str = "",
    ) -> None:
        status = {"code": code.value[0], "message": message}
        self._errors.add(
            {"id": id, "source": source, "status": status, **({"record": record} if record else {})}
        )
        if self._errors.size_bytes > MAX_ERROR_BYTES:
            raise InvalidRequestError.at(
                "gcs_import.contents_uri",
                f"has too many wrong lines: {self._errors.lines} until {source}; the last one: {message}",
            )

    def _write_batch(self, collection: Collection, lines: Sequence[Line]) -> None:
        self._write_lines(collection, lines)
        metadata = pb.ImportDataObjectsMetadata(
            create_time=self._began,
            update_time=_now(),
            success_count=self._output.lines,
            failure_count=self._errors.lines,
        )
        self._report(metadata)

    def _write_lines(self, collection: Collection, lines: Sequence[Line]) -> None:
        """Write lines with distinct ids; those that are refused do not keep the others from being written."""
        while lines:
            lines, conditions = self._with_conditions(collection, lines)
            try:
                self._put(collection, lines, conditions)
            except ConditionError:
                continue  # compare etags again: what others have written since has another one
            except InvalidRequestError as error:
                lines = self._without_refused(collection, lines, error)
            else:
                return

    def _with_conditions(
        self, collection: Collection, lines: Sequence[Line]
    ) -> tuple[list[Line], list[index_pb2.WriteCondition | None]]:
        """Return the lines that may be written, and on which condition; those with a stale etag are refused."""
        named = [line.object.id for line in lines if line.etag]
        revisions = patiently(partial(self._revisions, collection, named)) if named else {}
        kept, conditions = list[Line](), list[index_pb2.WriteCondition | None]()
        for line in lines:
            revision = revisions.get(line.object.id)
            if line.etag and revision is not None and line.etag != etag_of_revision(revision):
                message = (
                    f"etag: the data object has etag {etag_of_revision(revision)!r}, got {line.etag!r:.80}"
                )
                self._refuse(line.source, line.object.id, message, code=StatusCode.ABORTED)
                continue
            kept.append(line)
            conditions.append(_condition(line, revision))
        return kept, conditions

    def _revisions(
        self, collection: Collection, identifiers: Sequence[str], deadline: Deadline
    ) -> dict[str, int]:
        return self._objects.revisions(collection, identifiers, Call(self._api, deadline))

    def _put(
        self,
        collection: Collection,
        lines: Sequence[Line],
        conditions: Sequence[index_pb2.WriteCondition | None],
    ) -> None:
        objects = [replace(line.object, path=f"lines[{number}].") for number, line in enumerate(lines)]

        def put(deadline: Deadline) -> list[StoredObject]:
            return self._objects.put(collection, objects, conditions, Call(self._api, deadline))

        for each in patiently(put) if objects else ():
            self._output.add({"id": each.id, "etag": each.etag})

    def _without_refused(
        self, collection: Collection, lines: Sequence[Line], error: InvalidRequestError
    ) -> Sequence[Line]:
        """Return the lines that are still to be written after one, or the batch as a whole, was refused."""
        match = _NUMBER.match(error.message)
        number = int(match[1]) if match else 0
        if match or len(lines) == 1:
            line = lines[number]
            self._refuse(line.source, line.object.id, _NUMBER.sub("", error.message))
            return [*lines[:number], *lines[number + 1 :]]
        half = len(lines) // 2
        self._write_lines(collection, lines[:half])
        return lines[half:]


def _condition(line: Line, revision: int | None) -> index_pb2.WriteCondition | None:
    """Return the condition of a line: with an etag it replaces only the data object that has it, if there is one."""
    if not line.etag:
        return None
    if revision is None:
        return index_pb2.WriteCondition(if_absent=True)
    return index_pb2.WriteCondition(if_revision=revision)


def _now() -> Timestamp:
    now = Timestamp()
    now.GetCurrentTime()
    return now

"""Folders in the managed layout, record by record, for a server that writes them into an index (managed.py)."""

from __future__ import annotations

from collections.abc import Iterator

from scannery.indexer.contents import ContentsRecord
from scannery.indexer.errors import InvalidRecordError
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.errors import InputNotFoundError, UnknownFormatError
from scannery.pipelines.sources import managed
from scannery.pipelines.sources.locations import InputFile, find_files
from scannery.pipelines.sources.managed_records import with_category
from scannery.pipelines.sources.parts import DamagedError, Record

__all__ = ["read_contents"]

PART_BYTES = 64 << 20
"""Bytes that are cut into one part."""


def read_contents(uri: str) -> Iterator[ContentsRecord]:
    """Yield the records of a folder in the managed layout, and the ids in its `delete/`.

    Records are as the files have them: only their syntax is checked. An id that is to be deleted and has a record,
    too, is given with a problem. Links that leave the folder are not followed.

    Args:
        uri: the folder, local or in an object store.

    Raises:
        InvalidRecordError: there is no such folder, or it has files of another layout.

    """
    try:
        files = managed.arrange(find_files([uri]))
    except (InputNotFoundError, UnknownFormatError) as error:
        raise InvalidRecordError(str(error), reason="source", field="contentsDeltaUri") from error
    deleted = {id for file in files for id in managed.deletes_of(file)}
    for file in files:
        yield from _read(file, deleted)


def _read(file: InputFile, deleted: set[str]) -> Iterator[ContentsRecord]:
    found = managed.format_of(file.path)
    if file.problem or found is None:
        yield ContentsRecord(source=file.source, problem=file.problem, category="PARSING_ERROR")
        return
    format, compression = found
    try:
        for part in managed.split(file, format, compression, PART_BYTES):
            for item in managed.raw_records(part):
                yield _problem(item) if isinstance(item, DeadLetter) else _record(item, format, deleted)
    except (DamagedError, OSError) as error:
        what = str(error) if isinstance(error, DamagedError) else error.strerror or "cannot be read"
        yield ContentsRecord(source=file.source, problem=what, category="PARSING_ERROR")


def _record(item: Record, format: str, deleted: set[str]) -> ContentsRecord:
    id = item.fields.get("id")
    if format == "managed-delete":
        return ContentsRecord(source=item.source, deleted_id=str(id))
    if isinstance(id, str) and id in deleted:
        return _problem(item.reject("deleted_id", "id: a file in delete/ names it too", id=id))
    return ContentsRecord(source=item.source, fields=item.fields)


def _problem(letter: DeadLetter) -> ContentsRecord:
    named = with_category(letter)
    place = f"line {letter.line}: " if letter.line else f"row {letter.row}: " if letter.row else ""
    return ContentsRecord(
        source=letter.source,
        problem=f"{place}{letter.message}",
        category=named.category or "PARSING_ERROR",
        id=letter.id or "",
        excerpt=letter.excerpt,
    )

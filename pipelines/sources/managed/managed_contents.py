"""Folders of the managed service's clients, record by record, for a server that writes them.

`read_contents` reads the layout of indexes (`read`), `read_json_lines` the lines of collections.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from scannery.indexer.contents import ContentsRecord
from scannery.indexer.errors import InvalidRecordError
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.errors import InputNotFoundError, UnknownFormatError
from scannery.pipelines.sources import lines, managed
from scannery.pipelines.sources.locations import ClosedFolder, InputFile, find_files
from scannery.pipelines.sources.managed.managed_records import with_category
from scannery.pipelines.sources.parts import DamagedError, Record

__all__ = ["read_contents", "read_json_lines"]

PART_BYTES = 64 << 20
"""Bytes that are cut into one part."""
_LINES_FIELD = "gcs_import.contents_uri"
_ENDINGS = {
    f"{ending}{compression}": compression.removeprefix(".")
    for ending in (".json", ".jsonl")
    for compression in ("", ".gz", ".zst")
}


def read_contents(uri: str) -> Iterator[ContentsRecord]:
    """Yield the records of a folder in the managed layout, and the ids in its `delete/`.

    Records are as the files have them: only their syntax is checked. An id that is to be deleted and has a record,
    too, is given with a problem. Links that leave the folder are not followed,
    also if they are put there while it is read.

    Args:
        uri: the folder: a URI of an object store, or an absolute path without links.

    Raises:
        InvalidRecordError: there is no such folder, or it has files of another layout.

    """
    try:
        files = managed.arrange(_files(uri))
    except (InputNotFoundError, UnknownFormatError) as error:
        raise InvalidRecordError(str(error), reason="source", field="contentsDeltaUri") from error
    deleted = {id for file in files for id in managed.deletes_of(file)}
    for file in files:
        yield from _read(file, deleted)


def read_json_lines(uri: str) -> Iterator[ContentsRecord]:
    """Yield the records of all files in a folder and below that end in `.json` or `.jsonl`, also `.gz` and `.zst`.

    Only the syntax is checked. Names that begin with `.` or `_` are left out, and links that leave the folder are not
    followed, also if they are put there while it is read. No more than a line and a block of a file is in memory.

    Args:
        uri: as of `read_contents`.

    Raises:
        InvalidRecordError: there is no such folder, or it has files of another kind.

    """
    try:
        files = _files(uri)
    except InputNotFoundError as error:
        raise InvalidRecordError(str(error), reason="source", field=_LINES_FIELD) from error
    if unknown := [file.path for file in files if _compression(file.path) is None]:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise InvalidRecordError(
            f"{', '.join(unknown[:5])}{more}: files must end in {', '.join(_ENDINGS)}",
            reason="source",
            field=_LINES_FIELD,
        )
    for file in files:
        yield from _read_lines(file)


def _files(uri: str) -> list[InputFile]:
    files = find_files([uri])
    if "://" in uri:
        return files
    return [dataclasses.replace(file, base=ClosedFolder(file.base)) for file in files]


def _read(file: InputFile, deleted: set[str]) -> Iterator[ContentsRecord]:
    detected = managed.format_of(file.path)
    if file.problem or detected is None:
        yield ContentsRecord(source=file.source, problem=file.problem, category="PARSING_ERROR")
        return
    format, compression = detected
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
    if id is not None and str(id) in deleted:
        return _problem(item.reject("deleted_id", "id: a file in delete/ names it too", id=str(id)))
    return ContentsRecord(source=item.source, fields=item.fields)


def _problem(letter: DeadLetter) -> ContentsRecord:
    named = with_category(letter)
    location = f"line {letter.line}: " if letter.line else f"row {letter.row}: " if letter.row else ""
    return ContentsRecord(
        source=letter.source,
        problem=f"{location}{letter.message}",
        category=named.category or "PARSING_ERROR",
        id=letter.id or "",
        excerpt=letter.excerpt,
    )


def _compression(path: str) -> str | None:
    """Return how a file is compressed, by its name; empty: not at all; None: it has no JSON lines."""
    return next(
        (compression for ending, compression in _ENDINGS.items() if path.lower().endswith(ending)), None
    )


def _read_lines(file: InputFile) -> Iterator[ContentsRecord]:
    if file.problem:
        yield ContentsRecord(source=file.path, problem=file.problem)
        return
    try:
        for part in lines.split(file, _compression(file.path) or "", PART_BYTES):
            for item in lines.read_lines(part, lines.json_record):
                yield _line(item, file.path)
    except (DamagedError, OSError) as error:
        what = str(error) if isinstance(error, DamagedError) else error.strerror or "cannot be read"
        yield ContentsRecord(source=file.path, problem=what)


def _line(item: Record | DeadLetter, source: str) -> ContentsRecord:
    location = f"{source}:{item.line}" if item.line else source
    if isinstance(item, DeadLetter):
        return ContentsRecord(source=location, problem=item.message, excerpt=item.excerpt)
    return ContentsRecord(source=location, fields=item.fields)

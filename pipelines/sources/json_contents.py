"""Folders of JSON lines, record by record, for a server that writes them into a collection."""

from __future__ import annotations

from collections.abc import Iterator

from scannery.indexer.contents import ContentsRecord
from scannery.indexer.errors import InvalidRecordError
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.errors import InputNotFoundError
from scannery.pipelines.sources import lines
from scannery.pipelines.sources.locations import InputFile, find_files
from scannery.pipelines.sources.parts import DamagedError, Record

__all__ = ["read_json_lines"]

PART_BYTES = 64 << 20
"""Bytes that are cut into one part."""
_FIELD = "gcs_import.contents_uri"
_ENDINGS = {
    f"{ending}{compression}": compression.removeprefix(".")
    for ending in (".json", ".jsonl")
    for compression in ("", ".gz", ".zst")
}


def read_json_lines(uri: str) -> Iterator[ContentsRecord]:
    """Yield the records of all files in a folder and below that end in `.json` or `.jsonl`, also `.gz` and `.zst`.

    Only the syntax is checked. Names that begin with `.` or `_` are left out, and links that leave the folder are not
    followed. No more than a line and a block of a file is in memory.

    Args:
        uri: the folder, local or in an object store.

    Raises:
        InvalidRecordError: there is no such folder, or it has files of another kind.

    """
    try:
        files = find_files([uri])
    except InputNotFoundError as error:
        raise InvalidRecordError(str(error), reason="source", field=_FIELD) from error
    if unknown := [file.path for file in files if _compression(file.path) is None]:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise InvalidRecordError(
            f"{', '.join(unknown[:5])}{more}: files must end in {', '.join(_ENDINGS)}",
            reason="source",
            field=_FIELD,
        )
    for file in files:
        yield from _read(file)


def _compression(path: str) -> str | None:
    """Return how a file is compressed, by its name; empty: not at all; None: it has no JSON lines."""
    return next((found for ending, found in _ENDINGS.items() if path.lower().endswith(ending)), None)


def _read(file: InputFile) -> Iterator[ContentsRecord]:
    if file.problem:
        yield ContentsRecord(source=file.path, problem=file.problem)
        return
    try:
        for part in lines.split(file, _compression(file.path) or "", PART_BYTES):
            for item in lines.read_lines(part, lines.json_record):
                yield _record(item, file.path)
    except (DamagedError, OSError) as error:
        what = str(error) if isinstance(error, DamagedError) else error.strerror or "cannot be read"
        yield ContentsRecord(source=file.path, problem=what)


def _record(item: Record | DeadLetter, source: str) -> ContentsRecord:
    place = f"{source}:{item.line}" if item.line else source
    if isinstance(item, DeadLetter):
        return ContentsRecord(source=place, problem=item.message, excerpt=item.excerpt)
    return ContentsRecord(source=place, fields=item.fields)

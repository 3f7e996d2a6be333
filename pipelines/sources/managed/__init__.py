"""The input layout of the managed ScaNN service: files of `.json`, `.csv` and `.avro` in one folder, and `delete/`.

    FOLDER/anything.json       one JSON object per line
    FOLDER/anything.csv        id, vector, restricts: one record per line, no header (managed_csv.py)
    FOLDER/anything.avro
    FOLDER/delete/anything     ids, one per line

managed_records.py converts the records. A folder is one batch: if an id is in `delete/` and also has a record, the
record is refused.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import PurePosixPath

from scannery.indexer.datapoints.schema import identifier
from scannery.indexer.errors import InvalidRecordError
from scannery.pipelines.dead_letters import DeadLetter, excerpt_of
from scannery.pipelines.errors import UnknownFormatError
from scannery.pipelines.sources import columns, lines
from scannery.pipelines.sources.batches import file_digest
from scannery.pipelines.sources.locations import InputFile
from scannery.pipelines.sources.managed.managed_csv import csv_record
from scannery.pipelines.sources.managed.managed_records import to_record
from scannery.pipelines.sources.parts import Fields, Part, Record
from scannery.pipelines.sources.streams import lines_of, read_blocks

__all__ = ["FORMATS", "arrange", "deletes_of", "format_of", "raw_records", "read", "split"]

FORMATS = frozenset({"managed-json", "managed-csv", "managed-avro", "managed-delete"})

_ENDINGS = {".json": "json", ".csv": "csv", ".avro": "avro"}
_COMPRESSIONS = {".gz": "gz", ".zst": "zst"}
_DELETE = "delete"
MAX_DICTIONARY_BYTES = 1 << 20
"""Line that is read as a dictionary of Python if it is not JSON."""
# Every string matches, also one without an end: a match that fails at the end of the text would be tried at each quote.
_PYTHON_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*(?:'|\\?\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)|\b(?:True|False|None)\b""", re.DOTALL
)


def arrange(files: Sequence[InputFile]) -> list[InputFile]:
    """Return the files as parts of the layout; data files have the files in `delete/` beside them as companions.

    Raises:
        UnknownFormatError: a file does not belong to the layout.

    """
    unknown = [file.source for file in files if format_of(file.path) is None]
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise UnknownFormatError(
            f"{', '.join(unknown[:5])}{more}: the managed layout has only files that end in {' '.join(_ENDINGS)} "
            f"directly in a folder, and files of ids in {_DELETE}/ below it",
            field="input",
        )
    deletes: dict[str, list[str]] = defaultdict(list)
    for file in files:
        if _is_delete(file.path):
            deletes[file.base].append(file.path)
    return [
        dataclasses.replace(
            file, layout="managed", companions=() if _is_delete(file.path) else tuple(deletes[file.base])
        )
        for file in files
    ]


def format_of(path: str) -> tuple[str, str] | None:
    """Return format and compression of a file by its place in the folder; None if it does not belong to the layout."""
    if _is_delete(path):
        return "managed-delete", ""
    suffixes = [suffix.lower() for suffix in PurePosixPath(path).suffixes]
    compression = _COMPRESSIONS.get(suffixes[-1], "") if suffixes else ""
    if compression:
        suffixes.pop()
    ending = _ENDINGS.get(suffixes[-1]) if suffixes else None
    if ending is None or "/" in path or (compression and ending == "avro"):
        return None
    return f"managed-{ending}", compression


def split(file: InputFile, format: str, compression: str, limit: int) -> Iterator[Part]:
    """Yield parts of about `limit` bytes each. A file of ids is one part without records."""
    parts = (
        columns.split_avro(file, limit) if format == "managed-avro" else lines.split(file, compression, limit)
    )
    deletes = "".join(file_digest(file.base, path) for path in file.companions)
    for part in parts:
        digest = blake2b((part.digest + deletes).encode(), digest_size=16).hexdigest()
        records = 0 if format == "managed-delete" else part.records
        yield dataclasses.replace(
            part, format=format, companions=file.companions, digest=digest, records=records
        )


def read(part: Part, fields: Fields) -> Iterator[Record | DeadLetter]:
    """Yield the records of a part in order, with the spec's field names."""
    if part.format == "managed-delete":
        yield from (item for item in lines.read_lines(part, _parse_id) if isinstance(item, DeadLetter))
        return
    # The cache key is the stamp of the id files, not of the data file, so that all files of a batch share the ids.
    deleted = _deleted(part.base, part.companions, part.stamp.partition("|")[2])
    for item in raw_records(part):
        result = item if isinstance(item, DeadLetter) else to_record(item, fields)
        if isinstance(result, Record) and deleted and str(result.fields.get("id")) in deleted:
            result = result.reject("deleted_id", f"id: a file in {_DELETE}/ names it too", field="id",
                                   id=str(result.fields.get("id")))  # fmt: skip
        yield result


def raw_records(part: Part) -> Iterator[Record | DeadLetter]:
    """Yield the records of a part as the file has them; those of a file of ids have only an id."""
    if part.format == "managed-delete":
        return lines.read_lines(part, _parse_id)
    if part.format == "managed-avro":
        return columns.read_avro(part)
    return lines.read_lines(part, _parse_object if part.format == "managed-json" else csv_record)


def deletes_of(file: InputFile) -> Iterator[str]:
    """Yield the valid ids in a file of ids; other files yield none. `read` makes dead letters for unreadable files."""
    if _is_delete(file.path):
        with contextlib.suppress(OSError):
            yield from _deleted_ids(file.base, [file.path])


def _deleted_ids(base: str, paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        for line in lines_of(read_blocks(base, path, "")):
            item = None if line.isspace() else _parse_id(line, path, 0)
            if isinstance(item, Record):
                yield item.fields["id"]


@functools.lru_cache(maxsize=2)
def _deleted(base: str, paths: tuple[str, ...], stamp: str) -> frozenset[str]:
    del stamp  # only part of the cache key, so that changed files are read again
    return frozenset(_deleted_ids(base, paths))


def _is_delete(path: str) -> bool:
    return PurePosixPath(path).parent == PurePosixPath(_DELETE)


def _parse_object(line: bytes, source: str, number: int) -> Record | DeadLetter:
    """Return the object of a line, also as Python prints a dictionary, which the service takes for JSON."""
    record = lines.json_record(line, source, number)
    if isinstance(record, Record) or record.reason != "malformed" or len(line) > MAX_DICTIONARY_BYTES:
        return record
    if not (text := line.decode("utf-8-sig")).lstrip().startswith("{'"):
        return record
    try:
        json_text = _PYTHON_TOKEN.sub(_json_token, text)
    except (SyntaxError, ValueError):  # a string without an end, or an escape that is none
        return record
    rewritten = lines.json_record(json_text.encode("utf-8", "surrogatepass"), source, number)
    return rewritten if isinstance(rewritten, Record) else record


def _json_token(token: re.Match[str]) -> str:
    value = ast.literal_eval(token[0])  # a string, or True, False or None: nothing is nested
    return json.dumps(value)


def _parse_id(line: bytes, source: str, number: int) -> Record | DeadLetter:
    try:
        text = identifier(line.decode("utf-8-sig").rstrip("\r\n"), field="id")
    except UnicodeDecodeError as error:
        reason, message = "encoding", f"not UTF-8: {error.reason} at byte {error.start} of the line"
    except InvalidRecordError as error:
        reason, message = error.reason, error.message
    else:
        return Record({"id": text}, source, line=number)
    return DeadLetter(reason=reason, message=message, source=source, line=number, excerpt=excerpt_of(line))

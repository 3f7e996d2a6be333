"""Read files of queries, the same way for searches, evaluations, judging and measurements of recall.

By the ending of the file:

    .tsv                an id and a text, separated by a tab; a first line with names of fields is a header
    .txt                a text per line
    .csv .parquet …     tables: `id` (or `_id`), and `text` (or `query`), `vector` (or `embedding`) or both
    .npy                a matrix, a vector per row; its ids are row numbers
    other endings       JSON lines with the same fields (BEIR: queries.jsonl); `.json` may also hold a list
    -                   JSON lines of standard input
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scannery.indexer import parse_spec
from scannery.pipelines.errors import CollectionError, InputNotFoundError
from scannery.pipelines.sources import (
    SUFFIXES,
    Fields,
    InputFile,
    Record,
    arrange,
    find_files,
    read_part,
    split_file,
)
from scannery.pipelines.sources.lines import json_record

__all__ = ["STDIN", "Query", "QueryRecord", "query_records"]

STDIN = "-"
PART_BYTES = 32 << 20

_TEXT_KEYS, _VECTOR_KEYS, _ID_KEYS = ("text", "query"), ("vector", "embedding"), ("_id", "id")
_SPEC = {"index": "queries", "source": {"id": "id", "text": "text", "vector": "vector"}}
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]+://|.*[*?\[]")


@dataclasses.dataclass(frozen=True, eq=False)
class Query:
    """A query: a text, a vector, or both."""

    text: str | None = None
    vector: np.ndarray | None = None
    """float32 `(dimensions,)`."""

    def __str__(self) -> str:
        return "(a vector)" if self.text is None else self.text


class QueryRecord(NamedTuple):
    """A query of a file."""

    location: str
    """File and line or row, as messages name them."""
    id: str | None
    """None if the file has none for it."""
    query: Query
    fields: Mapping[str, Any]
    """All fields of the record; of a table only those that were asked for."""


def query_records(file: str | Path, *, also: Sequence[str] = ()) -> Iterator[QueryRecord]:
    """Yield the queries of a file in its order.

    Args:
        file: a file, a pattern, a folder or a URI; `-`: standard input.
        also: names of further fields that records of tables keep.

    Raises:
        InputNotFoundError: there is no such file, or it cannot be read.
        CollectionError: a record is no query; the message names its place, its field and what is allowed.

    """
    for location, fields in _records(f"{file}", also):
        yield QueryRecord(location, _id_of(location, fields), _query_of(location, fields), fields)


def _records(file: str, also: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if file == STDIN:
        lines = enumerate(sys.stdin, 1)
        yield from _parsed((number, line.encode("utf-8", "surrogateescape")) for number, line in lines)
        return
    path = Path(file)
    if path.is_dir() or (_ELSEWHERE.match(file) and not path.exists()):
        yield from _tables(find_files([file]), also)
        return
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".txt"]:
        yield from ((location, {"text": line.strip()}) for location, line in _lines(path))
    elif suffixes[-1:] == [".tsv"] and not _has_header(path):
        yield from _columns(path)
    elif {SUFFIXES.get(suffix) for suffix in suffixes[-2:]} & {
        "jsonl",
        "csv",
        "tsv",
        "parquet",
        "avro",
        "npy",
    }:
        _lines_opened(path).close()
        yield from _tables(find_files([file]), also, file)
    else:
        with _lines_opened(path) as opened:
            yield from _parsed(enumerate(opened, 1), file)


def _tables(
    files: Iterable[InputFile], also: Sequence[str], shown: str | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    spec = parse_spec(_SPEC)
    names = frozenset((*_ID_KEYS, *_TEXT_KEYS, *_VECTOR_KEYS, *also))
    fields = dataclasses.replace(Fields.of(spec), names=names)
    for file in arrange([*files], spec.source):
        for part in split_file(file, PART_BYTES):
            for item in read_part(part, fields):
                name = shown or file.source
                number = f", line {item.line}" if item.line else f", row {item.row}" if item.row else ""
                if not isinstance(item, Record):
                    raise _wrong(name + number, item.message)
                yield name + number, item.fields


def _parsed(
    lines: Iterable[tuple[int, bytes]], name: str = "standard input"
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects in JSON lines."""
    for number, line in lines:
        if line.strip():
            item = json_record(line, name, number)
            if not isinstance(item, Record):
                raise _wrong(f"{name}, line {number}", item.message)
            yield f"{name}, line {number}", item.fields


def _columns(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for location, line in _lines(path):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 2 or not all(cells):
            raise _wrong(
                location, "must have an id and a text, separated by a tab; or a header with names of fields"
            )
        yield location, {"id": cells[0], "text": cells[1]}


def _has_header(path: Path) -> bool:
    first = next(_lines(path), ("", ""))[1]
    names = {cell.strip().strip('"').lower() for cell in first.split("\t")}
    return bool(names & {*_TEXT_KEYS, *_VECTOR_KEYS})


def _lines_opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise InputNotFoundError(f"queries: cannot read {path}: {error.strerror}", field="queries") from error


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines that are not blank, with their places."""
    with _lines_opened(path) as opened:
        for number, line in enumerate(opened, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _wrong(f"{path}, line {number}", "is not UTF-8") from error
            if text.strip():
                yield f"{path}, line {number}", text.rstrip("\r\n")


def _id_of(location: str, fields: Mapping[str, Any]) -> str | None:
    value = _first(fields, *_ID_KEYS)
    if isinstance(value, bool) or not isinstance(value, (str, int, type(None))):
        raise _wrong(location, f"`_id` must be a string, got {value!r:.80}")
    return None if value is None else str(value)


def _query_of(location: str, fields: Mapping[str, Any]) -> Query:
    text, vector = _first(fields, *_TEXT_KEYS), _vector_of(location, _first(fields, *_VECTOR_KEYS))
    if text is None and vector is not None:
        return Query(vector=vector)
    if not isinstance(text, str) or not text.strip():
        raise _wrong(location, "needs `text`, a string that is not empty, or `vector`, a list of numbers")
    return Query(text, vector)


def _vector_of(location: str, value: Any) -> np.ndarray | None:
    if value is None:
        return None
    try:
        # A cell of CSV is text.
        numbers = np.asarray(json.loads(value) if isinstance(value, str) else value)
        if numbers.ndim == 1 and numbers.size and numbers.dtype.kind in "iuf":
            with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as that
                vector = numbers.astype(np.float32)
            if np.isfinite(vector).all():
                return vector
    except (TypeError, ValueError, RecursionError):
        pass
    raise _wrong(location, f"`vector` must be a list of numbers, got {value!r:.80}")


def _first(fields: Mapping[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _wrong(location: str, what: str) -> CollectionError:
    return CollectionError(f"queries: {location}: {what}", field="queries")

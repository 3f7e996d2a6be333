"""Read test collections: queries, and relevance judgements in the formats of BEIR and TREC.

Queries, by the ending of the file:

    .tsv                an id and a text, separated by a tab
    .txt                a text per line; its id is a hash of the text, so it stays when lines move
    other endings       JSON lines with `_id` (or `id`), and `text` or `vector` (BEIR: queries.jsonl); without an
                        id as in a .txt

Judgements, by their content:

    query-id  corpus-id  score          BEIR; the header may be missing
    query     0  document  level        TREC
    {"query-id": …, "corpus-id": …, "score": …}     JSON lines; also `query_id`, `document_id`, `relevance`

Columns are separated by tabs, or by blanks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scannery.pipelines.errors import CollectionError, InputNotFoundError

__all__ = [
    "Judgement",
    "Judgements",
    "Query",
    "judgements_of",
    "query_id_of",
    "read_judgement_lines",
    "read_judgements",
    "read_queries",
    "read_recall_queries",
]

Judgements = dict[str, dict[str, int]]
"""Query id → document id → level of relevance; 0: not relevant."""

_TEXT_KEYS, _VECTOR_KEYS = ("text", "query"), ("vector", "embedding")
_QUERY_KEYS = ("query-id", "query_id", "qid", "query")
_DOCUMENT_KEYS = ("corpus-id", "corpus_id", "document_id", "doc_id", "docid", "id")
_LEVEL_KEYS = ("score", "relevance", "level", "rel", "label")


@dataclass(frozen=True, eq=False)
class Query:
    """A query of a test collection: a text, a vector, or both."""

    text: str | None = None
    vector: np.ndarray | None = None
    """float32 `(dimensions,)`."""

    def __str__(self) -> str:
        return "(a vector)" if self.text is None else self.text


class Judgement(NamedTuple):
    """One line of a file of judgements."""

    query_id: str
    document_id: str
    level: int


def read_queries(path: str | Path) -> dict[str, Query]:
    """Return the queries of a file by id.

    Raises:
        InputNotFoundError: there is no such file, or it cannot be read.
        CollectionError: a line has another form, or an id occurs twice; the message names the line.

    """
    queries: dict[str, Query] = {}
    for place, identifier, query in _read_queries(Path(path)):
        if identifier in queries:
            raise _wrong("queries", place, f"the id {identifier!r} occurs twice")
        queries[identifier] = query
    if not queries:
        raise CollectionError(f"queries: {path} is empty", field="queries")
    return queries


def _read_queries(path: Path) -> Iterator[tuple[str, str, Query]]:
    if path.suffix == ".tsv":
        yield from _queries_in_columns(path)
    elif path.suffix == ".txt":
        # A search log repeats its queries; those with equal texts have one id, and are one query.
        texts = dict.fromkeys(line.strip() for _, line in _lines(path, "queries"))
        yield from ((str(path), query_id_of(text), Query(text)) for text in texts)
    else:
        yield from _queries_in_json(path)


def _queries_in_json(path: Path) -> Iterator[tuple[str, str, Query]]:
    without_id: set[str] = set()
    for place, record in _records(path, "queries"):
        identifier, query = _query(place, record)
        if identifier is None:
            identifier = query_id_of(str(query))
            if identifier in without_id:  # as in a file of texts
                continue
            without_id.add(identifier)
        yield place, identifier, query


def _queries_in_columns(path: Path) -> Iterator[tuple[str, str, Query]]:
    for place, line in _lines(path, "queries"):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 2 or not all(cells):
            raise _wrong("queries", place, "must have an id and a text, separated by a tab")
        yield place, cells[0], Query(cells[1])


def query_id_of(text: str) -> str:
    """Return an id for a query that has none: a hash of its text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _query(place: str, record: Mapping[str, Any]) -> tuple[str | None, Query]:
    identifier = _first(record, "_id", "id")
    text, vector = _first(record, *_TEXT_KEYS), _first(record, *_VECTOR_KEYS)
    if isinstance(identifier, bool) or not isinstance(identifier, (str, int, type(None))):
        raise _wrong("queries", place, f"`_id` must be a string, got {identifier!r:.80}")
    if text is None and _is_vector(vector):
        if identifier is None:
            raise _wrong("queries", place, "needs `_id`, a string, where there is no text")
        return str(identifier), Query(vector=np.array(vector, np.float32))
    if not isinstance(text, str) or not text.strip():
        raise _wrong("queries", place, "needs `text`, a string that is not empty, or `vector`")
    found = Query(text, np.array(vector, np.float32) if _is_vector(vector) else None)
    return None if identifier is None else str(identifier), found


def _first(record: Mapping[str, Any], *names: str) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


def read_recall_queries(path: str | Path) -> list[str | np.ndarray]:
    """Return queries to measure recall with, from JSON lines with `text`, or with `vector`, a list of numbers.

    Raises:
        InputNotFoundError, CollectionError: as `read_queries`.

    """
    queries: list[str | np.ndarray] = []
    for place, record in _records(Path(path), "queries"):
        text, vector = _first(record, *_TEXT_KEYS), _first(record, *_VECTOR_KEYS)
        if _is_vector(vector):
            queries.append(np.array(vector, np.float32))
        elif isinstance(text, str) and text.strip():
            queries.append(text)
        else:
            raise _wrong("queries", place, "needs `text` or `vector`")
    if not queries:
        raise CollectionError(f"queries: {path} is empty", field="queries")
    return queries


def read_judgements(path: str | Path) -> Judgements:
    """Return the judgements of a file. If a pair occurs in several lines, the last one counts.

    Raises:
        InputNotFoundError, CollectionError: as `read_judgement_lines`.

    """
    return judgements_of(read_judgement_lines(path))


def judgements_of(lines: Iterable[Judgement]) -> Judgements:
    """Return judgements by query and document; the last one of a pair counts."""
    judgements: Judgements = {}
    for query_id, document_id, level in lines:
        judgements.setdefault(query_id, {})[document_id] = level
    return judgements


def read_judgement_lines(path: str | Path) -> list[Judgement]:
    """Return the judgements of a file, in its order.

    Raises:
        InputNotFoundError: there is no such file, or it cannot be read.
        CollectionError: the file has no judgements, or a line has none of the forms; the message names the line.

    """
    found: list[Judgement] = []
    for place, line in _lines(Path(path), "qrels"):
        if line.lstrip().startswith("{"):
            found.append(_judgement_in_json(place, line))
            continue
        cells = line.split("\t") if line.count("\t") >= 2 else line.split()
        cells = [cell.strip() for cell in cells]
        if not found and cells[0].lower() in _QUERY_KEYS:  # the header
            continue
        if len(cells) not in (3, 4):
            raise _wrong("qrels", place, f"must have 3 or 4 columns, got {len(cells)}")
        found.append(Judgement(cells[0], cells[-2], _level(place, cells[-1])))
    if not found:
        raise CollectionError(f"qrels: {path} has no judgements", field="qrels")
    return found


def _judgement_in_json(place: str, line: str) -> Judgement:
    record = _object("qrels", place, line)
    values = []
    for keys in (_QUERY_KEYS, _DOCUMENT_KEYS, _LEVEL_KEYS):
        value = _first(record, *keys)
        if value is None:
            raise _wrong("qrels", place, f"needs one of {', '.join(keys)}")
        values.append(str(value))
    return Judgement(values[0], values[1], _level(place, values[2]))


def _level(place: str, text: str) -> int:
    try:
        number = float(text)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise _wrong("qrels", place, f"the score must be an integer, got {text!r:.80}")


def _is_vector(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in value)
    )


def _records(path: Path, field: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, line in _lines(path, field):
        yield place, _object(field, place, line)


def _object(field: str, place: str, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise _wrong(field, place, f"is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise _wrong(field, place, f"must be a JSON object, got {type(record).__name__}")
    return record


def _lines(path: Path, field: str) -> list[tuple[str, str]]:
    """Return the lines that are not blank, with their places."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CollectionError(f"{field}: {path} is not UTF-8", field=field) from error
    except OSError as error:
        raise InputNotFoundError(f"{field}: cannot read {path}: {error.strerror}", field=field) from error
    lines = enumerate(text.split("\n"), 1)
    return [(f"{path}, line {number}", line) for number, line in lines if line.strip()]


def _wrong(field: str, place: str, what: str) -> CollectionError:
    return CollectionError(f"{field}: {place}: {what}", field=field)

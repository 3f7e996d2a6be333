"""Read test collections: queries, and relevance judgements in the formats of BEIR and TREC.

Queries are read by query_files.py; one without an id gets a hash of its text, so it stays when lines move.

Judgements, by their content:

    query-id  corpus-id  score          BEIR; the header may be missing
    query     0  document  level        TREC
    {"query-id": …, "corpus-id": …, "score": …}     JSON lines; also `query_id`, `document_id`, `relevance`

Columns are separated by tabs, or by blanks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scannery.pipelines.errors import CollectionError, InputNotFoundError
from scannery.pipelines.evaluation.query_files import Query, query_records

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

_QUERY_KEYS = ("query-id", "query_id", "qid", "query")
_DOCUMENT_KEYS = ("corpus-id", "corpus_id", "document_id", "doc_id", "docid", "id")
_LEVEL_KEYS = ("score", "relevance", "level", "rel", "label")


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
    hashed: set[str] = set()
    for place, given, query, _ in query_records(path):
        if given is None and query.text is None:
            raise _wrong("queries", place, "needs `_id`, a string, where there is no text")
        identifier = query_id_of(f"{query}") if given is None else given
        # A search log repeats its queries; those with equal texts have one id, and are one query.
        if given is None and identifier in hashed:
            continue
        if identifier in queries:
            raise _wrong("queries", place, f"the id {identifier!r} occurs twice")
        queries[identifier] = query
        hashed |= {identifier} if given is None else set()
    if not queries:
        raise CollectionError(f"queries: {path} is empty", field="queries")
    return queries


def query_id_of(text: str) -> str:
    """Return an id for a query that has none: a hash of its text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _first(record: Mapping[str, Any], *names: str) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


def read_recall_queries(path: str | Path) -> list[str | np.ndarray]:
    """Return queries to measure recall with: the vector of each, or its text.

    Raises:
        InputNotFoundError, CollectionError: as `read_queries`.

    """
    found = [one.query for one in query_records(path)]
    queries = [one.vector if one.vector is not None else one.text or "" for one in found]
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

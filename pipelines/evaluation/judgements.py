"""Read test collections: queries in BEIR's format, relevance judgements in BEIR's or TREC's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scannery.pipelines.errors import CollectionError, InputNotFoundError

__all__ = ["Judgements", "read_judgements", "read_queries", "read_recall_queries"]

Judgements = dict[str, dict[str, int]]
"""Query id → document id → level of relevance; 0: not relevant."""


def read_queries(path: str | Path) -> dict[str, str]:
    """Return the texts of a queries file by id: one JSON object per line with `_id` (or `id`) and `text`.

    Raises:
        InputNotFoundError: there is no such file, or it cannot be read.
        CollectionError: a line is not such an object; the message names it.

    """
    queries: dict[str, str] = {}
    for place, record in _records(path, "queries"):
        identifier = record.get("_id", record.get("id"))
        text = record.get("text")
        if isinstance(identifier, bool) or not isinstance(identifier, (str, int)):
            raise _wrong("queries", place, "needs `_id`, a string")
        if not isinstance(text, str) or not text.strip():
            raise _wrong("queries", place, "needs `text`, a string that is not empty")
        if str(identifier) in queries:
            raise _wrong("queries", place, f"the id {identifier!r} occurs twice")
        queries[str(identifier)] = text
    if not queries:
        raise CollectionError(f"queries: {path} is empty", field="queries")
    return queries


def read_recall_queries(path: str | Path) -> list[str | np.ndarray]:
    """Return queries to measure recall with, from JSON lines with `text`, or with `vector`, a list of numbers.

    Raises:
        InputNotFoundError, CollectionError: as `read_queries`.

    """
    queries: list[str | np.ndarray] = []
    for place, record in _records(path, "queries"):
        text, vector = record.get("text"), record.get("vector")
        if isinstance(vector, list) and vector and all(_is_number(value) for value in vector):
            queries.append(np.array(vector, np.float32))
        elif isinstance(text, str) and text.strip():
            queries.append(text)
        else:
            raise _wrong("queries", place, "needs `text` or `vector`")
    if not queries:
        raise CollectionError(f"queries: {path} is empty", field="queries")
    return queries


def read_judgements(path: str | Path) -> Judgements:
    """Return the judgements of a file: BEIR's (query, document, score; a header) or TREC's (query, 0, document, score).

    Columns are separated by tabs or blanks. If a pair occurs in several lines, the last one counts.

    Raises:
        InputNotFoundError: there is no such file, or it cannot be read.
        CollectionError: a line has neither form; the message names it.

    """
    judgements: Judgements = {}
    for number, line in enumerate(_lines(path, "qrels"), 1):
        cells = line.split("\t") if line.count("\t") >= 2 else line.split()
        cells = [cell.strip() for cell in cells]
        if len(cells) not in (3, 4):
            raise _wrong("qrels", f"{path}, line {number}", f"must have 3 or 4 columns, got {len(cells)}")
        try:
            level = int(cells[-1])
        except ValueError as error:
            if number == 1:  # the header
                continue
            raise _wrong(
                "qrels", f"{path}, line {number}", f"the score must be an integer, got {cells[-1]!r:.80}"
            ) from error
        judgements.setdefault(cells[0], {})[cells[-2]] = level
    if not judgements:
        raise CollectionError(f"qrels: {path} has no judgements", field="qrels")
    return judgements


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _records(path: str | Path, field: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(_lines(path, field), 1):
        place = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise _wrong(field, place, f"is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise _wrong(field, place, f"must be a JSON object, got {type(record).__name__}")
        yield place, record


def _lines(path: str | Path, field: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CollectionError(f"{field}: {path} is not UTF-8", field=field) from error
    except OSError as error:
        raise InputNotFoundError(f"{field}: cannot read {path}: {error.strerror}", field=field) from error
    return [line for line in text.split("\n") if line.strip()]


def _wrong(field: str, place: str, what: str) -> CollectionError:
    return CollectionError(f"{field}: {place}: {what}", field=field)

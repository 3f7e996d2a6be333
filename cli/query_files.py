"""Answers the queries of a file: one line of JSON for each, in their order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import typer

from scannery.cli.errors import PARTIAL
from scannery.cli.output import hit_json
from scannery.cli.records import FileRecord, read_query_records
from scannery.client import Index, InvalidArgumentError, QueryLike, ScanneryError, SearchOptions

__all__ = ["answer_queries", "query_of"]


def answer_queries(index: Index, file: str, k: int, options: SearchOptions) -> None:
    """Print the hits of each query of a file; one that is refused has an error in the place of hits.

    Args:
        index: is asked.
        file: as `read_query_records` takes it.
        k: hits of each query.
        options: of the searches.

    Raises:
        InvalidArgumentError: a record of the file is no query; the message names it.
        Exit: with code 7, if some query was refused.

    """
    ids: list[str] = []
    asked = failed = 0
    for answer in index.search_each(_queries(file, ids), k, errors="return", **options):
        line: dict[str, Any] = {"id": ids[asked]}
        if isinstance(answer, ScanneryError):
            failed += 1
            line["error"] = answer.message
        else:
            line |= {"version": answer.version, "hits": [hit_json(hit) for hit in answer]}
        typer.echo(json.dumps(line, ensure_ascii=False))
        asked += 1
    if failed:
        typer.echo(f"{failed:,} of {asked:,} queries failed", err=True)
        raise typer.Exit(PARTIAL)


def query_of(record: FileRecord, number: int) -> tuple[str, QueryLike]:
    """Return id and query of a record: its `_id` or `id`, else its number; its `vector`, else its `text`.

    Raises:
        InvalidArgumentError: it has neither text nor vector, or the vector is none.

    """
    fields = record.record
    if fields is None:
        raise InvalidArgumentError(f"{record.place}: {record.problem}")
    identifier = _first(fields, "_id", "id")
    vector, text = _first(fields, "vector", "embedding"), _first(fields, "text", "query")
    if vector is None and not isinstance(text, str):
        raise InvalidArgumentError(f"{record.place}: needs text or vector")
    query: QueryLike = str(text) if vector is None else _numbers(vector, record)
    return str(number if identifier is None else identifier), query


def _numbers(vector: Any, record: FileRecord) -> np.ndarray:
    try:
        # A cell of CSV is text.
        numbers = json.loads(vector) if isinstance(vector, str) else vector
        return np.asarray(numbers, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{record.place}: vector must be a list of numbers, got {vector!r:.80}"
        ) from error


def _queries(file: str, ids: list[str]) -> Iterator[QueryLike]:
    """Yield the queries of a file, and append their ids."""
    for number, record in enumerate(read_query_records(file), 1):
        identifier, query = query_of(record, number)
        ids.append(identifier)
        yield query


def _first(fields: dict[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)

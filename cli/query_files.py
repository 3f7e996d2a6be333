"""Answers the queries of a file: one line of JSON for each, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from scannery.cli.errors import PARTIAL
from scannery.cli.output import hit_json, json_text
from scannery.client import Index, QueryLike, ScanneryError, SearchOptions

__all__ = ["answer_queries"]


def answer_queries(index: Index, file: str, k: int, options: SearchOptions) -> None:
    """Print the hits of each query of a file; one that is refused has an error in the place of hits.

    Args:
        index: is asked.
        file: as `query_records` (scannery.pipelines.evaluation.query_files) takes it.
        k: hits of each query.
        options: of the searches.

    Raises:
        InputNotFoundError, CollectionError: the file cannot be read, or a record of it is no query.
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
        typer.echo(json_text(line))
        asked += 1
    if failed:
        typer.echo(f"{failed:,} of {asked:,} queries failed", err=True)
        raise typer.Exit(PARTIAL)


def _queries(file: str, ids: list[str]) -> Iterator[QueryLike]:
    """Yield the queries of a file, and append their ids: a query without one has its number."""
    from scannery.pipelines.evaluation.query_files import query_records

    for number, record in enumerate(query_records(file), 1):
        ids.append(str(number) if record.id is None else record.id)
        yield record.query.text or "" if record.query.vector is None else record.query.vector

"""`scannery upsert` and `scannery delete`: write to an index, also while it is served."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from scannery.cli.client_options import (
    IndexOption,
    JsonOption,
    StoreOption,
    TargetOption,
    TimeoutOption,
    connected,
)
from scannery.cli.output import print_json
from scannery.client import InvalidArgumentError

__all__ = ["delete", "upsert"]

MAX_BATCH = 1000
BatchOption = Annotated[
    int,
    typer.Option(
        "--batch",
        min=1,
        max=MAX_BATCH,
        help="Datapoints per batch; a batch is written completely or not at all.",
    ),
]


def upsert(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="JSON lines, one datapoint each; - is standard input."),
    ],
    index: IndexOption,
    target: TargetOption = None,
    store: StoreOption = None,
    batch: BatchOption = 100,
    update: Annotated[
        bool, typer.Option("--update", help="Change only the fields that are given, of existing datapoints.")
    ] = False,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Insert or replace datapoints; each batch is durable and visible before the next one begins.

    A datapoint has an id, and a text or a vector; document_id, title, attributes and payload are optional.
    """
    written, sequence, line = 0, 0, 0
    with connected(target, store, timeout_s=timeout) as client:
        call = client.index(index).update if update else client.index(index).upsert
        lines = itertools.chain.from_iterable(map(_points, files))
        while True:
            asked = 0
            try:
                points = list(itertools.islice(lines, batch))
                asked = len(points)
                if not points:
                    break
                done = call(points)
            except Exception:
                these = f"; these are {line + 1} to {line + asked}" if asked else ""
                if line or asked:
                    typer.echo(f"{line} datapoints were written{these}", err=True)
                raise
            written, sequence, line = written + done.written, done.sequence, line + len(points)
            if sys.stderr.isatty():
                typer.echo(f"\r{line:,} datapoints, sequence {sequence}", err=True, nl=False)
    if sys.stderr.isatty():
        typer.echo("", err=True)
    if as_json:
        print_json({"datapoints": line, "written": written, "sequence": sequence})
    else:
        typer.echo(f"{line:,} datapoints written, {written:,} rows; sequence {sequence}.")


def delete(
    index: IndexOption,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="Ids of datapoints.", show_default=False)
    ] = None,
    document: Annotated[
        list[str] | None,
        typer.Option(
            "--document", "-d", help="Delete a document with all of its passages; may be given several times."
        ),
    ] = None,
    target: TargetOption = None,
    store: StoreOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Delete datapoints or documents; unknown ids are not an error."""
    with connected(target, store, timeout_s=timeout) as client:
        done = client.index(index).delete(ids or [], document_ids=document or [])
    if as_json:
        print_json({"deleted": done.deleted, "sequence": done.sequence})
    else:
        typer.echo(f"{done.deleted:,} datapoints deleted; sequence {done.sequence}.")


def _points(name: str) -> Iterator[Any]:
    with nullcontext(sys.stdin) if name == "-" else Path(name).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield json.loads(line.rstrip())
                except ValueError as error:
                    raise InvalidArgumentError(_not_json(name, number, line, error)) from error


def _not_json(name: str, number: int, line: str, error: ValueError) -> str:
    """Return what is wrong with a line: where, and why."""
    column = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    excerpt = line.strip()[:60]
    hint = "; a JSON array becomes lines by `jq -c '.[]'`" if number == 1 and excerpt.startswith("[") else ""
    return f"{name}, line {number}{column}: not JSON: {reason}; the line begins with {excerpt!r}{hint}"

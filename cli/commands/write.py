"""`scannery upsert`, `delete` and `update`: write to an index, also while it is served."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from scannery.cli.errors import PARTIAL
from scannery.cli.options import (
    IndexOption,
    JsonOption,
    StoreOption,
    TargetOption,
    TimeoutOption,
    VectorModelOption,
    WhereOption,
    connected,
    parsed_json,
)
from scannery.cli.output import print_json
from scannery.cli.uploads import STDIN, Upload, identifiers, is_record_file
from scannery.client import Index

__all__ = ["delete", "update", "upsert"]

MAX_BATCH = 1000
SHOWN = 20
"""Refused records that are printed; `--json` has all."""

BatchOption = Annotated[
    int,
    typer.Option(
        "--batch",
        min=1,
        max=MAX_BATCH,
        help="Datapoints per batch; a batch is written completely or not at all.",
    ),
]


DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="With --where: only print how many datapoints it would be.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="With --where: do not ask for confirmation.")]


def upsert(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Files as `build` reads them: JSON lines, JSON, CSV, Parquet, also compressed; - is JSON lines from "
            "standard input.",
        ),
    ],
    index: IndexOption,
    target: TargetOption = None,
    store: StoreOption = None,
    batch: BatchOption = 100,
    update: Annotated[
        bool, typer.Option("--update", help="Change only the fields that are given, of existing datapoints.")
    ] = False,
    allow_errors: Annotated[
        str | None,
        typer.Option(
            metavar="N|N%",
            help="Write the other records where some are refused, and list these. More refused ones than this end with "
            "code 7. Default: the first refused record ends the command, and its batch is not written.",
        ),
    ] = None,
    vector_model: VectorModelOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Insert or replace datapoints, which are durable and visible when the command ends.

    A record has the fields that the spec of the index names, as `build` reads them; or it is a datapoint, with id, text
    or vector, and optionally document_id, title, attributes and payload; or what `index export` wrote.
    """
    if update and allow_errors is not None:
        raise typer.BadParameter("--allow-errors is not for --update")
    limit = _limit(allow_errors)
    with connected(target, store, timeout_s=timeout) as client:
        upload = Upload(client.index(index), files, batch, _report, vector_model=vector_model)
        done = upload.update() if update else upload.upsert(skips=limit is not None)
    if sys.stderr.isatty():
        typer.echo("", err=True)
    if as_json:
        print_json(done.to_json())
    else:
        typer.echo(
            f"{done.datapoints:,} datapoints written, {done.written:,} rows; sequence {done.sequence}."
        )
        for failure in done.failures[:SHOWN]:
            typer.echo(f"refused: {failure.location}: {failure.problem}", err=True)
        if len(done.failures) > SHOWN:
            typer.echo(f"and {len(done.failures) - SHOWN:,} more records were refused", err=True)
    if done.ignored:
        typer.echo(f"not written, the index has no place for: {', '.join(done.ignored)}", err=True)
    for warning in done.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if limit is not None and done.exceeds(limit):
        raise typer.Exit(PARTIAL)


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
    ids_file: Annotated[
        str | None,
        typer.Option(
            "--ids",
            metavar="FILE",
            help="Delete the datapoints of a file: one id per line, or records as `upsert` reads them; - is standard "
            "input.",
        ),
    ] = None,
    documents_file: Annotated[
        str | None, typer.Option("--documents", metavar="FILE", help="The same, for documents.")
    ] = None,
    where: WhereOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    target: TargetOption = None,
    store: StoreOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Delete datapoints or documents; unknown ids are not an error.

    With --where, delete all datapoints that a filter allows, in batches. Of a document that is cut into passages, only
    the passages that it allows.
    """
    if where is not None:
        if ids or document or ids_file or documents_file:
            raise typer.BadParameter("--where cannot be given together with ids or documents")
        _delete_where(index, where, target, store, timeout, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    if dry_run or yes:
        raise typer.BadParameter("--dry-run and --yes are for --where")
    if ids_file == documents_file == STDIN:
        raise typer.BadParameter("--ids and --documents cannot both be standard input")
    deleted = sequence = 0
    with connected(target, store, timeout_s=timeout) as client:
        handle = client.index(index)
        single = [*(ids or []), *_read_ids(handle, ids_file)]
        whole = [*(document or []), *_read_ids(handle, documents_file)]
        for some, documents_part in _batches(single, whole):
            done = handle.delete(some, document_ids=documents_part)
            deleted, sequence = deleted + done.deleted, done.sequence
    if as_json:
        print_json({"deleted": deleted, "sequence": sequence})
    else:
        typer.echo(f"{deleted:,} datapoints deleted; sequence {sequence}.")


def _delete_where(
    index: str,
    where: str,
    target: str | None,
    store: str | None,
    timeout: float,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    condition = parsed_json(where, "--where")
    with connected(target, store, timeout_s=timeout) as client:
        handle = client.index(index)
        if dry_run or not yes:
            _confirm(
                handle.delete(where=condition, dry_run=True).deleted,
                "deleted",
                dry_run=dry_run,
                as_json=as_json,
            )
        if dry_run:
            return
        done = handle.delete(where=condition, progress=_report)
    _print_done(done.deleted, done.sequence, "deleted", as_json=as_json)


def update(
    index: IndexOption,
    where: Annotated[
        str,
        typer.Option(
            "--where",
            metavar="JSON",
            help='Filter, such as {"year": {"$gte": 2020}}; {} changes all datapoints.',
        ),
    ],
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="New value of an attribute: text of a string, else JSON; may be given several times.",
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Remove an attribute; may be given several times."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    target: TargetOption = None,
    store: StoreOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Give all datapoints that a filter allows new values of attributes.

    They are changed in batches; texts are not encoded again. For other values by id, see `upsert --update`.
    """
    condition = parsed_json(where, "--where")
    with connected(target, store, timeout_s=timeout) as client:
        handle = client.index(index)
        kinds = handle.stats().attributes if assignments else {}
        attributes: dict[str, Any] = dict(_assignment(text, kinds) for text in assignments or ())
        attributes |= dict.fromkeys(unset or ())
        if dry_run or not yes:
            count = handle.update(where=condition, attributes=attributes, dry_run=True).written
            _confirm(count, "changed", dry_run=dry_run, as_json=as_json)
        if dry_run:
            return
        done = handle.update(where=condition, attributes=attributes, progress=_report)
    _print_done(done.written, done.sequence, "changed", as_json=as_json)


def _assignment(text: str, kinds: Mapping[str, str]) -> tuple[str, Any]:
    """Return name and value of `NAME=VALUE`; strings of an attribute that holds strings need no quotes."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"--set must be NAME=VALUE, got {text!r}")
    if kinds.get(name) in ("string", "timestamp"):
        return name, value
    try:
        from scannery.indexer.strict_json import exact_json

        return name, exact_json(value)
    except ValueError:
        if name in kinds:
            raise typer.BadParameter(
                f"--set {name}: {value!r} is not JSON of the type {kinds[name]}"
            ) from None
        return name, value


def _confirm(count: int, done: str, *, dry_run: bool, as_json: bool) -> None:
    """Print how many datapoints are meant, and ask whether that is right unless it is a dry run."""
    if dry_run:
        if as_json:
            print_json({done: count, "dry_run": True})
        else:
            typer.echo(f"{count:,} datapoints would be {done}.")
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            f"{count:,} datapoints would be {done}; without a terminal, confirm with --yes"
        )
    typer.confirm(f"{count:,} datapoints will be {done}. Continue?", abort=True, err=True)


def _print_done(count: int, sequence: int, done: str, *, as_json: bool) -> None:
    if sys.stderr.isatty():
        typer.echo("", err=True)
    if as_json:
        print_json({done: count, "sequence": sequence})
    else:
        typer.echo(f"{count:,} datapoints {done}; sequence {sequence}.")


def _batches(ids: list[Any], documents: list[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield what one call deletes; one call at least, which refuses to delete nothing."""
    count = max(len(ids), len(documents), 1)
    for start in range(0, count, MAX_BATCH):
        yield ids[start : start + MAX_BATCH], documents[start : start + MAX_BATCH]


def _read_ids(index: Index, file: str | None) -> list[Any]:
    if file is None:
        return []
    if is_record_file(file):
        return identifiers(index, file)
    text = sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8-sig")
    return [line.strip() for line in text.split("\n") if line.strip()]


def _limit(text: str | None) -> float | None:
    if text is None:
        return None
    from scannery.indexer.spec.source_spec import error_limit

    try:
        return error_limit(text)
    except ValueError as error:
        raise typer.BadParameter(f"--allow-errors {error}") from error


def _report(count: int) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r{count:,} datapoints", err=True, nl=False)

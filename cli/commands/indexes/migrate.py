"""`scannery index migrate`: another encoder, or texts cut anew, while an index is served."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scannery.cli.commands.indexes.lifecycle import index_app
from scannery.cli.commands.indexes.versions import NameArgument, index_of
from scannery.cli.options import JsonOption, LogOption, given_log_root, parsed_json
from scannery.cli.output import print_json
from scannery.indexer import Store
from scannery.live.maintenance.goals import Goal

if TYPE_CHECKING:
    from scannery.cli.commands.indexes.migration import Migration

__all__ = ["index_app"]

ServedStore = Annotated[
    str, typer.Option("--store", "-s", metavar="URI", help="Folder or bucket with the index.")
]


@index_app.command("migrate", no_args_is_help=True)
def migrate_command(
    name: NameArgument,
    store: ServedStore,
    log: LogOption = "",
    encoder: Annotated[
        str | None,
        typer.Option(metavar="MODEL|JSON", help="Model of the new vectors, or its options as in SPEC.yaml."),
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Components that are kept of a vector of the model.")
    ] = None,
    chunk: Annotated[
        str | None,
        typer.Option(
            metavar="N|JSON",
            help="Cut texts anew, into passages of at most N tokens, or as `source.chunk` of SPEC.yaml.",
        ),
    ] = None,
    spec: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Other keys of SPEC.yaml that change: named_vectors, lexical, vectors."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Only convert the I-th of N parts: machines share the work."),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judged queries that must be answered better.")
    ] = None,
    qrels: Annotated[Path | None, typer.Option(metavar="FILE", help="Their judgements.")] = None,
    passages: Annotated[
        bool, typer.Option("--passages", help="Judgements name datapoints, not documents.")
    ] = False,
    no_switch: Annotated[
        bool, typer.Option("--no-switch", help="End before the index changes: INDEX-mirror can be searched.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on following writes until ended, so that --undo is quick.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Exchange both contents again; no write is lost.")
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Remove the mirror: the migration, or afterwards the way back.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Only tell how far it is.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only tell what it would cost, by a sample; nothing is written."),
    ] = False,
    run: Annotated[
        bool, typer.Option("--run", help="Do what a client has asked for, as servers do by themselves.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Deadline of a query.")
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Change the encoder or the passages of an index while it is served; the same command goes on if it was ended.

    A mirror, INDEX-mirror, gets all datapoints with the new vectors and follows all writes. Then both exchange their
    contents at one moment, and the mirror keeps the former one for the way back.
    """
    from scannery.cli.commands.indexes.migration import Migration

    _check_one(run=run, abandon=abandon, undo=undo, status=status, dry_run=dry_run)
    opened, log_root = Store.open(store), given_log_root(log)
    index = index_of(opened, name)
    migration = Migration(opened, index, log_root)
    if run:
        migration.run()
        return
    if abandon:
        migration.abandon()
        _print({"index": index, "abandoned": True}, f"{index} has no mirror any more.", as_json=as_json)
        return
    if status:
        _print_status(migration, as_json=as_json)
        return
    if dry_run:
        result, text = migration.price(_changes(encoder, dimensions, chunk, spec))
        _print(result, text, as_json=as_json)
        return
    migration.settle()
    if undo:
        migration.check_exchanged()
        migration.aim(Goal.UNDO)
    else:
        share = None if part is None else _part(part)
        migration.begin(_changes(encoder, dimensions, chunk, spec))
        no_switch = no_switch or migration.is_exchanged
        migration.aim(Goal.MIRROR if no_switch and not migration.is_exchanged else Goal.SWITCH)
        if share is not None:
            migration.convert(share)
            _print_status(migration, as_json=as_json)
            return
        migration.catch_up()
        if queries is not None and qrels is not None:
            migration.compare(store, queries, qrels, timeout, passages=passages)
    if not no_switch:
        migration.switch(Goal.UNDO if undo else Goal.SWITCH)
    _print_status(migration, as_json=as_json)
    if follow:
        migration.follow()


def _check_one(**flags: bool) -> None:
    """Check that one thing at most is to be done: a dry run removes nothing."""
    named = [f"--{name.replace('_', '-')}" for name, is_set in flags.items() if is_set]
    if len(named) > 1:
        raise typer.BadParameter(f"{named[0]} and {named[1]} exclude each other")


def _print_status(migration: Migration, *, as_json: bool) -> None:
    result, text = migration.status()
    _print(result, text, as_json=as_json)


def _changes(
    encoder: str | None, dimensions: int | None, chunk: str | None, spec: str | None
) -> dict[str, Any]:
    changes: dict[str, Any] = parsed_json(spec, "--spec") or {}
    if encoder is not None:
        options = parsed_json(encoder, "--encoder") if encoder.startswith("{") else {"model": encoder}
        changes["encoder"] = options | ({} if dimensions is None else {"dimensions": dimensions})
    elif dimensions is not None:
        raise typer.BadParameter("--dimensions goes with --encoder")
    if chunk is not None:
        changes["chunk"] = {"max_tokens": int(chunk)} if chunk.isdecimal() else parsed_json(chunk, "--chunk")
    return changes


def _part(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise typer.BadParameter(f"--part must be I/N, such as 2/4, got {text!r}")
    return int(number) - 1, int(count)


def _print(result: Mapping[str, object], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        typer.echo(text)

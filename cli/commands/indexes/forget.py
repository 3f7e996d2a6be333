"""`scannery index forget`: remove the rows that a filter allows from all files, and say what remains where."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scannery.cli.commands.indexes.versions import JsonOption, NameArgument, index_of
from scannery.cli.errors import NO
from scannery.cli.options import (
    LogOption,
    ServedStoreOption,
    TargetOption,
    connected,
    given_log_root,
    parsed_json,
)
from scannery.cli.output import print_json
from scannery.indexer import Manifest, Store, read_manifest

if TYPE_CHECKING:
    from scannery.live.maintenance.forget import ForgettingReport

__all__ = ["forget"]

TIMEOUT_S = 60.0
OUTSIDE = (
    "copies in other stores: snapshots, exports, backups of the folder or bucket, and versions that the bucket keeps",
    "PostgreSQL, if it has the log: its free space until VACUUM FULL, its write-ahead log, standbys and archives",
    "logged queries that a key asked for somebody (client_id), and texts that others asked: scannery log forget",
    "local caches of other machines, and of this one after a run that was killed: until their segments are displaced, "
    "or the folder is removed",
    "memory of servers, with kept queries: until they end",
    "models, maps and tuning queries that were made from the data, and dead letters of builds",
    "the audit log, which has names of keys; and keys: scannery keys revoke",
    "the source of a build: the next one brings back what it still has",
)
"""Places that the store does not tell of, each with what to do."""


def forget(
    name: NameArgument,
    store: ServedStoreOption,
    where: Annotated[
        str, typer.Option("--where", metavar="JSON", help='Filter of the rows, such as {"tenant": "acme"}.')
    ],
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            metavar="NAME/ID",
            help="Key whose logged queries are forgotten, as of `log forget`; may be given several times.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the rows, deleted ones included, in each location.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            help="Wait for servers at most so long: once until they have logged queries, which they do every minute, "
            "and once until they let go of older versions. Default: 70.",
        ),
    ] = None,
    target: TargetOption = None,
    log: LogOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove the rows that a filter allows from all files of an index, and say what remains where.

    Deletes them, writes segments that have them anew, and removes all older versions and what the log and the log of
    queries have of them. Exit code 1: files of the store still have such rows. Run it again, then, or after a crash.
    With --target, a server deletes them.
    """
    opened, condition = Store.open(store), parsed_json(where, "--where")
    index = index_of(opened, name)
    with connected(target, None if target else store, timeout_s=TIMEOUT_S) as client:
        handle = client.index(index)
        count = handle.delete(where=condition, dry_run=True).deleted
        if count and count == handle.count():
            raise typer.BadParameter(
                f"--where allows all {count:,} datapoints: `scannery index drop` removes an index"
            )
    if not (dry_run or yes):
        _confirm(index, count)
    report = _forgotten(
        opened,
        index,
        condition,
        _deletion(index, condition, target, store),
        clients=clients or (),
        log_root=given_log_root(log),
        dry_run=dry_run,
        **({} if wait is None else {"wait_s": wait}),
    )
    if as_json:
        print_json(asdict(report) | {"complete": report.complete, "outside": OUTSIDE, "dry_run": dry_run})
    else:
        for line in _lines(report, count, dry_run=dry_run):
            typer.echo(line)
    if not (dry_run or report.complete):
        raise typer.Exit(NO)


def _confirm(index: str, count: int) -> None:
    meant = f"{count:,} datapoints of {index}, all of its older versions, and what its logs have of them"
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{meant}: without a terminal, confirm their removal with --yes")
    typer.confirm(f"Remove {meant}? This cannot be undone", abort=True, err=True)


def _deletion(index: str, condition: Any, target: str | None, store: str) -> Callable[[], int]:
    def delete() -> int:
        with connected(target, None if target else store, timeout_s=TIMEOUT_S) as client:
            return client.index(index).delete(where=condition).deleted

    return delete


def _forgotten(
    store: Store,
    index: str,
    condition: Any,
    delete: Callable[[], int],
    *,
    dry_run: bool,
    **options: Any,
) -> ForgettingReport:
    """Return the report of `live.maintenance.forget.forget`, with what builds keep; options as of it."""
    from scannery.live.maintenance.forget import Location, allowed_ids, forget
    from scannery.live.writing.write_views import RowFilter
    from scannery.pipelines.forgetting import forget_units
    from scannery.runtime.where import build_filter
    from scannery.serving.request.filter import parse_filter
    from scannery.serving.services.narrowed_writes import row_filter
    from scannery.serving.snapshot.filter_cache import NEVER, FilterCache

    message = build_filter(condition)

    def filter_of(manifest: Manifest) -> RowFilter:
        node = parse_filter(message, manifest.spec)
        assert node is not None  # a deletion has refused filters without a condition
        return row_filter(FilterCache(), node, message, NEVER)

    manifest = read_manifest(store, index)
    allowed = filter_of(manifest)
    rows, remaining = forget_units(
        store, index, lambda table: len(allowed_ids(table, manifest, allowed)), dry_run=dry_run
    )
    report = forget(store, index, filter_of, delete, dry_run=dry_run, **options)
    if not rows:
        return report
    units = Location(
        name="embeddings of builds",
        rows=rows,
        remaining=remaining,
        advice="run this again when no build runs",
    )
    return replace(report, locations=(*report.locations, units))


def _lines(report: ForgettingReport, count: int, *, dry_run: bool) -> Iterator[str]:
    if dry_run:
        yield f"{count:,} datapoints of {report.index} would be deleted. Files with them, deleted ones included:"
    else:
        yield f"{report.deleted:,} datapoints deleted; {report.index} is at version {report.version}."
    for each in report.locations:
        remaining = "cannot be read" if each.remaining is None else f"{each.remaining:,} remain"
        state = "" if dry_run and each.remaining is not None else f", {remaining}"
        advice = f" ({each.advice})" if each.remaining != 0 and not dry_run else ""
        yield f"  {each.name}: {each.rows:,} rows{state}{advice}"
    yield "Not looked at:"
    yield from (f"  {each}" for each in OUTSIDE)
    if dry_run:
        return
    yield (
        f"No file of {report.index} in the store has such rows, and no other index."
        if report.complete
        else "Not done: such rows remain. Follow the advice above, and run this again."
    )

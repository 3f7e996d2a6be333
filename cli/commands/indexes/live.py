"""`scannery index seal | merge | snapshot | restore | branch | log | drop`: live updates, backups, and removal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from scannery.cli.commands.indexes.show import unsealed_batches
from scannery.cli.commands.indexes.versions import JsonOption, NameArgument, StoreOption, index_app, index_of
from scannery.cli.options import LogOption, TargetOption, TimeoutOption, connected, given_log_root
from scannery.cli.options import StoreOption as OptionalStore
from scannery.cli.output import print_json, size_text
from scannery.cli.progress import counting_bar
from scannery.indexer import AlreadyExistsError, Store, list_versions, read_aliases, read_manifest
from scannery.live.log.location import LogRoot

__all__ = ["index_app"]


@index_app.command("seal")
def seal_command(
    name: NameArgument, store: StoreOption, log: LogOption = "", as_json: JsonOption = False
) -> None:
    """Seal live updates from the log into segments, in a new version."""
    from scannery.live.maintenance.locks import locked
    from scannery.live.maintenance.seal import seal

    opened, root = Store.open(store), given_log_root(log)
    name = index_of(opened, name)
    read_manifest(opened, name)  # raises a clear error for an unknown index
    with locked(_lock_root(opened, root), name, "seal"):
        report = seal(opened, name, log_root=root)
    if as_json:
        print_json(report and asdict(report))
    elif report is None:
        typer.echo(f"{name} has no live updates that are not in its current version.")
    else:
        typer.echo(
            f"{name} is at version {report.version}: {report.mutations:,} mutations, {report.rows:,} new rows, "
            f"{report.deleted:,} rows replaced or deleted."
        )


@index_app.command("merge")
def merge_command(
    name: NameArgument, store: StoreOption, log: LogOption = "", as_json: JsonOption = False
) -> None:
    """Merge small segments and drop deleted rows beyond the spec's thresholds, in new versions."""
    from scannery.live.maintenance.locks import locked
    from scannery.live.maintenance.merge import merge

    opened, reports = Store.open(store), []
    name = index_of(opened, name)
    read_manifest(opened, name)
    with locked(_lock_root(opened, given_log_root(log)), name, "merge"):
        while report := merge(opened, name):
            reports.append(report)
    if as_json:
        print_json([asdict(report) for report in reports])
    elif not reports:
        typer.echo(f"{name} has nothing to merge.")
    else:
        merged, dropped = (sum(getattr(report, key) for report in reports) for key in ("merged", "dropped"))
        typer.echo(
            f"{name} is at version {reports[-1].version}: {merged} segments became {len(reports)}, "
            f"{dropped:,} deleted rows were dropped."
        )


@index_app.command("snapshot")
def snapshot_command(
    name: NameArgument,
    store: StoreOption,
    to: Annotated[str, typer.Option("--to", help="Folder or bucket of the copy.")],
    log: LogOption = "",
    as_json: JsonOption = False,
) -> None:
    """Copy an index with its live updates to another store, also while it is served and written to."""
    from scannery.live.maintenance.copies import snapshot

    opened = Store.open(store)
    name = index_of(opened, name)
    with _taken_is_usage("--to"):
        report = snapshot(opened, name, Store.open(to, create=True), log_root=given_log_root(log))
    if as_json:
        print_json(asdict(report))
    else:
        typer.echo(
            f"Copied version {report.version} of {name} and its mutations up to {report.sequence} to {to}: "
            f"{report.files} files, {size_text(report.size_bytes)}."
        )


@index_app.command("restore")
def restore_command(
    name: NameArgument,
    store: StoreOption,
    backup: Annotated[str, typer.Option("--from", help="Folder or bucket of the copy.")],
    log: LogOption = "",
    as_json: JsonOption = False,
) -> None:
    """Copy an index from a snapshot into a store that does not have it."""
    from scannery.live.maintenance.copies import restore

    with _taken_is_usage("--store"):
        root = given_log_root(log)
        report = restore(Store.open(backup), name, Store.open(store, create=True), log_root=root)
    if as_json:
        print_json(asdict(report))
    else:
        typer.echo(
            f"Restored version {report.version} of {name} and its mutations up to {report.sequence}: "
            f"{report.files} files, {size_text(report.size_bytes)}."
        )


@index_app.command("branch", no_args_is_help=True)
def branch_command(
    name: NameArgument,
    branch: Annotated[str, typer.Argument(metavar="NEW", help="Name of the branch.")],
    target: TargetOption = None,
    store: OptionalStore = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="Version to branch from, without live updates after it.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|AGO",
            help="Branch from the newest version of that time or before: ISO 8601, or 2h or 7d ago.",
        ),
    ] = None,
    log: LogOption = "",
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Make an index of its own with the content of another one; both share their files until they differ."""
    if version is not None and time is not None:
        raise typer.BadParameter("give either --version or --time")
    if (target is None) == (store is None):
        raise typer.BadParameter("give either --target HOST:PORT or --store URI")
    if target is not None:
        if log:
            raise typer.BadParameter("--log is for --store")
        with connected(target, None, timeout_s=timeout) as client:
            client.branch_index(name, branch, version=version, time=time)
        made: dict[str, object] = {"index": branch}
    else:
        made = _branched(Store.open(str(store)), name, branch, version=version, time=time, log=log)
    if as_json:
        print_json(made)
        return
    content = f", of version {made['version']} and mutations up to {made['sequence']}" if store else ""
    typer.echo(f"{branch} is a branch of {name}{content}; both share their files until they differ.")


def _branched(
    opened: Store, name: str, branch: str, *, version: int | None, time: str | None, log: str
) -> dict[str, object]:
    from scannery.client.request.lifecycle_calls import build_time
    from scannery.live.maintenance import copies

    with _taken_is_usage("NEW"):
        report = copies.branch(
            opened,
            index_of(opened, name),
            branch,
            version=version,
            time=None if time is None else build_time(time),
            log_root=given_log_root(log),
        )
    return asdict(report)


@index_app.command("log")
def log_command(
    name: NameArgument,
    store: StoreOption,
    log: LogOption = "",
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Begin a new log; unsealed updates in the old one are lost."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show where the log of an index is, and how many updates in it are not sealed."""
    opened = Store.open(store)
    name = index_of(opened, name)
    if forget:
        _forget(opened, name, given_log_root(log), as_json=as_json)
    else:
        _show_log(opened, name, given_log_root(log), as_json=as_json)


@index_app.command("drop")
def drop_command(
    name: NameArgument,
    target: TargetOption = None,
    store: OptionalStore = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Although a server has it open or a build is running; they will fail."),
    ] = False,
    log: LogOption = "",
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Remove an index with all its versions, files and live updates; or what a failed build left of one.

    --force and --log are for --store: with --target, the server removes the index although it has it open.
    """
    if target is not None:
        if force or log:
            raise typer.BadParameter("--force and --log are for --store")
        _drop_served(name, target, store, timeout_s=timeout, yes=yes, as_json=as_json)
        return
    if store is None:
        raise typer.BadParameter("give either --target HOST:PORT or --store URI")
    _drop_stored(name, Store.open(store), given_log_root(log), yes=yes, force=force, as_json=as_json)


def _drop_served(
    name: str, target: str, store: str | None, *, timeout_s: float, yes: bool, as_json: bool
) -> None:
    with connected(target, store, timeout_s=timeout_s) as client:
        if not yes:
            info = client.index(name).stats()
            _confirm(name, f"{info.rows:,} datapoints", f"version {info.version}")
        client.drop_index(name)
    if as_json:
        print_json({"index": name, "dropped": True})
    else:
        typer.echo(f"Removed {name}.")


def _confirm(name: str, content: str, versions: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{name} has {content}; --yes removes them")
    typer.confirm(f"Remove {name}: {content}, {versions}? This cannot be undone", abort=True)


def _content(opened: Store, name: str, log: LogRoot | None) -> str:
    """Return what an index holds, with the live updates that are in no segment."""
    manifest = read_manifest(opened, name)
    waiting = unsealed_batches(opened, manifest, log)
    return f"{manifest.rows:,} datapoints" + (
        f" in segments and {waiting:,} batches of live updates" if waiting else ""
    )


def _drop_stored(
    name: str, opened: Store, log: LogRoot | None, *, yes: bool, force: bool, as_json: bool
) -> None:
    from scannery.live.maintenance.drop import drop

    if names := [alias for alias, index in read_aliases(opened).items() if index == name]:
        raise typer.BadParameter(f"{name} has the aliases {', '.join(names)}: move or delete them first")
    versions = list_versions(opened, name)
    if not yes and versions:
        _confirm(name, _content(opened, name, log), f"{len(versions)} version(s)")
    with counting_bar("removing") as progress:
        report, elsewhere = drop(opened, name, log_root=log, force=force, progress=progress)
    if as_json:
        print_json(asdict(report) | {"log_elsewhere": elsewhere})
        return
    typer.echo(
        f"Removed {name}: {report.versions} version(s), {report.files:,} files, {size_text(report.size_bytes)}."
    )
    if elsewhere is not None:
        typer.echo(f"Its log of live updates is {elsewhere}; remove it there.")


def _forget(store: Store, name: str, log: LogRoot | None, *, as_json: bool) -> None:
    from scannery.live.log.homes import forget_log

    with _taken_is_usage("--log"):
        registration = forget_log(store, name, log_root=log)
    if as_json:
        print_json(registration and asdict(registration))
    elif registration is None:
        typer.echo(f"{name} has no log to forget.")
    else:
        typer.echo(f"{name} begins a new log with the next write; the old one was {registration.where}.")


def _show_log(store: Store, name: str, log: LogRoot | None, *, as_json: bool) -> None:
    from scannery.live.log.registry import registered
    from scannery.live.maintenance.lag import log_status

    manifest = read_manifest(store, name)
    registration, status = registered(store, name), log_status(store, manifest, log_root=log)
    if as_json:
        print_json({"registered": registration and asdict(registration), "status": status and asdict(status)})
        return
    if registration is not None:
        typer.echo(f"{name} has its live updates {registration.where}.")
    elif status is not None:
        typer.echo(f"{name} has a log made by an earlier release; the next write registers it in the store.")
    else:
        typer.echo(f"{name} has no log yet.")
    if status is not None:
        typer.echo(
            f"{status.mutations:,} mutations, up to {status.sequence:,}, are not sealed; "
            f"{size_text(status.size_bytes)}, written by {status.written_by or 'SQLite of an unknown version'}."
        )


@contextmanager
def _taken_is_usage(option: str) -> Iterator[None]:
    # Elsewhere AlreadyExistsError means a concurrent writer, and a retry helps.
    try:
        yield
    except AlreadyExistsError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _lock_root(store: Store, log: LogRoot | None) -> Path:
    from scannery.live.maintenance.locks import lock_root_of

    root = log or store.local_root
    if root is None:
        raise typer.BadParameter("--log: name the place of the logs, the store is a bucket")
    return lock_root_of(store, root)

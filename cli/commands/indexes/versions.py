"""`scannery index …`: list, show, verify, roll back, compact and clean up stored indexes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from scannery.cli.commands.build import quiet_beam
from scannery.cli.commands.indexes.show import documents_of, print_version, time_text, unsealed_batches
from scannery.cli.errors import NO
from scannery.cli.evaluation_report import plot_curves
from scannery.cli.options import LogOption, TargetOption, connected, given_log_root
from scannery.cli.output import console, print_json, size_text
from scannery.cli.progress import counting_bar, stage_bar
from scannery.client import IndexInfo, VersionInfo
from scannery.indexer import (
    Manifest,
    Store,
    collect_garbage,
    latest_version,
    list_indexes,
    list_versions,
    parse_spec,
    read_aliases,
    read_manifest,
    spec_json_schema,
    spec_yaml,
    verify,
)

__all__ = ["index_app", "index_of"]

index_app = typer.Typer(no_args_is_help=True, help="Show, check, roll back and clean up indexes.")

StoreOption = Annotated[str, typer.Option("--store", help="Folder or bucket with the indexes.")]
NameArgument = Annotated[str, typer.Argument(metavar="INDEX", help="Name of the index.")]
OptionalStore = Annotated[
    str | None, typer.Option("--store", "-s", help="Folder or bucket with the indexes.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
VersionOption = Annotated[int | None, typer.Option("--version", min=1, help="Default: the current one.")]


@index_app.command("list")
def list_command(
    store: OptionalStore = None,
    target: TargetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the indexes of a store, or of a server."""
    if (store is None) == (target is None):
        raise typer.BadParameter("give either --target HOST:PORT or --store URI")
    if store is None:
        _list_served(str(target), as_json=as_json)
        return
    opened = Store.open(store)
    manifests = [read_manifest(opened, name) for name in list_indexes(opened)]
    waiting = {manifest.index: unsealed_batches(opened, manifest) for manifest in manifests}
    if as_json:
        print_json([_summary(manifest) | {"live_batches": waiting[manifest.index]} for manifest in manifests])
        return
    table = Table(*_LISTED)
    for manifest in manifests:
        table.add_row(
            manifest.index,
            str(manifest.version),
            f"{manifest.rows:,}{'*' if waiting[manifest.index] else ''}",
            str(manifest.dimensions),
            manifest.spec.distance,
            size_text(manifest.size_bytes),
            time_text(manifest.created_at),
        )
    console().print(table if manifests else f"There is no index in {escape(store)}.")
    if any(waiting.values()):
        console().print("*: and live updates that are in no segment yet")


_LISTED = ("index", "version", "datapoints", "dimensions", "distance", "size", "made")


def _list_served(target: str, *, as_json: bool) -> None:
    with connected(target, None, timeout_s=30.0) as client:
        infos = client.indexes()
    if as_json:
        print_json([_served_summary(info) for info in infos])
        return
    table = Table(*_LISTED)
    for info in infos:
        counts = (f"{info.rows:,}", str(info.dimensions), info.distance, size_text(info.size_bytes))
        table.add_row(info.name, str(info.version), *counts, time_text(info.created_at))
    console().print(table if infos else f"There is no index on {escape(target)}.")


def _served_summary(info: IndexInfo) -> dict[str, object]:
    return {
        "index": info.name,
        "version": info.version,
        "rows": info.rows,
        "size_bytes": info.size_bytes,
        "dimensions": info.dimensions,
        "distance": info.distance,
        "aliases": list(info.aliases),
        "created_at": info.created_at.isoformat(),
    }


@index_app.command("show")
def show_command(
    name: NameArgument,
    store: OptionalStore = None,
    target: TargetOption = None,
    version: VersionOption = None,
    as_spec: Annotated[
        bool, typer.Option("--spec", help="Print a SPEC.yaml that would build the index.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw recall against cost.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a version: counts, shards, sizes, encoder, recall, and its build; --spec also of a server's index."""
    if target is not None:
        if not as_spec or store is not None:
            raise typer.BadParameter("--target is for --spec, without --store")
        with connected(target, None, timeout_s=30.0) as client:
            typer.echo(spec_yaml(parse_spec(client.index(name).version(version).spec)), nl=False)
        return
    if store is None:
        raise typer.BadParameter("give --store URI, or --target HOST:PORT with --spec")
    opened = Store.open(store)
    manifest = read_manifest(opened, index_of(opened, name), version)
    if as_spec:
        typer.echo(spec_yaml(manifest.spec), nl=False)
        return
    if plot:
        plot_curves(manifest, plot)
    if as_json:
        typer.echo(manifest.to_json().decode(), nl=False)
        return
    print_version(console(), opened, manifest, current=version is None)


@index_app.command("versions")
def versions_command(
    name: NameArgument, store: OptionalStore = None, target: TargetOption = None, as_json: JsonOption = False
) -> None:
    """List the versions of an index; the last one is current."""
    if (store is None) == (target is None):
        raise typer.BadParameter("give either --target HOST:PORT or --store URI")
    if store is None:
        _list_served_versions(str(target), name, as_json=as_json)
        return
    opened = Store.open(store)
    name = index_of(opened, name)
    read_manifest(opened, name)  # raises a clear error for an unknown index
    manifests = [read_manifest(opened, name, number) for number in list_versions(opened, name)]
    if as_json:
        print_json([_summary(manifest) for manifest in manifests])
        return
    table = Table(*_VERSIONS)
    for manifest in manifests:
        table.add_row(
            str(manifest.version),
            str(manifest.parent or ""),
            f"{manifest.rows:,}",
            str(len(manifest.segments)),
            size_text(manifest.size_bytes),
            f"{manifest.recall.measured:.3f}" if manifest.recall else "",
            time_text(manifest.created_at),
        )
    console().print(table)


_VERSIONS = ("version", "parent", "datapoints", "segments", "size", "recall", "made")


def _list_served_versions(target: str, name: str, *, as_json: bool) -> None:
    with connected(target, None, timeout_s=60.0) as client:
        infos = client.index(name).versions()[::-1]
    if as_json:
        print_json([_version_summary(name, info) for info in infos])
        return
    table = Table(*_VERSIONS)
    for info in infos:
        made = time_text(info.created_at) if info.created_at else escape(info.problem)
        recall = f"{info.recall.measured:.3f}" if info.recall else ""
        counts = (f"{info.rows:,}", str(info.segments), size_text(info.size_bytes), recall, made)
        table.add_row(str(info.version), str(info.parent or ""), *counts)
    console().print(table)


def _version_summary(name: str, info: VersionInfo) -> dict[str, object]:
    return {
        "index": name,
        "version": info.version,
        "parent": info.parent,
        "rows": info.rows,
        "segments": info.segments,
        "size_bytes": info.size_bytes,
        "recall": info.recall.measured if info.recall else None,
        "created_at": info.created_at.isoformat() if info.created_at else None,
        "kind": info.kind,
        "content_of": info.content_of,
        "problem": info.problem,
    }


@index_app.command("verify")
def verify_command(
    name: NameArgument, store: StoreOption, version: VersionOption = None, as_json: JsonOption = False
) -> None:
    """Read every file again and check hashes, counts, ids and recall."""
    opened = Store.open(store)
    name = index_of(opened, name)
    with counting_bar("verifying") as progress:
        report = verify(opened, name, version, progress=progress)
    if as_json:
        print_json({**report.__dict__})
    for problem in report.problems if not as_json else ():
        console().print(f"[red]✗[/red] {escape(problem)}", soft_wrap=True)
    if report.problems:
        raise typer.Exit(NO)
    if not as_json:
        recalls = {"": report.recall, **{f" of {name}": value for name, value in report.named_recall.items()}}
        recall_text = ", ".join(f"{value:.3f}{of}" for of, value in recalls.items() if value is not None)
        recall = f", recall@10 {recall_text} on a sample" if recall_text else ""
        exact = f"; {report.exact_segments} searched exactly" if report.exact_segments else ""
        console().print(
            f"[green]✓[/green] version {report.version} of {name}: {report.segments} segments{exact}, "
            f"{report.rows:,} datapoints{recall}",
        )


@index_app.command("rollback")
def rollback_command(
    name: NameArgument,
    to: Annotated[int, typer.Option("--to", min=1, help="Version to publish again.")],
    if_version: Annotated[
        int | None, typer.Option(min=1, help="Refuse unless this is the current version.")
    ] = None,
    store: OptionalStore = None,
    target: TargetOption = None,
    log: LogOption = "",
    as_json: JsonOption = False,
) -> None:
    """Publish an earlier version again, as a new version.

    Live updates that were sealed since then are undone. If the current version is damaged, those that the log still has
    are applied again.
    """
    from scannery.live.maintenance.rollback import rollback

    if (store is None) == (target is None):
        raise typer.BadParameter("give either --target HOST:PORT or --store URI")
    if store is None:
        if log:
            raise typer.BadParameter("--log is for --store: a server has its log")
        with connected(target, None, timeout_s=60.0) as client:
            info = client.index(name).rollback(to, if_version=if_version)
        name, version, summary = info.name, info.version, _served_summary(info)
    else:
        opened = Store.open(store)
        name = index_of(opened, name)
        manifest = rollback(opened, name, to, if_version=if_version or 0, log_root=given_log_root(log))
        version, summary = manifest.version, _summary(manifest)
    if as_json:
        print_json(summary)
    else:
        console().print(f"{name} is at version {version}, which has the content of version {to}.")


@index_app.command("gc")
def gc_command(
    name: NameArgument,
    store: StoreOption,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Newest versions to keep.")] = 3,
    min_age_hours: Annotated[
        float, typer.Option("--min-age-hours", min=0, help="Keep younger files.")
    ] = 24.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    log: LogOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove old versions that no server or build uses, and the files and records of the log that only they need."""
    from scannery.live.log.mutation_log import WrongLogError
    from scannery.live.maintenance.seal import shorten_log

    opened = Store.open(store)
    name, age = index_of(opened, name), timedelta(hours=min_age_hours)
    with counting_bar("removing") as progress:
        report = collect_garbage(opened, name, keep=keep, min_age=age, dry_run=dry_run, progress=progress)
    log_is_elsewhere = False
    if not dry_run and latest_version(opened, name) is not None:
        try:
            shorten_log(opened, name, log_root=given_log_root(log))
        except WrongLogError:
            log_is_elsewhere = True
    if as_json:
        print_json({**report.__dict__})
        return
    verb = "Would remove" if dry_run else "Removed"
    files = len(report.segments) + len(report.deletes) + len(report.embeddings)
    console().print(
        f"{verb} {len(report.versions)} version(s), {files} file(s) of them, and {len(report.records)} record(s) and "
        f"{len(report.scratch)} remnant(s) of builds: {size_text(report.freed_bytes)}.",
        soft_wrap=True,
    )
    if report.leased:
        numbers = ", ".join(map(str, report.leased))
        console().print(f"Kept, because servers or builds use them: version(s) {numbers}.")
    if log_is_elsewhere:
        console().print("Kept: the log of live updates, which is elsewhere; --log names the place.")


@index_app.command("compact")
def compact_command(
    name: NameArgument,
    store: StoreOption,
    extra: Annotated[
        list[str] | None, typer.Argument(metavar="[-- RUNNER OPTIONS]", help="Options for the runner.")
    ] = None,
    runner: Annotated[
        str | None,
        typer.Option(
            help="Default: this process, without Beam. local: Beam in this process. Others: portable, dask, "
            "dataflow, flink, spark."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Rewrite every shard with several segments or deleted rows as one segment, in a new version."""
    from scannery.pipelines import compact  # Beam takes seconds

    name = index_of(Store.open(store), name)
    with quiet_beam(), stage_bar() as progress:
        report = compact(name, store, runner=runner, runner_options=extra or [], progress=progress)
    if as_json:
        print_json(report.to_dict())
        return
    text = (
        f"{name} already has one segment per shard, and no deleted rows: version {report.version}."
        if report.up_to_date
        else f"{name} is at version {report.version}: {report.segments_before} segments became {report.segments}, "
        f"{size_text(report.size_bytes_before)} became {size_text(report.size_bytes)}, in {report.seconds:.1f} s."
    )
    console().print(text)


@index_app.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of SPEC.yaml, for editors and validators."""
    print_json(spec_json_schema())


def index_of(store: Store, name: str) -> str:
    """Return the index of a store that an alias stands for, and another name as it is."""
    return read_aliases(store).get(name, name)


def _summary(manifest: Manifest) -> dict[str, object]:
    count, exact = documents_of(manifest) or (0, False)
    return {
        "index": manifest.index,
        "version": manifest.version,
        "parent": manifest.parent,
        "documents": count if exact else None,
        "rows": manifest.rows,
        "segments": len(manifest.segments),
        "size_bytes": manifest.size_bytes,
        "dimensions": manifest.dimensions,
        "distance": manifest.spec.distance,
        "recall": manifest.recall.measured if manifest.recall else None,
        "created_at": manifest.created_at.isoformat(),
    }

"""`scannery index tune`: choose the settings of searches for the questions that people ask, without a build."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scannery.cli.commands.indexes.migrate import index_app
from scannery.cli.commands.indexes.versions import JsonOption, NameArgument, StoreOption, index_of
from scannery.cli.options import TimeoutOption, remote_options
from scannery.cli.output import print_json
from scannery.cli.progress import counting_bar
from scannery.client import UnimplementedError, connect
from scannery.indexer import Manifest, Store, read_manifest

if TYPE_CHECKING:
    import numpy as np

__all__ = ["index_app"]

FEW_QUERIES = 100
"""Fewer say little about the recall of others."""


@index_app.command("tune", no_args_is_help=True)
def tune_command(
    name: NameArgument,
    store: StoreOption,
    queries: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Queries of your users: .npy, .parquet, .jsonl, .csv, .tsv, .json, or a text per line.",
        ),
    ] = None,
    from_server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Use the queries that a server has kept (`scannery serve --keep-queries`); needs the scope admin.",
        ),
    ] = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Measure the recall curves with given queries, and publish them as a new version of the same segments.

    Servers take it over like any version. Later builds and merges tune for these queries, too.
    """
    from scannery.pipelines.tuning.index_tuning import check_tunable, tune_index

    if (queries is None) == (from_server is None):
        raise typer.BadParameter("give either --queries FILE or --from-server HOST:PORT")
    opened = Store.open(store)
    name = index_of(opened, name)
    manifest = read_manifest(opened, name)
    check_tunable(manifest)
    vectors_QD = (
        _from_file(queries, manifest, opened) if queries else _from_server(str(from_server), name, timeout)
    )
    if len(vectors_QD) < FEW_QUERIES:
        typer.echo(
            f"warning: queries: {len(vectors_QD):,} are few, and the recall of others may differ: give {FEW_QUERIES} "
            "or more. `scannery index rollback` takes the new curves back.",
            err=True,
        )
    with counting_bar("segments measured") as bar:
        report = tune_index(opened, name, vectors_QD, on_progress=bar)
    if as_json:
        print_json(asdict(report))
        return
    typer.echo(
        f"{name} is at version {report.version}: {report.segments} segment(s) measured with {report.queries:,} queries "
        f"in {report.seconds:.0f} s."
    )
    if report.recall is not None and report.before is not None:
        typer.echo(
            f"recall@10 of queries that chose no setting: {report.before:.3f} before, {report.recall:.3f} now, target "
            f"{report.target}."
        )


def _from_file(path: Path, manifest: Manifest, store: Store) -> np.ndarray:
    from scannery.pipelines.errors import CollectionError
    from scannery.pipelines.planning.planned_encoder import PlannedEncoder
    from scannery.pipelines.tuning.tuning_queries import read_queries

    # Without those of documents.
    spec = manifest.sides[-1].spec.encoder
    encoder = PlannedEncoder(spec, store.uri) if spec else None
    vectors_QD = read_queries(path, encoder)
    if encoder is not None and encoder.loaded is not None:
        digest = (manifest.sides[-1].encoder or {}).get("digest")
        if digest and encoder.fingerprint.digest != digest:
            raise CollectionError(
                f"queries: {path} has texts, and the encoder {encoder.spec.model} here is not that of the queries "
                "of the index",
                field="queries",
            )
    return vectors_QD


def _from_server(address: str, name: str, timeout_s: float) -> np.ndarray:
    from scannery.pipelines.errors import CollectionError

    with connect(address, timeout_s=timeout_s, **remote_options()) as client:
        try:
            vectors_QD = client.index(name).kept_queries()
        except UnimplementedError as error:
            raise CollectionError(
                f"queries: the server at {address} is of an older version, which keeps no queries",
                field="queries",
            ) from error
    if not len(vectors_QD):
        raise CollectionError(
            f"queries: the server at {address} has kept none of index {name!r}: start it with --keep-queries, and ask "
            "it",
            field="queries",
        )
    return vectors_QD

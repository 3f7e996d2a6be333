"""`scannery model`: the models of a store, their worth, and which of them orders the hits of an index."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from scannery.cli.commands.indexes.versions import StoreOption, index_of
from scannery.cli.commands.models.train import difference_text, print_model
from scannery.cli.options import JsonOption, TimeoutOption, connected
from scannery.cli.output import console, print_json, size_text
from scannery.cli.progress import counting_bar
from scannery.indexer import Store
from scannery.indexer.manifest import Manifest
from scannery.indexer.models.manifest import EncoderVersion, ModelVersion
from scannery.indexer.models.registry import ModelRegistry

__all__ = ["model_app"]

model_app = typer.Typer(no_args_is_help=True, help="List, evaluate, promote and roll back models.")

ModelArgument = Annotated[str, typer.Argument(metavar="NAME@N", help="Model; without @N its newest version.")]
IndexOption = Annotated[str, typer.Option("--index", "-i", help="Index, or alias, whose hits are ordered.")]


@model_app.command(no_args_is_help=True)
def add(
    model: Annotated[
        str, typer.Argument(metavar="FOLDER", help="A sentence-transformers model: a folder, or a name.")
    ],
    name: Annotated[str, typer.Option("--name", help="Name in the registry, as of an index.")],
    store: StoreOption,
    as_json: JsonOption = False,
) -> None:
    """Register a model as the next version of an encoder, after it was loaded once; specs name it store:NAME@N."""
    from scannery.cli.commands.models.registering import registered_encoder

    version = registered_encoder(Store.open(store, create=True), name, model)
    if as_json:
        print_json(version.model_dump(mode="json"))
    else:
        print_model(version)


@model_app.command("list", no_args_is_help=True)
def list_(store: StoreOption, as_json: JsonOption = False) -> None:
    """List the models of a store, with what each version is worth."""
    registry = ModelRegistry(Store.open(store))
    models = {
        f"{name}@{number}": version
        for name in registry.names()
        for number, version in registry.read_all(name)
    }
    if as_json:
        print_json([_as_json(reference, version) for reference, version in models.items()])
        return
    table = Table("model", "kind", "index", "created", "files", "size", "nDCG@10", "may be promoted")
    for reference, version in models.items():
        if isinstance(version, Exception):
            table.add_row(reference, f"cannot be read: {version}")
            continue
        files = (
            [f"{len(version.files)}", size_text(version.size_bytes)]
            if isinstance(version, EncoderVersion)
            else ["", ""]
        )
        evaluation = version.evaluation
        worth = (
            ["", ""]
            if evaluation is None
            else [difference_text(evaluation.target), "no" if evaluation.refused else "yes"]
        )
        created = f"{version.created_at:%Y-%m-%d %H:%M}"
        table.add_row(reference, version.kind, version.index or "", created, *files, *worth)
    console().print(table)


def _as_json(reference: str, version: ModelVersion | Exception) -> dict[str, Any]:
    if isinstance(version, Exception):
        return {"model": reference, "problem": str(version)}
    return version.model_dump(mode="json")


@model_app.command(no_args_is_help=True)
def show(model: ModelArgument, store: StoreOption, as_json: JsonOption = False) -> None:
    """Print what a version of a model is, what it is worth, and why it may not be promoted."""
    version = ModelRegistry(Store.open(store)).read(model)
    if as_json:
        print_json(version.model_dump(mode="json"))
    else:
        print_model(version)


@model_app.command(no_args_is_help=True)
def evaluate(
    model: ModelArgument,
    store: StoreOption,
    index: IndexOption,
    queries: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Queries that the model was not fitted to, as `scannery evaluate` reads them.",
        ),
    ],
    qrels: Annotated[
        Path, typer.Option(metavar="FILE", help="Judgements in BEIR's or TREC's format, or JSON lines.")
    ],
    passages: Annotated[
        bool, typer.Option("--passages", help="Judgements name datapoints, not documents.")
    ] = False,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Compare a model with what an index returns today, for judged queries that it was not fitted to."""
    from scannery.training.comparison import compared_model
    from scannery.training.spec import JudgedQueries

    opened = Store.open(store)
    version = ModelRegistry(opened).read(model)
    files = JudgedQueries(queries=str(queries), qrels=str(qrels), passages=passages)
    with connected(None, store, timeout_s=timeout) as client, counting_bar("asked") as bar:
        difference = compared_model(opened, client.index(index_of(opened, index)), version, files, bar)
    if as_json:
        print_json({"model": version.reference, "index": index, **difference.model_dump(mode="json")})
    else:
        typer.echo(f"{version.reference}, nDCG@10: {difference_text(difference)}")


@model_app.command(no_args_is_help=True)
def gc(
    store: StoreOption,
    keep: Annotated[int, typer.Option(min=1, help="Newest versions of each model that stay.")] = 10,
    min_age_hours: Annotated[
        float, typer.Option("--min-age-hours", min=0, help="Keep younger files.")
    ] = 24.0,
    as_json: JsonOption = False,
) -> None:
    """Remove old versions of models that no version of an index uses or can be rolled back to, and files of none."""
    removed = ModelRegistry(Store.open(store)).remove_unused(keep, min_age=timedelta(hours=min_age_hours))
    if as_json:
        print_json({"removed": removed.versions, "files": removed.files, "freed_bytes": removed.freed_bytes})
    else:
        names = f": {', '.join(removed.versions)}" if removed.versions else ""
        typer.echo(
            f"Removed {len(removed.versions):,} versions{names}, and {removed.files:,} files "
            f"({size_text(removed.freed_bytes)})."
            if removed.versions or removed.files
            else "Nothing to remove."
        )


@model_app.command(no_args_is_help=True)
def promote(
    model: ModelArgument, store: StoreOption, index: IndexOption, as_json: JsonOption = False
) -> None:
    """Search an index with a model, if the gate allows it: a new version of the same segments."""
    from scannery.training.promotion import promote as promoted

    opened = Store.open(store)
    _print_state(promoted(opened, model, index_of(opened, index)), as_json=as_json)


@model_app.command(no_args_is_help=True)
def rollback(store: StoreOption, index: IndexOption, as_json: JsonOption = False) -> None:
    """Search an index with the model before the current one again, or with none if there was none."""
    from scannery.training.promotion import rollback as rolled_back

    opened = Store.open(store)
    _print_state(rolled_back(opened, index_of(opened, index)), as_json=as_json)


def _print_state(manifest: Manifest, *, as_json: bool) -> None:
    """Print by which model an index is searched."""
    encoder = manifest.spec.encoder
    query_model = None if encoder is None else encoder.query_model
    if as_json:
        print_json(
            {
                "index": manifest.index,
                "version": manifest.version,
                "model": manifest.model,
                "query_model": query_model,
            }
        )
        return
    order = "the measured weight" if manifest.ranker is None else manifest.ranker.model
    parts = [f"{order} orders its hits"] if manifest.spec.lexical is not None else []
    parts += [f"{query_model or encoder.model} encodes its queries"] if encoder is not None else []
    typer.echo(f"{manifest.index} is at version {manifest.version}: {', and '.join(parts)}.")

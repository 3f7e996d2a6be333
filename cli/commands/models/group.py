"""`scannery model`: the models of a store, their worth, and which of them orders the hits of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from scannery.cli.commands.indexes.versions import StoreOption, index_of
from scannery.cli.commands.models.train import difference_text, print_model
from scannery.cli.options import JsonOption, TimeoutOption, connected
from scannery.cli.output import console, print_json
from scannery.cli.progress import counting_bar
from scannery.indexer import Store
from scannery.indexer.models.registry import ModelRegistry

__all__ = ["model_app"]

model_app = typer.Typer(no_args_is_help=True, help="List, evaluate, promote and roll back models.")

ModelArgument = Annotated[str, typer.Argument(metavar="NAME@N", help="Model; without @N its newest version.")]
IndexOption = Annotated[str, typer.Option("--index", "-i", help="Index, or alias, whose hits are ordered.")]


@model_app.command("list", no_args_is_help=True)
def list_(store: StoreOption, as_json: JsonOption = False) -> None:
    """List the models of a store, with what each version is worth."""
    registry = ModelRegistry(Store.open(store))
    models = [
        registry.read(f"{name}@{number}") for name in registry.names() for number in registry.versions(name)
    ]
    if as_json:
        print_json([model.model_dump(mode="json") for model in models])
        return
    table = Table("model", "kind", "index", "created", "nDCG@10", "may be promoted")
    for model in models:
        table.add_row(
            model.reference, model.kind, model.index, f"{model.created_at:%Y-%m-%d %H:%M}",
            difference_text(model.evaluation.target), "no" if model.evaluation.refused else "yes",
        )  # fmt: skip
    console().print(table)


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
    """Compare the order of a model with what an index returns today, for other judged queries; nothing is published."""
    from scannery.training.ranking.training import compared, judged_queries
    from scannery.training.spec import JudgedQueries

    version = ModelRegistry(Store.open(store)).read(model)
    files = JudgedQueries(queries=str(queries), qrels=str(qrels), passages=passages)
    with connected(None, store, timeout_s=timeout) as client, counting_bar("asked") as bar:
        judged = judged_queries(client.index(index), files, Path(), bar)
    difference = compared(judged, version.ranker)
    if as_json:
        print_json({"model": version.reference, "index": index, **difference.model_dump(mode="json")})
    else:
        typer.echo(f"{version.reference}, nDCG@10: {difference_text(difference)}")


@model_app.command(no_args_is_help=True)
def gc(
    store: StoreOption,
    keep: Annotated[int, typer.Option(min=1, help="Newest versions of each model that stay.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Remove old versions of models that no version of an index is ordered by, or can be rolled back to."""
    removed = ModelRegistry(Store.open(store)).remove_unused(keep)
    if as_json:
        print_json({"removed": removed})
    else:
        typer.echo(
            f"Removed {len(removed):,} versions: {', '.join(removed)}" if removed else "Nothing to remove."
        )


@model_app.command(no_args_is_help=True)
def promote(
    model: ModelArgument, store: StoreOption, index: IndexOption, as_json: JsonOption = False
) -> None:
    """Let a model order the hits of an index, if the gate allows it: a new version of the same segments."""
    from scannery.training.promotion import promote as promoted

    opened = Store.open(store)
    manifest = promoted(opened, model, index_of(opened, index))
    assert manifest.ranker is not None
    if as_json:
        print_json({"index": manifest.index, "version": manifest.version, "model": manifest.ranker.model})
    else:
        typer.echo(
            f"{manifest.index} is at version {manifest.version}: {manifest.ranker.model} orders its hits."
        )


@model_app.command(no_args_is_help=True)
def rollback(store: StoreOption, index: IndexOption, as_json: JsonOption = False) -> None:
    """Let the model before the current one order the hits of an index again, or none if there was none."""
    from scannery.training.promotion import rollback as rolled_back

    opened = Store.open(store)
    manifest = rolled_back(opened, index_of(opened, index))
    model = None if manifest.ranker is None else manifest.ranker.model
    if as_json:
        print_json({"index": manifest.index, "version": manifest.version, "model": model})
    else:
        order = "the measured weight" if model is None else model
        typer.echo(f"{manifest.index} is at version {manifest.version}: {order} orders its hits.")

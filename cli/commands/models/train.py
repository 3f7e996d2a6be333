"""`scannery train`: learn from judged queries, and register what was learned."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scannery.cli.commands.indexes.versions import StoreOption
from scannery.cli.options import JsonOption, TimeoutOption, connected
from scannery.cli.output import print_json, size_text
from scannery.cli.progress import counting_bar

if TYPE_CHECKING:
    from scannery.indexer.models.manifest import Difference, EncoderVersion, ModelVersion

__all__ = ["difference_text", "print_model", "train"]


def train(
    spec: Annotated[
        Path,
        typer.Argument(metavar="SPEC", help="YAML file: name of the model, index, and judged queries."),
    ],
    store: StoreOption,
    kind: Annotated[
        Literal["ranking"], typer.Option(help="What is trained: the order of hybrid hits.")
    ] = "ranking",
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Fit a ranker to judged queries, compare it with what an index returns today, and register it."""
    del kind  # the only one; the option is there for scripts that name it
    from scannery.indexer import Store
    from scannery.training.ranking.training import train_ranking
    from scannery.training.spec import load_training_spec

    training, folder = load_training_spec(spec)
    opened = Store.open(store)
    with connected(None, store, timeout_s=timeout) as client, counting_bar("asked") as bar:
        model = train_ranking(opened, client, training, folder, bar)
    if as_json:
        print_json(model.model_dump(mode="json"))
        return
    print_model(model)
    if not model.evaluation.refused:
        typer.echo(
            f"Promote it: scannery model promote {model.reference} --index {training.index} --store "
            f"{shlex.quote(store)}"
        )


def print_model(model: ModelVersion) -> None:
    """Print what a version of a model is, what it is worth, and whether it may be promoted."""
    if model.kind == "ranking":
        typer.echo(
            f"{model.reference}: a ranker for index {model.index}, fitted to {model.ranker.queries:,} judged queries "
            f"of version {model.index_version}"
        )
    else:
        _print_encoder(model)
    if model.evaluation is not None:
        typer.echo(f"nDCG@10, by cross-validation: {difference_text(model.evaluation.target)}")
        for name, guard in model.evaluation.guards.items():
            typer.echo(f"guard {name}: {difference_text(guard)}")
    if model.kind == "ranking":
        for name, weight in model.ranker.weights.items():
            typer.echo(f"  {weight:+.3f} × {name}")
    for reason in model.evaluation.refused if model.evaluation else ():
        typer.echo(f"It may not be promoted: {reason}")


def _print_encoder(model: EncoderVersion) -> None:
    encodes = "queries" if model.kind == "query_side" else "queries and documents"
    origin = f", from {model.base}" if model.base else ""
    index = f" on index {model.index}" if model.index else ""
    typer.echo(
        f"{model.reference}: an encoder of {encodes}{origin}{index}; {len(model.files)} files, "
        f"{size_text(model.size_bytes)}"
    )
    if model.fingerprint is not None:
        typer.echo(
            f"{model.fingerprint['dimensions']} dimensions, {model.fingerprint['max_tokens']} tokens, fingerprint "
            f"{model.fingerprint['digest'][:12]}"
        )
    typer.echo(f"In a spec: encoder: {{{model.spec_key}: {model.spec_reference}}}")


def difference_text(difference: Difference) -> str:
    """Return two means and their difference with its interval, on one line."""
    return (
        f"{difference.current:.4f} → {difference.candidate:.4f}, {difference.mean:+.4f} "
        f"({difference.low:+.4f} to {difference.high:+.4f}) over {difference.queries:,} queries"
    )

"""`scannery train`: learn from judged queries, and register what was learned."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from scannery.cli.commands.indexes.versions import StoreOption
from scannery.cli.options import JsonOption, TimeoutOption, connected
from scannery.cli.output import print_json, size_text
from scannery.cli.progress import counting_bar
from scannery.indexer.models.manifest import Difference, EncoderVersion, ModelVersion, RankingVersion
from scannery.runtime.errors import ConfigError

if TYPE_CHECKING:
    from scannery.indexer import Store
    from scannery.indexer.manifest import Ranker
    from scannery.training.runs.replicas import Replicas

__all__ = ["difference_text", "print_model", "train"]


def train(
    spec: Annotated[
        Path,
        typer.Argument(metavar="SPEC", help="YAML file: name of the model, index, and judged queries."),
    ],
    store: StoreOption,
    kind: Annotated[
        Literal["ranking", "query_side", "encoder"],
        typer.Option(
            help="What is trained: the order of hybrid hits, the encoder of queries with such an order, or the encoder "
            "of queries and passages, for another index."
        ),
    ] = "ranking",
    device: Annotated[
        Literal["auto", "cpu", "cuda", "xla"] | None,
        typer.Option(help="Device that an encoder is trained on; by default that of the index's spec."),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for event files of TensorBoard: loss and seconds of each step of an encoder.",
        ),
    ] = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Fit a model to judged queries, compare it with what an index returns today, and register it.

    A training of an encoder that was stopped or killed goes on if the same command is given again.

    An encoder of both sides takes several processes: `torchrun --nproc-per-node N -m scannery`.
    """
    from scannery.indexer import Store
    from scannery.training.runs.replicas import Replicas
    from scannery.training.spec import load_training_spec

    training, folder = load_training_spec(spec)
    opened = Store.open(store)
    model: RankingVersion | EncoderVersion
    with Replicas.joined() as replicas:
        if replicas.count > 1 and kind != "encoder":
            raise ConfigError(
                f"--kind {kind} trains in one process, got {replicas.count}: leave out torchrun"
            )
        if not replicas.leads:
            _follow(opened, replicas)
            return
        with connected(None, store, timeout_s=timeout) as client, counting_bar(_STEPS[kind]) as bar:
            if kind == "ranking":
                from scannery.training.ranking.training import train_ranking

                model = train_ranking(opened, client, training, folder, bar)
            else:
                train_model = partial(_training_of(kind, replicas), device=device, events=events)
                with _stopping() as is_stopped:
                    model = train_model(opened, client, training, folder, progress=bar, is_stopped=is_stopped)
    if as_json:
        print_json(model.model_dump(mode="json"))
        return
    print_model(model)
    if model.kind != "encoder" and model.evaluation is not None and not model.evaluation.refused:
        typer.echo(
            f"Promote it: scannery model promote {model.reference} --index {training.index} --store "
            f"{shlex.quote(store)}"
        )


_STEPS = {"ranking": "asked", "query_side": "trained", "encoder": "trained"}
"""What the bar of each kind counts."""


def _training_of(kind: Literal["query_side", "encoder"], replicas: Replicas) -> Callable[..., EncoderVersion]:
    """Return what trains an encoder; imported here, since it imports torch."""
    if kind == "encoder":
        from scannery.training.encoder.training import train_encoder

        return partial(train_encoder, replicas=replicas)
    from scannery.training.query_side.training import train_query_side

    return train_query_side


def _follow(store: Store, replicas: Replicas) -> None:
    from scannery.training.encoder.fitting import follow

    with _stopping() as is_stopped:
        follow(store, replicas, is_stopped)


AGAIN_S = 2.0
"""Seconds after which a second signal ends a training at once; sooner it is the first one once more, as where both
torchrun and what ends all processes of a service, such as systemd, send it."""


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Give what tells whether this process was asked to end by SIGTERM or SIGINT; a second one ends it at once."""
    stopped_s: float | None = None

    def stop(number: int, _: object) -> None:
        nonlocal stopped_s
        if stopped_s is None:
            stopped_s = time.monotonic()
        elif time.monotonic() - stopped_s >= AGAIN_S:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    before: dict[int, Any] = {
        number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield lambda: stopped_s is not None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    if (sample := model.training.get("sample")) is not None:
        typer.echo(f"compared on {sample['passages']:,} of {sample['of']:,} passages")
    if (dense := model.training.get("dense")) is not None:
        typer.echo(f"by vector alone: {difference_text(Difference.model_validate(dense))}")
    if (goodput := model.training.get("goodput")) is not None:
        typer.echo(
            f"last model: {model.training['seconds_of_model']:,.1f} s of steps in {model.training['processes']} "
            f"process(es), {goodput:.0%} of the time since its first attempt"
        )
    if compilations := model.training.get("compilations"):
        typer.echo(f"{compilations} programs compiled for {model.training['chips']} chip(s)")
    ranker = _ranker_of(model)
    for name, weight in ranker.weights.items() if ranker is not None else ():
        typer.echo(f"  {weight:+.3f} × {name}")
    for reason in model.evaluation.refused if model.evaluation else ():
        typer.echo(f"It may not be promoted: {reason}")


def _ranker_of(model: ModelVersion) -> Ranker | None:
    """Return the order of hits that a model brings."""
    if isinstance(model, EncoderVersion):
        return None if model.search is None else model.search.ranker
    return model.ranker


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

"""Train the encoder of queries: held-out models, the model itself, an order of hits, the gate, and the registry.

What it is worth is found by cross-validation: each query is encoded by a model that it was held out of. An order of
hybrid hits is learned with it, since the weights of before are those of other scores; so a promotion changes both.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from scannery.client import Client
from scannery.indexer import Store, read_aliases, read_manifest
from scannery.indexer.manifest import Manifest
from scannery.indexer.models.files import write_model_files
from scannery.indexer.models.manifest import EncoderVersion
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.spec.spec import EncoderSpec
from scannery.pipelines.errors import CollectionError
from scannery.training.exports import on_device
from scannery.training.gate.evaluation import (
    encoded_questions,
    evaluation_of,
    held_out_values,
    with_held_out_values,
)
from scannery.training.judged import Progress, judged_queries
from scannery.training.query_side.candidate import Candidate, dense_difference
from scannery.training.query_side.models import FOLDS, TrainedModels
from scannery.training.spec import TrainingSpec

__all__ = ["train_query_side"]


def train_query_side(
    store: Store,
    client: Client,
    spec: TrainingSpec,
    folder: Path,
    *,
    device: str | None = None,
    events: Path | None = None,
    progress: Progress | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> EncoderVersion:
    """Fit the encoder of queries to judged queries, compare it with what an index returns today, and register it.

    A training that was stopped or killed goes on at its last checkpoint if it is called again with the same arguments.

    Args:
        store: of the index, and of the registry.
        client: of the same store.
        spec: what is trained.
        folder: that its paths are relative to.
        device: that it is trained on, as `Encoder.load` names it; None: that of the index's spec.
        events: folder for event files of TensorBoard, with a folder for each model; None: none are written.
        progress: gets the number of finished steps of all models that are trained, and of all steps.
        is_stopped: whether to save a checkpoint and end; asked after each step.

    Raises:
        CollectionError: there are too few judged queries, or the index has no encoder.
        StoppedError: it was stopped.
        InputNotFoundError, NotFoundError: a file or the index is not there.
        EmbedError: the model cannot be loaded.

    """
    name = read_aliases(store).get(spec.index, spec.index)
    index, manifest = client.index(name), read_manifest(store, name)
    registry = ModelRegistry(store)
    values = held_out_values(registry, manifest.search_state.learned_by)
    target = judged_queries(index, spec.evaluate, folder, fitted=encoded_questions(registry, manifest))
    target = with_held_out_values(target, values)
    if len(target.texts) < FOLDS:
        raise CollectionError(
            f"{len(target.texts)} judged queries are too few to fit anything; judge at least 50",
            field="qrels",
        )
    guards = {
        each.name: with_held_out_values(judged_queries(index, each, folder, fitted=target.questions), values)
        for each in spec.evaluate.guards
    }
    base = on_device(_base_of(manifest, registry), device)
    with TrainedModels.prepared(
        store, manifest, base, spec, target, events, progress, is_stopped
    ) as training:
        held_out = training.held_out_vectors()
        with training.trained_folder() as trained:
            candidate = Candidate.measured(index, store, manifest, trained, base)
            gains_Q = candidate.learn_order(target, held_out, seed=spec.seed)
            differences = {name: candidate.difference(each) for name, each in guards.items()}
            evaluation = evaluation_of(registry, spec.name, manifest, target, gains_Q, differences)
            files = write_model_files(store, spec.name, trained)
        dense = dense_difference(index, target, held_out)

        def version(number: int) -> EncoderVersion:
            return EncoderVersion(
                name=spec.name,
                version=number,
                kind="query_side",
                created_at=datetime.now(timezone.utc),
                index=manifest.index,
                index_id=manifest.index_id,
                index_version=manifest.version,
                base=base.model,
                fingerprint=candidate.fingerprint,
                files=files,
                evaluation=evaluation,
                search=candidate.state(f"{spec.name}@{number}"),
                training={
                    **training.run.settings,
                    **training.run.measured,
                    "folds": FOLDS,
                    "dense": dense.model_dump(),
                },
            )

        registered = registry.register(spec.name, version)
        training.run.folder.remove()
    return registered


def _base_of(manifest: Manifest, registry: ModelRegistry) -> EncoderSpec:
    """Return what encodes queries without anything that was learned here.

    A model that goes on from one that was fitted to the same queries fits them ever more closely, and none of them is
    held out of it.

    Raises:
        CollectionError: the index has no encoder.

    """
    encoder = manifest.spec.encoder
    if encoder is None:
        raise CollectionError(
            f"index {manifest.index!r} has no encoder, whose side of queries could be trained", field="index"
        )
    version = manifest.search_state.query_version
    if version is None:
        return encoder.queries
    base = registry.read_encoder(version).base
    return encoder.documents if base in (None, encoder.model) else _with_query_model(encoder, base)


def _with_query_model(encoder: EncoderSpec, model: str | None) -> EncoderSpec:
    return encoder.model_copy(update={"query_model": model}).queries

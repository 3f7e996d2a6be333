"""Train the encoder of an index: held-out models, the model itself, the gate on a sample, and the registry.

What is registered encodes documents, too, so an index must be built with it: nothing is promoted within an index.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from scannery.client import Client
from scannery.embed import Encoder
from scannery.embed.devices.factory import device_kind
from scannery.indexer import Store, read_aliases, read_manifest
from scannery.indexer.manifest import Manifest, SearchState
from scannery.indexer.models.files import write_model_files
from scannery.indexer.models.manifest import EncoderVersion
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.reader import open_manifest
from scannery.indexer.spec.model_reference import stored_reference
from scannery.indexer.spec.spec import EncoderSpec
from scannery.pipelines.errors import CollectionError
from scannery.runtime.errors import ConfigError
from scannery.runtime.times import WALL_SECONDS
from scannery.training.encoder.models import FOLDS, TrainedEncoders
from scannery.training.encoder.sample import sampled
from scannery.training.exports import on_device
from scannery.training.gate.decision import difference_of
from scannery.training.gate.evaluation import evaluation_of
from scannery.training.judged import Progress, judged_queries
from scannery.training.pairs.corpus import read_corpus
from scannery.training.runs.replicas import Replicas
from scannery.training.spec import TrainingSpec

__all__ = ["train_encoder"]

_ALONE = Replicas()


def train_encoder(
    store: Store,
    client: Client,
    spec: TrainingSpec,
    folder: Path,
    *,
    replicas: Replicas = _ALONE,
    device: str | None = None,
    events: Path | None = None,
    progress: Progress | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> EncoderVersion:
    """Fit the encoder of an index to what its passages and judged queries say, compare both, and register the new one.

    A training that was stopped or killed goes on at its last checkpoint if it is called again with the same arguments.

    Args:
        store: of the index, and of the registry.
        client: of the same store.
        spec: what is trained.
        folder: that its paths are relative to.
        replicas: processes that train each model, of which this one leads; the others `follow` it.
        device: that it is trained on, as `Encoder.load` names it; None: that of the index's spec.
        events: folder for event files of TensorBoard, with a folder for each model; None: none are written.
        progress: gets the number of finished steps of all models that are trained, and of all steps.
        is_stopped: whether to save a checkpoint and end; asked after each step.

    Raises:
        CollectionError: there are too few judged queries, or the index has no encoder or no texts.
        ConfigError: the device takes one process, and there are several.
        StoppedError: it was stopped.
        ReplicaLostError: another process ended.
        InputNotFoundError, NotFoundError: a file or the index is not there.
        EmbedError: the model cannot be loaded.

    """
    name = read_aliases(store).get(spec.index, spec.index)
    index, manifest = client.index(name), read_manifest(store, name)
    registry = ModelRegistry(store)
    base = on_device(_base_of(manifest, registry), device)
    if replicas.count > 1 and device_kind(base.device) == "xla":
        raise ConfigError(f"device xla takes one process, got {replicas.count}: leave out torchrun")
    corpus = read_corpus(open_manifest(store, manifest).at(WALL_SECONDS()))
    judged = judged_queries(index, spec.evaluate, folder)
    guards = {
        each.name: judged_queries(index, each, folder, fitted=judged.questions)
        for each in spec.evaluate.guards
    }
    sample = sampled(index, corpus, judged, guards, limit=spec.evaluate.sample, seed=spec.seed)
    if len(sample.target.texts) < FOLDS:
        raise CollectionError(
            f"a sample of {spec.evaluate.sample:,} passages has the documents of {len(sample.target.texts)} judged "
            "queries, which are too few to compare anything; judge at least 50",
            field="qrels",
        )
    with TrainedEncoders.prepared(
        store, base, spec, judged, sample, replicas, events, progress, is_stopped
    ) as training:
        current = training.current_gains()
        held_out = training.held_out_gains()
        with training.trained() as (trained, gains):
            evaluation = evaluation_of(
                registry,
                spec.name,
                manifest.with_search_state(SearchState()),
                replace(sample.target, current_Q=current[""].default_Q),
                held_out.default_Q,
                {
                    name: difference_of(current[name].default_Q, each.default_Q)
                    for name, each in gains.items()
                },
            )
            files = write_model_files(store, spec.name, trained)
            fingerprint = Encoder.load(trained, label=_LABEL, device="cpu").fingerprint
        dense = difference_of(current[""].dense_Q, held_out.dense_Q)

        def version(number: int) -> EncoderVersion:
            encoder = EncoderVersion(
                name=spec.name,
                version=number,
                kind="encoder",
                created_at=datetime.now(timezone.utc),
                index=manifest.index,
                index_id=manifest.index_id,
                index_version=manifest.version,
                base=base.model,
                files=files,
                evaluation=evaluation,
                training={
                    **training.run.settings,
                    **training.run.measured,
                    "folds": FOLDS,
                    "sample": {"passages": len(sample.rows_S), "of": len(corpus)},
                    "dense": dense.model_dump(),
                },
            )
            labelled = replace(fingerprint, model=encoder.spec_reference)
            return encoder.model_copy(update={"fingerprint": labelled.to_dict()})

        registered = registry.register(spec.name, version)
        training.run.folder.remove()
    return registered


_LABEL = "trained"
"""Name of the model until it is registered."""


def _base_of(manifest: Manifest, registry: ModelRegistry) -> EncoderSpec:
    """Return the encoder of documents, or what it was trained from: of a trained one, no judged query is held out.

    Raises:
        CollectionError: the index has no encoder.

    """
    if manifest.spec.encoder is None:
        raise CollectionError(f"index {manifest.index!r} has no encoder to train", field="index")
    encoder = manifest.spec.encoder.documents
    while (reference := stored_reference(encoder.model)) is not None:
        version = registry.read_encoder(reference)
        if not version.training or version.base is None:
            break
        encoder = encoder.model_copy(update={"model": version.base})
    return encoder

"""One training: its settings, the models that it makes, and what a process that takes over from a killed one needs."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scannery.embed.models.trainable import TrainableModel
from scannery.indexer import Store
from scannery.indexer.spec.spec import EncoderSpec
from scannery.pipelines.planning.planned_encoder import PlannedEncoder
from scannery.training.exports import save_checked
from scannery.training.judged import Progress
from scannery.training.runs.events import StepEvents
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.run import RunSettings, run_steps
from scannery.training.runs.run_folder import RunFolder
from scannery.training.spec import TrainingSpec

if TYPE_CHECKING:
    import torch

__all__ = ["TrainingRun"]


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A training of several models, one for each part of the judged queries and the one that is registered."""

    base: EncoderSpec
    """Model that each begins with, and its options."""
    base_folder: Path
    """Folder of the files of that model."""
    base_digest: str
    """Digest of its fingerprint."""
    settings: Mapping[str, Any]
    """Settings, as they are recorded: `steps`, `learning_rate` and `seed`, and those of the kind."""
    models: int
    """Number of models."""
    folder: RunFolder
    """Checkpoints and results of parts."""
    replicas: Replicas
    """Processes that train each model, of which this one leads."""
    events: Path | None
    """Folder of the event files of each model; None: none are written."""
    progress: Progress | None
    """Callback that gets the number of finished steps of all models, and of all steps."""
    is_stopped: Callable[[], bool]
    """Callback that tells whether to save a checkpoint and end."""
    measured: dict[str, Any] = field(default_factory=dict)
    """Measurements of the last model, as they are recorded: its `goodput` is the share of the time since its first
    attempt that steps took whose results it has. `compilations` are those of all models: the first needs them."""

    @classmethod
    @contextmanager
    def opened(
        cls,
        store: Store,
        spec: TrainingSpec,
        base: EncoderSpec,
        settings: Mapping[str, Any],
        data: Sequence[Any],
        *,
        models: int,
        replicas: Replicas,
        events: Path | None,
        progress: Progress | None,
        is_stopped: Callable[[], bool],
    ) -> Iterator[TrainingRun]:
        """Give a training, while the files of the model that it begins with stay.

        Args:
            store: of the index, and of the registry.
            spec: what is trained.
            base: what each model begins with.
            settings: as the field.
            data: identity of all else that decides its numbers, as JSON.
            models: as the field.
            replicas: likewise.
            events: likewise.
            progress: likewise.
            is_stopped: likewise.

        """
        planned = PlannedEncoder(base, store.uri)
        with planned.folder() as base_folder:
            digest = planned.fingerprint.digest
            content = json.dumps([settings, digest, *data])
            run = hashlib.sha256(content.encode()).hexdigest()[:16]
            folder = RunFolder.of(store, spec.name, run, spec.checkpoint)
            yield cls(
                base, base_folder, digest, settings, models, folder, replicas, events, progress, is_stopped
            )

    @property
    def run_settings(self) -> RunSettings:
        """How the steps of each model are taken."""
        return RunSettings(
            self.settings["steps"],
            self.settings["learning_rate"],
            self.settings["seed"],
            self.folder.every_s,
        )

    def train(self, number: int, model: TrainableModel, loss_of: Callable[[int], torch.Tensor]) -> None:
        """Train one of the models in place, by the loss of each step; raises as `run_steps`."""
        steps = self.settings["steps"]
        begun_s = float(self.folder.result(f"model-{number}-begun", lambda: np.array(time.time())))

        def counted(done: int, _: int) -> None:
            if self.progress is not None:
                self.progress(number * steps + done, self.models * steps)

        events = None if self.events is None else StepEvents(self.events / f"model-{number}")
        with nullcontext() if events is None else closing(events):
            statistics = run_steps(
                model.modules, loss_of, self.run_settings, self.folder.checkpoints(f"model-{number}"), self.replicas,
                progress=counted, is_stopped=self.is_stopped,
                record=(lambda step, values: None) if events is None else events.record, device=model.device,
            )  # fmt: skip
        if not math.isnan(statistics.loss):  # an earlier attempt was stopped after the last step
            self.measured["loss"] = statistics.loss
        self.measured.update(
            seconds_of_model=round(statistics.seconds, 3),
            goodput=round(statistics.seconds / max(statistics.seconds, time.time() - begun_s), 3),
            processes=self.replicas.count,
            chips=model.device.chips,
            compilations=self.measured.get("compilations", 0) + statistics.compilations,
        )

    @contextmanager
    def saved(self, model: TrainableModel) -> Iterator[Path]:
        """Give the folder of a trained model within the context; raises as `save_checked`."""
        with tempfile.TemporaryDirectory(prefix="scannery-model-") as parent:
            folder = Path(parent, "model")
            save_checked(model, folder, self.base)
            yield folder

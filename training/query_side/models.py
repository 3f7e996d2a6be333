"""The models that a training of queries makes: one for each part of the judged queries, and the one that is registered.

Shapes: Q queries, D dimensions.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scannery.embed.models.trainable import TrainableModel
from scannery.indexer import Store
from scannery.indexer.manifest import Manifest
from scannery.indexer.reader import open_manifest
from scannery.indexer.spec.spec import EncoderSpec
from scannery.pipelines.errors import CollectionError
from scannery.pipelines.planning.planned_encoder import PlannedEncoder
from scannery.training.exports import save_checked, torch_device, trainable
from scannery.training.judged import Judged, Progress
from scannery.training.query_side.fitting import QuerySteps, TrainingQuery
from scannery.training.query_side.rows import ScoredRows, read_rows
from scannery.training.runs.run import RunSettings, run_steps
from scannery.training.runs.run_folder import RunFolder
from scannery.training.spec import TrainingSpec

__all__ = ["FOLDS", "TrainedModels"]

FOLDS = 4
"""Parts of the judged queries, each of which is held out of one training."""
BATCH, SCALE = 64, 40.0
"""Queries of a step, and scale of scores, by default."""
LEAST_STEPS = 16
EPOCHS = 8
"""Times that each query is seen by default."""


@dataclass(eq=False)
class TrainedModels:
    """The models of one training, which a killed process goes on with."""

    base: EncoderSpec
    base_folder: Path
    rows: ScoredRows
    judged: Judged
    manifest: Manifest
    settings: dict[str, Any]
    """Settings, as they are recorded."""
    runs: RunFolder
    progress: Progress | None
    is_stopped: Callable[[], bool]
    measured: dict[str, Any]
    """Measurements, as they are recorded."""

    @classmethod
    @contextmanager
    def prepared(
        cls,
        store: Store,
        manifest: Manifest,
        base: EncoderSpec,
        spec: TrainingSpec,
        judged: Judged,
        progress: Progress | None,
        is_stopped: Callable[[], bool],
    ) -> Iterator[TrainedModels]:
        """Give what is trained, while the files of the model that it begins with stay."""
        relevant = {key for keys in judged.relevant.values() for key in keys}
        rows = read_rows(open_manifest(store, manifest), relevant, passages=judged.passages, seed=spec.seed)
        batch = min(spec.batch or BATCH, len(judged.texts))
        settings = {
            "steps": spec.steps or max(LEAST_STEPS, -(-EPOCHS * len(judged.texts) // batch)),
            "batch": batch,
            "learning_rate": spec.learning_rate,
            "scale": spec.loss.scale or SCALE,
            "seed": spec.seed,
        }
        planned = PlannedEncoder(base, store.uri)
        with planned.folder() as base_folder:
            content = [
                settings,
                judged.query_set,
                judged.passages,
                planned.fingerprint.digest,
                manifest.index_id,
                manifest.version,
            ]
            run = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
            runs = RunFolder.of(store, spec.name, run, spec.checkpoint)
            yield cls(base, base_folder, rows, judged, manifest, settings, runs, progress, is_stopped, {})

    def held_out_vectors(self) -> dict[str, np.ndarray]:
        """Return the vector of each judged text by a model that it was held out of, float32 (D,)."""
        texts = list(self.judged.texts.items())
        order = np.random.default_rng(self.settings["seed"]).permutation(len(texts))
        vectors: dict[str, np.ndarray] = {}
        for fold, numbers in enumerate(np.array_split(order, FOLDS)):
            held_out = [texts[number] for number in sorted(numbers.tolist())]

            def encoded(fold: int = fold, held_out: Sequence[tuple[str, str]] = held_out) -> np.ndarray:
                names = {name for name, _ in held_out}
                model = self._trained(fold, [name for name, _ in texts if name not in names])
                return model.encoded(model.prepare([text for _, text in held_out])).numpy()

            vectors_QD = self.runs.result(f"fold-{fold}", encoded)
            vectors |= {text: vector_D for (_, text), vector_D in zip(held_out, vectors_QD, strict=True)}
        return vectors

    @contextmanager
    def trained_folder(self) -> Iterator[Path]:
        """Give the folder of the model that all judged queries were fitted by."""
        model = self._trained(FOLDS, list(self.judged.texts))
        with tempfile.TemporaryDirectory(prefix="scannery-model-") as folder:
            path = Path(folder, "model")
            save_checked(model, path, self.base)
            yield path

    def remove(self) -> None:
        """Remove checkpoints and results of folds."""
        self.runs.remove()

    def _trained(self, number: int, names: Sequence[str]) -> TrainableModel:
        """Return a model that was fitted to some queries."""
        model = trainable(self.base_folder, self.base)
        settings = self.settings
        steps = QuerySteps(
            model,
            self._queries(model, names),
            self.rows,
            distance=self.manifest.spec.distance,
            scale=settings["scale"],
            batch=settings["batch"],
            seed=settings["seed"],
            device=torch_device(self.base.device),
        )
        total = settings["steps"]

        def counted(done: int, _: int) -> None:
            if self.progress is not None:
                self.progress(number * total + done, (FOLDS + 1) * total)

        statistics = run_steps(
            model.modules,
            steps.loss,
            RunSettings(total, settings["learning_rate"], settings["seed"], self.runs.every_s),
            self.runs.checkpoints(f"model-{number}"),
            progress=counted,
            is_stopped=self.is_stopped,
        )
        self.measured |= {"loss": statistics.loss, "seconds_of_model": round(statistics.seconds, 3)}
        return model

    def _queries(self, model: TrainableModel, names: Sequence[str]) -> list[TrainingQuery]:
        """Return the queries whose documents have vectors."""
        numbers, relevant = self.rows.numbers, self.judged.relevant
        answered = {name: [numbers[key] for key in relevant[name] if key in numbers] for name in names}
        used = [name for name in names if answered[name]]
        if not used:
            raise CollectionError("no judged query has a relevant document with a vector", field="qrels")
        tokens = model.prepare([self.judged.texts[name] for name in used])
        return [TrainingQuery(each, answered[name]) for each, name in zip(tokens, used, strict=True)]

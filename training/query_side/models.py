"""The models that a training of queries makes: one for each part of the judged queries, and the one that is registered.

Shapes: Q queries, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scannery.embed.models.trainable import TrainableModel
from scannery.indexer import Store
from scannery.indexer.manifest import Manifest
from scannery.indexer.reader import open_manifest
from scannery.indexer.spec.spec import Distance, EncoderSpec
from scannery.pipelines.errors import CollectionError
from scannery.runtime.times import WALL_SECONDS
from scannery.training.exports import trainable
from scannery.training.judged import Judged, Progress
from scannery.training.query_side.fitting import QuerySteps, TrainingQuery
from scannery.training.query_side.rows import ScoredRows, read_rows
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.training_run import TrainingRun
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

    run: TrainingRun
    rows: ScoredRows
    """Rows that queries are trained against."""
    judged: Judged
    distance: Distance

    @classmethod
    @contextmanager
    def prepared(
        cls,
        store: Store,
        manifest: Manifest,
        base: EncoderSpec,
        spec: TrainingSpec,
        judged: Judged,
        events: Path | None,
        progress: Progress | None,
        is_stopped: Callable[[], bool],
    ) -> Iterator[TrainedModels]:
        """Give what is trained, while the files of the model that it begins with stay."""
        relevant = {key for keys in judged.relevant.values() for key in keys}
        rows = read_rows(
            open_manifest(store, manifest).at(WALL_SECONDS()),
            relevant,
            passages=judged.passages,
            seed=spec.seed,
        )
        batch = min(spec.batch or BATCH, len(judged.texts))
        settings = {
            "steps": spec.steps or max(LEAST_STEPS, -(-EPOCHS * len(judged.texts) // batch)),
            "batch": batch,
            "learning_rate": spec.learning_rate,
            "scale": spec.loss.scale or SCALE,
            "seed": spec.seed,
        }
        data = [judged.query_set, judged.passages, manifest.index_id, manifest.version]
        with TrainingRun.opened(
            store, spec, base, settings, data,
            models=FOLDS + 1, replicas=Replicas(), events=events, progress=progress, is_stopped=is_stopped,
        ) as run:  # fmt: skip
            yield cls(run, rows, judged, manifest.spec.distance)

    def held_out_vectors(self) -> dict[str, np.ndarray]:
        """Return the vector of each judged text by a model that it was held out of, float32 (D,)."""
        texts = list(self.judged.texts.items())
        order = np.random.default_rng(self.run.settings["seed"]).permutation(len(texts))
        vectors: dict[str, np.ndarray] = {}
        for fold, numbers in enumerate(np.array_split(order, FOLDS)):
            held_out = [texts[number] for number in sorted(numbers.tolist())]

            def encoded(fold: int = fold, held_out: Sequence[tuple[str, str]] = held_out) -> np.ndarray:
                names = {name for name, _ in held_out}
                model = self._trained(fold, [name for name, _ in texts if name not in names])
                return model.encoded(model.prepare([text for _, text in held_out])).numpy()

            vectors_QD = self.run.folder.result(f"fold-{fold}", encoded)
            vectors |= {text: vector_D for (_, text), vector_D in zip(held_out, vectors_QD, strict=True)}
        return vectors

    @contextmanager
    def trained_folder(self) -> Iterator[Path]:
        """Give the folder of the model that all judged queries were fitted by."""
        model = self._trained(FOLDS, list(self.judged.texts))
        with self.run.saved(model) as folder:
            yield folder

    def _trained(self, number: int, names: Sequence[str]) -> TrainableModel:
        """Return a model that was fitted to some queries."""
        run = self.run
        model = trainable(run.base_folder, run.base)
        steps = QuerySteps(
            model,
            self._queries(model, names),
            self.rows,
            distance=self.distance,
            scale=run.settings["scale"],
            batch=run.settings["batch"],
            seed=run.settings["seed"],
        )
        run.train(number, model, steps.loss)
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

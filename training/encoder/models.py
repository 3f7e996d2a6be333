"""The encoders that a training makes, and what each is worth on a sample.

There is one for each part of the judged queries, which is held out of it with the documents that answer them, and the
one that is registered.

Shapes: Q queries, S passages of a sample, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scannery.client import Index
from scannery.embed import Encoder
from scannery.embed.models.trainable import TrainableModel
from scannery.indexer import Store
from scannery.indexer.spec.spec import EncoderSpec
from scannery.pipelines.errors import CollectionError
from scannery.pipelines.planning.planned_encoder import PlannedEncoder
from scannery.runtime.search_modes import Mode
from scannery.training.encoder.fitting import EncoderFit
from scannery.training.encoder.sample import Sample, indexed_sample, relevant_documents, subset
from scannery.training.exports import matrix_dtype
from scannery.training.judged import Judged, Progress, as_text, searched_gains
from scannery.training.pairs.batches import PairBatches
from scannery.training.pairs.judged import judged_pairs
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.training_run import TrainingRun
from scannery.training.spec import TrainingSpec

__all__ = ["BATCH", "FOLDS", "SCALE", "STEPS", "Gains", "TrainedEncoders"]

SCALE = 20.0
"""Scale of scores by default; with 40, vectors gained less."""
STEPS, BATCH = 30, 32
"""Steps, and pairs of a step, by default: with MiniLM, two minutes of a core and 4 GB."""
FOLDS = 2
"""Parts of the judged queries. A candidate of each embeds the sample, so more would cost more than they tell."""


class Gains(NamedTuple):
    """nDCG@10 of judged queries in the default mode and by vector alone, float64 (Q,)."""

    default_Q: np.ndarray
    dense_Q: np.ndarray


@dataclass(eq=False)
class TrainedEncoders:
    """The encoders of one training, which a killed process goes on with."""

    run: TrainingRun
    judged: Judged
    """All judged queries, of which the sample has a part if it is one of a large index."""
    vectors_QD: np.ndarray
    """Their vectors by the encoder of the index, float32."""
    sample: Sample

    @classmethod
    @contextmanager
    def prepared(
        cls,
        store: Store,
        base: EncoderSpec,
        spec: TrainingSpec,
        judged: Judged,
        sample: Sample,
        replicas: Replicas,
        events: Path | None,
        progress: Progress | None,
        is_stopped: Callable[[], bool],
    ) -> Iterator[TrainedEncoders]:
        """Give what is trained, while the files of the model that it begins with stay."""
        settings = {
            "steps": spec.steps or STEPS,
            "batch": spec.batch or BATCH,
            "learning_rate": spec.learning_rate,
            "scale": spec.loss.scale or SCALE,
            "signals": spec.signals.weights,
            "average_with_base": spec.average_with_base,
            "seed": spec.seed,
        }
        manifest = sample.corpus.index.manifest
        data = [
            judged.query_set,
            judged.passages,
            {name: each.query_set for name, each in sample.guards.items()},
            len(sample.rows_S),
            manifest.index_id,
            manifest.version,
        ]
        vectors_QD = (
            PlannedEncoder(_current(sample), store.uri).load().encode_queries([*judged.texts.values()])
        )
        with TrainingRun.opened(
            store, spec, base, settings, data,
            models=FOLDS + 1, replicas=replicas, events=events, progress=progress, is_stopped=is_stopped,
        ) as run:  # fmt: skip
            yield cls(run, judged, vectors_QD, sample)

    def current_gains(self) -> dict[str, Gains]:
        """Return what the base is worth on the sample, without what was learned: for the target, "", and each guard."""
        sets = {"": self.sample.target, **self.sample.guards}

        def measured() -> np.ndarray:
            gains = self._gains(self.run.base_folder, sets)
            return np.concatenate([np.stack(each) for each in gains.values()], axis=1)

        values_2Q = self.run.folder.result("current", measured)
        ends = np.cumsum([len(judged.texts) for judged in sets.values()])[:-1]
        return dict(zip(sets, (Gains(*part) for part in np.split(values_2Q, ends, axis=1)), strict=True))

    def held_out_gains(self) -> Gains:
        """Return what encoders are worth on the sample for the queries that were held out of their training."""
        target = self.sample.target
        numbers = {name: number for number, name in enumerate(target.texts)}
        values_2Q = np.empty((2, len(numbers)))
        for fold, names in enumerate(_parts(self.sample, self.run.settings["seed"])):

            def measured(fold: int = fold, names: Sequence[str] = names) -> np.ndarray:
                with self.run.saved(self._trained(fold, _documents(self.sample, names))) as folder:
                    return np.stack(self._gains(folder, {"": subset(target, names)})[""])

            values_2Q[:, sorted(numbers[name] for name in names)] = self.run.folder.result(
                f"fold-{fold}", measured
            )
        return Gains(*values_2Q)

    @contextmanager
    def trained(self) -> Iterator[tuple[Path, dict[str, Gains]]]:
        """Give the folder of the encoder that nothing was held out of, and what it is worth for each guard."""
        with self.run.saved(self._trained(FOLDS, ())) as folder:
            yield folder, self._gains(folder, self.sample.guards) if self.sample.guards else {}

    def _trained(self, number: int, held_out: Collection[int]) -> TrainableModel:
        """Return a model that was trained by pairs of all documents but some."""
        run, settings, corpus = self.run, self.run.settings, self.sample.corpus
        batches = PairBatches(
            corpus,
            judged_pairs(corpus, self.judged, self.vectors_QD, held_out=held_out),
            settings["signals"],
            held_out=held_out,
            batch=settings["batch"],
            seed=settings["seed"],
        )
        fit = EncoderFit(
            base=run.base,
            base_digest=run.base_digest,
            run=run.run_settings,
            distance=corpus.index.spec.distance,
            scale=settings["scale"],
            dtype=matrix_dtype(run.base.device),
        )
        fit.announce(run.replicas)
        model, steps = fit.steps(run.base_folder, batches, run.replicas)
        run.train(number, model, steps.loss)
        model.mix(run.base_folder, settings["average_with_base"])
        run.measured.update(used_signals=batches.signals, dtype=fit.dtype)
        return model

    def _gains(self, folder: Path, sets: Mapping[str, Judged]) -> dict[str, Gains]:
        """Return what the encoder in a folder is worth on the sample, for each of some sets of queries."""
        spec = self.run.base.model_copy(update={"model": str(folder)})
        if folder == self.run.base_folder and self.run.base.model == _current(self.sample).model:
            vectors_SD = self.sample.vectors()
        else:
            vectors_SD = Encoder.load(folder, device=spec.device, **spec.options).encode_documents(
                self.sample.texts()
            )
        with indexed_sample(self.sample, vectors_SD, spec) as index:
            return {
                name: Gains(*(_searched(index, judged, mode) for mode in (None, "dense")))
                for name, judged in sets.items()
            }


def _current(sample: Sample) -> EncoderSpec:
    """Return the encoder of the index, which made its vectors."""
    encoder = sample.corpus.index.spec.encoder
    assert encoder is not None
    return encoder.documents


def _searched(index: Index, judged: Judged, mode: Mode | None) -> np.ndarray:
    """Return nDCG@10 of judged queries in a mode, float64 (Q,); None: the default."""
    return searched_gains(
        index, judged.texts, judged.judgements, as_text, passages=judged.passages, mode=mode
    )


def _documents(sample: Sample, names: Iterable[str]) -> set[int]:
    """Return the documents that answer some queries."""
    return {each for name in names for each in relevant_documents(sample.corpus, sample.target, name)}


def _parts(sample: Sample, seed: int) -> Iterator[list[str]]:
    """Yield the names of the queries of each part; those that a document answers, or several in turn, are in one.

    Raises:
        CollectionError: all of them are.

    """
    groups: list[tuple[set[int], list[str]]] = []
    for name in sample.target.texts:
        documents, names = _documents(sample, [name]), [name]
        for group in [each for each in groups if each[0] & documents]:
            groups.remove(group)
            documents |= group[0]
            names += group[1]
        groups.append((documents, names))
    if len(groups) < FOLDS:
        raise CollectionError(
            "all judged queries look for the same documents, so none can be held out", field="qrels"
        )
    for numbers in np.array_split(np.random.default_rng(seed).permutation(len(groups)), FOLDS):
        yield [name for number in numbers.tolist() for name in groups[number][1]]

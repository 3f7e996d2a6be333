"""What losses that an encoder may be trained with give beside the plain one, for whole vectors and for short ones.

    python -m benchmarks.encoder_losses [CASE …] [--folder FOLDER] [--episodes N] [--seeds 1,2,3] [--short 128]

The collection, the held-out queries, the judged ones, and the training by all three signals are those of
`benchmarks.encoder_training`, with the first episodes alone if a number is given. Each case is trained with the same
seeds, on the same pairs, and compared with the plain loss: nDCG@10 in the default mode and by vector alone, of whole
vectors and of their first components, with the 95 % interval of a paired bootstrap; in the row of the plain loss, with
the model before.

*matryoshka*: the loss is the mean of those of the first 384, 256 and 128 components (Kusupati et al., "Matryoshka
Representation Learning", 2022). *negatives*: for each pair a passage of another document, of the ranks 10 to 100 that
the index finds for its text by vector; those that score over .95 of the pair's own passage are left out (Thakur et al.,
"Fixing Data That Hurts Performance", 2025, arXiv 2505.16967). `scannery train` has neither: see the figures.

Shapes: B pairs of a step, N negatives, P = B + N passages, R = B + P texts, K candidates, S passages of the sample,
D dimensions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import scannery
from benchmarks.collections import Collection
from benchmarks.encoder_training import CASES as SIGNALS
from benchmarks.encoder_training import documents, gains, parts, sample_of, trained
from benchmarks.harness import MINILM, environment, folder_of, options, table
from benchmarks.learned import titled_speech
from benchmarks.quality import PASSAGES, indexed, records_of
from scannery.embed import Encoder
from scannery.embed.models.model_files import find_model
from scannery.embed.models.trainable import TrainableModel
from scannery.indexer import Store
from scannery.indexer.reader import open_index
from scannery.indexer.spec.spec import EncoderSpec
from scannery.training.encoder.contrastive import PairSteps
from scannery.training.encoder.models import BATCH, SCALE, STEPS
from scannery.training.encoder.sample import Sample
from scannery.training.gate.decision import difference_of
from scannery.training.pairs.batches import PairBatches
from scannery.training.pairs.corpus import Corpus, read_corpus
from scannery.training.runs.replicas import Replicas

__all__ = ["main"]

EPISODES = 730
"""Episodes of 1,200 by default."""
DIMENSIONS = 384, 256, 128
RANKS = 10, 100
BELOW_POSITIVE = 0.95
"""Share of the score of the pair's own passage that a negative stays below."""
Values = dict[int, tuple[np.ndarray, np.ndarray]]
"""nDCG@10 by the number of components, in the default mode and by vector alone."""


def main() -> None:
    given = options(
        __doc__,
        cases=("matryoshka", "negatives"),
        seeds=[1],
        episodes=EPISODES,
        short=DIMENSIONS[-1],
        steps=STEPS,
        batch=BATCH,
        scale=SCALE,
        folder=Path,
    )
    print(environment("sentence-transformers", "torch", "scann"))
    with folder_of(given.folder) as folder:
        collection = first_episodes(given.episodes)
        index = opened(folder / "speech", collection)
        corpus = read_corpus(open_index(Store.open(folder / "speech" / "store"), "quality"))
        held_out, others = parts(collection)
        sample = sample_of(corpus, held_out)
        encoder = EncoderSpec(model=str(find_model(MINILM)))
        base = values(sample, encoder, sample.vectors(), given)
        rows = []
        for seed in given.seeds:
            makers: Mapping[str, Callable[..., PairSteps]] = {
                "plain": PairSteps,
                "matryoshka": partial(VariedSteps, corpus, {}, DIMENSIONS),
                "negatives": partial(negative_steps, index, sample, seed, given.steps),
            }
            current = base
            for case in ("plain", *given.cases):
                training = trained(sample, others, encoder, SIGNALS["all"], seed, given, makers[case])
                with training as (model, seconds):
                    vectors_SD = Encoder.load(model, device="cpu").encode_documents(sample.texts())
                    spec = encoder.model_copy(update={"model": str(model)})
                    after = values(sample, spec, vectors_SD, given)
                rows += rows_of(case, seed, current, after, seconds)
                if case == "plain":
                    current = after
        print(table(("loss", "draw", "components", "default", "by vector", "s"), rows))


def first_episodes(count: int) -> Collection:
    """Return the first episodes, with their summaries."""
    whole = titled_speech()
    names = {name for name, _, _ in whole.documents[:count]}
    return Collection(
        whole.name,
        whole.documents[:count],
        {name: text for name, text in whole.queries.items() if name in names},
        {name: levels for name, levels in whole.judgements.items() if name in names},
    )


def opened(folder: Path, collection: Collection) -> scannery.Index:
    """Return the index of a collection, built now if the folder does not have it."""
    if (folder / "store").exists():
        return scannery.connect(folder / "store", timeout_s=900).index("quality")
    return indexed(folder, records_of(collection), {"source": {**PASSAGES, "id": "id"}, "lexical": True})


def values(sample: Sample, encoder: EncoderSpec, vectors_SD: np.ndarray, given: argparse.Namespace) -> Values:
    """Return what an encoder is worth with all components and with the first ones."""
    gains_of = {}
    for count in (vectors_SD.shape[1], given.short):
        cut_SD = vectors_SD[:, :count] / np.linalg.norm(vectors_SD[:, :count], axis=1, keepdims=True)
        gains_of[count] = gains(sample, encoder.model_copy(update={"dimensions": count}), cut_SD)
        print(encoder.model, count, *(f"{each_Q.mean():.4f}" for each_Q in gains_of[count]), flush=True)
    return gains_of


def rows_of(case: str, seed: int, before: Values, after: Values, seconds: float) -> list[list[object]]:
    """Return a row for each number of components."""
    rows: list[list[object]] = []
    for count, pair in after.items():
        differences = [difference_of(*each) for each in zip(before[count], pair, strict=True)]
        texts = (f"{each.mean:+.4f} ({each.low:+.4f} to {each.high:+.4f})" for each in differences)
        rows.append([case, seed, count, *texts, f"{seconds:.0f}"])
        print(*rows[-1], sep=" · ", flush=True)
    return rows


# --- losses


class VariedSteps(PairSteps):
    """Steps with hard negatives, or with the loss of first components."""

    def __init__(
        self,
        corpus: Corpus,
        negatives: Mapping[int, Sequence[int | None]],
        dimensions: Sequence[int | None],
        model: TrainableModel,
        batches: PairBatches,
        replicas: Replicas,
        **options: Any,
    ) -> None:
        """Prepare.

        Args:
            corpus: whose passages are negatives.
            negatives: their rows by step, one or none for each pair.
            dimensions: numbers of first components, whose losses are averaged; None: all.
            model: as of all steps.
            batches: likewise.
            replicas: likewise.
            options: likewise.

        """
        super().__init__(model, batches, replicas, **options)
        self._corpus, self._negatives, self._dimensions = corpus, negatives, dimensions

    def loss(self, step: int) -> torch.Tensor:
        """Return the loss of a step, with gradients."""
        pairs = self._pairs(step)
        rows = [row for row in dict.fromkeys(self._negatives.get(step, ())) if row is not None]
        passages = [*(pair.passage for pair in pairs), *map(self._corpus.passage, rows)]
        vectors_RD = self._vectors({"query": [pair.query for pair in pairs], "document": passages})
        queries_BD, passages_PD = torch.split(vectors_RD, [len(pairs), len(passages)])
        # A negative of one pair may be of the document that another asks for.
        documents_B = torch.tensor([pair.document for pair in pairs])
        documents_N = torch.tensor(self._corpus.documents_N[np.array(rows, np.int64)])
        is_answer_BP = torch.nn.functional.pad(documents_B[:, None] == documents_N, (len(pairs), 0))
        numbers_B = torch.arange(len(pairs))
        losses = []
        for count in self._dimensions:
            similarities_BP = self._similarities(queries_BD[:, :count], passages_PD[:, :count])
            scores_BP = (self._scale * similarities_BP).masked_fill(is_answer_BP, -torch.inf)
            for scores in (scores_BP, scores_BP[:, : len(pairs)].T):
                losses.append(torch.nn.functional.cross_entropy(scores, numbers_B))
        return torch.stack(losses).mean()


def negative_steps(
    index: scannery.Index,
    sample: Sample,
    seed: int,
    steps: int,
    model: TrainableModel,
    batches: PairBatches,
    replicas: Replicas,
    **options: Any,
) -> PairSteps:
    """Return steps with a hard negative of each pair that has one."""
    rows = mined_rows(index, sample, batches, seed, steps)
    count = sum(row is not None for some in rows for row in some)
    print(f"negatives of {count} of {sum(map(len, rows))} pairs", flush=True)
    return VariedSteps(sample.corpus, dict(enumerate(rows)), (None,), model, batches, replicas, **options)


def mined_rows(
    index: scannery.Index, sample: Sample, batches: PairBatches, seed: int, steps: int
) -> list[list[int | None]]:
    """Return the row of the corpus that is a hard negative of each pair of each step; None: it has none."""
    corpus, encoder = sample.corpus, Encoder.load(find_model(MINILM), device="cpu")
    left_out = {*documents(corpus, sample.target)}
    first, last = RANKS
    rows: list[list[int | None]] = []
    for step in range(steps):
        pairs = batches.pairs(step)
        queries_BD = encoder.encode_queries([pair.query for pair in pairs])
        passages_BD = encoder.encode_documents([pair.passage for pair in pairs])
        limits_B = BELOW_POSITIVE * (queries_BD * passages_BD).sum(axis=1)
        random = np.random.default_rng((seed, step))
        rows.append([])
        hits_of_pairs = index.search_many(queries_BD, last, fields=[], mode="dense")
        for pair, query_D, limit, hits in zip(pairs, queries_BD, limits_B, hits_of_pairs, strict=True):
            hit_rows = [corpus.row_numbers[hit.id] for hit in hits[first - 1 :]]
            rows_K = np.array(
                [row for row in hit_rows if int(corpus.documents_N[row]) not in {pair.document, *left_out}],
                np.int64,
            )
            below = rows_K[corpus.vectors(rows_K) @ query_D < limit]
            rows[-1].append(int(random.permutation(below)[0]) if len(below) else None)
    return rows


if __name__ == "__main__":
    main()

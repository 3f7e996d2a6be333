"""What an encoder that was trained on an index is worth for queries and documents that it has not seen, by signal.

    python -m benchmarks.encoder_training [CASE …] [--folder FOLDER] [--seeds 1,2,3] [--steps N] [--batch N] [--scale X]

Hacker Public Radio with titles, as `benchmarks.learned`: a query is the summary that the host read out, relevant is its
episode. 200 summaries are held out, with all passages of their episodes; 200 others are drawn as judged queries (three
seeds). Pairs are of all other episodes. A case is a mix of signals: those of `scannery train --kind encoder`, and one
that it does not have, a sentence with the passage that it is left out of (inverse cloze). Base and trained encoder are
compared on 14 passages of each held-out episode, drawn at random: nDCG@10 in the default mode, with a weight of hybrid
search measured for each, and by vector alone, with the 95 % interval of a paired bootstrap. Seconds are of the
processor, for training.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.collections import Collection
from benchmarks.harness import MINILM, environment, folder_of, options, table
from benchmarks.learned import opened
from scannery.embed import Encoder
from scannery.embed.models.model_files import find_model
from scannery.embed.text.sentences import sentences_of
from scannery.indexer import Store
from scannery.indexer.reader import open_index
from scannery.indexer.spec.spec import EncoderSpec
from scannery.training.encoder.contrastive import PairSteps
from scannery.training.encoder.models import BATCH, SCALE, STEPS
from scannery.training.encoder.sample import Sample, indexed_sample
from scannery.training.exports import matrix_dtype, save_checked, trainable
from scannery.training.gate.decision import difference_of
from scannery.training.judged import Judged, as_text, searched_gains
from scannery.training.pairs.batches import PairBatches
from scannery.training.pairs.corpus import Corpus, below_title, read_corpus
from scannery.training.pairs.judged import judged_pairs
from scannery.training.pairs.signals import SIGNALS, Pair, Signal
from scannery.training.runs.checkpoints import Checkpoints
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.run import RunSettings, run_steps
from scannery.training.spec import TrainingSpec

__all__ = ["main"]

SPEC = {name: field.default for name, field in TrainingSpec.model_fields.items()}
HELD_OUT, JUDGED = 200, 200
PASSAGES = 14
"""Passages of each held-out episode."""
SENTENCE_CHARS = 30, 300
CASES: Mapping[str, Mapping[str, float]] = {
    "judged": {"judged": 1},
    "titles": {"title_passage": 1},
    "judged, titles": {"judged": 0.5, "title_passage": 0.5},
    "all": {"judged": 0.34, "title_passage": 0.33, "question_answer": 0.33},
    "titles, questions": {"title_passage": 0.5, "question_answer": 0.5},
    "sentences": {"sentence_passage": 1},
    "questions": {"question_answer": 1},
}


def main() -> None:
    given = options(
        __doc__,
        cases=CASES,
        seeds=[1, 2, 3],
        steps=STEPS,
        batch=BATCH,
        scale=SCALE,
        folder=Path,
    )
    print(environment("sentence-transformers", "torch", "scann"))
    with folder_of(given.folder) as folder:
        _, collection = opened(folder / "speech", "speech")
        corpus = read_corpus(open_index(Store.open(folder / "speech" / "store"), "quality"))
        held_out, others = parts(collection)
        sample = sample_of(corpus, held_out)
        encoder = EncoderSpec(model=str(find_model(MINILM)))
        current = gains(sample, encoder, sample.vectors())
        print(len(sample.rows_S), "passages;", *(f"{each.mean():.4f}" for each in current), flush=True)
        rows = []
        for case in given.cases:
            for seed in given.seeds:
                rows.append([case, seed, *row_of(sample, others, encoder, CASES[case], seed, current, given)])
                print(*rows[-1], sep=" · ", flush=True)
    print(table(("pairs", "draw", "default", "by vector", "s"), rows))


def parts(collection: Collection) -> tuple[Judged, Judged]:
    """Return the queries that are held out, and the others."""
    names = [name for name in collection.queries if collection.judgements.get(name)]
    order = np.random.default_rng(0).permutation(len(names)).tolist()
    return judged(collection, [names[number] for number in order[:HELD_OUT]]), judged(
        collection, [names[number] for number in order[HELD_OUT:]]
    )


def judged(collection: Collection, names: list[str]) -> Judged:
    texts = {name: collection.queries[name] for name in names}
    judgements = {name: collection.judgements[name] for name in names}
    return Judged(texts, judgements, passages=False, current_Q=np.zeros(len(names)))


def documents(corpus: Corpus, queries: Judged) -> list[int]:
    """Return the numbers of the episodes that answer some queries."""
    return sorted({corpus.numbers[key] for keys in queries.relevant.values() for key in keys})


def sample_of(corpus: Corpus, queries: Judged) -> Sample:
    """Return some passages of each episode that answers one of the queries."""
    random = np.random.default_rng(0)
    groups = (np.array(corpus.rows_of(number)) for number in documents(corpus, queries))
    rows_S = np.concatenate([random.permutation(rows)[:PASSAGES] for rows in groups])
    return Sample(corpus, np.sort(rows_S), queries, {})


def row_of(
    sample: Sample,
    others: Judged,
    encoder: EncoderSpec,
    shares: Mapping[str, float],
    seed: int,
    current: tuple[np.ndarray, np.ndarray],
    given: argparse.Namespace,
) -> list[str]:
    """Return what an encoder is worth that is trained by a mix of signals, and the seconds that it took."""
    with trained(sample, others, encoder, shares, seed, given) as (folder, seconds):
        vectors_SD = Encoder.load(folder, device="cpu").encode_documents(sample.texts())
        values = gains(sample, encoder.model_copy(update={"model": str(folder)}), vectors_SD)
    differences = [
        difference_of(before_Q, after_Q) for before_Q, after_Q in zip(current, values, strict=True)
    ]
    return [
        *(f"{each.mean:+.4f} ({each.low:+.4f} to {each.high:+.4f})" for each in differences),
        f"{seconds:.0f}",
    ]


@contextmanager
def trained(
    sample: Sample,
    others: Judged,
    encoder: EncoderSpec,
    shares: Mapping[str, float],
    seed: int,
    given: argparse.Namespace,
    make_steps: Callable[..., PairSteps] = PairSteps,
) -> Iterator[tuple[Path, float]]:
    """Give the folder of an encoder that is trained by a mix of signals, and the seconds that it took."""
    corpus = sample.corpus
    drawn = np.random.default_rng(seed).permutation(len(others.texts))[:JUDGED]
    names = [*others.texts]
    chosen = replace(others, texts={names[number]: others.texts[names[number]] for number in drawn.tolist()})
    started = time.process_time()
    model = trainable(Path(encoder.model), encoder)
    vectors_QD = model.encoded(model.prepare([*chosen.texts.values()])).numpy()
    held_out = documents(corpus, sample.target)
    batches = PairBatches(
        corpus, judged_pairs(corpus, chosen, vectors_QD, held_out=held_out), shares,
        held_out=held_out, batch=given.batch, seed=seed, makers=MAKERS,
    )  # fmt: skip
    steps = make_steps(
        model, batches, Replicas(), distance="cosine", scale=given.scale, dtype=matrix_dtype("cpu")
    )
    with tempfile.TemporaryDirectory() as folder:
        run_steps(
            model.modules, steps.loss, RunSettings(given.steps, SPEC["learning_rate"], seed, every_s=1e9),
            Checkpoints([], "run", keep=1), Replicas(), progress=lambda done, total: None, is_stopped=lambda: False,
        )  # fmt: skip
        seconds = time.process_time() - started
        save_checked(model, Path(folder, "model"), encoder)
        yield Path(folder, "model"), seconds


def gains(sample: Sample, encoder: EncoderSpec, vectors_SD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return nDCG@10 of the held-out queries in the default mode, and by vector alone."""
    queries = sample.target
    with indexed_sample(sample, vectors_SD, encoder) as index:
        default_Q, dense_Q = (
            searched_gains(index, queries.texts, queries.judgements, as_text, passages=False, mode=mode)
            for mode in (None, "dense")
        )
    return default_Q, dense_Q


# --- a signal that gave nothing


def sentence_passage(corpus: Corpus, row: int, random: np.random.Generator) -> Pair | None:
    """Return a sentence of a passage with the passage, from which it is left out: the inverse cloze task."""
    text = corpus.text(row)
    shortest, longest = SENTENCE_CHARS
    sentences = [each for each in sentences_of(text) if shortest <= len(each.spoken) <= longest]
    if not sentences:
        return None
    chosen = sentences[int(random.integers(len(sentences)))]
    remainder = f"{text[: chosen.start]} {text[chosen.end :]}"
    return Pair(chosen.spoken, below_title(corpus.title(row), remainder), int(corpus.documents_N[row]))


MAKERS: Mapping[str, Signal] = {
    **SIGNALS,
    "sentence_passage": sentence_passage,
}


if __name__ == "__main__":
    main()

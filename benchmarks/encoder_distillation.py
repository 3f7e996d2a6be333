"""What an encoder of queries gains that is also fitted to the scores of a cross-encoder (distillation).

    python -m benchmarks.encoder_distillation [CASE …] [--folder FOLDER] [--episodes N] [--lists N] [--seeds 1,2,3]

The collection, the held-out queries and the judged ones are those of `benchmarks.encoder_losses`. No cross-encoder
comes in a package, so one is made first, and kept in the folder: MiniLM that reads query and passage together and
corrects the score by vector, to which it is added. It is trained by softmax over lists of a passage that answers, and
three of the best 30 that search by vector finds in other documents, of summaries that are not held out. So it has more
judged queries than the encoder that learns from it.

*query_side*: the training of `scannery train --kind query_side` on 200 judged queries, plain, and with the divergence
of the softmax over the best six passages of each query from that of the cross-encoder's scores (Hinton et al.,
"Distilling the Knowledge in a Neural Network", 2015). nDCG@10 of the held-out queries by vector in the whole index; the
plain loss is compared with the model before, the other with the plain one. *reranker*: nDCG@10 of the held-out queries
by vector in the sample of `benchmarks.encoder_training`, and after the cross-encoder has ordered the best six passages
anew: by its sums, by its corrections alone, and by sums with other weights.

Intervals are those of a paired bootstrap, 95 %. Seconds are of the processor, with those of the scores.

Shapes: Q queries, B queries or lists of a step, L passages of a list, K candidates, N rows, S rows of the sample,
D dimensions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from benchmarks.encoder_losses import EPISODES, first_episodes, opened
from benchmarks.encoder_training import JUDGED, SPEC, documents, parts, sample_of
from benchmarks.harness import MINILM, environment, folder_of, options, table
from scannery.embed import Encoder
from scannery.embed.models.model_files import find_model
from scannery.indexer import Store
from scannery.indexer.reader import open_index
from scannery.indexer.spec.spec import EncoderSpec
from scannery.training.encoder.models import SCALE
from scannery.training.encoder.sample import Sample
from scannery.training.exports import matrix_dtype, trainable
from scannery.training.gate.decision import difference_of
from scannery.training.judged import Judged
from scannery.training.pairs.corpus import Corpus, read_corpus
from scannery.training.query_side.fitting import QuerySteps, TrainingQuery
from scannery.training.query_side.rows import ScoredRows
from scannery.training.runs.checkpoints import Checkpoints
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.run import RunSettings, run_steps

__all__ = ["main"]

BEST = 30
"""Ranks of passages of other documents that a list has some of."""
OTHERS = 3
"""Passages of a list that do not answer."""
LISTS = 6
"""Lists of a step."""
LEARNING_RATE = 1e-4
HEAD_LEARNING_RATE = 1e-3
MAX_TOKENS = 192
HEADS = "classifier", "bert.pooler"
AT_ONCE = 32
"""Pairs that are scored together."""
CANDIDATES = 6
"""Passages of a query that are ordered anew."""
QUERY_STEPS, QUERY_BATCH, QUERY_SCALE = 16, 64, 40.0
WEIGHTS = 0.1, 0.2, 0.5, 2.0, 5.0
"""Of the correction, beside 1, that are tried."""
WARM_UP = 0.1
DEPTH = 1000
"""Passages whose documents are ordered: long episodes have many."""


def main() -> None:
    given = options(
        __doc__,
        cases=("query_side", "reranker"),
        seeds=[1],
        episodes=EPISODES,
        lists=400,
        weight=1.0,
        folder=Path,
    )
    print(environment("sentence-transformers", "torch", "scann"))
    with folder_of(given.folder) as folder:
        collection = first_episodes(given.episodes)
        opened(folder / "speech", collection)
        corpus = read_corpus(open_index(Store.open(folder / "speech" / "store"), "quality"))
        held_out, others = parts(collection)
        data = Data.of(corpus, held_out, others)
        if not (folder / "reranker").exists():
            train_teacher(folder / "reranker", [*lists_of(data, given.lists)])
        teacher = Teacher(folder / "reranker")
        rows = []
        for seed in given.seeds if "query_side" in given.cases else ():
            for row in query_rows(data, teacher, seed, given.weight):
                rows.append([seed, *row])
                print(*rows[-1], sep=" · ", flush=True)
        print(table(("draw", "loss", "by vector", "s"), rows))
        if "reranker" in given.cases:
            reranked(data, teacher)


@dataclass(frozen=True, eq=False)
class Data:
    """What is trained on, and measured with."""

    corpus: Corpus
    sample: Sample
    """Passages, and the queries that are held out."""
    others: Judged
    """All other queries."""
    vectors_ND: np.ndarray
    """Vectors of all passages, float32."""
    is_held_out_N: np.ndarray
    """Whether the document of each is held out."""
    spec: EncoderSpec
    """Encoder that trainings begin with."""
    encoder: Encoder
    """The same, loaded."""

    @classmethod
    def of(cls, corpus: Corpus, held_out: Judged, others: Judged) -> Data:
        """Return the data of a corpus and the two parts of its queries."""
        model = find_model(MINILM)
        return cls(
            corpus, sample_of(corpus, held_out), others, corpus.vectors(np.arange(len(corpus))),
            np.isin(corpus.documents_N, documents(corpus, held_out)), EncoderSpec(model=str(model)),
            Encoder.load(model, device="cpu"),
        )  # fmt: skip

    def best_rows(self, query_D: np.ndarray, document: int) -> np.ndarray:
        """Return the rows of other documents, none held out, that a query finds best by vector, int64 (BEST,)."""
        scores_N = self.vectors_ND @ query_D
        scores_N[self.is_held_out_N | (self.corpus.documents_N == document)] = -np.inf
        rows_K: np.ndarray = np.argsort(-scores_N)[:BEST]
        return rows_K


# --- the cross-encoder


class PassageList(NamedTuple):
    """Passages for a query, of which the first one answers."""

    query: str
    passages: list[str]
    similarities_L: np.ndarray
    """Their scores by vector, float32."""


class Teacher:
    """A cross-encoder that corrects scores by vector: a score is the sum of `SCALE` times that and the correction."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def corrections(self, pairs: Sequence[tuple[str, str]]) -> torch.Tensor:
        """Return what the cross-encoder alone makes of pairs of a query and a passage."""
        order = sorted(range(len(pairs)), key=lambda number: sum(map(len, pairs[number])))
        scores = torch.empty(len(pairs))
        with torch.no_grad():
            for start in range(0, len(order), AT_ONCE):
                numbers = order[start : start + AT_ONCE]
                scores[numbers] = logits(self._model, self._tokenizer, [pairs[number] for number in numbers])
        return scores


def logits(model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> torch.Tensor:
    """Return what a cross-encoder makes of pairs of a query and a passage."""
    queries, passages = zip(*pairs, strict=True)
    tokens = tokenizer(
        list(queries), list(passages), truncation="longest_first", max_length=MAX_TOKENS, padding=True,
        return_tensors="pt",
    )  # fmt: skip
    dtype = matrix_dtype("cpu")
    with torch.autocast("cpu", getattr(torch, dtype), enabled=dtype != "float32"):
        scores: torch.Tensor = model(**tokens).logits[:, 0].float()
    return scores


def train_teacher(folder: Path, lists: Sequence[PassageList]) -> None:
    """Write a cross-encoder to a folder, trained on lists of passages."""
    torch.manual_seed(1)
    source = find_model(MINILM)
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    # Without dropout: each list is seen once.
    model: Any = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1).eval()
    heads = {name for name, _ in model.named_parameters() if name.startswith(HEADS)}
    torch.nn.init.zeros_(model.classifier.weight)
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [each for name, each in model.named_parameters() if name in heads],
                "lr": HEAD_LEARNING_RATE,
            },
            {
                "params": [each for name, each in model.named_parameters() if name not in heads],
                "lr": LEARNING_RATE,
            },
        ]
    )
    steps = len(lists) // LISTS
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / (WARM_UP * steps)) * (1 - step / steps)
    )
    order = np.random.default_rng(1).permutation(len(lists)).tolist()
    started, losses = time.process_time(), []
    for step in range(steps):
        batch = [lists[number] for number in order[step * LISTS : (step + 1) * LISTS]]
        pairs = [(each.query, passage) for each in batch for passage in each.passages]
        before_BL = SCALE * torch.from_numpy(np.stack([each.similarities_L for each in batch]))
        scores_BL = before_BL + logits(model, tokenizer, pairs).reshape(len(batch), -1)
        loss, before = (
            torch.nn.functional.cross_entropy(each_BL, torch.zeros(len(batch), dtype=torch.int64))
            for each_BL in (scores_BL, before_BL)
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append((loss.item(), before.item()))
        if step % 10 == 9:
            seconds = time.process_time() - started
            means = np.mean(losses[-10:], axis=0)
            print(
                f"step {step + 1} of {steps}: loss {means[0]:.3f}, by vector {means[1]:.3f}, {seconds:.0f} s",
                flush=True,
            )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def lists_of(data: Data, count: int) -> Iterator[PassageList]:
    """Yield lists of some summaries, which are drawn at random."""
    corpus, random = data.corpus, np.random.default_rng(1)
    names = [*data.others.texts]
    drawn = [names[number] for number in random.permutation(len(names))[:count].tolist()]
    texts = [data.others.texts[name] for name in drawn]
    for name, text, query_D in zip(drawn, texts, data.encoder.encode_queries(texts), strict=True):
        [document] = [corpus.numbers[key] for key in data.others.relevant[name]]
        own = corpus.rows_of(document)
        answer = own[int(np.argmax(data.vectors_ND[own] @ query_D))]
        others = random.permutation(data.best_rows(query_D, document))[:OTHERS].tolist()
        rows = [answer, *others]
        yield PassageList(text, [*map(corpus.passage, rows)], data.vectors_ND[rows] @ query_D)


# --- what the cross-encoder is worth


def ndcg(documents_K: np.ndarray, document: int) -> float:
    """Return nDCG@10 of passages in an order, for a query that one document answers."""
    ranking = [*dict.fromkeys(documents_K.tolist())][:10]
    return float(1 / np.log2(2 + ranking.index(document))) if document in ranking else 0.0


def reranked(data: Data, teacher: Teacher) -> None:
    """Print what the cross-encoder is worth beside vectors, in the sample."""
    corpus, sample, target = data.corpus, data.sample, data.sample.target
    vectors_SD, documents_S = sample.vectors(), sample.corpus.documents_N[sample.rows_S]
    scores_QS = data.encoder.encode_queries([*target.texts.values()]) @ vectors_SD.T
    order_QS = np.argsort(-scores_QS, axis=1)
    pairs = [
        (text, corpus.passage(int(sample.rows_S[number])))
        for text, order_S in zip(target.texts.values(), order_QS, strict=True)
        for number in order_S[:CANDIDATES]
    ]
    started = time.process_time()
    corrections_QK = teacher.corrections(pairs).numpy().reshape(len(order_QS), CANDIDATES)
    print(f"{len(pairs)} pairs in {time.process_time() - started:.0f} s", flush=True)
    answers = [corpus.numbers[keys[0]] for keys in target.relevant.values()]

    def values(by_vector: float, correction: float) -> np.ndarray:
        """Return nDCG@10 of the order by a weighted sum, float64 (Q,)."""
        gains = []
        for scores_S, order_S, corrections_K, answer in zip(
            scores_QS, order_QS, corrections_QK, answers, strict=True
        ):
            first_K, further = order_S[:CANDIDATES], order_S[CANDIDATES:]
            sums_K = by_vector * scores_S[first_K] + correction * corrections_K
            again_K = first_K[np.argsort(-sums_K, kind="stable")]
            gains.append(ndcg(documents_S[np.concatenate([again_K, further])], answer))
        return np.array(gains)

    dense_Q = values(1, 0)
    print(f"by vector {dense_Q.mean():.4f}", flush=True)
    for by_vector, correction in ((SCALE, 1.0), (0, 1.0), *((SCALE, weight) for weight in WEIGHTS)):
        print(f"{by_vector:g}, {correction:g}: {text_of(dense_Q, values(by_vector, correction))}", flush=True)


# --- encoders that learn from it


def divergence(scores_BK: torch.Tensor, targets_BK: torch.Tensor) -> torch.Tensor:
    """Return the mean divergence of the softmax of some scores from that of their targets."""
    return torch.nn.functional.kl_div(
        scores_BK.log_softmax(dim=1), targets_BK.log_softmax(dim=1), log_target=True, reduction="batchmean"
    )


class DistilledQuerySteps(QuerySteps):
    """Steps of queries with a divergence from the scores of a cross-encoder for the best passages of each."""

    def __init__(
        self, rows_QK: np.ndarray, targets_QK: torch.Tensor, weight: float, *arguments: Any, **options: Any
    ) -> None:
        """Prepare.

        Args:
            rows_QK: rows that have scores.
            targets_QK: their scores.
            weight: of the divergence.
            arguments: as of all steps.
            options: likewise.

        """
        super().__init__(*arguments, **options)
        self._rows_QK, self._targets_QK, self._weight = rows_QK, targets_QK, weight

    def loss(self, step: int) -> torch.Tensor:
        """Return the loss of a step, with gradients."""
        plain = super().loss(step)
        numbers = self._numbers(step)
        vectors_BKD = self._rows_ND[torch.from_numpy(self._rows_QK[numbers])]
        unit_BD = torch.nn.functional.normalize(self._vectors_BD, dim=1)
        scores_BK = SCALE * torch.einsum("bd,bkd->bk", unit_BD, vectors_BKD)
        return plain + self._weight * divergence(scores_BK, self._targets_QK[numbers])

    def _document_scores(self, queries_BD: torch.Tensor) -> torch.Tensor:
        self._vectors_BD = queries_BD
        return super()._document_scores(queries_BD)


# --- trainings


def query_rows(data: Data, teacher: Teacher, seed: int, weight: float) -> Iterator[list[str]]:
    """Yield what an encoder of queries gains by the plain loss over the model before, and by the other over it."""
    corpus, names = data.corpus, [*data.others.texts]
    names = [
        names[number] for number in np.random.default_rng(seed).permutation(len(names))[:JUDGED].tolist()
    ]
    texts = [data.others.texts[name] for name in names]
    scores_QN = data.encoder.encode_queries(texts) @ data.vectors_ND.T
    rows_QK = np.argsort(-scores_QN, axis=1)[:, :CANDIDATES]
    started = time.process_time()
    pairs = [
        (text, corpus.passage(row))
        for text, rows in zip(texts, rows_QK.tolist(), strict=True)
        for row in rows
    ]
    targets_QK = SCALE * torch.from_numpy(np.take_along_axis(scores_QN, rows_QK, axis=1))
    targets_QK += teacher.corrections(pairs).reshape(rows_QK.shape)
    scoring_s = time.process_time() - started
    rows = ScoredRows(data.vectors_ND, corpus.documents_N, corpus.numbers)
    makers: dict[str, Callable[..., QuerySteps]] = {
        "plain": QuerySteps,
        "distilled": partial(DistilledQuerySteps, rows_QK, targets_QK, weight),
    }
    target = data.sample.target
    answers = [corpus.numbers[keys[0]] for keys in target.relevant.values()]

    def worth(vectors_QD: np.ndarray) -> np.ndarray:
        orders_QN = np.argsort(-(vectors_QD @ data.vectors_ND.T), axis=1)[:, :DEPTH]
        return np.array(
            [ndcg(corpus.documents_N[order], each) for order, each in zip(orders_QN, answers, strict=True)]
        )

    current_Q = worth(data.encoder.encode_queries([*target.texts.values()]))
    print(f"{current_Q.mean():.4f}", flush=True)
    for name, maker in makers.items():
        started = time.process_time()
        model = trainable(Path(data.spec.model), data.spec)
        queries = [
            TrainingQuery(tokens, [corpus.numbers[key] for key in data.others.relevant[each]])
            for each, tokens in zip(names, model.prepare(texts), strict=True)
        ]
        steps = maker(
            model, queries, rows, distance="cosine", scale=QUERY_SCALE, batch=QUERY_BATCH, seed=seed, device="cpu"
        )  # fmt: skip
        run_steps(
            model.modules, steps.loss, RunSettings(QUERY_STEPS, SPEC["learning_rate"], seed, every_s=1e9),
            Checkpoints([], "run", keep=1), Replicas(), progress=lambda done, total: None, is_stopped=lambda: False,
        )  # fmt: skip
        seconds = time.process_time() - started + (scoring_s if name == "distilled" else 0)
        after_Q = worth(model.encoded(model.prepare([*target.texts.values()])).numpy())
        yield [name, text_of(current_Q, after_Q), f"{seconds:.0f}"]
        if name == "plain":
            current_Q = after_Q


def text_of(before_Q: np.ndarray, after_Q: np.ndarray) -> str:
    """Return what is gained for the same queries, with its interval."""
    each = difference_of(before_Q, after_Q)
    return f"{each.mean:+.4f} ({each.low:+.4f} to {each.high:+.4f})"


if __name__ == "__main__":
    main()

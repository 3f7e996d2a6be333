"""The default weight of dense search in hybrid search, measured before a version is committed.

Questions made from passages (tuning_queries.py) are searched by vector and by words over the version, and the
rankings are fused with weights from 0 to 1. The weight with the highest mean nDCG@10 becomes the default. The better
ranking alone, weight 0 or 1, is among the choices, so the default is never below it on these questions.

If one ranking alone has less than two fifths of the nDCG@10 of the other one, as with an encoder that does not know the
language, it gets a weight of at most 0.05, and with less than a quarter none: questions made of the passages' own
words make it look better than it is (figures: docs/benchmarks/fusion.md).

Scores by vector are rounded to a thousandth of a percent of the best one, and of equal scores the passage's counts as
the last: texts that an encoder cannot tell apart differ in their last bits, by which the passage would be first.

The scores of the passage itself are those of what is left of it without the question; other passages of its document
are left out of the rankings.

Shapes: Q questions, A weights, H rows of a ranking.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scannery.embed.errors import EmbedError
from scannery.indexer.lexical.analyser import Analyser
from scannery.indexer.lexical.bm25 import K1, B, CorpusStatistics, corpus_statistics, score_rows
from scannery.indexer.manifest import FusionWeight, Manifest, SegmentEntry
from scannery.indexer.reader import OpenIndex, open_manifest
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.score_fusion import FUSED_ROWS, SAME_SHARE, dense_values, lexical_values
from scannery.indexer.vectors.exact_search import search_ready
from scannery.pipelines.tuning.tuning_queries import EncoderSource, PassageQuestion, question_of

__all__ = ["MOST_QUESTIONS", "WEIGHTS", "best_weight", "measured_weight", "with_fusion_weight"]

MOST_QUESTIONS = 128
"""Each costs three texts to encode, and an exact search of all rows."""
ROWS_PER_QUESTION = 5
"""Small versions have fewer questions, so that these cost less than embedding the passages."""
LEAST_QUESTIONS = 40
"""Fewer tell too little; both rankings then count the same."""
MOST_BYTES = 2 << 30
"""Bytes of a version that are searched. Of larger versions only the first segments up to this size are: documents are
distributed by hash.
"""
GROWTH = 1.5
"""A version with more than this times the rows of the measured one, or fewer than 1 / GROWTH of them, is measured."""
WEIGHTS = np.array([0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1])
_TINY = 1e-12
WEAK_SHARE = 0.4
WEAK_WEIGHT = 0.05
"""Most weight of a ranking with less than this share of the other one's nDCG@10."""
USELESS_SHARE = 0.25
"""A ranking with less than this share gets no weight."""
CUTOFF = 10
_SEED = 2
_ROW_BITS = 40

_LOG = logging.getLogger(__name__)


def with_fusion_weight(
    manifest: Manifest, parent: Manifest | None, store: Store, encoder: EncoderSource | None
) -> Manifest:
    """Return the manifest with the default weight of hybrid search: the parent's if it still holds, or measured.

    Args:
        manifest: of the version to commit; its segments are in the store.
        parent: the version before it.
        store: of the index.
        encoder: that of the index; None if it has none.

    Raises:
        CorruptError, NotFoundError: a segment cannot be opened, so the version could not be served.

    """
    weight = None
    if _is_needed(manifest.spec):
        previous = parent.fusion if parent is not None else None
        if _still_holds(previous, manifest):
            weight = previous
        elif encoder is not None:
            weight = _measured(manifest, store, encoder)
    return manifest.model_copy(update={"fusion": weight})


def _is_needed(spec: IndexSpec) -> bool:
    hybrid = spec.lexical is not None and spec.encoder is not None
    return hybrid and spec.search.alpha is None and spec.search.mode in (None, "hybrid")


def _still_holds(previous: FusionWeight | None, manifest: Manifest) -> bool:
    if previous is None or _identity(manifest) != (previous.encoder, previous.lexical_rules):
        return False
    return previous.rows / GROWTH <= manifest.rows <= previous.rows * GROWTH


def _identity(manifest: Manifest) -> tuple[str | None, dict[str, Any]]:
    """Return what a measurement depends on besides the rows: the encoder's digest and the rules of the analyser."""
    lexical = manifest.spec.lexical
    return (manifest.encoder or {}).get("digest"), lexical.rules if lexical else {}


def _measured(manifest: Manifest, store: Store, encoder: EncoderSource) -> FusionWeight | None:
    searched = _first_segments(manifest.segments)
    if sum(entry.live_rows for entry in searched if entry.vectors) < LEAST_QUESTIONS * ROWS_PER_QUESTION:
        return None
    try:
        index = open_manifest(store, manifest.model_copy(update={"segments": searched}))
    except OSError as error:  # no space for the cache, which is no fault of the version
        _LOG.warning("the weights of hybrid search were not measured: %s", error)
        return None
    try:
        measured = measured_weight(index, encoder)
    except EmbedError as error:  # a compaction can run where the model is not
        _LOG.warning("the weights of hybrid search were not measured: %s", error)
        return None
    if measured is None:
        return None
    digest, rules = _identity(manifest)
    update = {"rows": manifest.rows, "encoder": digest, "lexical_rules": rules}
    return measured.model_copy(update=update)


def _first_segments(entries: Sequence[SegmentEntry]) -> tuple[SegmentEntry, ...]:
    sizes = np.cumsum([entry.size_bytes for entry in entries])
    return tuple(entries[: int(np.searchsorted(sizes, MOST_BYTES, side="right"))])


def measured_weight(index: OpenIndex, encoder: EncoderSource) -> FusionWeight | None:
    """Return the best weight for questions made from passages of an open index; None if too few can be made."""
    if any(segment.postings is None for segment in index.segments):
        return None
    questions = _questions(index)
    if len(questions) < LEAST_QUESTIONS:
        return None
    gains_QA = _gains(index, questions, encoder)
    means_A = gains_QA.mean(axis=0)
    chosen = best_weight(means_A)
    return FusionWeight(
        alpha=float(WEIGHTS[chosen]),
        questions=len(questions),
        rows=index.manifest.rows,
        dense=round(float(means_A[-1]), 4),
        lexical=round(float(means_A[0]), 4),
        hybrid=round(float(means_A[chosen]), 4),
    )


def best_weight(means_A: np.ndarray) -> int:
    """Return the number of the weight to use, given nDCG@10 with each of WEIGHTS; of equal ones, that next to 0.5."""
    lexical, dense = means_A[0], means_A[-1]
    largest, least = _most_weight(dense, lexical), 1 - _most_weight(lexical, dense)
    allowed_A = (least <= WEIGHTS) & (largest >= WEIGHTS)
    rounded_A = np.where(allowed_A, np.round(means_A, 9), -1.0)
    best = np.flatnonzero(rounded_A == rounded_A.max())
    return int(best[np.argmin(np.abs(WEIGHTS[best] - 0.5))])


def _most_weight(score: float, other_score: float) -> float:
    """Return the most weight of a ranking, given nDCG@10 of it and of the other one."""
    if score < USELESS_SHARE * other_score:
        return 0.0
    return WEAK_WEIGHT if score < WEAK_SHARE * other_score else 1.0


@dataclass(frozen=True, slots=True)
class _Question:
    """A question, and the place of the passage that answers it."""

    question: PassageQuestion
    segment: int
    row: int


def _questions(index: OpenIndex) -> list[_Question]:
    """Return questions about passages drawn from rows with vectors, from each segment in proportion to its rows."""
    generator = np.random.default_rng(_SEED)
    live = {
        number: segment_rows
        for number, segment_rows in enumerate(index.live_rows())
        if segment_rows[0].has_vectors
    }
    rows = sum(len(rows_R) for _, rows_R in live.values())
    total = min(MOST_QUESTIONS, rows // ROWS_PER_QUESTION)
    questions: list[_Question] = []
    for number, (segment, rows_R) in live.items():
        count = min(len(rows_R), round(total * len(rows_R) / max(rows, 1)))
        drawn = np.sort(generator.choice(rows_R, count, replace=False))
        for row, text in zip(drawn.tolist(), segment.searched_texts(drawn), strict=True):
            question = question_of(text, generator)
            if question is not None:
                questions.append(_Question(question, number, row))
    return questions


def _gains(index: OpenIndex, questions: Sequence[_Question], encoder: EncoderSource) -> np.ndarray:
    """Return nDCG@10 of each question with each weight, the mean of its two kinds: float64 (Q, A)."""
    distance, loaded = index.spec.distance, encoder()
    queries_QD = search_ready(loaded.encode_queries([each.question.text for each in questions]), distance)
    rests = [remainder for each in questions for remainder in each.question.rests]
    rests_2QD = search_ready(loaded.encode_documents(rests), distance)
    by_words = _WordSearch(index)
    gains_QA = np.empty((len(questions), len(WEIGHTS)))
    for number, each in enumerate(questions):
        search = _OtherDocuments(index, each)
        query_1D = queries_QD[number : number + 1]
        keys_H, scores_H = search.of([(i, *_dense(index, i, query_1D)) for i in range(len(index.segments))])
        unit = SAME_SHARE * max(float(np.abs(scores_H[:1]).max(initial=0.0)), _TINY)
        dense = keys_H, _rounded(scores_H, unit)
        statistics, hits = by_words.search(each.question.text)
        lexical = search.of(hits)
        kinds = []
        for kind, remainder in enumerate(each.question.rests):
            row_D = rests_2QD[2 * number + kind]
            score = float(_rounded(_score(query_1D[0], row_D, distance), unit))
            word_score = by_words.score(each.question.text, remainder, statistics)
            kinds.append(_ndcg(_fused(dense, score, lexical, word_score)))
        gains_QA[number] = np.mean(kinds, axis=0)
    return gains_QA


def _rounded(scores: Any, unit: float) -> Any:
    return np.round(np.asarray(scores, np.float64) / unit) * unit


def _dense(index: OpenIndex, number: int, query_1D: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    alive = index.alive[number]
    rows_1K, scores_1K = index.segments[number].search(
        query_1D, 2 * FUSED_ROWS, allowed=None if alive is None else alive.mask_N, ready=True
    )
    valid = rows_1K[0] >= 0
    return rows_1K[0][valid], scores_1K[0][valid]


def _score(query_D: np.ndarray, row_D: np.ndarray, distance: str) -> float:
    if distance == "squared_l2":
        return -float(np.square(query_D - row_D).sum())
    return float(query_D @ row_D)


class _OtherDocuments:
    """The rows beside the passage of a question, those of other documents."""

    def __init__(self, index: OpenIndex, question: _Question) -> None:
        self._index, self._segment = index, question.segment
        self._document = self._documents(question.segment, np.array([question.row]))[0]

    def of(self, hits: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """Return keys and scores of the best FUSED_ROWS rows of other documents, best first.

        Args:
            hits: per segment its number, rows and scores.

        """
        keys, scores = [], []
        for number, rows_M, scores_M in hits:
            best = np.argsort(-scores_M, kind="stable")[: 2 * FUSED_ROWS]
            names = self._documents(number, rows_M[best])
            kept = best[np.array([name != self._document for name in names], bool)]
            keys.append((np.int64(number) << _ROW_BITS) | rows_M[kept].astype(np.int64))
            scores.append(scores_M[kept])
        keys_H, scores_H = np.concatenate(keys), np.concatenate(scores)
        order_H = np.argsort(-scores_H, kind="stable")[:FUSED_ROWS]
        return keys_H[order_H], scores_H[order_H]

    def _documents(self, number: int, rows: np.ndarray) -> list[str]:
        names: list[str] = self._index.segments[number].take(rows, ["document_id"]).column(0).to_pylist()
        return names


class _WordSearch:
    """Lexical search over an open index, and the score that a text would have in it."""

    def __init__(self, index: OpenIndex) -> None:
        spec = index.spec.lexical
        assert spec is not None
        self._index, self._analyser = index, Analyser(spec)
        self._postings = [segment.postings for segment in index.segments if segment.postings is not None]

    def search(self, text: str) -> tuple[CorpusStatistics, list[tuple[int, np.ndarray, np.ndarray]]]:
        """Return the statistics of a text's words, and per segment its number, the rows found, and their scores."""
        statistics = corpus_statistics(self._postings, self._analyser.terms(text), self._index.alive)
        weights = self._weights(text, statistics)
        scores = [
            (
                number,
                *score_rows(
                    postings, weights, statistics.average_length, None if alive is None else alive.mask_N
                ),
            )
            for number, (postings, alive) in enumerate(zip(self._postings, self._index.alive, strict=True))
        ]
        return statistics, scores

    def score(self, query: str, text: str, statistics: CorpusStatistics) -> float:
        """Return the score that a row with this text would have for a query."""
        counts, length = self._analyser.counts(text)
        norm = K1 * (1 - B + B * length / statistics.average_length)
        weights = self._weights(query, statistics)
        return sum(weight * counts[term] / (counts[term] + norm) for term, weight in weights.items())

    def _weights(self, text: str, statistics: CorpusStatistics) -> dict[str, float]:
        return {
            term: weight * statistics.idf(term)
            for term, weight in self._analyser.query_terms(text).items()
            if term in statistics.frequencies
        }


def _fused(
    dense: tuple[np.ndarray, np.ndarray],
    score: float,
    lexical: tuple[np.ndarray, np.ndarray],
    word_score: float,
) -> np.ndarray:
    """Return the rank, from 1, that the passage has among the rows of both rankings with each weight: float64 (A,).

    The passage has the given scores; it is not in the lexical ranking with a score of 0.
    """
    passage = np.int64(-1)
    dense_keys, dense_gains = _with(dense, passage, score, dense_values)
    lexical_keys, lexical_gains = _with(lexical, passage, word_score, lexical_values)
    keys_H, positions = np.unique(np.concatenate([dense_keys, lexical_keys, [passage]]), return_inverse=True)
    gains_2H = np.zeros((2, len(keys_H)))
    gains_2H[0, positions[: len(dense_keys)]] = dense_gains
    gains_2H[1, positions[len(dense_keys) : -1]] = lexical_gains
    scores_AH = WEIGHTS[:, None] * gains_2H[0] + (1 - WEIGHTS[:, None]) * gains_2H[1]
    own_A1 = scores_AH[:, positions[-1]][:, None]
    ranks_A: np.ndarray = np.where(own_A1[:, 0] > 0, (scores_AH >= own_A1).sum(axis=1), np.inf)
    return ranks_A


def _with(
    ranking: tuple[np.ndarray, np.ndarray], key: np.int64, score: float, scaled: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and scaled scores of a ranking with one more row, if that is good enough for it."""
    keys_H, scores_H = ranking
    position = int(np.searchsorted(-scores_H, -score, side="right"))
    if position < FUSED_ROWS and (scaled is not lexical_values or score > 0):
        keys_H, scores_H = np.insert(keys_H, position, key), np.insert(scores_H, position, score)
    return keys_H[:FUSED_ROWS], scaled(scores_H[:FUSED_ROWS])


def _ndcg(ranks_A: np.ndarray) -> np.ndarray:
    """Return nDCG@10 where the only right row has these ranks."""
    gains: np.ndarray = np.where(ranks_A <= CUTOFF, 1 / np.log2(ranks_A + 1), 0.0)
    return gains

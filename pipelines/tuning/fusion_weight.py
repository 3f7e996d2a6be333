"""The default weight of dense search in hybrid search and the scales of its scores, measured before a commit.

Questions made from passages (tuning_queries.py) are searched by vector and by words over the version. The scores of
their best rows are the scales of the index (indexer/tuning/score_fusion.py), on which the rankings are fused with
weights from 0 to 1. The weight with the highest mean nDCG@10 becomes the default. The better ranking alone, weight 0 or
1, is among the choices, so the default is never below it on these questions.

Questions whose whole sentence is left out of their passage count three times as much as those of which half of the
words stay: people use few words of their answers. If one ranking alone has less than two fifths of the nDCG@10 of the
other one, as with an encoder that does not know the language, it gets a weight of at most 0.05, and with less than a
quarter none: questions made of the passages' own words make it look better than it is (docs/benchmarks/fusion.md).

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
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from scannery.embed.errors import EmbedError
from scannery.indexer.lexical.analyser import Analyser
from scannery.indexer.lexical.bm25 import K1, B, corpus_statistics, score_rows
from scannery.indexer.lexical.expansion import QueryText, WeightedTerms, weighted_terms
from scannery.indexer.manifest import FusionScales, FusionWeight, Manifest, SegmentEntry
from scannery.indexer.reader import OpenIndex, open_manifest
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.score_fusion import FUSED_ROWS, SAME_SHARE, Scale
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
_LEAST_SHARE = 0.01
KIND_WEIGHTS = (0.75, 0.25)
"""Weights of the two kinds of a question, in the order of `PassageQuestion.rests`."""
BALANCE = 5e-4
"""nDCG@10 that a weight must gain to be preferred to one nearer to 0.5, times the square of its logarithmic odds: 0.05
must be better than 0.5 by 0.004. With 128 questions, the standard error of such a difference is about 0.01."""
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
        weight = previous if _still_holds(previous, manifest) else None
        if encoder is not None and (weight is None or weight.scales is None):
            weight = _measured(manifest, store, encoder) or weight
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
    searches = _searches(index, questions, encoder)
    scales = _scales(searches)
    gains_QA = np.array([_gains(search, scales) for search in searches])
    means_A = gains_QA.mean(axis=0)
    chosen = best_weight(means_A)
    return FusionWeight(
        alpha=float(WEIGHTS[chosen]),
        questions=len(questions),
        rows=index.manifest.rows,
        dense=round(float(means_A[-1]), 4),
        lexical=round(float(means_A[0]), 4),
        hybrid=round(float(means_A[chosen]), 4),
        scales=scales,
    )


def best_weight(means_A: np.ndarray) -> int:
    """Return the number of the weight to use, given nDCG@10 with each of WEIGHTS.

    It is not below the better side. Of weights that are about as good, it is the one nearer to 0.5.
    """
    lexical, dense = means_A[0], means_A[-1]
    largest, least = _most_weight(dense, lexical), 1 - _most_weight(lexical, dense)
    allowed_A = (least <= WEIGHTS) & (largest >= WEIGHTS) & (means_A >= max(lexical, dense))
    odds_A = np.log(np.clip(WEIGHTS, 0.02, 0.98) / np.clip(1 - WEIGHTS, 0.02, 0.98))
    return int(np.argmax(np.where(allowed_A, means_A - BALANCE * odds_A**2, -np.inf)))


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


class _Scores(NamedTuple):
    """What one of the two searches has for a question."""

    keys_H: np.ndarray
    """Numbers of the best rows of other documents, best first, int64."""
    scores_H: np.ndarray
    """Their scores."""
    rests: tuple[float, ...]
    """Scores of what is left of the passage, of both kinds."""


class _Search(NamedTuple):
    """What both searches have for a question."""

    dense: _Scores
    lexical: _Scores
    highest: float
    """Highest score by words that a row could have."""


def _searches(index: OpenIndex, questions: Sequence[_Question], encoder: EncoderSource) -> list[_Search]:
    """Return what search by vector and search by words have for each question."""
    distance, loaded = index.spec.distance, encoder()
    queries_QD = search_ready(loaded.encode_queries([each.question.text for each in questions]), distance)
    rests = [remainder for each in questions for remainder in each.question.rests]
    rests_QKD = search_ready(loaded.encode_documents(rests), distance).reshape(len(questions), 2, -1)
    by_words = _WordSearch(index)
    searches = []
    for each, query_D, rests_KD in zip(questions, queries_QD, rests_QKD, strict=True):
        other_documents = _OtherDocuments(index, each)
        keys_H, scores_H = other_documents.of(
            [(i, *_dense(index, i, query_D[None])) for i in range(len(index.segments))]
        )
        unit = SAME_SHARE * max(float(np.abs(scores_H[:1]).max(initial=0.0)), _TINY)
        rest_scores = [float(_rounded(_score(query_D, rest_D, distance), unit)) for rest_D in rests_KD]
        words = by_words.words(each.question.text)
        rest_words = [by_words.score(words, remainder) for remainder in each.question.rests]
        searches.append(
            _Search(
                _Scores(keys_H, _rounded(scores_H, unit), tuple(rest_scores)),
                _Scores(*other_documents.of(by_words.search(words)), tuple(rest_words)),
                words.highest_score,
            )
        )
    return searches


def _scales(searches: Sequence[_Search]) -> FusionScales:
    """Return the scales of an index: the mean scores of the best rows, and of those at place 200."""
    dense = [each.dense.scores_H for each in searches if len(each.dense.scores_H)]
    shares = [
        float(each.lexical.scores_H[0]) / each.highest for each in searches if len(each.lexical.scores_H)
    ]
    return FusionScales(
        dense_zero=round(float(np.mean([scores_H[-1] for scores_H in dense] or [0.0])), 6),
        dense_one=round(float(np.mean([scores_H[0] for scores_H in dense] or [1.0])), 6),
        lexical_one=round(max(float(np.mean(shares or [1.0])), _LEAST_SHARE), 6),
    )


def _gains(search: _Search, scales: FusionScales) -> np.ndarray:
    """Return nDCG@10 of a question with each weight, the mean of its two kinds: float64 (A,)."""
    dense_scale = Scale(scales.dense_zero, scales.dense_one)
    lexical_scale = Scale(0.0, scales.lexical_one * search.highest)
    kinds = zip(search.dense.rests, search.lexical.rests, strict=True)
    gains_KA = [
        _ndcg(_fused(search.dense, score, dense_scale, search.lexical, word_score, lexical_scale))
        for score, word_score in kinds
    ]
    gains_A: np.ndarray = np.average(gains_KA, axis=0, weights=KIND_WEIGHTS)
    return gains_A


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

    def words(self, text: str) -> WeightedTerms:
        """Return what a text is searched by."""
        corpus = partial(corpus_statistics, self._postings, alive=self._index.alive)
        [words] = weighted_terms([[QueryText(text, 1.0)]], self._analyser, corpus)
        return words

    def search(self, words: WeightedTerms) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Return per segment its number, the rows with any of the words, and their scores."""
        masks = [None if alive is None else alive.mask_N for alive in self._index.alive]
        return [
            (number, *score_rows(postings, words.weights, words.average_length, mask))
            for number, (postings, mask) in enumerate(zip(self._postings, masks, strict=True))
        ]

    def score(self, words: WeightedTerms, text: str) -> float:
        """Return the score that a row with this text would have."""
        counts, length = self._analyser.counts(text)
        norm = K1 * (1 - B + B * length / words.average_length)
        return sum(weight * counts[term] / (counts[term] + norm) for term, weight in words.weights.items())


def _fused(
    dense: _Scores,
    score: float,
    dense_scale: Scale,
    lexical: _Scores,
    word_score: float,
    lexical_scale: Scale,
) -> np.ndarray:
    """Return the rank, from 1, that the passage has among the rows of both rankings with each weight: float64 (A,).

    The passage has the given scores; it is not in the lexical ranking with a score of 0.
    """
    passage = np.int64(-1)
    dense_keys, dense_scores = _with(dense, passage, score)
    lexical_keys, lexical_scores = _with(lexical, passage, word_score) if word_score > 0 else lexical[:2]
    keys_H, positions = np.unique(np.concatenate([dense_keys, lexical_keys, [passage]]), return_inverse=True)
    gains_2H = np.zeros((2, len(keys_H)))
    dense_gains = dense_scale.values(dense_scores)
    gains_2H[0] = min(dense_gains, default=0.0)
    gains_2H[0, positions[: len(dense_keys)]] = dense_gains
    gains_2H[1, positions[len(dense_keys) : -1]] = lexical_scale.values(lexical_scores)
    scores_AH = WEIGHTS[:, None] * gains_2H[0] + (1 - WEIGHTS[:, None]) * gains_2H[1]
    passage_A1 = scores_AH[:, positions[-1]][:, None]
    is_in_A = (WEIGHTS > 0) & (passage in dense_keys) | (WEIGHTS < 1) & (passage in lexical_keys)
    ranks_A: np.ndarray = np.where(is_in_A, (scores_AH >= passage_A1).sum(axis=1), np.inf)
    return ranks_A


def _with(ranking: _Scores, key: np.int64, score: float) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and scores of a ranking with one more row, if that is good enough for it."""
    keys_H, scores_H = ranking.keys_H, ranking.scores_H
    position = int(np.searchsorted(-scores_H, -score, side="right"))
    if position < FUSED_ROWS:
        keys_H, scores_H = np.insert(keys_H, position, key), np.insert(scores_H, position, score)
    return keys_H[:FUSED_ROWS], scores_H[:FUSED_ROWS]


def _ndcg(ranks_A: np.ndarray) -> np.ndarray:
    """Return nDCG@10 where the only right row has these ranks."""
    gains: np.ndarray = np.where(ranks_A <= CUTOFF, 1 / np.log2(ranks_A + 1), 0.0)
    return gains

"""Questions made from passages, and foreign ones, searched by vector and by words over a version before its commit.

The scores of the passage itself are those of what is left of it without the question. Other passages of its document
are left out of the rankings. By named vectors of another field than the text nothing is taken from the passage: the
question is not made from that field. Scores by vector are rounded to a thousandth of a percent of the best one, and of
equal scores the passage's counts as the last: texts that an encoder cannot tell apart differ in their last bits, by
which the passage would be first. Scores by words are shares of the highest one that the words of the question allow.

Shapes: Q questions, D dimensions, H rows of a ranking, M rows found in a segment, A weights.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from scannery.indexer.lexical.analyser import Analyser
from scannery.indexer.lexical.bm25 import K1, B
from scannery.indexer.lexical.expansion import QueryText, WeightedTerms, weighted_terms
from scannery.indexer.manifest import FusionScales
from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.reader import OpenIndex, SearchedSegment
from scannery.indexer.segment.segment import Segment
from scannery.indexer.tuning.score_fusion import FUSED_ROWS, SAME_SHARE, Scale
from scannery.indexer.vectors.exact_search import row_scores, search_ready
from scannery.pipelines.tuning.tuning_queries import EncoderSource, PassageQuestion, question_of

__all__ = [
    "PASSAGE",
    "PassageScores",
    "QuestionSearch",
    "Ranked",
    "foreign_searches",
    "fused",
    "passage_searches",
    "questions_about",
    "rows_of",
]

MOST_QUESTIONS = 256
"""Questions at most: each costs three texts to encode, and an exact search of all rows. With 128, chance cost .03 of
nDCG@10 at times."""
ROWS_PER_QUESTION = 5
"""Small versions have fewer questions, so that these cost less than embedding the passages."""
READ_ROWS = 1 << 13
"""Rows at most whose texts are read for questions: one in 32 that makes a question is enough for all of them."""
HASHED_ROWS = 1 << 17
"""Rows whose ids are in memory at once."""
COMPARED_ROWS = 20
"""First rows of a ranking that are compared with the passage."""
PASSAGE = np.int64(-1)
"""The passage of a question among the rows of a ranking."""
_ROW_BITS = 40
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the place of the passage that answers it."""

    question: PassageQuestion
    segment: int
    row: int


def questions_about(index: OpenIndex) -> list[Question]:
    """Return questions about passages of an index: about those that make one and whose ids have the least hashes.

    So they do not depend on how rows are distributed over segments. If the index has an encoder, the passages have
    vectors.
    """
    needs_vectors = index.spec.encoder is not None
    live = {
        number: segment_rows
        for number, segment_rows in enumerate(index.live_rows())
        if segment_rows[0].has_vectors or not needs_vectors
    }
    count = min(MOST_QUESTIONS, sum(len(rows_R) for _, rows_R in live.values()) // ROWS_PER_QUESTION)
    addresses: list[tuple[int, int, int]] = []
    for number, (segment, rows_R) in live.items():
        hashes_R = _id_hashes(segment, rows_R)
        least = np.argsort(hashes_R, kind="stable")[:READ_ROWS]
        addresses += zip(hashes_R[least].tolist(), [number] * len(least), rows_R[least].tolist(), strict=True)
    questions: list[Question] = []
    for seed, number, row in sorted(addresses)[:READ_ROWS]:
        if len(questions) == count:
            break
        [text] = live[number][0].searched_texts(np.array([row]))
        question = question_of(text, np.random.default_rng(seed))
        if question is not None:
            questions.append(Question(question, number, row))
    return questions


def _id_hashes(segment: Segment, rows_R: np.ndarray) -> np.ndarray:
    """Return a hash of the id of each row, int64 (R,)."""
    hashes_R = np.empty(len(rows_R), np.int64)
    for start in range(0, len(rows_R), HASHED_ROWS):
        ids = segment.take(rows_R[start : start + HASHED_ROWS], ["id"]).column(0).to_pylist()
        hashes_R[start : start + len(ids)] = [zlib.crc32(name.encode()) for name in ids]
    return hashes_R


class Ranked(NamedTuple):
    """The best rows by one of the two searches, best first."""

    keys_H: np.ndarray
    """Numbers of the rows, int64."""
    scores_H: np.ndarray
    """Their scores, float64; by words as shares."""


class PassageScores(NamedTuple):
    """What a text in place of the passage would score."""

    dense: float
    """Score by vector; minus infinity: it has none."""
    lexical: float
    """Score by words, as a share; 0: it has none of them."""


class QuestionSearch(NamedTuple):
    """What both searches have for a question."""

    dense: Ranked | None
    """Rows of other documents by vector; None: the vectors have no encoder."""
    lexical: Ranked | None
    """Rows of other documents by words; None: the index has no words, or named vectors are searched."""
    remainders: tuple[PassageScores, PassageScores]
    """Scores of what is left of the passage, of both kinds (`PassageQuestion.rests`); of a foreign question: 0."""
    paraphrase: PassageScores
    """Scores of the passage in other words: of its vector, since synonyms change no meaning, and of half its words."""
    equal_keys: np.ndarray
    """Keys of rows that are as close to the passage as it is without the question's sentence."""

    def answers(self, keys_H: np.ndarray) -> np.ndarray:
        """Return whether each row, by its key, answers the question, bool (H,)."""
        return np.isin(keys_H, [PASSAGE, *self.equal_keys])

    def with_passage(self, passage: PassageScores | None) -> tuple[Ranked | None, Ranked | None]:
        """Return the rankings by vector and by words, with a text in place of the passage as the row PASSAGE.

        A text without any word of the question is not among the rows by words, and one without a vector not among those
        by vector.

        Args:
            passage: scores of the text; None: there is none.

        """
        dense, lexical = self.dense, self.lexical
        if passage is not None and dense is not None and passage.dense > -np.inf:
            dense = _with_row(dense, passage.dense)
        if passage is not None and lexical is not None and passage.lexical > 0:
            lexical = _with_row(lexical, passage.lexical)
        return dense, lexical


_NOTHING = PassageScores(0.0, 0.0)
_NO_KEYS = np.empty(0, np.int64)


def passage_searches(
    index: OpenIndex, questions: Sequence[Question], encoder: EncoderSource | None, name: str = ""
) -> list[QuestionSearch]:
    """Return what both searches have for questions about passages.

    Args:
        index: that is searched.
        questions: about it.
        encoder: of the vectors; None: they have none.
        name: of the vectors; empty: the unnamed ones, and words.

    """
    searcher = _Searcher(index, encoder, name)
    texts = [each.question.text for each in questions]
    remainders_QKD = searcher.remainders(questions)
    return [
        searcher.about(question, query_D, remainders_KD)
        for question, query_D, remainders_KD in zip(
            questions, searcher.vectors(texts), remainders_QKD, strict=True
        )
    ]


def foreign_searches(
    index: OpenIndex, texts: Sequence[str], encoder: EncoderSource | None, name: str = ""
) -> list[QuestionSearch]:
    """Return what both searches have for questions that no passage answers; arguments as of `passage_searches`."""
    searcher = _Searcher(index, encoder, name)
    return [
        QuestionSearch(*searcher.rankings(text, query_D)[:2], (_NOTHING, _NOTHING), _NOTHING, _NO_KEYS)
        for text, query_D in zip(texts, searcher.vectors(texts), strict=True)
    ]


class _Searcher:
    """Search by the vectors of a name and by words over an open index; either may be missing."""

    def __init__(self, index: OpenIndex, encoder: EncoderSource | None, name: str) -> None:
        self._index, self._space = index, index.space(name)
        self._distance = self._space.index.spec.distance
        self._encoder = None if encoder is None else encoder()
        self._of_text = index.spec.text_field(name) == "text"
        self._by_words = None if name or index.spec.lexical is None else _WordSearch(index)

    def vectors(self, texts: Sequence[str]) -> Sequence[np.ndarray | None]:
        """Return the vector of each question, float32 (D,); None without an encoder."""
        if self._encoder is None:
            return [None] * len(texts)
        return [*search_ready(self._encoder.encode_queries(texts), self._distance)]

    def remainders(self, questions: Sequence[Question]) -> Sequence[np.ndarray | None]:
        """Return the vectors of what is left of each passage, float32 (2, D); None where that is not encoded."""
        if self._encoder is None or not self._of_text:
            return [None] * len(questions)
        texts = [remainder for each in questions for remainder in each.question.rests]
        remainders_QD = search_ready(self._encoder.encode_documents(texts), self._distance)
        return [*remainders_QD.reshape(len(questions), 2, -1)]

    def rankings(
        self, text: str, query_D: np.ndarray | None, left_out: Question | None = None
    ) -> tuple[Ranked | None, Ranked | None, WeightedTerms | None]:
        """Return the rankings by vector and by words, without the document of a question, and the words."""
        allowed = self._index.alive if left_out is None else _without_document(self._index, left_out)
        dense = lexical = words = None
        if query_D is not None:
            parts = self._space.parts
            dense = _ranked([_nearest(part, allowed[part.number], query_D[None]) for part in parts])
        if self._by_words is not None:
            words = self._by_words.words(text)
            lexical = _ranked(self._by_words.search(words, allowed))
            lexical = Ranked(lexical.keys_H, lexical.scores_H / max(words.highest_score, _TINY))
        return dense, lexical, words

    def about(
        self, each: Question, query_D: np.ndarray | None, remainders_KD: np.ndarray | None
    ) -> QuestionSearch:
        """Return what both searches have for a question about a passage."""
        dense, lexical, words = self.rankings(each.question.text, query_D, each)
        dense_scores, shares = (-np.inf,) * 3, (0.0,) * 3
        equal_keys = _NO_KEYS
        passage_D = self._passage_vector(each)
        if query_D is not None and dense is not None and passage_D is not None:
            rests_KD = np.stack([passage_D] * 2) if remainders_KD is None else remainders_KD
            scores_R = self._scores(query_D, np.stack([*rests_KD, passage_D]))
            unit = SAME_SHARE * max(float(np.abs(dense.scores_H[:1]).max(initial=0.0)), _TINY)
            dense = Ranked(dense.keys_H, _rounded(dense.scores_H, unit))
            dense_scores = tuple(_rounded(scores_R, unit).tolist())
            least = float(self._scores(passage_D, rests_KD).min())
            equal_keys = self._near(passage_D, least - SAME_SHARE * abs(least), [dense, lexical])
        if self._by_words is not None and words is not None:
            highest = max(words.highest_score, _TINY)
            elsewhere = self._by_words.elsewhere(each, [*words.weights])
            first, second = (
                self._by_words.score(words, text, elsewhere) / highest for text in each.question.rests
            )
            shares = (first, second, second)
        sentence, half, paraphrase = map(PassageScores, dense_scores, shares)
        return QuestionSearch(dense, lexical, (sentence, half), paraphrase, equal_keys)

    def _near(self, passage_D: np.ndarray, least: float, rankings: Sequence[Ranked | None]) -> np.ndarray:
        """Return the keys of the first rows of some rankings whose score by the passage's vector is high enough."""
        keys_H = np.unique(
            np.concatenate([each.keys_H[:COMPARED_ROWS] for each in rankings if each is not None])
        )
        numbers_H, rows_H = rows_of(keys_H)
        near_H = np.zeros(len(keys_H), bool)
        for number in np.unique(numbers_H).tolist():
            is_part = numbers_H == number
            near_H[is_part] = self._space.scores(number, rows_H[is_part], passage_D) >= least
        return keys_H[near_H]

    def _passage_vector(self, each: Question) -> np.ndarray | None:
        """Return the vector of a passage, float32 (D,), or that of its document: its first passage has the title's."""
        vector_D = self._space.vector_of(each.segment, each.row)
        if vector_D is not None or self._of_text:
            return vector_D
        rows_R = _live_rows(self._index, each.segment, _document_of(self._index, each))
        vectors = (self._space.vector_of(each.segment, row) for row in rows_R.tolist())
        return next((other_D for other_D in vectors if other_D is not None), None)

    def _scores(self, query_D: np.ndarray, texts_KD: np.ndarray) -> np.ndarray:
        """Return the scores that texts would have as rows, float32 (K,)."""
        return row_scores(texts_KD, np.arange(len(texts_KD)), query_D, self._distance)


def _rounded(scores: Any, unit: float) -> np.ndarray:
    rounded: np.ndarray = np.round(np.asarray(scores, np.float64) / unit) * unit
    return rounded


def rows_of(keys_H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the segment and the row of each key, int64 (H,)."""
    return keys_H >> _ROW_BITS, keys_H & ((1 << _ROW_BITS) - 1)


_Hits: TypeAlias = tuple[int, np.ndarray, np.ndarray]
"""Number of a segment, rows and scores."""


def _nearest(part: SearchedSegment, allowed: AllowedRows | None, query_1D: np.ndarray) -> _Hits:
    if part.vectors is not None:
        allowed = part.vectors.allowed(allowed)
    mask_N = None if allowed is None else allowed.mask_N
    rows_1K, scores_1K = part.segment.search(query_1D, FUSED_ROWS, allowed=mask_N, ready=True)
    valid = rows_1K[0] >= 0
    rows_M = rows_1K[0][valid]
    return (
        part.number,
        rows_M if part.vectors is None else part.vectors.datapoints(rows_M),
        scores_1K[0][valid],
    )


def _document_of(index: OpenIndex, about: Question) -> str:
    [document] = index.segments[about.segment].take([about.row], ["document_id"]).column(0).to_pylist()
    return str(document)


def _live_rows(index: OpenIndex, number: int, document: str) -> np.ndarray:
    """Return the rows of a document in a segment, by its number, int64 (R,)."""
    rows_R, alive = index.segments[number].rows_of_document(document), index.alive[number]
    return rows_R if alive is None else rows_R[alive.mask_N[rows_R]]


def _without_document(index: OpenIndex, about: Question) -> list[AllowedRows | None]:
    """Return the rows of each segment without those of the document of a question; None: all."""
    document = _document_of(index, about)
    allowed: list[AllowedRows | None] = []
    for segment, alive in zip(index.segments, index.alive, strict=True):
        rows_R = segment.rows_of_document(document)
        if len(rows_R):
            mask_N = np.ones(segment.rows, bool) if alive is None else alive.mask_N.copy()
            mask_N[rows_R] = False
            mask_N.setflags(write=False)
            allowed.append(segment.allow(mask_N))
        else:
            allowed.append(alive)
    return allowed


def _ranked(hits: Sequence[_Hits]) -> Ranked:
    """Return the best FUSED_ROWS of some rows of segments."""
    keys = [(np.int64(number) << _ROW_BITS) | rows_M.astype(np.int64) for number, rows_M, _ in hits]
    keys_H = np.concatenate([*keys, _NO_KEYS])
    scores_H = np.concatenate([*(scores_M for _, _, scores_M in hits), np.empty(0)])
    order_H = np.argsort(-scores_H, kind="stable")[:FUSED_ROWS]
    return Ranked(keys_H[order_H], scores_H[order_H].astype(np.float64))


class _WordSearch:
    """Lexical search over an open index, and the score that a text would have in it."""

    def __init__(self, index: OpenIndex) -> None:
        spec = index.spec.lexical
        assert spec is not None
        assert index.words is not None
        self._index, self._words, self._analyser = index, index.words, Analyser(spec)
        self._counts_documents = spec.counts_documents

    def words(self, text: str) -> WeightedTerms:
        """Return what a text is searched by."""
        [words] = weighted_terms([[QueryText(text, 1.0)]], self._analyser, self._words.statistics)
        return words

    def search(self, words: WeightedTerms, allowed: Sequence[AllowedRows | None]) -> list[_Hits]:
        """Return per segment the best of the allowed rows by the words and perhaps others, and their scores."""
        search = self._words.search(words)
        return [(number, *search.best(number, FUSED_ROWS, rows)) for number, rows in enumerate(allowed)]

    def elsewhere(self, about: Question, terms: Sequence[str]) -> tuple[Counter[str], int]:
        """Return how often the other passages of a passage's document have some terms, and how many words they have.

        From the postings: to analyse the texts of a long document for each question about it takes minutes.
        """
        counts, length = Counter[str](), 0
        if not self._counts_documents:
            return counts, length
        document = _document_of(self._index, about)
        for number, segment in enumerate(self._index.segments):
            rows_R = _live_rows(self._index, number, document)
            is_other_R = (rows_R != about.row) | (number != about.segment)
            assert segment.postings is not None
            part_counts, part_length = segment.postings.counts_in(rows_R[is_other_R], terms)
            counts.update(part_counts)
            length += part_length
        return counts, length

    def score(self, words: WeightedTerms, text: str, elsewhere: tuple[Counter[str], int]) -> float:
        """Return the score that a row with this text would have; `elsewhere` as the method returns it."""
        counts, length = self._analyser.counts(text)
        score = _bm25(words, counts, length / words.average_length)
        if not words.average_document_length:  # also of a question without words
            return score
        whole = _bm25(words, counts + elsewhere[0], (length + elsewhere[1]) / words.average_document_length)
        return (score + whole) / 2


def _bm25(words: WeightedTerms, counts: Counter[str], length: float) -> float:
    """Return the score of a text with these counts; `length`: its words, as a multiple of the mean."""
    norm = K1 * (1 - B + B * length)
    return sum(weight * counts[term] / (counts[term] + norm) for term, weight in words.weights.items())


def fused(
    search: QuestionSearch, passage: PassageScores | None, scales: FusionScales, weights_A: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of both rankings as keys, int64 (H,), and their fused scores with each weight, float64 (A, H).

    Args:
        search: a question's, in an index with both searches.
        passage: what a text scores that is in the index, too, as the row PASSAGE; None: there is none.
        scales: of the index.
        weights_A: of the dense ranking.

    """
    dense, lexical = search.with_passage(passage)
    assert dense is not None
    assert lexical is not None
    keys_H, positions = np.unique(np.concatenate([dense.keys_H, lexical.keys_H]), return_inverse=True)
    gains_2H = np.zeros((2, len(keys_H)))
    dense_gains = Scale(scales.dense_zero, scales.dense_one).values(dense.scores_H)
    gains_2H[0] = min(dense_gains, default=0.0)
    gains_2H[0, positions[: len(dense.keys_H)]] = dense_gains
    gains_2H[1, positions[len(dense.keys_H) :]] = Scale(0.0, scales.lexical_one).values(lexical.scores_H)
    return keys_H, weights_A[:, None] * gains_2H[0] + (1 - weights_A[:, None]) * gains_2H[1]


def _with_row(ranked: Ranked, score: float) -> Ranked:
    """Return a ranking with the row PASSAGE, if that is good enough for it; it is the last one of equal rows."""
    position = int(np.searchsorted(-ranked.scores_H, -score, side="right"))
    if position >= FUSED_ROWS:
        return ranked
    return Ranked(
        np.insert(ranked.keys_H, position, PASSAGE)[:FUSED_ROWS],
        np.insert(ranked.scores_H, position, score)[:FUSED_ROWS],
    )

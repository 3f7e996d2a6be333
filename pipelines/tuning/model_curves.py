"""What the scores of a model of their own mean: of the encoder of named vectors, and of the cross-encoder.

The samples are those of relevance_curves.py. The cross-encoder reads the best hits of a question, as a search by
default ranks them, and the passage with about half of the question's words left in it: in the whole one it would know
the question by its very words.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scannery.embed.errors import EmbedError
from scannery.indexer.manifest import ModelCurve
from scannery.indexer.reader import OpenIndex
from scannery.indexer.spec.spec import RerankerSpec
from scannery.pipelines.tuning.passage_searches import PASSAGE, QuestionSearch, Ranked, rows_of
from scannery.pipelines.tuning.relevance_curves import ANSWER_WEIGHT, HITS, Samples, fitted_curve

if TYPE_CHECKING:
    from scannery.embed import Reranker

__all__ = ["RankedQuestion", "digest_of", "reranked_curve"]

RERANKED_QUESTIONS = 64
"""Questions of each kind at most: a cross-encoder reads ten pairs for each, some 10 ms a pair with a small one."""
LEAST_RERANKED = 12
"""Questions of each kind that are reranked however long it takes: fewer tell too little."""
RERANK_SECONDS = 60.0
"""Time after which no further question is reranked."""

_LOG = logging.getLogger(__name__)


class RankedQuestion(NamedTuple):
    """A question with its hits before they are reranked."""

    text: str
    search: QuestionSearch
    hits: Ranked
    passage: str = ""
    """What is read in place of the passage that answers; empty: none does."""


def digest_of(reranker: RerankerSpec) -> str | None:
    """Return the digest of a cross-encoder; None, and a warning in the log: it is not here."""
    from scannery.embed.reranker import reranker_digest

    try:
        return reranker_digest(reranker.model, max_tokens=reranker.max_tokens)
    except (OSError, EmbedError) as error:
        _LOG.warning("what the scores of the cross-encoder mean is not known: %s", error)
        return None


def reranked_curve(
    index: OpenIndex,
    about: Sequence[RankedQuestion],
    foreign: Sequence[RankedQuestion],
    reranker: Reranker,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> ModelCurve:
    """Return the curve of the scores of a cross-encoder for the best hits of some questions.

    Args:
        index: that was searched.
        about: questions made from passages.
        foreign: questions about something else.
        reranker: the cross-encoder.
        clock: in seconds.

    """
    samples, foreign_samples = Samples([], []), Samples([], [])
    end = clock() + RERANK_SECONDS
    # One of each kind in turn, so that both have as many when the time is over.
    for number in range(RERANKED_QUESTIONS):
        if number >= LEAST_RERANKED and clock() >= end:
            break
        for questions, kind in ((about, samples), (foreign, foreign_samples)):
            if number < len(questions):
                scores_C, answers_C = _reranked(index, questions[number], reranker)
                kind.scores.append(scores_C)
                kind.answers.append(answers_C)
    counts = (len(samples.scores), len(foreign_samples.scores))
    curve = None if min(counts) < LEAST_RERANKED else fitted_curve(samples, foreign_samples, ANSWER_WEIGHT)
    return ModelCurve(model=reranker.digest, curve=curve, questions=counts[0], foreign_questions=counts[1])


def _reranked(
    index: OpenIndex, question: RankedQuestion, reranker: Reranker
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of the best hits with a text, descending, float64 (C,), and whether each answers, bool (C,)."""
    keys_H = question.hits.keys_H[:HITS]
    texts = [
        question.passage if key == PASSAGE else index.segments[number].searched_texts([row])[0]
        for key, number, row in zip(keys_H, *rows_of(keys_H), strict=True)
    ]
    has_text_H = np.array([bool(text) for text in texts], bool)
    scores_C = reranker.scores(question.text, [text for text in texts if text]).astype(np.float64)
    order_C = np.argsort(-scores_C, kind="stable")
    return scores_C[order_C], question.search.answers(keys_H[has_text_H])[order_C]

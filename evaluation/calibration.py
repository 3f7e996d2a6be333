"""What scores mean, by the judgements of people in place of questions made from passages.

Hits come with a relevance, by the curves of the version. Its logarithmic odds are fitted again, to judged questions and
to foreign ones, which count the same: so a curve is corrected that is too high or too low, and hits without a judgement
count as wrong, as in measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from scannery.indexer.manifest import Relevance
from scannery.pipelines.errors import CollectionError
from scannery.pipelines.tuning.relevance_curves import HITS, Samples, fitted_curve

__all__ = ["LEAST_QUESTIONS", "calibrated", "odds_samples"]

LEAST_QUESTIONS = 20
"""Fewer judged questions tell too little."""


def odds_samples(
    hits: Iterable[Sequence[tuple[str, float]]], relevant: Sequence[Set[str]] | None = None
) -> Samples:
    """Return the best hits of some questions as samples, with logarithmic odds as scores.

    Args:
        hits: of each question its hits, best first, as id and relevance.
        relevant: of each question the ids that answer it; None: none does.

    """
    samples = Samples([], [])
    for number, hits_of_question in enumerate(hits):
        first = hits_of_question[:HITS]
        answers = relevant[number] if relevant is not None else frozenset()
        probabilities_C = np.clip(np.array([relevance for _, relevance in first], np.float64), 1e-9, 1 - 1e-7)
        samples.scores.append(np.log(probabilities_C / (1 - probabilities_C)))
        samples.answers.append(np.array([name in answers for name, _ in first], bool))
    return samples


def calibrated(
    relevance: Relevance, judged: Mapping[str, Samples], foreign: Mapping[str, Samples]
) -> Relevance:
    """Return what scores mean by judged questions.

    Args:
        relevance: by which the hits have their odds.
        judged: samples of judged questions by mode, as `odds_samples`; modes that are left out keep their curves.
        foreign: samples of foreign questions by mode.

    Raises:
        CollectionError: no mode is judged, there are fewer than LEAST_QUESTIONS, or higher scores are no better.

    """
    if not judged:
        raise CollectionError("hits have no relevance to calibrate in any mode", field="index")
    curves = dict(relevance.curves)
    questions = foreign_questions = 0
    for mode, curve in relevance.curves.items():
        if mode not in judged:
            continue
        questions, foreign_questions = len(judged[mode].scores), len(foreign[mode].scores)
        if questions < LEAST_QUESTIONS:
            raise CollectionError(
                f"{questions} judged queries tell too little to calibrate; {LEAST_QUESTIONS} are needed",
                field="qrels",
            )
        fitted = fitted_curve(judged[mode], foreign[mode])
        if fitted is None:
            raise CollectionError(
                f"{mode} search has no higher scores for the documents that are judged relevant than for others, so "
                "its scores tell nothing",
                field="qrels",
            )
        curves[mode] = fitted.model_copy(
            update={
                "intercept": fitted.intercept + fitted.slope * curve.intercept,
                "slope": fitted.slope * curve.slope,
            }
        )
    update = {
        "curves": curves,
        "source": "judgements",
        "questions": questions,
        "foreign_questions": foreign_questions,
    }
    return relevance.model_copy(update=update)

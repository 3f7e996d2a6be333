"""What scores mean: the probability that a hit answers the question, by its score, fitted before a commit.

A curve is logistic (Platt, "Probabilistic Outputs for Support Vector Machines", 1999): hits with a higher score have a
higher probability. It is fitted to the best ten hits of two kinds of questions, which count the same.

- **Questions made from passages** (passage_searches.py). The passage answers, in other words: by vector it has its own
  score, since a synonym changes no meaning, and by words that of half of the question's. So much of their answers the
  questions of people have, in the collections that we have with judgements (docs/benchmarks/relevance.md).
  Rows that are as close to it as it is without the question's sentence are answers, too: FAQs and news repeat.
- **Foreign questions** (foreign_questions.py), which no passage answers.

Shapes: Q questions, C hits of a question, S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from scannery.indexer.manifest import FusionWeight, RelevanceCurve, logistic
from scannery.pipelines.tuning.passage_searches import QuestionSearch, Ranked, fused
from scannery.runtime.search_modes import Mode

__all__ = [
    "ANSWER_WEIGHT",
    "HITS",
    "Samples",
    "calibration_error",
    "fitted_curve",
    "ranked_hits",
    "relevance_curves",
    "separation",
]

ANSWER_WEIGHT = 3.0
"""Weight of hits that answer a question made from a passage: some of its other hits answer as well, unjudged."""
HITS = 10
"""Best hits of a question that are samples."""
BINS = 10
RIDGE = 1e-3
"""Penalty of the square of the slope, for scores of unit variance: samples that a score divides have no best one."""
_LEAST_DEVIATION = 1e-9
_STEPS = 50


class Samples(NamedTuple):
    """The best hits of some questions."""

    scores: list[np.ndarray]
    """Scores of the hits of each question, descending, float64 (C,)."""
    answers: list[np.ndarray]
    """Whether each of them answers the question, bool (C,)."""

    @property
    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """The scores and answers of all hits, float64 (S,) and bool (S,)."""
        return np.concatenate([*self.scores, np.empty(0)]), np.concatenate([*self.answers, np.empty(0, bool)])


def relevance_curves(
    about: Sequence[QuestionSearch], foreign: Sequence[QuestionSearch], weight: FusionWeight | None
) -> dict[Mode, RelevanceCurve]:
    """Return the curve of each mode whose scores tell answers from other hits.

    Args:
        about: questions made from passages.
        foreign: questions about something else.
        weight: of hybrid search; None: it is left out.

    """
    modes: list[Mode] = []
    modes += ["dense"] if about[0].dense is not None else []
    modes += ["lexical"] if about[0].lexical is not None else []
    modes += ["hybrid"] if weight is not None else []
    curves = {
        mode: fitted_curve(
            _samples(about, mode, weight), _samples(foreign, mode, weight, answered=False), ANSWER_WEIGHT
        )
        for mode in modes
    }
    return {mode: curve for mode, curve in curves.items() if curve is not None}


def _samples(
    searches: Sequence[QuestionSearch], mode: Mode, weight: FusionWeight | None, *, answered: bool = True
) -> Samples:
    samples = Samples([], [])
    for search in searches:
        ranked = ranked_hits(search, mode, weight, answered=answered)
        samples.scores.append(ranked.scores_H[:HITS])
        samples.answers.append(search.answers(ranked.keys_H[:HITS]))
    return samples


def ranked_hits(
    search: QuestionSearch, mode: Mode, weight: FusionWeight | None, *, answered: bool = True
) -> Ranked:
    """Return the hits of a question in a mode, with the passage in other words if it is answered."""
    passage = search.paraphrase if answered else None
    if mode == "hybrid":
        assert weight is not None
        assert weight.scales is not None
        keys_H, [scores_H] = fused(search, passage, weight.scales, np.array([weight.alpha]))
        order_H = np.argsort(-scores_H, kind="stable")
        return Ranked(keys_H[order_H], scores_H[order_H])
    dense, lexical = search.with_passage(passage)
    ranked = dense if mode == "dense" else lexical
    assert ranked is not None
    return ranked


def fitted_curve(about: Samples, foreign: Samples, answer_weight: float = 1.0) -> RelevanceCurve | None:
    """Return the curve of some questions and foreign ones; None if higher scores are no better.

    Its error is measured on the half of the questions that a curve of the other half was not fitted to.

    Args:
        about: hits of questions that the index answers.
        foreign: hits of foreign questions.
        answer_weight: weight of a hit that answers, beside one that does not.

    """
    whole = _fitted(_together(about, foreign, answer_weight))
    if whole is None:
        return None
    errors = []
    for half in (0, 1):
        fit, check = (
            _together(_every_second(about, start), _every_second(foreign, start), answer_weight)
            for start in (half, 1 - half)
        )
        intercept, slope = _fitted(fit) or whole
        scores_S, answers_S, weights_S = check
        errors.append(calibration_error(logistic(intercept + slope * scores_S), answers_S, weights_S))
    return RelevanceCurve(
        intercept=round(whole[0], 6),
        slope=float(f"{whole[1]:.6g}"),  # not decimals: products of long vectors have a tiny slope
        error=round(float(np.mean(errors)), 4),
        separation=round(separation(about, foreign), 4),
    )


def _every_second(samples: Samples, start: int) -> Samples:
    return Samples(samples.scores[start::2], samples.answers[start::2])


_Weighted: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]


def _together(about: Samples, foreign: Samples, answer_weight: float) -> _Weighted:
    """Return scores, answers and weights of all samples, (S,): both kinds of questions count the same."""
    scores_S, answers_S = about.flat
    foreign_S, no_answers_S = foreign.flat
    share = len(about.scores) / max(len(foreign.scores), 1)
    weights_S = np.concatenate([np.where(answers_S, answer_weight, 1.0), np.full(len(foreign_S), share)])
    return np.concatenate([scores_S, foreign_S]), np.concatenate([answers_S, no_answers_S]), weights_S


def _fitted(samples: _Weighted) -> tuple[float, float] | None:
    """Return intercept and slope of the logistic curve, by Newton's method; None if the slope is not above 0."""
    scores_S, answers_S, weights_S = samples
    if not answers_S.any() or answers_S.all():
        return None
    weights_S = weights_S / weights_S.sum()
    mean = float(weights_S @ scores_S)
    deviation = float(np.sqrt(weights_S @ np.square(scores_S - mean)))
    if deviation < _LEAST_DEVIATION:
        return None
    units_S2 = np.stack([np.ones(len(scores_S)), (scores_S - mean) / deviation], axis=1)
    penalty_2 = np.array([0.0, RIDGE])
    odds_2 = np.zeros(2)
    for _ in range(_STEPS):
        probabilities_S = logistic(units_S2 @ odds_2)
        gradient_2 = units_S2.T @ (weights_S * (probabilities_S - answers_S)) + penalty_2 * odds_2
        curvature_S = weights_S * np.maximum(probabilities_S * (1 - probabilities_S), 1e-9)
        hessian_22 = units_S2.T @ (curvature_S[:, None] * units_S2) + np.diag(penalty_2)
        # A full step from far away may overshoot.
        step_2 = np.clip(np.linalg.solve(hessian_22, gradient_2), -2.0, 2.0)
        odds_2 -= step_2
        if np.abs(step_2).max() < 1e-9:
            break
    slope = float(odds_2[1]) / deviation
    return (float(odds_2[0]) - slope * mean, slope) if slope > 0 else None


def calibration_error(
    probabilities_S: np.ndarray, answers_S: np.ndarray, weights_S: np.ndarray | None = None
) -> float:
    """Return the expected calibration error: how far probabilities are from the share of answers, in ten bins."""
    weights_S = np.ones(len(probabilities_S)) if weights_S is None else weights_S
    bins_S = np.minimum((probabilities_S * BINS).astype(np.int64), BINS - 1)
    differences_B = np.bincount(bins_S, weights_S * (probabilities_S - answers_S), BINS)
    return float(np.abs(differences_B).sum() / max(float(weights_S.sum()), 1e-12))


def separation(about: Samples, foreign: Samples) -> float:
    """Return the probability that a question's best score is above that of a foreign question (AUROC).

    A question without a hit is below those with one: logarithmic odds are scores here, too, and may be negative.
    """
    best_Q, foreign_Q = (
        np.array([scores_C[0] if len(scores_C) else -np.inf for scores_C in samples.scores])
        for samples in (about, foreign)
    )
    above = (best_Q[:, None] > foreign_Q).mean() + 0.5 * (best_Q[:, None] == foreign_Q).mean()
    return float(above)

"""Fit a linear ranker to judged queries.

It maximises the likelihood of the relevant documents among the others: each competes with all documents that
are not relevant, by softmax (ListMLE's first step: Cao et al., "Learning to Rank: From Pairwise Approach to Listwise
Approach", ICML 2007), and the passages of a document share its chance, since its best one is what is returned. Ridge
keeps weights of features that say the same small.

What a ranker is worth is found by cross-validation: each query is ordered by one that was fitted to others.

Shapes: Q queries, H candidates of a query, D rows of a document, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from scannery.evaluation.measures import MAIN_MEASURE, measured_values, parse_measures
from scannery.indexer.models.features import FEATURES
from scannery.training.ranking.samples import Sample, best_documents

__all__ = ["CrossValidated", "cross_validated", "fitted_weights", "gains_of"]

RIDGE = 1.0
"""Penalty of the square of the weights, of features with unit variance."""
FOLDS = 5


class CrossValidated(NamedTuple):
    """What rankers are worth for queries that they were not fitted to."""

    scores: list[np.ndarray]
    """Scores of the candidates of each query, float64 (H,)."""
    gains_Q: np.ndarray
    """nDCG@10 of each query, float64."""


def gains_of(samples: Sequence[Sample], rankings: Sequence[Sequence[str]]) -> np.ndarray:
    """Return nDCG@10 of each query, given the judged keys of its hits, best first: float64 (Q,)."""
    judged = {sample.query_id: sample.levels for sample in samples}
    return measured_values(parse_measures([MAIN_MEASURE]), judged, rankings)[MAIN_MEASURE]


def fitted_weights(samples: Sequence[Sample]) -> np.ndarray:
    """Return the weight of each feature, float64 (F,); zeros if no query has relevant and other candidates."""
    values_FC = np.concatenate([each.values_FH for each in samples], axis=1)
    deviations_F = values_FC.std(axis=1)
    # A feature that is the same for all rows tells nothing; nor does a mean, which moves all scores of a query.
    scale_F = np.where(deviations_F > 1e-9, 1 / np.maximum(deviations_F, 1e-9), 0.0)
    lists = [_Competition.of(each, scale_F) for each in samples]
    competing = [each for each in lists if each is not None]

    def loss(weights_F: np.ndarray) -> tuple[float, np.ndarray]:
        parts = [each.loss(weights_F) for each in competing]
        total = sum(value for value, _ in parts) + 0.5 * RIDGE * float(weights_F @ weights_F)
        return total, sum((slope_F for _, slope_F in parts), RIDGE * weights_F)

    result = minimize(loss, np.zeros(len(FEATURES)), jac=True, method="L-BFGS-B")
    weights_F: np.ndarray = result.x * scale_F
    return weights_F


class _Competition(NamedTuple):
    """The candidates of a query: those of relevant documents, each of which competes with all others."""

    relevant: Sequence[np.ndarray]
    """Features of the rows of each relevant document, float64 (D, F)."""
    irrelevant_HF: np.ndarray
    """Features of all other rows, float64."""

    @classmethod
    def of(cls, sample: Sample, scale_F: np.ndarray) -> _Competition | None:
        """Return the competition of a query; None: it has no relevant candidate, or no other one."""
        values_HF = (sample.values_FH * scale_F[:, None]).T
        is_relevant_H = np.array([sample.levels.get(key, 0) > 0 for key in sample.keys], bool)
        if not is_relevant_H.any() or is_relevant_H.all():
            return None
        keys = np.array(sample.keys)
        documents = dict.fromkeys(keys[is_relevant_H].tolist())
        return cls([values_HF[keys == document] for document in documents], values_HF[~is_relevant_H])

    def loss(self, weights_F: np.ndarray) -> tuple[float, np.ndarray]:
        """Return minus the mean logarithmic chance of the relevant documents, and its gradient, float64 (F,)."""
        value, slope_F = 0.0, np.zeros(len(weights_F))
        scores_H = self.irrelevant_HF @ weights_F
        for rows_DF in self.relevant:
            rows_D = rows_DF @ weights_F
            top = max(float(scores_H.max()), float(rows_D.max()))
            chances_D, chances_H = np.exp(rows_D - top), np.exp(scores_H - top)
            document, total = chances_D.sum(), chances_D.sum() + chances_H.sum()
            document_F, irrelevant_F = chances_D @ rows_DF, chances_H @ self.irrelevant_HF
            value += float(np.log(total / document))
            slope_F += (document_F + irrelevant_F) / total - document_F / document
        return value / len(self.relevant), slope_F / len(self.relevant)


def cross_validated(samples: Sequence[Sample], *, seed: int) -> CrossValidated:
    """Return what rankers are worth for at least FOLDS queries; `seed` is that of the folds."""
    folds = np.array_split(np.random.default_rng(seed).permutation(len(samples)), FOLDS)
    scores: dict[int, np.ndarray] = {}
    for fold in folds:
        held_out = {*fold.tolist()}
        weights_F = fitted_weights([each for number, each in enumerate(samples) if number not in held_out])
        scores |= {number: weights_F @ samples[number].values_FH for number in held_out}
    ordered = [scores[number] for number in range(len(samples))]
    rankings = [best_documents(each, values) for each, values in zip(samples, ordered, strict=True)]
    return CrossValidated(ordered, gains_of(samples, rankings))

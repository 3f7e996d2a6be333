"""The fit of a ranker: it finds weights that made the judgements, and its loss has the slope that it says."""

from __future__ import annotations

import numpy as np
import pytest

from scannery.indexer.models.features import FEATURES
from scannery.training.ranking.fitting import _Competition, cross_validated, fitted_weights, gains_of
from scannery.training.ranking.samples import Sample, best_documents

WEIGHTS_F = np.array([2.0, 1.0, 0.0, 0.0, 0.5, 3.0, -1.0, 1.5, -0.5])


def samples(count: int, *, seed: int = 0, noise: float = 0.3) -> list[Sample]:
    """Return queries whose two best documents by planted weights are relevant, but for some noise."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(count):
        values_FH = random.standard_normal((len(FEATURES), 40))
        values_FH[5:8] = values_FH[5:8, ::2].repeat(2, axis=1)  # those of documents
        keys = [f"d{row // 2}" for row in range(40)]
        scores_H = WEIGHTS_F @ values_FH + noise * random.standard_normal(40)
        best = list(dict.fromkeys(keys[row] for row in np.argsort(-scores_H)))[:2]
        made.append(Sample(f"q{number}", values_FH, keys, dict.fromkeys(best, 1)))
    return made


def test_the_fit_finds_the_weights_that_made_the_judgements() -> None:
    weights_F = fitted_weights(samples(200))
    assert np.corrcoef(weights_F, WEIGHTS_F)[0, 1] > 0.99
    held_out = samples(50, seed=1)
    gains_Q = gains_of(held_out, [best_documents(each, weights_F @ each.values_FH) for each in held_out])
    assert gains_Q.mean() > 0.9
    validated = cross_validated(samples(100), seed=1)
    assert validated.gains_Q.mean() > 0.85


def test_features_that_are_the_same_for_all_rows_have_no_weight() -> None:
    made = [
        Sample(each.query_id, np.vstack([each.values_FH[:-1], np.full((1, 40), 7.0)]), each.keys, each.levels)
        for each in samples(40)
    ]
    weights_F = fitted_weights(made)
    assert weights_F[-1] == 0
    assert np.abs(weights_F[:-1]).max() > 0


def test_queries_without_a_relevant_candidate_change_nothing() -> None:
    unanswered = [Sample(each.query_id, each.values_FH, each.keys, {"x": 1}) for each in samples(20)]
    np.testing.assert_array_equal(fitted_weights(unanswered), np.zeros(len(FEATURES)))
    assert gains_of(unanswered[:1], [["d1", "d2"]]).tolist() == [0.0]


def test_the_slope_is_that_of_the_loss() -> None:
    competition = _Competition.of(samples(1)[0], np.ones(len(FEATURES)))
    assert competition is not None
    random = np.random.default_rng(2)
    for _ in range(5):
        weights_F = random.standard_normal(len(FEATURES))
        _, slope_F = competition.loss(weights_F)
        for feature in range(len(FEATURES)):
            step_F = np.zeros(len(FEATURES))
            step_F[feature] = 1e-5
            change = competition.loss(weights_F + step_F)[0] - competition.loss(weights_F - step_F)[0]
            assert change / 2e-5 == pytest.approx(slope_F[feature], abs=1e-5)


def test_held_out_queries_are_ordered_by_rankers_of_other_ones() -> None:
    # The relevant documents are random: only a ranker that had seen a query would rank them first.
    random = np.random.default_rng(0)
    keys = [f"d{row}" for row in range(30)]
    made = [
        Sample(f"q{number}", random.standard_normal((len(FEATURES), 30)), keys, {random.choice(keys): 1})
        for number in range(400)
    ]
    by_chance = sum(1 / np.log2(rank + 2) for rank in range(10)) / 30
    assert cross_validated(made, seed=0).gains_Q.mean() == pytest.approx(by_chance, abs=0.035)
    weights_F = fitted_weights(made)
    seen = gains_of(made, [best_documents(each, weights_F @ each.values_FH) for each in made])
    assert seen.mean() > by_chance + 0.01

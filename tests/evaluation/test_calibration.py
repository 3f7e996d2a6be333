"""What scores mean by the judgements of people."""

from __future__ import annotations

import numpy as np
import pytest

from scannery.evaluation.calibration import LEAST_QUESTIONS, calibrated, odds_samples
from scannery.indexer.manifest import ModelCurve, Relevance, RelevanceCurve
from scannery.pipelines.errors import CollectionError
from scannery.pipelines.tuning.relevance_curves import Samples, calibration_error

CURVE = RelevanceCurve(intercept=-6.0, slope=8.0, error=0.2, separation=0.9)
RELEVANCE = Relevance(
    curves={"dense": CURVE, "lexical": CURVE}, questions=128, foreign_questions=48, rows=1000
)


def asked(count: int, intercept: float, slope: float) -> tuple[list[list[tuple[str, float]]], list[set[str]]]:
    """Return the hits of questions with the relevance of CURVE, and those that answer by another curve."""
    generator = np.random.default_rng(0)
    hits, relevant = [], []
    for _ in range(count):
        scores = np.sort(generator.random(10).astype(np.float32))[::-1]
        names = [f"d{number}" for number in range(10)]
        hits.append(list(zip(names, CURVE.probabilities(scores).tolist(), strict=True)))
        answers = generator.random(10) < 1 / (1 + np.exp(-(intercept + slope * scores)))
        relevant.append({name for name, answer in zip(names, answers, strict=True) if answer})
    return hits, relevant


def test_the_odds_of_hits_become_those_of_the_judgements():
    judged = odds_samples(*asked(2000, -2.0, 4.0))
    foreign = odds_samples([[]] * 48)
    corrected = calibrated(RELEVANCE, {"dense": judged}, {"dense": foreign})
    curve = corrected.curves["dense"]
    assert abs(curve.intercept + 2) < 0.2
    assert abs(curve.slope - 4) < 0.3
    assert curve.error < 0.02
    assert corrected.curves["lexical"] == CURVE  # was not judged
    assert (corrected.source, corrected.questions, corrected.foreign_questions) == ("judgements", 2000, 48)
    scores = np.linspace(0, 1, 11).astype(np.float32)
    truth = 1 / (1 + np.exp(-(-2 + 4 * scores)))
    assert (
        np.abs(curve.probabilities(scores) - truth).max()
        < 0.05
        < np.abs(CURVE.probabilities(scores) - truth).max()
    )


def test_hits_without_a_judgement_are_wrong_and_certain_ones_stay_finite():
    samples = odds_samples([[("a", 1.0), ("b", 0.5), ("c", 0.0)]], [{"b", "z"}])
    assert samples.answers[0].tolist() == [False, True, False]
    assert np.isfinite(samples.scores[0]).all()
    assert samples.scores[0][1] == pytest.approx(0)


def test_few_or_useless_judgements_are_refused():
    few = odds_samples(*asked(LEAST_QUESTIONS - 1, -2.0, 4.0))
    foreign = odds_samples([[]] * 48)
    with pytest.raises(CollectionError, match=f"{LEAST_QUESTIONS - 1} judged queries"):
        calibrated(RELEVANCE, {"dense": few}, {"dense": foreign})
    with pytest.raises(CollectionError, match="no relevance to calibrate in any mode"):
        calibrated(RELEVANCE, {}, {})
    upside_down = Samples([np.array([1.0, -1.0])] * 30, [np.array([False, True])] * 30)
    with pytest.raises(CollectionError, match="tell nothing"):
        calibrated(RELEVANCE, {"dense": upside_down}, {"dense": foreign})


def test_a_model_is_fitted_beside_the_modes_and_has_no_curve_if_its_scores_tell_nothing():
    of_model = ModelCurve(model="a digest", curve=CURVE, questions=64, foreign_questions=48)
    relevance = RELEVANCE.model_copy(update={"models": {"rerank": of_model, "vectors.title": of_model}})
    judged, foreign = odds_samples(*asked(200, -2.0, 4.0)), odds_samples([[]] * 30)
    upside_down = Samples([np.array([1.0, -1.0])] * 200, [np.array([False, True])] * 200)
    corrected = calibrated(
        relevance,
        {"dense": judged, "rerank": judged, "vectors.title": upside_down},
        dict.fromkeys(("dense", "rerank", "vectors.title"), foreign),
    )
    assert corrected.all_curves == {
        "dense": corrected.curves["dense"], "lexical": CURVE, "rerank": corrected.curves["dense"]
    }  # fmt: skip
    counts = {(each.model, each.questions, each.foreign_questions) for each in corrected.models.values()}
    assert counts == {("a digest", 200, 30)}


def test_the_error_before_and_after_is_measured_the_same_way():
    hits, relevant = asked(500, -2.0, 4.0)
    samples = odds_samples(hits, relevant)
    odds, answers = samples.flat
    before = calibration_error(1 / (1 + np.exp(-odds)), answers)
    after = calibrated(RELEVANCE, {"dense": samples}, {"dense": odds_samples([[]] * 9)}).curves["dense"].error
    assert after < 0.05 < before

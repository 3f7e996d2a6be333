"""What scores mean: curves fitted to questions, measured by a build, kept by small updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import scannery
from scannery.cli.main import app
from scannery.client import Mode
from scannery.embed import Encoder
from scannery.indexer import Store
from scannery.indexer.manifest import Relevance, logistic
from scannery.live.maintenance.seal import seal
from scannery.pipelines import compact
from scannery.pipelines.tuning import search_measurement
from scannery.pipelines.tuning.foreign_questions import foreign_questions
from scannery.pipelines.tuning.passage_searches import PassageScores, QuestionSearch, Ranked
from scannery.pipelines.tuning.relevance_curves import (
    ANSWER_WEIGHT,
    Samples,
    calibration_error,
    fitted_curve,
    relevance_curves,
    separation,
)
from scannery.pipelines.tuning.search_measurement import with_measured_search
from tests.pipelines.conftest import manifest_of, run
from tests.pipelines.tuning.test_fusion_weight import SPEC, records


def relevance_of(store: Any) -> Relevance:
    relevance = manifest_of(store, "talks").relevance
    assert relevance is not None
    return relevance


@pytest.fixture
def few_questions(monkeypatch):
    monkeypatch.setattr(search_measurement, "LEAST_QUESTIONS", 10)


def drawn(generator: np.random.Generator, count: int, intercept: float, slope: float) -> Samples:
    scores, answers = [], []
    for _ in range(count):
        scores_C = np.sort(generator.random(10))[::-1]
        scores.append(scores_C)
        answers.append(generator.random(10) < 1 / (1 + np.exp(-(intercept + slope * scores_C))))
    return Samples(scores, answers)


def test_a_curve_has_the_odds_that_the_samples_were_drawn_with():
    generator = np.random.default_rng(0)
    about = drawn(generator, 2000, -4.0, 6.0)
    foreign = Samples([np.zeros(0)] * 10, [np.zeros(0, bool)] * 10)  # without a hit
    curve = fitted_curve(about, foreign)
    assert curve is not None
    assert abs(curve.intercept + 4) < 0.3
    assert abs(curve.slope - 6) < 0.4
    assert curve.error < 0.02
    assert curve.separation == 1
    probabilities = curve.probabilities(np.array([0.0, 0.5, 1.0], np.float32))
    np.testing.assert_allclose(probabilities, [0.018, 0.269, 0.881], atol=0.04)
    assert probabilities.dtype == np.float32


@pytest.mark.parametrize("unit", [1e-6, 1e12])
def test_a_curve_is_the_same_in_any_unit_of_the_scores(unit):
    about = drawn(np.random.default_rng(0), 200, -4.0, 6.0)
    foreign = Samples([np.linspace(0.5, 0, 10)] * 10, [np.zeros(10, bool)] * 10)

    def scaled(samples: Samples, scale: float) -> Samples:
        return Samples([scale * scores_C for scores_C in samples.scores], samples.answers)

    curve, other = (fitted_curve(scaled(about, scale), scaled(foreign, scale)) for scale in (1.0, unit))
    assert curve is not None
    assert other is not None
    assert other.slope * unit == pytest.approx(curve.slope, rel=1e-5)
    assert (other.intercept, other.error) == pytest.approx((curve.intercept, curve.error), rel=1e-5)


def test_foreign_questions_count_as_much_as_the_others_however_few_they_are():
    generator = np.random.default_rng(0)
    about = drawn(generator, 1000, -2.0, 4.0)
    none = np.zeros(10, bool)
    few, many = (
        fitted_curve(about, Samples([np.linspace(0.5, 0, 10)] * count, [none] * count))
        for count in (10, 1000)
    )
    assert few is not None
    assert many is not None
    assert (few.intercept, few.slope) == pytest.approx((many.intercept, many.slope), rel=1e-3)


def test_answers_may_count_more_than_other_hits():
    about = drawn(np.random.default_rng(0), 2000, -4.0, 6.0)
    foreign = Samples([np.zeros(0)] * 10, [np.zeros(0, bool)] * 10)
    curve = fitted_curve(about, foreign, 3.0)
    assert curve is not None
    assert (curve.intercept, curve.slope) == pytest.approx((-4 + np.log(3), 6), abs=0.4)


def test_scores_that_tell_nothing_have_no_curve():
    up, down = np.array([0.9, 0.1]), np.array([True, False])
    foreign = Samples([np.array([0.5, 0.4])], [np.zeros(2, bool)])
    assert fitted_curve(Samples([up] * 8, [~down] * 8), foreign) is None
    assert fitted_curve(Samples([up] * 8, [np.zeros(2, bool)] * 8), foreign) is None
    assert fitted_curve(Samples([np.ones(2)] * 8, [down] * 8), Samples([np.ones(2)], [~down & down])) is None
    # Answers that a score divides from all other hits have a steep curve, and still a finite one.
    steep = fitted_curve(Samples([up] * 8, [down] * 8), foreign)
    assert steep is not None
    assert np.isfinite([steep.intercept, steep.slope]).all()
    assert steep.probabilities(np.array([0.9])) > 0.9


def test_a_passage_without_a_word_of_its_question_is_no_hit_by_words():
    def question(share: float) -> QuestionSearch:
        rows = Ranked(np.arange(3, dtype=np.int64), np.array([0.5, 0.2, 0.1]))
        half = PassageScores(0.0, share)
        return QuestionSearch(None, rows, (half, half), half, np.empty(0, np.int64))

    answered, foreign = question(0.8), question(0.0)
    curves = relevance_curves([answered] * 8 + [foreign] * 8, [foreign] * 4, None)
    scores_C, none_C = np.array([0.5, 0.2, 0.1]), np.zeros(3, bool)
    about = Samples(
        [np.array([0.8, *scores_C])] * 8 + [scores_C] * 8, [np.array([True, *none_C])] * 8 + [none_C] * 8
    )
    assert curves == {"lexical": fitted_curve(about, Samples([scores_C] * 4, [none_C] * 4), ANSWER_WEIGHT)}


def test_the_measures_by_hand():
    probabilities, answers = np.array([0.95, 0.95, 0.35, 0.05]), np.array([True, False, True, False])
    # Bins: 0.9 to 1 has 1.9 for 1 answer, 0.3 to 0.4 has 0.35 for 1, 0 to 0.1 has 0.05 for none.
    assert calibration_error(probabilities, answers) == pytest.approx((0.9 + 0.65 + 0.05) / 4)
    assert calibration_error(np.array([1.0]), np.array([True])) == 0
    about = Samples([np.array([0.8, 0.1]), np.array([0.5])], [np.zeros(2, bool), np.zeros(1, bool)])
    foreign = Samples([np.array([0.5]), np.zeros(0)], [np.zeros(1, bool), np.zeros(0, bool)])
    assert separation(about, foreign) == (1 + 1 + 0.5 + 1) / 4
    negative = Samples([scores_C - 2 for scores_C in about.scores], about.answers)
    assert separation(negative, foreign) == (0 + 1 + 0 + 1) / 4
    assert separation(foreign, foreign) == 0.5


def test_logarithmic_odds_of_any_size_are_probabilities():
    odds = np.array([-1e9, -1000.0, -2.0, 0.0, 2.0, 1000.0])
    np.testing.assert_allclose(logistic(odds), [0, 0, 0.119203, 0.5, 0.880797, 1], atol=1e-6)


def test_foreign_questions_are_in_the_language_of_the_index_where_there_are_some():
    assert foreign_questions("german")[0].startswith("wie lange")
    assert foreign_questions("none") == foreign_questions("english") == foreign_questions("turkish")
    for language in ("english", "german", "french", "spanish", "russian"):
        questions = foreign_questions(language)
        assert len(set(questions)) == len(questions) >= 24


@pytest.mark.system
def test_a_build_measures_what_scores_mean_and_small_updates_keep_it(store, write, few_questions):
    run(store, write("a.jsonl", records(0, 80)), spec=SPEC)
    relevance = relevance_of(store)
    assert set(relevance.curves) == {"dense", "lexical", "hybrid"}
    assert (relevance.questions, relevance.foreign_questions, relevance.rows) == (16, 48, 80)
    for curve in relevance.curves.values():
        assert curve.slope > 0
        assert 0 <= curve.error < 0.2
        assert curve.separation > 0.95
    shown = CliRunner().invoke(app, ["index", "show", "--store", store.uri, "talks"], env={"COLUMNS": "400"})
    assert "measured with 16 questions made from passages and 48 foreign ones" in shown.output
    assert (
        f"dense 50 % at a score of {-relevance.curves['dense'].intercept / relevance.curves['dense'].slope:.3g}"
        in (shown.output)
    )
    # Questions about the index are told from others by the first hit.
    texts = ["the old car drives through the quiet village", "how to make a yoghurt cake"]
    with scannery.connect(store.uri) as client:
        for mode in ("dense", "hybrid"):
            first = [client.index("talks").search(text, 1, mode=mode)[0].score for text in texts]
            near, far = relevance.curves[mode].probabilities(np.array(first))
            assert far < 0.1 < near
        client.index("talks").delete(["d1"])
    seal(store, "talks")
    assert compact("talks", store.uri).version
    assert relevance_of(store) == relevance
    run(store, write("b.jsonl", records(80, 85)), spec=SPEC)
    assert relevance_of(store) == relevance
    run(store, write("c.jsonl", records(85, 140)), spec=SPEC)
    assert relevance_of(store).rows == 139  # one was deleted


@pytest.mark.system
@pytest.mark.parametrize(
    ("changes", "modes"),
    [
        ({"encoder": None, "vectors": "optional"}, {"lexical"}),
        ({"lexical": False}, {"dense"}),
        ({"search": {"alpha": 0.3}}, {"dense", "lexical"}),
        ({"search": {"mode": "dense"}}, {"dense", "lexical"}),
    ],
)
def test_each_mode_that_is_there_has_a_curve(store, write, few_questions, changes, modes):
    spec = {key: value for key, value in (SPEC | changes).items() if value is not None}
    run(store, write("a.jsonl", records(0, 80)), spec=spec)
    assert set(relevance_of(store).curves) == modes


@pytest.mark.system
def test_few_rows_have_none(store, write):
    run(store, write("a.jsonl", records(0, 60)), spec=SPEC)
    assert manifest_of(store, "talks").relevance is None


def unused() -> Encoder:
    raise AssertionError("nothing is left to measure")


WORDS: dict[str, Any] = {key: value for key, value in SPEC.items() if key != "encoder"} | {
    "vectors": "optional"
}
NO_SHARED_WORD = [" ".join(f"w{row}x{number}" for number in range(12)) for row in range(80)]


@pytest.mark.system
@pytest.mark.parametrize(
    ("spec", "texts", "modes", "reason"),
    [
        (WORDS, NO_SHARED_WORD, set(), "no relevance for mode lexical"),
        (WORDS, ["a red shoe"] * 80, set(), "too few of its passages are long enough"),
        (SPEC, ["a red shoe"] * 80, set(), "too few of its passages are long enough"),
        (
            SPEC,
            ["The text of this page will follow, in a few weeks."] * 80,
            {"dense", "lexical"},
            "hybrid hits of this version",
        ),
    ],
)
def test_what_cannot_be_fitted_is_not_measured_again(
    store, write, few_questions, tmp_path, spec, texts, modes, reason
):
    made = [{"id": f"d{row}", "text": text} for row, text in enumerate(texts)]
    run(store, write("a.jsonl", made), spec=spec)
    manifest = manifest_of(store, "talks")
    assert (manifest.fusion, set(relevance_of(store).curves)) == (None, modes)
    empty = Store.open(tmp_path / "empty", create=True)  # without the segments, which would be read
    encoders = {"": unused} if manifest.spec.encoder is not None else {}
    assert with_measured_search(manifest, manifest, empty, encoders) == manifest
    shown = CliRunner().invoke(app, ["index", "show", "--store", store.uri, "talks"], env={"COLUMNS": "400"})
    assert ("none: " in shown.output) == (not modes)
    mode: Mode = "hybrid" if spec is SPEC else "lexical"
    with scannery.connect(store.uri) as client, pytest.raises(scannery.InvalidArgumentError, match=reason):
        client.index("talks").search("a red shoe", 5, mode=mode, min_relevance=0.5)


@pytest.mark.system
def test_versions_without_relevance_and_with_a_mode_that_was_not_measured_are_measured(
    store, write, few_questions, tmp_path
):
    run(store, write("a.jsonl", records(0, 80)), spec=SPEC)
    first = manifest_of(store, "talks")
    encoder = Encoder.load(SPEC["encoder"]["model"])
    old = first.model_copy(update={"relevance": None})
    assert with_measured_search(old, old, store, {"": lambda: encoder}) == first
    # A weight of the spec's own, for a while, takes the measured one away, and the curve of hybrid search with it.
    run(store, write("b.jsonl", records(80, 82)), spec=SPEC | {"search": {"alpha": 0.3}})
    assert manifest_of(store, "talks").fusion is None
    assert set(relevance_of(store).curves) == set(relevance_of(store).modes) == {"dense", "lexical"}
    run(store, write("c.jsonl", records(82, 84)), spec=SPEC)
    assert manifest_of(store, "talks").fusion is not None
    assert set(relevance_of(store).curves) == {"dense", "lexical", "hybrid"}


@pytest.mark.system
def test_a_version_with_too_few_questions_keeps_what_was_measured(store, write, few_questions, tmp_path):
    run(store, write("a.jsonl", records(0, 80)), spec=SPEC)
    parent = manifest_of(store, "talks")
    other = Store.open(tmp_path / "other", create=True)
    run(
        other,
        write("short.jsonl", [{"id": f"s{row}", "text": "a red shoe"} for row in range(140)]),
        spec=SPEC,
    )
    encoder = Encoder.load(SPEC["encoder"]["model"])
    kept = with_measured_search(manifest_of(other, "talks"), parent, other, {"": lambda: encoder})
    assert (kept.fusion, kept.relevance) == (parent.fusion, parent.relevance)

"""Features of candidates against a computation by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scannery.indexer.manifest import FusionScales
from scannery.indexer.models.features import FEATURES, RowFeatures, feature_values

SCALES = FusionScales(dense_zero=0.2, dense_one=0.6, lexical_one=0.5)
HIGHEST = 8.0
scores = st.one_of(st.just(math.nan), st.floats(-1, 1, width=32))
rows = st.lists(
    st.tuples(
        scores,
        st.one_of(st.just(math.nan), st.floats(0, 8, width=32)),
        st.integers(0, 3),
        st.integers(0, 4),
        st.integers(0, 9000),
    ),
    min_size=1,
    max_size=30,
)


def features_of(listed: list[tuple[float, float, int, int, int]]) -> RowFeatures:
    dense, lexical, documents, quarters, starts = zip(*listed, strict=True)
    coverage_H = np.array([quarters[documents.index(each)] / 4 for each in documents])
    words_H = np.array([10 * each for each in documents])
    return RowFeatures(
        np.array(dense, np.float32),
        np.array(lexical, np.float32),
        np.array(documents, np.int64),
        coverage_H,
        words_H,
        np.array(quarters) / 4,
        np.array(starts, np.float64),
    )


def by_hand(listed: list[tuple[float, float, int, int, int]]) -> dict[str, list[float]]:
    dense = [(float(np.float32(score)) - 0.2) / (0.6 - 0.2) for score, *_ in listed]
    worst = min([0.0, *(each for each in dense if not math.isnan(each))])
    dense = [worst if math.isnan(each) else each for each in dense]
    lexical = [
        0.0 if math.isnan(score) else float(np.float32(score)) / (0.5 * HIGHEST) for _, score, *_ in listed
    ]
    documents = [document for _, _, document, *_ in listed]

    def second(document: int) -> float:
        best = sorted(
            (each for each, own in zip(dense, documents, strict=True) if own == document), reverse=True
        )
        return best[1] if len(best) > 1 else min(dense)

    def ranks(values: list[float]) -> list[float]:
        return [60 / (60 + sum(other > value for other in values)) for value in values]

    return {
        "dense": dense,
        "lexical": lexical,
        "dense_rank": ranks(dense),
        "lexical_rank": ranks(lexical),
        "document_dense_second": [second(document) for document in documents],
        "document_coverage": features_of(listed).coverage_H.tolist(),
        "document_words": [math.log1p(10 * document) for document in documents],
        "title_share": [quarter / 4 for *_, quarter, _ in listed],
        "passage_start": [math.log1p(start / 500) for *_, start in listed],
    }


@given(listed=rows)
def test_features_are_those_of_a_computation_by_hand(
    listed: list[tuple[float, float, int, int, int]],
) -> None:
    values_FH = feature_values(features_of(listed), SCALES, HIGHEST)
    expected = by_hand(listed)
    assert set(expected) == set(FEATURES)
    for name, values_H in zip(FEATURES, values_FH, strict=True):
        assert values_H.tolist() == pytest.approx(expected[name], abs=1e-9), name


@given(listed=rows)
def test_leaves_send_features_without_a_loss(listed: list[tuple[float, float, int, int, int]]) -> None:
    features = features_of(listed)
    sent = RowFeatures.of(np.frombuffer(features.table().tobytes()).reshape(len(listed), -1))
    expected = feature_values(features, SCALES, HIGHEST)
    np.testing.assert_array_equal(feature_values(sent, SCALES, HIGHEST), expected)
    order = np.arange(len(listed))[::-1]
    np.testing.assert_array_equal(feature_values(sent.at(order), SCALES, HIGHEST), expected[:, order])

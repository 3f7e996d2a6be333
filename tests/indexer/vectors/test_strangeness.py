"""Vectors of another model are told from those of an index; those of new topics are not taken for such.

Shapes: N vectors, D dimensions.
"""

from __future__ import annotations

import numpy as np
import pytest

from scannery.indexer.vectors.strangeness import (
    FOREIGN,
    VectorDistribution,
    foreign_rows,
    least_sample,
    most_sample,
)

D = 96


def model(seed: int) -> np.ndarray:
    """Return a synthetic model: how much of each of its directions its vectors have, float32 (D, D)."""
    random = np.random.default_rng(seed)
    rotation_DD = np.linalg.qr(random.normal(size=(D, D)))[0]
    return (rotation_DD * np.geomspace(1, 0.02, D)[:, None]).astype(np.float32)


def vectors(model_DD: np.ndarray, count: int, *, topic: int, length: float = 1.0) -> np.ndarray:
    """Return vectors about a topic: some features of the model have other means and spreads."""
    random = np.random.default_rng(topic)
    shift_D, spread_D = random.normal(size=D) * 0.7, random.uniform(0.4, 1.4, D)
    rows_ND = (random.normal(size=(count, D)) * spread_D + shift_D).astype(np.float32) @ model_DD
    return (length * rows_ND / np.linalg.norm(rows_ND, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def own() -> VectorDistribution:
    distribution = VectorDistribution.of(vectors(model(0), 1000, topic=1))
    assert distribution is not None
    return distribution


def test_vectors_of_the_same_topic_are_like_those_of_the_index(own: VectorDistribution) -> None:
    assert own.strangeness(vectors(model(0), 1000, topic=1)[-200:]).max() < 0.3


@pytest.mark.parametrize("topic", [2, 3, 4, 5])
def test_vectors_of_other_topics_are_no_foreign_ones(own: VectorDistribution, topic: int) -> None:
    strangeness_N = own.strangeness(vectors(model(0), 400, topic=topic))
    assert strangeness_N.max() < FOREIGN
    assert not len(foreign_rows(strangeness_N))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_vector_of_another_model_is_strange(own: VectorDistribution, seed: int) -> None:
    strangeness_N = own.strangeness(vectors(model(seed), 400, topic=1))
    assert 0.7 < strangeness_N.mean() < 1.4
    assert len(foreign_rows(strangeness_N)) > 350


def test_foreign_vectors_among_others_are_told_by_number(own: VectorDistribution) -> None:
    mixed = np.concatenate([vectors(model(0), 180, topic=1), vectors(model(1), 20, topic=1)])
    assert foreign_rows(own.strangeness(mixed)).tolist() == list(range(180, 200))


def test_a_few_strange_vectors_tell_nothing(own: VectorDistribution) -> None:
    foreign = own.strangeness(vectors(model(1), 7, topic=1))
    assert not len(foreign_rows(foreign))
    assert not len(foreign_rows(np.concatenate([foreign, foreign, np.full(400, 0.1, np.float32)])))
    assert not len(foreign_rows(np.empty(0, np.float32)))


def test_vectors_of_another_length_are_strange() -> None:
    own = VectorDistribution.of(vectors(model(0), 1000, topic=1))
    assert own is not None
    assert own.strangeness(vectors(model(0), 50, topic=1, length=5)).min() > FOREIGN


def test_very_long_vectors_are_strange(own: VectorDistribution) -> None:
    assert own.strangeness(vectors(model(0), 5, topic=1, length=1e30)).min() > 1
    assert VectorDistribution.of(vectors(model(0), 1000, topic=1, length=1e30)) is None


@pytest.mark.parametrize("rows_ND", [
    vectors(model(0), least_sample(D) - 1, topic=1),
    np.zeros((1000, D), np.float32),
    np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32),
    np.random.default_rng(0).normal(size=(1000, D)).astype(np.float32),
])  # fmt: skip
def test_too_few_equal_short_and_random_vectors_tell_nothing(rows_ND: np.ndarray) -> None:
    # Random vectors use all directions, as those of any model then would.
    assert VectorDistribution.of(rows_ND) is None


def test_a_large_sample_is_cut() -> None:
    rows_ND = vectors(model(0), most_sample(D) + 100, topic=1)
    whole, cut = VectorDistribution.of(rows_ND), VectorDistribution.of(rows_ND[:-100])
    assert whole is not None and cut is not None
    np.testing.assert_array_equal(whole.mean_D, cut.mean_D)

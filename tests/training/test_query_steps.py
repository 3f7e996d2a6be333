"""The steps that fit an encoder of queries: its loss beside numpy, the order of queries, and the rows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from scannery.embed.devices.training import TrainingDevice
from scannery.embed.models.trainable import TrainableModel
from scannery.indexer.spec.spec import Distance
from scannery.training.query_side.fitting import QuerySteps, TrainingQuery
from scannery.training.query_side.rows import ScoredRows

ROWS, DOCUMENTS, DIMENSIONS = 60, 20, 8
RANDOM = np.random.default_rng(4)
VECTORS_ND = RANDOM.standard_normal((ROWS, DIMENSIONS)).astype(np.float32)
DOCUMENTS_N = np.arange(ROWS) % DOCUMENTS


class Given:
    """A model whose tokens are vectors already."""

    device = TrainingDevice("cpu")

    def vectors(self, items: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.stack(items))


def steps(queries: list[TrainingQuery], distance: Distance = "dot", *, batch: int = 64) -> QuerySteps:
    rows = ScoredRows(VECTORS_ND, DOCUMENTS_N, {})
    return QuerySteps(
        cast(Any, Given()), queries, rows,
        distance=distance, scale=3.0, batch=batch, seed=1,
    )  # fmt: skip


def expected(query_D: np.ndarray, relevant: list[int], distance: Distance) -> float:
    """Return minus the mean logarithm of the chance of each relevant document among those that are not."""
    if distance == "cosine":
        query_D = query_D / np.linalg.norm(query_D)
    scores_N = VECTORS_ND @ query_D
    if distance == "squared_l2":
        scores_N = -np.square(VECTORS_ND - query_D).sum(axis=1)
    scores_C = 3.0 * np.array([scores_N[number == DOCUMENTS_N].max() for number in range(DOCUMENTS)])
    others = sum(np.exp(scores_C[c]) for c in range(DOCUMENTS) if c not in relevant)
    return float(-np.mean([np.log(np.exp(scores_C[c]) / (np.exp(scores_C[c]) + others)) for c in relevant]))


@pytest.mark.parametrize("distance", ["dot", "cosine", "squared_l2"])
def test_the_loss_is_that_of_relevant_documents_by_their_best_rows(distance: Distance) -> None:
    given = [(RANDOM.standard_normal(DIMENSIONS).astype(np.float32), [n, (n + 7) % DOCUMENTS][: n % 2 + 1])
             for n in range(5)]  # fmt: skip
    loss = steps([TrainingQuery(vector, relevant) for vector, relevant in given], distance).loss(0)
    means = [expected(vector.astype(np.float64), relevant, distance) for vector, relevant in given]
    assert loss.item() == pytest.approx(np.mean(means), rel=1e-4)


def test_each_pass_asks_every_query_once_in_an_order_of_its_own() -> None:
    made = steps([TrainingQuery(VECTORS_ND[n], [n % DOCUMENTS]) for n in range(10)], batch=4)
    numbers = [number for step in range(5) for number in made._numbers(step)]
    assert sorted(numbers[:10]) == sorted(numbers[10:]) == list(range(10))
    assert numbers[:10] != numbers[10:]
    assert made._numbers(3) == numbers[12:16], "whatever was asked before"


def test_vectors_with_gradients_are_those_of_the_encoder() -> None:
    from scannery.embed import Encoder
    from scannery.embed.models.loading import ModelOptions
    from scannery.embed.models.model_files import find_model

    texts = ["how do bees fly", "volcano", "why is the sky blue in the evening " * 30]
    options = ModelOptions(dimensions=256, query_prompt="query: ", max_tokens=40)
    folder = find_model("sentence-transformers/all-MiniLM-L6-v2")
    trainable = TrainableModel(folder, options, "cpu")
    encoder = Encoder.load(folder, device="cpu", dtype="float32", **options.identity)
    vectors_ND = trainable.encoded(trainable.prepare(texts)).numpy()
    assert np.abs(vectors_ND - encoder.encode_queries(texts)).max() < 1e-5
    trainable.modules.train()
    trainable.vectors(trainable.prepare(texts)).sum().backward()
    trained = {name: each for name, each in trainable.modules.named_parameters() if "pooler" not in name}
    assert all(parameter.grad is not None for parameter in trained.values())

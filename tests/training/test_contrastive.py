"""The steps that fit an encoder to pairs: the loss beside numpy, and a batch in parts beside the whole one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from scannery.embed import Encoder
from scannery.embed.models.loading import ModelOptions
from scannery.embed.models.trainable import TrainableModel
from scannery.indexer.spec.spec import Distance
from scannery.training.encoder.contrastive import TEXTS_AT_ONCE, PairSteps
from scannery.training.pairs.signals import Pair
from scannery.training.runs.replicas import Replicas
from tests.embed.tiny_models import make_model

pytestmark = pytest.mark.system

WORDS = ["volcanoes", "form", "magma", "rises", "cracks", "crust", "earth", "cools", "stone", "brown", "fox"]
COUNT = 2 * TEXTS_AT_ONCE + 5


class Batches:
    """The same pairs in each step."""

    def pairs(self, step: int) -> list[Pair]:
        random = np.random.default_rng(step)

        def text(words: int) -> str:
            return " ".join(random.choice(WORDS, words))

        return [Pair(text(3), text(int(random.integers(5, 40))), number) for number in range(COUNT)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("mpnet-dense-prompts", tmp_path_factory.mktemp("model"))


def steps(folder: Path, max_tokens: int = 1 << 14, distance: Distance = "cosine") -> tuple[Any, PairSteps]:
    model = TrainableModel(folder, ModelOptions(), "cpu")
    return model, PairSteps(
        model, cast(Any, Batches()), Replicas(), distance=distance, scale=20.0, max_tokens=max_tokens
    )


def gradients(folder: Path, max_tokens: int) -> tuple[float, dict[str, torch.Tensor]]:
    model, made = steps(folder, max_tokens)
    model.modules.train()
    torch.manual_seed(5)
    loss = made.loss(0)
    loss.backward()
    named = model.modules.named_parameters()
    return loss.item(), {name: each.grad for name, each in named if each.grad is not None}


def test_a_batch_whose_activations_do_not_fit_has_the_gradients_of_the_whole_one(folder: Path) -> None:
    """Dropout is on: that of the second computation of a part must be that of the first."""
    whole_loss, whole = gradients(folder, 1 << 14)
    loss, in_parts = gradients(folder, 1)
    assert loss == pytest.approx(whole_loss, abs=1e-6)
    assert in_parts.keys() == whole.keys()
    assert max(float((in_parts[name] - each).abs().max()) for name, each in whole.items()) < 1e-6
    torch.manual_seed(6)
    assert steps(folder)[1].loss(0).item() != pytest.approx(whole_loss, abs=1e-4), "without dropout"


@pytest.mark.parametrize("distance", ["cosine", "dot", "squared_l2"])
def test_the_loss_is_that_of_texts_for_passages_and_of_passages_for_texts(
    folder: Path, distance: Distance
) -> None:
    model, made = steps(folder, distance=distance)
    pairs = Batches().pairs(3)
    sides = [(pair.query, pair.passage) for pair in pairs]
    encoder = Encoder.load(folder, device="cpu", dtype="float32")
    queries_BD = encoder.encode_queries([query for query, _ in sides]).astype(np.float64)
    passages_BD = encoder.encode_documents([passage for _, passage in sides]).astype(np.float64)
    scores_BB = queries_BD @ passages_BD.T
    norms_B1, norms_B = np.linalg.norm(queries_BD, axis=1, keepdims=True), np.linalg.norm(passages_BD, axis=1)
    if distance == "cosine":
        scores_BB = scores_BB / norms_B1 / norms_B
    if distance == "squared_l2":
        scores_BB = 2 * scores_BB - norms_B1**2 - norms_B**2
    chances = [
        np.exp(20 * each) / np.exp(20 * each).sum(axis=1, keepdims=True) for each in (scores_BB, scores_BB.T)
    ]
    expected = -np.mean([np.log(np.diag(each)) for each in chances])
    model.modules.eval()
    assert made.loss(3).item() == pytest.approx(expected, rel=1e-3)


def test_mixed_weights_lie_between_two_models(folder: Path) -> None:
    model, _ = steps(folder)
    base = [each.detach().clone() for each in model.modules.parameters()]
    with torch.no_grad():
        for weights in model.modules.parameters():
            weights.add_(1)
    model.mix(folder, 0.25)
    for mixed, before in zip(model.modules.parameters(), base, strict=True):
        assert torch.allclose(mixed, before + 0.25, atol=1e-6)

"""Trainings on XLA, by one chip and by four: the weights of a CPU, from programs that are compiled in the first steps.

Runs in an environment of its own (`make test-xla`), with `PJRT_DEVICE=CPU` where there is no TPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch_xla", reason="needs torch_xla: make test-xla")

os.environ.setdefault("PJRT_DEVICE", "CPU")

import safetensors.torch
import torch

from scannery.embed.devices.training import open_training_device
from scannery.embed.models.loading import ModelOptions
from scannery.embed.models.trainable import TrainableModel
from scannery.indexer import Store
from scannery.training.encoder.contrastive import TEXTS_AT_ONCE, PairSteps
from scannery.training.errors import StoppedError
from scannery.training.pairs.signals import Pair
from scannery.training.query_side.fitting import QuerySteps, TrainingQuery
from scannery.training.query_side.rows import ScoredRows
from scannery.training.runs.checkpoints import Checkpoints
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.run import RunSettings, run_steps
from tests.embed.tiny_models import make_model

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["volcanoes", "form", "magma", "rises", "cracks", "crust", "earth", "cools", "stone", "brown", "fox"]
TOLERANCE = 1e-4
STEPS, STOPPED_AT = 12, 5
WARM = 2
"""Steps that have all widths of texts."""
WIDTHS = 2
OTHER_PROGRAMS = 4
"""What a training begins with; the loss; its gradients; the optimiser's step."""
PAIRS = TEXTS_AT_ONCE + 5

Weights = dict[str, torch.Tensor]


class Batches:
    """Pairs of a step by its number: of one width in the first, of both in later ones."""

    def pairs(self, step: int) -> list[Pair]:
        random = np.random.default_rng(step)

        def text(words: int) -> str:
            return " ".join(random.choice(WORDS, words))

        lengths = random.integers(3, 50 if step else 12, PAIRS).tolist()
        return [Pair(text(3), text(length), number) for number, length in enumerate(lengths)]


def without_dropout(folder: Path) -> Path:
    model = make_model("bert-cls", folder)
    for file in model.rglob("config.json"):
        config = json.loads(file.read_text())
        if "hidden_dropout_prob" in config:
            config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            file.write_text(json.dumps(config))
    return model


def trained(model: TrainableModel, steps: Any, run: Path, last: int = STEPS) -> tuple[Weights, list[int]]:
    """Train up to a step, from the checkpoint that is there; return the weights, and programs compiled by each step."""
    start, compiled = model.device.compilations().programs, [0]

    def count(step: int, _: int) -> None:
        compiled.append(model.device.compilations().programs - start)

    with contextlib.suppress(StoppedError):
        run_steps(
            model.modules, steps.loss, RunSettings(STEPS, 5e-5, 1, every_s=1e9),
            Checkpoints([Store.open(run, create=True)], "checkpoints", keep=2), Replicas(),
            progress=count, is_stopped=lambda: len(compiled) - 1 == last < STEPS, device=model.device,
        )  # fmt: skip
    return weights_of(model), np.diff(compiled).tolist()


def weights_of(model: TrainableModel) -> Weights:
    return {name: each.detach().cpu().contiguous() for name, each in model.modules.named_parameters()}


def pair_training(folder: Path, device: str, run: Path, last: int = STEPS) -> tuple[Weights, list[int]]:
    model = TrainableModel(folder, ModelOptions(), device)
    steps = PairSteps(model, cast(Any, Batches()), Replicas(), distance="cosine", scale=20.0)
    return trained(model, steps, run, last)


def query_training(folder: Path, device: str, run: Path) -> tuple[Weights, list[int]]:
    model = TrainableModel(folder, ModelOptions(), device)
    random = np.random.default_rng(4)
    vectors_ND = random.standard_normal((60, model.dimensions)).astype(np.float32)
    texts = [" ".join(random.choice(WORDS, 5)) for _ in range(10)]
    queries = [
        TrainingQuery(tokens, [number, (number + 7) % 20][: number % 2 + 1])
        for number, tokens in enumerate(model.prepare(texts))
    ]
    rows = ScoredRows(vectors_ND, np.arange(60) % 20, {})
    steps = QuerySteps(model, queries, rows, distance="cosine", scale=20.0, batch=6, seed=1)
    return trained(model, steps, run)


def difference(one: Weights, other: Weights) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def check_compilations(compiled: Sequence[int]) -> None:
    assert sum(compiled[:WARM]) <= 2 * WIDTHS + OTHER_PROGRAMS, compiled
    assert not any(compiled[WARM:]), compiled


def check_resumed(compiled: Sequence[int]) -> None:
    """Check a training in a process that had one from the beginning: only taking over the checkpoint is new."""
    assert sum(compiled) <= 1, compiled


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return without_dropout(folder)


@pytest.fixture(scope="module")
def expected(folder: Path, model: Path) -> Weights:
    """Weights by a CPU."""
    open_training_device("xla")  # a device that is opened after the first gradients has none
    weights, compiled = pair_training(model, "cpu", folder / "cpu")
    assert not any(compiled)
    assert difference(weights, weights_of(TrainableModel(model, ModelOptions(), "cpu"))) > 2 * TOLERANCE
    return weights


@pytest.mark.system
def test_one_chip_makes_the_weights_of_a_cpu(folder: Path, model: Path, expected: Weights) -> None:
    weights, compiled = pair_training(model, "xla", folder / "one")
    assert difference(weights, expected) < TOLERANCE
    check_compilations(compiled)
    # What one of them did, the other goes on with.
    for first, second in (("cpu", "xla"), ("xla", "cpu")):
        run = folder / f"{first} then {second}"
        _, before = pair_training(model, first, run, STOPPED_AT)
        weights, after = pair_training(model, second, run)
        assert len(before) == STOPPED_AT
        assert len(after) == STEPS - STOPPED_AT
        check_resumed(before + after)
        assert difference(weights, expected) < TOLERANCE


@pytest.mark.system
def test_four_chips_make_the_weights_of_a_cpu(folder: Path, model: Path, expected: Weights) -> None:
    pair_training(model, "cpu", folder / "cpu then four", STOPPED_AT)
    facts = on_four_chips(folder)
    check_compilations(facts["compiled"])
    check_compilations(facts["query_compiled"])
    assert facts["chips"] == 4
    check_resumed(facts["compiled_again"])
    for name in ("four", "cpu then four"):
        assert (
            difference(safetensors.torch.load_file(folder / f"{name}.safetensors"), expected) < TOLERANCE
        ), name
    queries, _ = query_training(model, "cpu", folder / "queries on a cpu")
    assert difference(safetensors.torch.load_file(folder / "queries.safetensors"), queries) < TOLERANCE
    # Another number of chips goes on.
    assert len(facts["stopped"]) == STOPPED_AT
    weights, after = pair_training(model, "xla", folder / "four stopped")
    assert len(after) == STEPS - STOPPED_AT
    assert difference(weights, expected) < TOLERANCE


def on_four_chips(folder: Path) -> dict[str, Any]:
    """Run `work` in a process of its own: chips are shared out before the first of them is used."""
    environment = os.environ | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
    subprocess.run(
        [sys.executable, "-c", "from tests.training.test_xla import work; work()", str(folder)],
        check=True, timeout=600, cwd=ROOT, env=environment,
    )  # fmt: skip
    facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return facts


def work() -> None:
    folder = Path(sys.argv[1])
    model = folder / "model"
    weights, compiled = pair_training(model, "xla", folder / "four")
    safetensors.torch.save_file(weights, folder / "four.safetensors")
    weights, compiled_again = pair_training(model, "xla", folder / "cpu then four")
    safetensors.torch.save_file(weights, folder / "cpu then four.safetensors")
    _, stopped = pair_training(model, "xla", folder / "four stopped", STOPPED_AT)
    weights, query_compiled = query_training(model, "xla", folder / "queries")
    safetensors.torch.save_file(weights, folder / "queries.safetensors")
    chips = TrainableModel(model, ModelOptions(), "xla").device.chips
    facts = {
        "chips": chips, "compiled": compiled, "compiled_again": compiled_again, "stopped": stopped,
        "query_compiled": query_compiled,
    }  # fmt: skip
    (folder / "facts.json").write_text(json.dumps(facts))


@pytest.mark.system
def test_what_is_computed_twice_has_the_same_dropout(tmp_path: Path) -> None:
    model = TrainableModel(make_model("bert-cls", tmp_path), ModelOptions(), "xla")
    model.modules.train()
    items = model.prepare(["volcanoes form", "magma rises"])

    def vectors(seed: int) -> torch.Tensor:
        model.device.seed(seed)
        return model.vectors(items)

    def gradients(seed: int, *, kept: bool) -> list[torch.Tensor]:
        model.modules.zero_grad(set_to_none=True)
        vectors_BD = vectors(seed) if kept else model.device.vectors(lambda: vectors(seed), kept=True)
        vectors_BD[:, ::2].sum().backward()
        return [each.grad.cpu() for each in model.modules.parameters() if each.grad is not None]

    once, twice, other = gradients(5, kept=True), gradients(5, kept=False), gradients(6, kept=False)
    assert len(once) == len(twice)
    assert max(float((a - b).abs().max()) for a, b in zip(once, twice, strict=True)) < 1e-5
    assert max(float((a - b).abs().max()) for a, b in zip(other, twice, strict=True)) > 1e-3


@pytest.mark.system
def test_a_trained_model_is_saved_and_encodes_as_it_is(folder: Path, model: Path) -> None:
    there, here = (TrainableModel(model, ModelOptions(), device) for device in ("xla", "cpu"))
    there.mix(model, 0.5)
    there.save(folder / "saved")
    saved = TrainableModel(folder / "saved", ModelOptions(), "cpu")
    assert difference(weights_of(saved), weights_of(here)) < 1e-6
    texts = ["volcanoes form", "magma " * 40, "rises"]
    vectors_ND = there.encoded(there.prepare(texts))
    torch.testing.assert_close(vectors_ND, here.encoded(here.prepare(texts)), atol=1e-5, rtol=0)
    configurations = (each / "config.json" for each in (model, folder / "saved"))
    one, other = (json.loads(each.read_text()) for each in configurations)
    assert one.get("_attn_implementation") == other.get("_attn_implementation")

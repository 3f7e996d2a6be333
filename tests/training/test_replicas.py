"""Steps of a training by several processes: the weights of one process, up to roundings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from scannery.training.runs.replicas import Replicas
from tests.embed.tiny_models import make_model
from tests.training.replica_steps import STEPS, WEIGHTS

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-4
FITS, IN_PARTS = 1 << 14, 1
"""Tokens whose activations are kept: all of a batch, none."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with dropout."""
    return make_model("bert-cls", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def weights(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    """Weights after STEPS steps by several numbers of processes."""
    folder = tmp_path_factory.mktemp("runs")
    cases = [
        ("alone", 1, STEPS, FITS),
        ("two", 2, STEPS, FITS),
        ("computed twice", 2, STEPS, IN_PARTS),
        ("more than parts", 5, STEPS, FITS),
        ("two then one", 2, 8, FITS), ("two then one", 1, STEPS, FITS),
        ("one then three", 1, 8, FITS), ("one then three", 3, STEPS, FITS),
        ("two ended", 2, 8, FITS), ("two ended", 2, STEPS, FITS),
    ]  # fmt: skip
    options = [f"{folder / name},{processes},{last},{tokens}" for name, processes, last, tokens in cases]
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.replica_steps", str(model), *options],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: safetensors.torch.load_file(folder / name / WEIGHTS) for name, *_ in cases}


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.system
def test_several_processes_make_the_weights_of_one(
    model: Path, weights: dict[str, dict[str, torch.Tensor]]
) -> None:
    """Also where activations are computed again, where a process has no part, and where their number changes."""
    start = safetensors.torch.load_file(next(model.rglob("model.safetensors")))
    learned = max(
        float((weights["alone"][f"0.model.{name}"] - each).abs().max()) for name, each in start.items()
    )
    assert learned > 2 * TOLERANCE
    differences = {name: difference(each, weights["alone"]) for name, each in weights.items()}
    assert max(differences.values()) < TOLERANCE, differences


@pytest.mark.system
def test_as_many_processes_go_on_to_the_same_weights(weights: dict[str, dict[str, torch.Tensor]]) -> None:
    assert difference(weights["two ended"], weights["two"]) == 0


def test_parts_are_dealt_evenly_and_each_once() -> None:
    costs = [5.0, 9, 1, 7, 7, 3, 2]
    shares = [Replicas(rank, 3).share_of(costs) for rank in range(3)]
    assert sorted(number for share in shares for number in share) == [*range(7)]
    assert max(sum(costs[number] for number in share) for share in shares) == 12
    assert Replicas(0, 1).share_of(costs) == [*range(7)]

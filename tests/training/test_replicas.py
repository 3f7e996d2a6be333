"""Steps of a training by several processes: the weights of one process, up to roundings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import safetensors.torch
import torch

from scannery.indexer import Store
from scannery.indexer.spec.spec import EncoderSpec
from scannery.pipelines.errors import CollectionError
from scannery.training.encoder.fitting import EncoderFit, follow
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.run import RunSettings
from tests.embed.tiny_models import make_model
from tests.tools.ports import free_port
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


ENDED = """
import os, sys
from scannery.training.runs.replicas import Replicas
with Replicas.joined() as replicas:
    replicas.any(False)
    if not replicas.leads:
        os._exit(0)
    sys.stdin.read()  # until the other process has ended
print("registered")
"""


@pytest.mark.system
def test_the_leader_tells_of_its_work_although_the_others_ended_after_theirs() -> None:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"), "TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    leader, follower = (
        subprocess.Popen(
            [sys.executable, "-c", ENDED],
            env=environment | {"RANK": rank, "LOCAL_RANK": rank},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in "01"
    )  # fmt: skip
    follower.communicate(timeout=120)
    output, message = leader.communicate(timeout=120)
    assert output == "registered\n", message
    assert leader.returncode == 0, message


BEGUN_AGAIN = """
import os
from scannery.training.runs.replicas import Replicas
with Replicas.joined() as replicas:
    replicas.any(False)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and not replicas.leads:
        os._exit(1)
    replicas.any(False)
"""


@pytest.mark.system
def test_processes_that_torchrun_starts_again_do_not_wait_for_those_before(tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(BEGUN_AGAIN)
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    done = subprocess.run(
        [sys.executable, "-m", *launcher, str(script)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_process_that_finds_another_model_than_the_leader_ends(model: Path, tmp_path: Path) -> None:
    announced = EncoderFit(
        base=EncoderSpec(model=str(model)), base_digest="0" * 64, run=RunSettings(1, 1e-4, 1, every_s=0.0),
        distance="cosine", scale=20.0, dtype="float32",
    ).model_dump(mode="json")  # fmt: skip
    replicas = cast(Any, SimpleNamespace(rank=1, shared=lambda: announced))
    with pytest.raises(CollectionError, match="process 1 finds another model .* than the first process"):
        follow(Store.open(tmp_path / "store", create=True), replicas, lambda: False)


def test_parts_are_dealt_evenly_and_each_once() -> None:
    costs = [5.0, 9, 1, 7, 7, 3, 2]
    shares = [Replicas(rank, 3).share_of(costs) for rank in range(3)]
    assert sorted(number for share in shares for number in share) == [*range(7)]
    assert max(sum(costs[number] for number in share) for share in shares) == 12
    assert Replicas(0, 1).share_of(costs) == [*range(7)]

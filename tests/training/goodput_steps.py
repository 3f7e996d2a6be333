"""A training that is killed again and again; it prints the goodput that the last attempt records.

python -m tests.training.goodput_steps FOLDER KILLS

Steps are of an even length, as long as those of a larger model.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import safetensors.torch  # noqa: F401  so that the forks have it
import torch

from scannery.embed.devices.training import TrainingDevice
from scannery.indexer import Store
from scannery.indexer.spec.spec import EncoderSpec
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.run_folder import RunFolder
from scannery.training.runs.training_run import TrainingRun
from scannery.training.spec import CheckpointSpec

LIFE_S = 8.0
STEP_S = 0.05
EVERY_S = 0.25
WIDTH = 200
"""Of its matrices: a checkpoint of 1 MB."""


def train(folder: Path, steps: int) -> float:
    """Train in a store, from the last checkpoint there on, and return the goodput."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    modules = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))

    def loss_of(step: int) -> torch.Tensor:
        time.sleep(STEP_S)
        inputs = torch.randn(8, WIDTH)
        return cast(torch.Tensor, (modules(inputs) - inputs).square().mean())

    run = TrainingRun(
        base=EncoderSpec(model="unused"), base_folder=folder, base_digest="",
        settings={"steps": steps, "learning_rate": 1e-4, "seed": 1}, models=1,
        folder=RunFolder.of(Store.open(folder, create=True), "m", "run", CheckpointSpec(every_s=EVERY_S)),
        replicas=Replicas(), events=None, progress=None, is_stopped=lambda: False,
    )  # fmt: skip
    run.train(0, cast(Any, SimpleNamespace(modules=modules, device=TrainingDevice("cpu"))), loss_of)
    return float(run.measured["goodput"])


def attempt(folder: Path, steps: int) -> int:
    """Begin a fork of this process that trains, and return its id."""
    if not (child := os.fork()):
        try:
            print(train(folder, steps), flush=True)
        except BaseException:  # noqa: BLE001  a fork may not go on as its parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


if __name__ == "__main__":
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    steps = int(kills * LIFE_S / STEP_S)
    torch.optim.AdamW(torch.nn.Linear(1, 1).parameters())  # likewise: it loads much
    for _ in range(kills):
        child = attempt(folder, steps)
        time.sleep(LIFE_S)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert os.waitpid(attempt(folder, steps), 0)[1] == 0

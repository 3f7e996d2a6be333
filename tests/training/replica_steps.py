"""A training of a few steps in one of the processes that torchrun starts; the leader writes the weights.

torchrun --nproc-per-node N -m tests.training.replica_steps MODEL RUN STEPS MAX_TOKENS DTYPE
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.torch
import sentence_transformers.sentence_transformer.modules  # noqa: F401  so that the forks have it
import torch
import torch.distributed

from scannery.embed.models.loading import ModelOptions
from scannery.embed.models.trainable import TrainableModel
from scannery.indexer import Store
from scannery.training.encoder.contrastive import TEXTS_AT_ONCE, PairSteps
from scannery.training.errors import StoppedError
from scannery.training.pairs.signals import Pair
from scannery.training.runs.checkpoints import Checkpoints
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.run import RunSettings, run_steps

__all__ = ["STEPS", "WEIGHTS"]

WORDS = ["volcanoes", "form", "magma", "rises", "cracks", "crust", "earth", "cools", "stone", "brown", "fox"]
COUNT = TEXTS_AT_ONCE + 5
STEPS = 20
WEIGHTS = "weights.safetensors"


class Batches:
    """Pairs of a step by its number."""

    def pairs(self, step: int) -> list[Pair]:
        random = np.random.default_rng(step)

        def text(words: int) -> str:
            return " ".join(random.choice(WORDS, words))

        return [Pair(text(3), text(int(random.integers(5, 40))), number) for number in range(COUNT)]


def train(model_folder: Path, folder: Path, last: int, max_tokens: int) -> None:
    """Train up to the step `last`, of STEPS, in one of the processes; the next call goes on from its checkpoint."""
    done = 0
    with Replicas.joined() as replicas:
        model = TrainableModel(model_folder, ModelOptions(), "cpu")
        batches = cast(Any, Batches()) if replicas.leads else None
        steps = PairSteps(model, batches, replicas, distance="cosine", scale=20.0, max_tokens=max_tokens)
        stores = [Store.open(folder, create=True)] if replicas.leads else []

        def count(step: int, _: int) -> None:
            nonlocal done
            done = step

        with contextlib.suppress(StoppedError):
            run_steps(
                model.modules, steps.loss, RunSettings(STEPS, 5e-5, 1, every_s=0.0),
                Checkpoints(stores, "checkpoints", keep=2), replicas,
                progress=count, is_stopped=lambda: done == last < STEPS,
            )  # fmt: skip
        if replicas.leads:
            weights = {name: each.contiguous() for name, each in model.modules.state_dict().items()}
            safetensors.torch.save_file(weights, folder / WEIGHTS)
        else:
            assert replicas.shared() is None


def case(model: Path, folder: str, processes: int, last: int, max_tokens: int) -> None:
    """Run a case in forks of this process, each with the environment that torchrun gives."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(processes):
        if not (child := os.fork()):
            os.environ.update(
                TORCHELASTIC_RUN_ID="test", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes),
            )  # fmt: skip
            torch.set_num_threads(1)
            try:
                train(model, Path(folder), last, max_tokens)
            except BaseException:  # noqa: BLE001  a fork may not go on as its parent
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * processes


if __name__ == "__main__":
    for each in sys.argv[2:]:
        run, *numbers = each.split(",")
        case(Path(sys.argv[1]), run, *map(int, numbers))

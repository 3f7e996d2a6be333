"""Seconds of a step of a training of an encoder, by the number of processes.

    torchrun --standalone --nproc-per-node N -m benchmarks.encoder_steps [--steps N] [--batch N]

MiniLM, and pairs of synthetic texts: questions of 10 words, passages of 150 (all-MiniLM-L6-v2 reads 256 tokens). A step
is the loss, its gradients, their sum over the processes, and the optimiser. The median is of the leader.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from benchmarks.harness import MINILM, environment
from scannery.embed.models.model_files import find_model
from scannery.indexer.spec.spec import EncoderSpec
from scannery.training.encoder.contrastive import PairSteps
from scannery.training.encoder.models import BATCH, SCALE
from scannery.training.exports import matrix_dtype, trainable
from scannery.training.pairs.signals import Pair
from scannery.training.runs.checkpoints import Checkpoints
from scannery.training.runs.replicas import Replicas
from scannery.training.runs.run import RunSettings, run_steps

__all__ = ["main"]

WORDS = ["volcanoes", "form", "magma", "rises", "cracks", "crust", "earth", "cools", "stone", "brown", "fox"]
QUERY_WORDS, PASSAGE_WORDS = 10, 150
WARM = 2
"""Steps before those that count."""


class Batches:
    """Pairs of a step by its number."""

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def pairs(self, step: int) -> list[Pair]:
        random = np.random.default_rng(step)

        def text(words: int) -> str:
            return " ".join(random.choice(WORDS, words))

        return [Pair(text(QUERY_WORDS), text(PASSAGE_WORDS), number) for number in range(self._batch)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=BATCH)
    options = parser.parse_args()
    base = EncoderSpec(model=str(find_model(MINILM)))
    times_s = [time.perf_counter()]
    with Replicas.joined() as replicas:
        model = trainable(Path(base.model), base)
        steps = PairSteps(
            model, cast(Any, Batches(options.batch)) if replicas.leads else None, replicas,
            distance="cosine", scale=SCALE, dtype=matrix_dtype("auto"),
        )  # fmt: skip
        statistics = run_steps(
            model.modules, steps.loss, RunSettings(WARM + options.steps, 5e-5, 1, every_s=1e9),
            Checkpoints([], "", keep=1), replicas,
            progress=lambda done, total: times_s.append(time.perf_counter()), is_stopped=lambda: False,
        )  # fmt: skip
        if replicas.leads:
            print(environment())
            seconds = np.median(np.diff(times_s)[WARM:])
            print(
                f"{replicas.count} process(es) of {torch.get_num_threads()} thread(s), {matrix_dtype('auto')}: "
                f"a step of {options.batch} pairs takes {seconds:.2f} s (loss {statistics.loss:.4f})"
            )
        else:
            replicas.shared()


if __name__ == "__main__":
    main()

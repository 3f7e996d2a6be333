"""Runs operations until something is wrong, or time or operations are used up."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.model import asking, lifecycle, trouble, versions, writing  # noqa: F401  they register their operations
from tests.model.machine import Machine
from tests.model.operations import Op, random_op
from tests.model.processes import PROCESS_WEIGHTS, ProcessMachine

__all__ = ["Failure", "config_of", "random_ops", "replay", "run"]

PROGRESS_S = 10.0
SCANN_SHARE = 0.1
NAMED_SHARE = 0.5
ROUND = 20_000
"""Operations on one store; then the next one is begun, with the next seed."""


@dataclass(frozen=True)
class Failure:
    """Operations after which something was wrong."""

    config: dict[str, Any]
    ops: list[Op]
    kind: str
    """Type of the error."""
    message: str

    def save(self, path: Path) -> None:
        """Write what `--replay` reads."""
        path.write_text(
            json.dumps({"config": self.config, "message": self.message, "ops": self.ops}, indent=1)
        )


def config_of(seed: int) -> dict[str, Any]:
    """Return what a run of a seed has."""
    rng = random.Random(seed)
    return {
        "seed": seed,
        "distance": rng.choice(["dot", "dot", "squared_l2", "cosine"]),
        "shards": rng.choice([1, 2, 3]),
        "documents": rng.random() < 0.5,
        "scann": rng.random() < SCANN_SHARE,
        "log": rng.random() < 0.2,
        "dynamic": rng.random() < 0.5,
        "vectorless": rng.random() < 0.3,
        "operators": True,
        "named": rng.random() < NAMED_SHARE,
        "whole_documents": rng.random() < 0.4,
    }


def replay(config: dict[str, Any], ops: Iterable[Op]) -> Failure | None:
    """Do some operations on a new store; return what went wrong, with the operations up to it."""
    folder = Path(tempfile.mkdtemp(prefix="scannery-model-"))
    machine: Machine | None = None
    done: list[Op] = []
    try:
        machine = (ProcessMachine if config.get("processes") else Machine)(folder, config)
        for op in ops:
            done.append(op)
            machine.do(op)
    except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
        return Failure(config, done, type(error).__name__, f"{error}\n{traceback.format_exc(limit=-6)}")
    finally:
        if machine is not None:
            machine.close()
        shutil.rmtree(folder, ignore_errors=True)
    return None


class _Progress:
    def __init__(self, total: int) -> None:
        self._started = self._said = time.monotonic()
        self._total, self.done = total, 0

    def step(self) -> None:
        self.done += 1
        if time.monotonic() - self._said > PROGRESS_S:
            self._said = time.monotonic()
            rate = self.done / (self._said - self._started)
            print(f"{self.done:,} of {self._total:,} operations, {rate:,.0f} a second", flush=True)


def run(
    ops: int,
    seed: int,
    *,
    processes: bool = False,
    minutes: float | None = None,
    weights: dict[str, float] | None = None,
    verbose: bool = False,
) -> Failure | None:
    """Do random operations, on a new store for each round; return the first failure."""
    progress = _Progress(ops) if verbose else None
    end_s = time.monotonic() + 60 * minutes if minutes else float("inf")
    left, number = ops, 0
    while left > 0 and time.monotonic() < end_s:
        rng = random.Random(f"{seed}-{number}")
        chosen = (PROCESS_WEIGHTS if processes else {}) | (weights or {})
        generated = _generated(rng, min(left, ROUND), chosen, progress, end_s)
        config = config_of(seed + number) | ({"processes": True} if processes else {})
        failure = replay(config, generated)
        if failure is not None:
            return failure
        left, number = left - ROUND, number + 1
    return None


def random_ops(seed: str, count: int, weights: dict[str, float]) -> list[Op]:
    """Return a list of operations."""
    rng = random.Random(seed)
    return [random_op(rng, weights) for _ in range(count)]


def _generated(rng: random.Random, count: int, weights: dict[str, float], progress: Any, end_s: float) -> Any:
    for _ in range(count):
        if time.monotonic() > end_s:
            return
        yield random_op(rng, weights)
        if progress is not None:
            progress.step()

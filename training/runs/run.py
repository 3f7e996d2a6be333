"""A run: steps of an optimiser from the newest checkpoint on, with a checkpoint now and then.

Killed at any step, it goes on at the newest checkpoint with the same numbers: a step depends on its number and on the
state before it, and on nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scannery.embed.devices.training import TrainingDevice
from scannery.training.errors import DivergedError, StoppedError
from scannery.training.runs.checkpoints import Checkpoint, Checkpoints
from scannery.training.runs.replicas import Replicas

if TYPE_CHECKING:
    import torch

__all__ = ["RunSettings", "RunStatistics", "run_steps"]

WARM_UP = 0.1
"""Share of the steps in which the learning rate rises; it falls to 0 in the others."""
MOST_NORM = 1.0
"""Norm that gradients are cut to."""
FIRST_SHARE = 1 / 8
"""Share of the time between checkpoints after which the first one is saved. Each next one takes twice as long, up to
that time: attempts that are killed soon get on nevertheless."""
_ADAM = ("exp_avg", "exp_avg_sq")
_CPU = TrainingDevice("cpu")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How steps are taken."""

    steps: int
    """Number of steps."""
    learning_rate: float
    """Highest learning rate."""
    seed: int
    """Seed of dropout."""
    every_s: float
    """Seconds between two checkpoints; fewer at first, by FIRST_SHARE."""


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """What a run took."""

    seconds: float
    """Seconds of the steps that count, without those of compilation."""
    resumed_at: int
    """Steps that earlier attempts had done."""
    loss: float
    """Loss of the last step; NaN if there was none to do."""
    compilations: int
    """Programs that were compiled."""


def run_steps(
    modules: torch.nn.Module,
    loss_of: Callable[[int], torch.Tensor],
    settings: RunSettings,
    checkpoints: Checkpoints,
    replicas: Replicas,
    *,
    progress: Callable[[int, int], None],
    is_stopped: Callable[[], bool],
    record: Callable[[int, Mapping[str, float]], None] = lambda step, values: None,
    device: TrainingDevice = _CPU,
) -> RunStatistics:
    """Train some modules in place, from the newest checkpoint on.

    Args:
        modules: all of whose parameters are trained.
        loss_of: returns the loss of a step by its number, with gradients.
        settings: of the steps.
        checkpoints: of this run, of which the leader's are read and written; closed at the end.
        replicas: processes of this run. Each call of `loss_of` has the gradients of this one's share, of the same loss.
        progress: gets the number of finished steps and of all.
        is_stopped: whether to save a checkpoint and end, asked after each step; in any process.
        record: gets the number of finished steps, and values of the last of them by name.
        device: that the modules are on.

    Raises:
        StoppedError: it was stopped; the same run goes on later.
        ReplicaLostError: another process ended.
        DivergedError: a loss is no finite number.

    """
    import torch

    compiled = device.compilations().programs
    optimizer = torch.optim.AdamW(modules.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    with closing(checkpoints):
        newest = checkpoints.newest() or Checkpoint(0, 0.0, dict(_state(modules, optimizer)))
        start, seconds = replicas.shared((newest.step, newest.seconds))
        _restore(modules, optimizer, start, replicas.shared_tensors(newest.tensors))
        del newest
        device.finish()
        modules.train()
        saved_s, value = time.monotonic(), float("nan")
        interval_s = FIRST_SHARE * settings.every_s
        for step in range(start, settings.steps):
            before_s = time.perf_counter()
            compiled_s = device.compilations().seconds
            device.seed(_seed_of(settings.seed, step))
            learning_rate = settings.learning_rate * _share(step, settings.steps)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            loss = loss_of(step)
            value = loss.item()
            if not math.isfinite(value):
                raise DivergedError(
                    f"the loss of step {step + 1} is {value}: its weights are of no use; choose a lower "
                    "learning_rate, or a lower loss.scale",
                    field="learning_rate",
                )
            optimizer.zero_grad(set_to_none=False)
            loss.backward()  # type: ignore[no-untyped-call]
            replicas.sum_gradients(modules.parameters())
            norm = torch.nn.utils.clip_grad_norm_(modules.parameters(), MOST_NORM)
            optimizer.step()
            device.finish()
            gradient_norm = norm.item()
            step_s = time.perf_counter() - before_s
            seconds += step_s - (device.compilations().seconds - compiled_s)
            progress(step + 1, settings.steps)
            values = {
                "loss": value,
                "learning_rate": learning_rate,
                "gradient_norm": gradient_norm,
                "seconds": step_s,
            }
            record(step + 1, values)
            stopped = replicas.any(is_stopped())
            is_due = time.monotonic() - saved_s >= interval_s and not checkpoints.is_writing
            # After the last step the model is made into its result, unless this is to end before.
            if replicas.leads and (stopped or (is_due and step + 1 < settings.steps)):
                checkpoints.save(step + 1, seconds, dict(_state(modules, optimizer)))
                saved_s, interval_s = time.monotonic(), min(2 * interval_s, settings.every_s)
            if stopped:
                checkpoints.wait()
                saved = "there" if checkpoints.saved_step == step + 1 else f"step {checkpoints.saved_step}"
                raise StoppedError(
                    f"stopped after step {step + 1} of {settings.steps}; the same command goes on from {saved}"
                )
        modules.eval()
    programs = device.compilations().programs - compiled
    return RunStatistics(seconds=seconds, resumed_at=start, loss=value, compilations=programs)


def _seed_of(seed: int, step: int) -> int:
    return (seed << 32) + step


def _share(step: int, steps: int) -> float:
    """Return the share of the highest learning rate that a step has."""
    return min(1.0, (step + 1) / max(1, int(WARM_UP * steps))) * (1 - step / steps)


def _state(modules: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights and moments by name."""
    for name, parameter in modules.named_parameters():
        yield f"weights.{name}", parameter
        moments: dict[str, Any] = optimizer.state.get(parameter, {})
        for kind in _ADAM:
            if kind in moments:
                yield f"{kind}.{name}", moments[kind]


def _restore(
    modules: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, tensors: dict[str, torch.Tensor]
) -> None:
    """Take over weights and moments after some steps; gradients are 0, so that each step is as the first."""
    import torch

    with torch.no_grad():
        for name, parameter in modules.named_parameters():
            parameter.copy_(tensors[f"weights.{name}"])
            parameter.grad = torch.zeros_like(parameter)
            optimizer.state[parameter] = {"step": torch.tensor(float(step))}
            for kind in _ADAM:
                moment = optimizer.state[parameter][kind] = torch.zeros_like(parameter)
                if (saved := tensors.get(f"{kind}.{name}")) is not None:
                    moment.add_(
                        saved.to(parameter.device)
                    )  # XLA compiles steps anew for what was copied there

"""The operations: a name, how often it comes, and what it does to the machine.

An operation is a JSON object with `do`, `seed` and what is decided when it is made. All else is drawn from the seed
when it is done, and never fails for what was done before; so any part of a list can be done alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.model.machine import Machine

__all__ = ["OPERATIONS", "Op", "Operation", "operation", "random_op"]

Op = dict[str, Any]
Run = Callable[["Machine", random.Random, Op], None]


@dataclass(frozen=True)
class Operation:
    """What can be done."""

    name: str
    weight: float
    run: Run
    nests: float = 0.0
    """Share of the times that others come in between."""
    inner: float = 0.0
    """Weight as what comes in between."""


OPERATIONS: dict[str, Operation] = {}


def operation(weight: float, *, nests: float = 0.0, inner: float = 0.0) -> Callable[[Run], Run]:
    """Register a function as the operation of its name."""

    def registered(run: Run) -> Run:
        name = run.__name__
        OPERATIONS[name] = Operation(name, weight, run, nests, inner)
        return run

    return registered


def random_op(rng: random.Random, weights: dict[str, float]) -> Op:
    """Return the next operation."""
    names = list(OPERATIONS)
    chosen = [weights.get(name, OPERATIONS[name].weight) for name in names]
    op: Op = {"do": rng.choices(names, chosen)[0], "seed": rng.randrange(1 << 32)}
    if rng.random() < OPERATIONS[op["do"]].nests * weights.get("during", 1.0):
        inner = [weights.get(name, OPERATIONS[name].weight) and OPERATIONS[name].inner for name in names]
        count = rng.choice([1, 1, 2, 4])
        op["during"] = [
            {"do": name, "seed": rng.randrange(1 << 32)} for name in rng.choices(names, inner, k=count)
        ]
        op["at"] = rng.choice(["/segments/", "/versions/"])
    return op

"""Steps of the effective target: what is asked for, so that the target is met on live queries.

A step leaves 0.8 of the misses that the step before allows: a target of 0.95 becomes 0.96, 0.968, 0.974 and so on. The
targets that requests name are moved by as many steps. The last step is exact search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["EXACT_STEP", "distinct_steps", "has_choice", "raised_target"]

MISSES_KEPT = 0.8
EXACT_STEP = 32
"""The last step: exact search."""

SettingsT = TypeVar("SettingsT")


def raised_target(target: float, step: int) -> float:
    """Return the effective target, 1 for exact search."""
    return 1.0 if step >= EXACT_STEP else 1 - (1 - target) * MISSES_KEPT**step


def has_choice(settings_for: Callable[[float], Sequence[SettingsT | None]], target: float) -> bool:
    """Return whether a target has settings other than exact search in some segment."""
    return any(each is not None for each in settings_for(target))


def distinct_steps(
    settings_for: Callable[[float], Sequence[SettingsT | None]], target: float
) -> tuple[int, ...]:
    """Return the steps that change the settings of an index, ascending: 0 first, exact search last.

    Curves have few points, so that several steps in turn may have the same settings.

    Args:
        settings_for: returns the settings of each segment for a target; None: exact search.
        target: of the index.

    """
    if not has_choice(settings_for, target):
        return (0,)  # exact anyway
    steps, last = [0], settings_for(target)
    for step in range(1, EXACT_STEP):
        settings = settings_for(raised_target(target, step))
        if settings == last:
            continue
        if all(each is None for each in settings):
            break
        steps.append(step)
        last = settings
    return (*steps, EXACT_STEP)

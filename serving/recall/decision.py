"""When the settings of an index move by a step: up quickly if recall is too low, down slowly if less would suffice.

At a step above the first, sampled queries are also repeated with the settings of the step below. So it is measured, not
guessed, whether these would suffice.

A move down needs far more certainty than one up, and more each time that it had to be taken back. So at steady recall
the settings come to rest: where the target is met narrowly, the step below is not significantly above the target.
"""

from __future__ import annotations

from dataclasses import dataclass

from scannery.serving.recall.evidence import Evidence

__all__ = ["Findings", "is_undecided", "next_move"]

SLOW_WINDOW = 2000.0
FAST_WINDOW = 96.0
"""Queries; the fast one sees a change of the questions before the slow one."""
LEAST = 48
LEAST_FAST = 32
MANY = 400
"""Queries from which on one standard error suffices for a move up: near the target, the rest is doubt."""
UP = 2.0
UP_FAST = 3.5
UP_MANY = 1.0
"""Standard errors for a move up."""
FRESH_UP = 16
"""New queries since the last move for a move up: the same queries alone must not lead up many steps."""
LEAST_DOWN = 100
LEAST_DOWN_FAST = 48
FRESH_DOWN = 64
"""New queries since the last move for a move down."""
DOWN = 2.5
DOWN_FAST = 4.0
"""Standard errors for a move down."""
DOWN_MORE = 0.75
"""Further standard errors for each move down that was taken back."""
MOST_TAKEN_BACK = 4
SETTLED = 200
"""Queries after which the estimate is certain enough if it is clear."""
KNOWN = 1000
"""Queries after which it is, clear or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What all processes have found with the settings in force."""

    now: Evidence
    """With the settings in force."""
    now_fast: Evidence
    """The same of the last queries."""
    less: Evidence
    """With those of the step below; empty at the first step."""
    less_fast: Evidence
    fresh: float
    """Queries that were not asked before the last move."""


def next_move(found: Findings, *, taken_back: int, lowest: bool, highest: bool) -> int:
    """Return the direction of the next step: 1 (more effort), -1 (less), or 0 (none).

    Args:
        found: with the settings in force.
        taken_back: moves down that were followed by a move up.
        lowest: whether there is no step below.
        highest: whether there is none above.

    """
    if not highest and _too_low(found):
        return 1
    return -1 if not lowest and _less_suffices(found, taken_back) else 0


def _too_low(found: Findings) -> bool:
    now, fast = found.now, found.now_fast
    if found.fresh < FRESH_UP:
        return False
    if fast.count >= LEAST_FAST and fast.below(UP_FAST):
        return True
    return now.count >= LEAST and (now.below(UP) or (now.count >= MANY and now.below(UP_MANY)))


def _less_suffices(found: Findings, taken_back: int) -> bool:
    if found.fresh < FRESH_DOWN:
        return False
    more = DOWN_MORE * min(taken_back, MOST_TAKEN_BACK)
    less, fast = found.less, found.less_fast
    if less.count >= LEAST_DOWN and less.above(DOWN + more):
        return True
    return fast.count >= LEAST_DOWN_FAST and fast.above(DOWN_FAST + more)


def is_undecided(found: Findings) -> bool:
    """Return whether more queries should be sampled: the estimate is uncertain, or a move may be near."""
    now, fast = found.now, found.now_fast
    if now.count < SETTLED or (fast.count >= LEAST_FAST / 2 and fast.below(1.0)):
        return True
    if found.less_fast.count >= LEAST_FAST and found.less_fast.above(DOWN):
        return True
    return now.count < KNOWN and not now.above(UP)

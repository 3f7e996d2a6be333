"""The shapes (texts × tokens) that XLA compiles: few rows for queries, many rows for the texts of a build.

Shapes of few rows are fixed, so that a query costs little and the first caller decides nothing. Widths of the shapes of
many rows come from the lengths of a corpus: planned once and given to all workers, or taken from the first large call.

Legend: N texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scannery.embed.batching import Bucket, choose_buckets
from scannery.embed.errors import InvalidArgumentError

__all__ = ["LONGEST_WIDTH", "bulk_buckets", "check_widths", "few_row_buckets", "plan_widths"]

LONGEST_WIDTH = 8192
"""Widest shape in tokens, also for models that read more: it is always compiled. Longer texts are refused: cutting them
off would give other vectors than on a CPU."""

MAX_WIDTHS = 16
"""Most widths chosen for a corpus. Each is a program, whose compilation takes seconds, once."""

BUDGET_TOKENS = 65_536
"""Tokens of a step, padding included: an accelerator then computes for longer than the host needs for a step."""

CHIP_TOKENS = 16_384
"""Least tokens of a step for each chip, where a process drives several."""

FEW_ROWS = (1, 8, 32)
"""Rows of the fixed shapes."""

LEAST_WIDTH, WIDTH_FACTOR = 32, 4
"""Tokens of the narrowest fixed shape, and the ratio of one width to the next."""


def few_row_buckets(longest: int, chips: int = 1) -> list[Bucket]:
    """Return the fixed shapes: each of FEW_ROWS rows (fewer where the budget is less) in each of a few widths.

    Args:
        longest: widest shape, in tokens.
        chips: chips that share a step.

    """
    widths = [longest]
    width = LEAST_WIDTH
    while width < longest:
        widths.append(width)
        width *= WIDTH_FACTOR
    most = _budget(chips)
    shapes = {(max(1, min(rows, most // width)), width) for width in widths for rows in FEW_ROWS}
    return [Bucket(rows, width, fixed=True) for rows, width in sorted(shapes, key=lambda s: (s[1], s[0]))]


def bulk_buckets(widths: Sequence[int], chips: int = 1) -> list[Bucket]:
    """Return a shape of about BUDGET_TOKENS tokens for each width, with rows that the chips can divide."""
    return [Bucket(_rows(_budget(chips) // width, chips), width, fixed=True) for width in widths]


def plan_widths(lengths_N: np.ndarray, longest: int) -> tuple[int, ...]:
    """Return at most MAX_WIDTHS widths in tokens, ascending, with the least padding for texts of these lengths.

    Args:
        lengths_N: tokens of each text, int64; a sample of a corpus.
        longest: tokens of the longest text that the model reads; always the widest shape, at most LONGEST_WIDTH.

    """
    chosen = choose_buckets(lengths_N, min(longest, LONGEST_WIDTH), BUDGET_TOKENS, MAX_WIDTHS)
    return tuple(bucket.width for bucket in chosen)


def check_widths(widths: Sequence[int], longest: int) -> tuple[int, ...]:
    """Return the widths ascending, with `longest` as the widest.

    Raises:
        InvalidArgumentError: one is not between 1 and `longest` tokens.

    """
    wrong = [width for width in widths if not 1 <= width <= longest]
    if wrong:
        raise InvalidArgumentError(
            f"widths must be from 1 to {longest} tokens, got {wrong[0]}", field="widths"
        )
    return tuple(sorted({*widths, longest}))


def _budget(chips: int) -> int:
    return max(BUDGET_TOKENS, CHIP_TOKENS * chips)


def _rows(rows: int, chips: int) -> int:
    """Return the largest number of rows, at most `rows`, that the chips can divide; at least one."""
    step = next((step for step in (8 * chips, chips) if rows >= step), 1)
    return max(1, rows - rows % step)

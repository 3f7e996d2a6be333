"""Quantiles of histograms: of what metrics count by bucket."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["quantile"]


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """Return the value below which a share of the observations lie, interpolated linearly within its bucket.

    Args:
        bounds: upper bounds of the buckets, ascending, but for the last one, which has none.
        counts: observations in each bucket, not in those below: one more than there are bounds.
        share: from 0 to 1.

    Returns:
        None without any observation. In the last bucket, the bound below it.

    """
    total = sum(counts)
    if total <= 0:
        return None
    target, low, below = share * total, 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if below + count >= target:
            return low + (bound - low) * (target - below) / max(1.0, count)
        low, below = bound, below + count
    return low

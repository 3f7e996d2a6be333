"""How a ScaNN searcher is configured: by size, dimension and distance."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from scannery.indexer.spec.spec import Distance, ScannSpec

__all__ = ["SOAR_LAMBDA", "ScannConfig", "choose_config"]

SOAR_LAMBDA = 1.5
"""Weight of SOAR's penalty for second leaves in the direction of the first; its authors' value."""

SOAR_FROM_ROWS = 100_000
"""From here on SOAR is on: at 200,000 × 128 it reached recall 0.978 in the time that 0.973 took without."""


@dataclass(frozen=True, kw_only=True)
class ScannConfig:
    """The parameters of one ScaNN build."""

    leaves: int
    training_rows: int
    dimensions_per_block: int
    anisotropic_threshold: float
    """Of anisotropic vector quantization (Guo et al. 2020); NaN where the distance has no use for it."""
    soar: bool
    """Whether rows stand in a second leaf too (SOAR: Sun et al. 2023), which ScaNN offers for inner products."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; NaN becomes None, which JSON has."""
        values = asdict(self)
        if math.isnan(self.anisotropic_threshold):
            values["anisotropic_threshold"] = None
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ScannConfig:
        """Return the config that `to_dict` wrote."""
        threshold = values["anisotropic_threshold"]
        return cls(**{**values, "anisotropic_threshold": math.nan if threshold is None else threshold})


def choose_config(rows: int, dimensions: int, distance: Distance, chosen: ScannSpec) -> ScannConfig | None:
    """Return the ScaNN configuration for a segment, or None where an exact scan is the better index.

    What the spec leaves open is chosen by size, dimensions and distance.
    """
    if rows < chosen.exact_below_rows:
        return None
    # Twice the square root balances scoring the leaves' centroids against scoring the rows in them.
    leaves = min(chosen.leaves or round(2 * math.sqrt(rows)), rows)
    squared = distance == "squared_l2"
    return ScannConfig(
        leaves=leaves,
        training_rows=min(rows, chosen.training_rows or max(100_000, 100 * leaves)),
        # Two dimensions a block is ScaNN's advice; few dimensions leave too few blocks for that.
        dimensions_per_block=chosen.dimensions_per_block or (2 if dimensions >= 16 else 1),
        anisotropic_threshold=math.nan if squared else chosen.anisotropic_threshold,
        soar=not squared and (rows >= SOAR_FROM_ROWS if chosen.soar is None else chosen.soar),
    )

"""Configuration of ScaNN by rows, dimensions and distance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from scannery.indexer.manifest import ConfigTrial
from scannery.indexer.spec.spec import Distance, ScannSpec

__all__ = [
    "CODEBOOK_ROWS",
    "SOAR_LAMBDA",
    "Effort",
    "ScannConfig",
    "choose_config",
    "config_changes",
    "config_like",
]

Effort = Literal["none", "light", "full"]
"""Effort of a build. `light` is for a segment that will soon be merged: it has half the leaves, and no row is in two of
them, which halves the processor time of training; the target recall then takes more time per query. `none`: the segment
has no ScaNN data and is scanned."""

SOAR_LAMBDA = 1.5
"""Weight of SOAR's penalty on second leaves whose error is parallel to that of the first; the value of its authors."""

CODEBOOK_ROWS = 20_000
"""Rows that the codes are trained on: 1,250 for each of the 16 centres of a block. With ScaNN's default, 100,000, a
build of 80,000 × 384 took 10.7 s of processor time instead of 8.3, and recall was the same."""

SOAR_FROM_ROWS = 100_000
"""Rows from which on SOAR is used without a trial: at 200,000 × 128 it reached recall 0.978 in the time that 0.973 took
without."""

TRIAL_FROM_ROWS = 20_000
"""Rows from which on a configuration is chosen by trial: a trial takes about as long as training this number."""
SIMILAR_ROWS = 4.0
"""Ratio of rows up to which a segment gets what was chosen for another one of the same index."""


@dataclass(frozen=True, kw_only=True)
class ScannConfig:
    """The parameters of one ScaNN build."""

    leaves: int
    """Leaves of the partitioning tree."""
    training_rows: int
    """Rows that the tree is trained on."""
    dimensions_per_block: int
    """Dimensions that share a code of four bits."""
    anisotropic_threshold: float
    """Threshold of anisotropic vector quantization (Guo et al. 2020); NaN for `squared_l2`, which does not use it."""
    soar: bool
    """Whether rows are also in a second leaf (SOAR: Sun et al. 2023), which ScaNN has for inner products."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; NaN becomes None."""
        values = asdict(self)
        if math.isnan(self.anisotropic_threshold):
            values["anisotropic_threshold"] = None
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ScannConfig:
        """Return the config that `to_dict` wrote."""
        threshold = values["anisotropic_threshold"]
        return cls(**{**values, "anisotropic_threshold": math.nan if threshold is None else threshold})


def choose_config(
    rows: int, dimensions: int, distance: Distance, chosen: ScannSpec, effort: Effort = "full"
) -> ScannConfig | None:
    """Return the ScaNN configuration for a segment, or None if it is small and should be scanned.

    Args:
        rows: of the segment.
        dimensions: of its vectors.
        distance: of the index.
        chosen: values of the spec; those that are None are chosen here.
        effort: of the build.

    """
    if rows < chosen.exact_below_rows or effort == "none":
        return None
    # Twice the square root balances the costs of scoring centroids and of scoring the rows of leaves.
    leaves = min(chosen.leaves or round((1 if effort == "light" else 2) * math.sqrt(rows)), rows)
    soar = rows >= SOAR_FROM_ROWS and effort == "full" if chosen.soar is None else chosen.soar
    squared = distance == "squared_l2"
    return ScannConfig(
        leaves=leaves,
        training_rows=min(rows, chosen.training_rows or max(100_000, 100 * leaves)),
        # ScaNN recommends two dimensions per block; vectors of few dimensions would have too few blocks.
        dimensions_per_block=chosen.dimensions_per_block or (2 if dimensions >= 16 else 1),
        anisotropic_threshold=math.nan if squared else chosen.anisotropic_threshold,
        soar=not squared and soar,
    )


def config_changes(
    config: ScannConfig, rows: int, dimensions: int, distance: Distance, chosen: ScannSpec, effort: Effort
) -> list[dict[str, Any]]:
    """Return the changes of a configuration to try on a sample (tuning/config_trial.py), in this order.

    None for `light` effort and for small segments, and none of a value that the spec fixes.

    Args:
        config: of `choose_config`.
        rows: of the segment.
        dimensions: of its vectors.
        distance: of the index.
        chosen: values of the spec.
        effort: of the build.

    """
    if effort != "full" or rows < TRIAL_FROM_ROWS:
        return []
    changes: list[dict[str, Any]] = []
    if chosen.dimensions_per_block is None and dimensions >= 4 * config.dimensions_per_block:
        changes.append({"dimensions_per_block": 2 * config.dimensions_per_block})
    if chosen.soar is None and distance != "squared_l2":
        changes.append({"soar": True})
    if chosen.leaves is None:
        changes.append({"leaves": round(config.leaves / 2)})
    return changes


def config_like(
    config: ScannConfig, changes: Sequence[Mapping[str, Any]], rows: int, earlier: ConfigTrial | None
) -> ScannConfig | None:
    """Return a configuration with what an earlier trial chose; None if there is no trial of similarly many rows.

    Args:
        config: of `choose_config`.
        changes: of `config_changes`: only values that would be tried are taken from the earlier trial.
        rows: of the segment.
        earlier: trial of another segment of the same index.

    """
    if earlier is None or not 1 / SIMILAR_ROWS <= rows / earlier.segment_rows <= SIMILAR_ROWS:
        return None
    chosen = next((tried_config for tried_config in earlier.tried if tried_config.chosen), None)
    if chosen is None:
        return None
    changes_found: dict[str, Any] = {
        "leaves": max(1, round(config.leaves * chosen.leaves / earlier.tried[0].leaves)),
        "soar": chosen.soar,
        "dimensions_per_block": chosen.dimensions_per_block,
    }
    tried = {name for change in changes for name in change}
    return replace(config, **{name: value for name, value in changes_found.items() if name in tried})

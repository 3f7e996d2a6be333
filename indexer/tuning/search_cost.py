"""A model of the processor time of a ScaNN search, from what it reads.

Configurations are compared by this model and not by measured times: a moment at which other processes run would decide
otherwise, and equal data should get equal configurations. The constants are fitted to processor times of batches of 200
with AVX-512 (scann/instructions.py; Fashion-MNIST, real passages, generated vectors; six configurations, 120 settings):
nine tenths of them are within 22 % of the time, and the worst is 1.5 times it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scannery.indexer.scann.config import ScannConfig

__all__ = ["SearchCost"]

START_US = 4.2
"""Time of a search that reads nothing."""
TABLE_US = 0.011
"""Time of the table of a block: the scores of its 16 centres, and their conversion to bytes."""
CENTROID_NS = 0.061
"""Time for each component of a leaf's centroid; all leaves are compared with the query."""
CODE_NS = 0.0123
"""Time for each block of a row's code, in the leaves that are searched."""
CANDIDATE_NS, COMPONENT_NS = 90.0, 0.26
"""Time for each candidate, and for each component of its vector."""


@dataclass(frozen=True, kw_only=True)
class SearchCost:
    """The cost of searches of one segment."""

    config: ScannConfig
    rows: int
    dimensions: int

    def query_us(self, leaves: float, candidates: int) -> float:
        """Return the processor time of one query in a batch, in microseconds."""
        blocks = math.ceil(self.dimensions / self.config.dimensions_per_block)
        per_leaf = self.rows * (2 if self.config.soar else 1) / self.config.leaves
        centroids_ns = CENTROID_NS * self.config.leaves * self.dimensions
        codes_ns = CODE_NS * leaves * per_leaf * blocks
        vectors_ns = candidates * (CANDIDATE_NS + COMPONENT_NS * self.dimensions)
        return START_US + TABLE_US * blocks + (centroids_ns + codes_ns + vectors_ns) / 1000

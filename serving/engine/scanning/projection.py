"""A map of vectors in two dimensions: the directions in which a sample of them differs most (PCA).

Shapes: S vectors of the sample, N vectors, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scannery.indexer import Distance

__all__ = ["MAX_SAMPLE", "Basis", "sample_size"]

MAX_SAMPLE = 4096
"""Vectors of a sample: with more, the directions of 40,000 passages move by less than a degree."""
MAX_COMPONENTS = 2_000_000
"""Components of all vectors of a sample, which bounds the work: the eigenvectors of 1,400 × 1,400 take a second."""
STEPS = 65_535
"""Number of steps of an axis."""
MARGIN = 1.05
"""Length of an axis as a share of the largest distance in the sample; what lies outside is put on the edge."""


def sample_size(dimensions: int) -> int:
    """Return the number of vectors of a sample."""
    return max(2, min(MAX_SAMPLE, MAX_COMPONENTS // max(dimensions, 1)))


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """What gives vectors their positions on a map. Immutable."""

    mean_D: np.ndarray
    """Middle of the map, float32."""
    axes_D2: np.ndarray
    """Directions of both axes, of length 1, or zeros; float32."""
    reach: float
    """Distance of the edges from the middle."""
    explained: tuple[float, float]
    """Share of the variance of the sample along each axis."""
    normalized: bool
    """Whether vectors are scaled to length 1 first."""

    @classmethod
    def of(cls, sample_SD: np.ndarray, distance: Distance) -> Basis:
        """Return the basis of a sample, float32; the same for the same vectors, up to rounding."""
        vectors_SD = _scaled(sample_SD) if distance == "cosine" else sample_SD
        mean_D = vectors_SD.mean(axis=0, dtype=np.float64)
        centred_SD = vectors_SD.astype(np.float64) - mean_D
        axes_D2, explained = _axes(centred_SD)
        reach = float(np.abs(centred_SD @ axes_D2).max(initial=0.0)) * MARGIN
        return cls(
            mean_D.astype(np.float32),
            axes_D2.astype(np.float32),
            reach or 1.0,
            explained,
            distance == "cosine",
        )

    @property
    def size_bytes(self) -> int:
        """Memory that this takes."""
        return self.mean_D.nbytes + self.axes_D2.nbytes

    def positions(self, vectors_ND: np.ndarray) -> np.ndarray:
        """Return the positions of vectors, float32, on the map: uint16 (N, 2), 32,767 or 32,768 in the middle."""
        scaled_ND = _scaled(vectors_ND) if self.normalized else vectors_ND
        positions_N2 = ((scaled_ND - self.mean_D) @ self.axes_D2 / self.reach + 1) * (STEPS / 2)
        rounded_N2: np.ndarray = np.rint(np.clip(positions_N2, 0, STEPS)).astype(np.uint16)
        return rounded_N2


def _scaled(vectors_ND: np.ndarray) -> np.ndarray:
    lengths_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    scaled_ND: np.ndarray = vectors_ND / np.where(lengths_N1 > 0, lengths_N1, 1)
    return scaled_ND


def _axes(centred_SD: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Return the two main directions, float64 (D, 2), and their shares of the variance."""
    rows, dimensions = centred_SD.shape
    # The eigenvectors of the smaller of both products tell those of the other one.
    by_row = rows < dimensions
    values_M, vectors_MM = np.linalg.eigh(centred_SD @ centred_SD.T if by_row else centred_SD.T @ centred_SD)
    axes_D2, shares = np.zeros((dimensions, 2)), [0.0, 0.0]
    total = float(values_M.clip(min=0).sum())
    for axis in range(min(2, len(values_M))):
        value = float(values_M[-1 - axis])
        if value <= total * 1e-12:  # all vectors lie in a point, or on a line
            break
        direction_D = vectors_MM[:, -1 - axis]
        if by_row:
            direction_D = centred_SD.T @ direction_D
        direction_D = direction_D / np.linalg.norm(direction_D)
        # Either sign is an eigenvector: all processes take the same one.
        axes_D2[:, axis] = direction_D * np.sign(direction_D[np.abs(direction_D).argmax()])
        shares[axis] = value / total
    return axes_D2, (shares[0], shares[1])

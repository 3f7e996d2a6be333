"""How unlike the vectors of an index other vectors are, which tells that another model made them.

The vectors of a model leave most directions of their space nearly unused, whatever the texts are about: those of new
topics and languages, too. Those of another model do not know which. So a vector is compared by its squared Mahalanobis
distance from vectors of the index (Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples
and Adversarial Attacks", NeurIPS 2018) in the directions that these use least, divided by what a vector in a random
direction has on average. `python -m benchmarks.foreign_vectors` compares models and collections
(docs/benchmarks/foreign-vectors.md).

Shapes: N vectors of a sample, Q other vectors, D dimensions, U unused directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scannery.indexer.vectors.exact_search import row_scores

__all__ = ["FOREIGN", "VectorDistribution", "foreign_rows", "least_sample", "most_sample"]

LEAST_DIMENSIONS = 96
"""Dimensions below which distances differ too much by chance."""
MOST_DIMENSIONS = 1536
"""Dimensions above which it takes too long to find the unused directions."""
UNUSED = 64
"""Directions that are compared: with all of them, new topics are stranger, and each vector takes six times as long."""
SPARE, ITERATIONS = 16, 6
"""Further directions, and steps, by which the unused ones are found."""
SHRINKAGE = 0.001
"""Share of the mean variance that each direction gets in addition: those that no vector uses must not be 0."""
LEAST_PER_DIMENSION = 1.8
"""Vectors of a sample for each dimension: from fewer, the covariance does not tell which directions are unused."""
MOST_VECTORS = 4096
USUAL_LENGTHS = 2.0
"""Factor between the lengths of a sample and those that are still usual: other models may not scale to length 1."""
HELD_OUT = 5
"""Every so many vectors of a sample are held out."""
LARGEST_USUAL = 0.4
"""Strangeness that 95 % of the vectors held out must be below; otherwise nothing can be told from it."""

STRANGE = 0.5
"""Strangeness above which a vector may be foreign."""
FOREIGN = 0.6
"""Mean strangeness of such vectors from which on they are."""
LEAST_STRANGE = 8
"""Such vectors among some, at least; fewer tell too little."""
LEAST_SHARE = 0.05
"""Share of such vectors among some, at least."""


@dataclass(frozen=True, eq=False)
class VectorDistribution:
    """Where the vectors of an index lie."""

    mean_D: np.ndarray
    """float32 (D,)."""
    unused_UD: np.ndarray
    """Unused directions, so long that the squared inner products with a difference add up to its strangeness."""
    lengths: tuple[float, float]
    """Least and greatest length of a vector, beyond which it is strange whatever its direction."""

    @classmethod
    def of(cls, vectors_ND: np.ndarray) -> VectorDistribution | None:
        """Return the distribution of a sample in random order; None if nothing can be told from it.

        Args:
            vectors_ND: as they are searched, float32; of these, at most `most_sample` are used.

        """
        vectors_ND = vectors_ND[: most_sample(vectors_ND.shape[1])]
        count, dimensions = vectors_ND.shape
        if not LEAST_DIMENSIONS <= dimensions <= MOST_DIMENSIONS or count < least_sample(dimensions):
            return None
        is_held_out_N = np.arange(count) % HELD_OUT == 0
        with np.errstate(over="ignore", invalid="ignore"):  # squares of vectors that are very long
            fitted = cls._fitted(vectors_ND[~is_held_out_N])
        if fitted is None or np.quantile(fitted.strangeness(vectors_ND[is_held_out_N]), 0.95) > LARGEST_USUAL:
            return None
        return fitted

    @classmethod
    def _fitted(cls, vectors_ND: np.ndarray) -> VectorDistribution | None:
        dimensions = vectors_ND.shape[1]
        mean_D = vectors_ND.mean(axis=0, dtype=np.float64).astype(np.float32)
        centred_ND = vectors_ND - mean_D
        covariance_DD = centred_ND.T @ centred_ND / np.float32(len(vectors_ND) - 1)
        variance = float(np.trace(covariance_DD)) / dimensions
        if not 0 < variance < math.inf:
            return None
        covariance_DD[np.diag_indices(dimensions)] += SHRINKAGE * variance
        variances_U, unused_DU = _least_variances(covariance_DD)
        scaled_UD = unused_DU.T / np.sqrt(variances_U)[:, None]
        squares_N = np.einsum("nd,nd->n", vectors_ND, vectors_ND, dtype=np.float64)
        random = squares_N.mean() / dimensions * (scaled_UD**2).sum() + ((scaled_UD @ mean_D) ** 2).sum()
        shortest, longest = np.sqrt(np.quantile(squares_N, (0.01, 0.99)))
        return cls(
            mean_D,
            np.ascontiguousarray(scaled_UD / np.sqrt(random), np.float32),
            (float(shortest) / USUAL_LENGTHS, float(longest) * USUAL_LENGTHS),
        )

    def strangeness(self, vectors_QD: np.ndarray) -> np.ndarray:
        """Return how unlike the vectors of the index others are, float32 (Q,): about 1 if their direction is random."""
        # Not by a product of matrices: BLAS has it computed by all cores, which takes milliseconds if these are busy.
        rows_U = np.arange(len(self.unused_UD))
        products_QU = np.empty((len(vectors_QD), len(rows_U)), np.float32)
        differences_QD = np.ascontiguousarray(vectors_QD - self.mean_D, np.float32)
        for difference_D, products_U in zip(differences_QD, products_QU, strict=True):
            products_U[:] = row_scores(self.unused_UD, rows_U, difference_D, "dot")
        with np.errstate(over="ignore", invalid="ignore"):
            strangeness_Q: np.ndarray = np.einsum("qu,qu->q", products_QU, products_QU)
            lengths_Q = np.sqrt(np.einsum("qd,qd->q", vectors_QD, vectors_QD, dtype=np.float64))
        shortest, longest = self.lengths
        strangeness_Q[(lengths_Q < shortest) | (lengths_Q > longest)] += 1
        return strangeness_Q


def _least_variances(covariance_DD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least variances, (U,), and their directions, (D, U), nearly: by iterations of a subspace.

    That takes a fifth of the time of all eigenvectors (Saad, "Numerical Methods for Large Eigenvalue Problems", 2011,
    chapter 5), and any directions with little variance will do.
    """
    inverse_DD = np.linalg.inv(covariance_DD)
    subspace = np.random.default_rng(0).normal(size=(len(covariance_DD), UNUSED + SPARE)).astype(np.float32)
    for _ in range(ITERATIONS):
        subspace = np.linalg.qr(inverse_DD @ subspace)[0]
    variances, rotation = np.linalg.eigh(subspace.T @ covariance_DD @ subspace)
    return variances[:UNUSED], subspace @ rotation[:, :UNUSED]


def least_sample(dimensions: int) -> int:
    """Return the least number of vectors that tell a distribution."""
    return int(LEAST_PER_DIMENSION * dimensions * HELD_OUT / (HELD_OUT - 1))


def most_sample(dimensions: int) -> int:
    """Return the largest number of vectors that are used."""
    return max(MOST_VECTORS, 3 * dimensions)


def foreign_rows(strangeness_Q: np.ndarray) -> np.ndarray:
    """Return the numbers of the vectors that seem to be of another model, int64; none if that is not certain.

    They may be some among others of the index's model. Single ones are not told: unusual texts may have such vectors.
    """
    strange: np.ndarray = np.flatnonzero(strangeness_Q > STRANGE)
    if len(strange) < max(LEAST_STRANGE, LEAST_SHARE * len(strangeness_Q)):
        return strange[:0]
    return strange if strangeness_Q[strange].mean() >= FOREIGN else strange[:0]

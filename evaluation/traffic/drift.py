"""Whether users ask for other things than before: a test of two samples of query vectors.

The maximum mean discrepancy (Gretton et al., "A Kernel Two-Sample Test", JMLR 2012) compares all pairs of queries by a
Gaussian kernel, as wide as the median distance; how likely it is by chance tell permutations of the samples. It is
asked twice, of two halves of what is new: one that is alike passes both by chance once in 40,000 times.

Shapes: N former queries, M new ones, D dimensions, P permutations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

import numpy as np

from scannery.indexer.traffic.rows import LoggedQuery, day_of

__all__ = ["LEAST_QUERIES", "Drift", "SampledTexts", "drift_of", "sampled_texts"]

LEAST_QUERIES = 100
"""Queries of each side; fewer tell little."""
MOST_QUERIES = 1000
"""Queries of each side that are compared, and as many as a call encodes."""
PERMUTATIONS = 2000
CHANCE = 0.005
"""Probability by chance below which both halves differ."""
FARTHEST = 20


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What two samples of queries have in common."""

    former: int
    """Number of former queries that were compared."""
    new: int
    """Number of new ones."""
    chances: tuple[float, float]
    """How likely a difference as large is by chance, of both halves of the new ones."""
    farthest: tuple[int, ...]
    """Numbers of the new queries that are least like the former ones, beside the new ones; the farthest first."""

    @property
    def has_drifted(self) -> bool:
        """Whether users ask for other things."""
        return max(self.chances) < CHANCE


class SampledTexts(NamedTuple):
    """Texts of the log, at most MOST_QUERIES of each side; one that was asked several times may be there as often."""

    former: Sequence[str]
    new: Sequence[str]


def sampled_texts(queries: Iterable[LoggedQuery], since: date, *, seed: int = 0) -> SampledTexts:
    """Return a sample of the texts before a day, and of those from it on; further pages of an answer do not count."""
    sides: tuple[list[str], list[str]] = ([], [])
    for row in queries:
        if row.user_query and not row.attributes.get("offset"):
            sides[day_of(row) >= since].append(row.user_query)
    random = np.random.default_rng(seed)
    former, new = (
        [texts[number] for number in random.permutation(len(texts))[:MOST_QUERIES].tolist()]
        for texts in sides
    )
    return SampledTexts(former, new)


def drift_of(former_ND: np.ndarray, new_MD: np.ndarray, *, seed: int = 0) -> Drift:
    """Return what two samples of query vectors have in common.

    Args:
        former_ND: vectors of unit length, float32; at least LEAST_QUERIES.
        new_MD: likewise, in an order by chance.
        seed: of permutations.

    """
    random = np.random.default_rng(seed)
    squares = np.maximum(0, 2 - 2 * (np.concatenate([former_ND, new_MD]) @ former_ND.T))
    width = float(np.median(squares[: len(former_ND)][np.triu_indices(len(former_ND), 1)])) or 1.0
    halves = [new_MD[0::2], new_MD[1::2]]
    chances = [_chance(former_ND, half, width, random) for half in halves]
    unlike_M = _kernel(new_MD, new_MD, width).mean(axis=1) - _kernel(new_MD, former_ND, width).mean(axis=1)
    farthest = np.argsort(-unlike_M, kind="stable")[:FARTHEST]
    return Drift(
        former=len(former_ND),
        new=len(new_MD),
        chances=(chances[0], chances[1]),
        farthest=tuple(farthest.tolist()),
    )


def _kernel(first_ND: np.ndarray, second_MD: np.ndarray, width: float) -> np.ndarray:
    """Return the likeness of all pairs of unit vectors, float32 (N, M)."""
    kernel_NM: np.ndarray = np.exp((2 * (first_ND @ second_MD.T) - 2) / width)
    return kernel_NM


def _chance(former_ND: np.ndarray, new_MD: np.ndarray, width: float, random: np.random.Generator) -> float:
    """Return how likely a discrepancy as large is, if both samples are of the same queries."""
    vectors = np.concatenate([former_ND, new_MD])
    kernel = _kernel(vectors, vectors, width)
    np.fill_diagonal(kernel, 0)
    is_new = np.arange(len(vectors)) >= len(former_ND)
    orders = [is_new, *(random.permutation(is_new) for _ in range(PERMUTATIONS))]
    discrepancies_P = _discrepancies(kernel, np.stack(orders, axis=1).astype(np.float32))
    return float((discrepancies_P[1:] >= discrepancies_P[0]).sum() + 1) / (PERMUTATIONS + 1)


def _discrepancies(kernel: np.ndarray, is_new_P: np.ndarray) -> np.ndarray:
    """Return the unbiased squared discrepancy of each division into two samples, float64 (P,).

    Args:
        kernel: likeness of all pairs, 0 of each with itself.
        is_new_P: whether each query is in the second sample, in a column for each division.

    """
    new = float(is_new_P[:, 0].sum())
    former = len(kernel) - new
    rows_P = kernel @ is_new_P
    both = np.einsum("np,np->p", is_new_P, rows_P, dtype=np.float64)
    across = rows_P.sum(axis=0, dtype=np.float64) - both
    inside = float(kernel.sum(dtype=np.float64)) - both - 2 * across
    discrepancies_P: np.ndarray = (
        both / (new * (new - 1)) + inside / (former * (former - 1)) - 2 * across / (new * former)
    )
    return discrepancies_P

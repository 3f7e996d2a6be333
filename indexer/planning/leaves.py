"""Filtered search by leaves: which to scan first, and when to stop.

ScaNN takes no filter. But rows are stored in leaf order, so the allowed rows of the leaves nearest to a query can be
scanned. The number of leaves cannot come from settings tuned without a filter: the k nearest of a tenth of the rows are
as far away as the 10 k nearest of all, or anywhere if the filter depends on the subject of the query. So each query
determines it during the scan. A leaf predicts scores from its mean, and from the spread of its rows' scores around that
prediction, measured on held-out queries. Together with the score of the k-th hit so far, this gives the expected number
of better rows in the remaining leaves; the scan ends when it is small. If a filter makes the predictions wrong, the
scan covers more leaves, at most all, and then it is exact.

Shapes: Q queries, N rows, L leaves, D dimensions, K hits, B classes of rank, T steps of a tail, R sampled rows, or
allowed ones.

Statistics of leaves in the metadata of a segment file, for servers that do not read its vectors to measure them.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard

from scannery.indexer.errors import CorruptError
from scannery.indexer.spec.spec import Distance
from scannery.indexer.vectors.arrays import mapped, read_array
from scannery.indexer.vectors.exact_search import FEW_QUERIES, NO_ROW, unit_length
from scannery.indexer.vectors.quantized_vectors import ScoredVectors
from scannery.indexer.vectors.row_test import RowTest
from scannery.indexer.vectors.vector_files import BLOCK_ROWS, far_middle

__all__ = ["LeafScan", "Leaves", "RowsOfLeaves", "measure_leaves", "pack_leaves", "unpack_leaves"]


TAIL_STEPS = 512
SAMPLED_QUERIES = 64
SAMPLED_ROWS = 1 << 18
CAUTION = 0.75
"""Expected misses at which a scan ends, as a share of those that the target recall allows: tails are averages over
queries, and queries differ."""


class RowsOfLeaves(NamedTuple):
    """Allowed rows as `Leaves.scan` takes them."""

    test: RowTest
    """Test of a row; ALL_ROWS if the rows are given by number."""
    numbers_R: np.ndarray
    """int64, ascending; empty if they are given by the test."""
    before_L: np.ndarray
    """Number of allowed rows before each leaf, int64; empty if they are given by the test."""
    allowed_L: np.ndarray
    """Number of allowed rows in each leaf, int64; of a test an estimate, 0 only if there are none."""


@dataclass(frozen=True, slots=True)
class LeafScan:
    """Result of scanning leaves."""

    rows_QK: np.ndarray
    """int64, best first; NO_ROW after the last hit."""
    scores_QK: np.ndarray
    """float32; minus infinity after the last hit."""
    leaves_Q: np.ndarray
    """Leaves scanned."""
    scanned_Q: np.ndarray
    """Allowed rows scored."""
    missed_Q: np.ndarray
    """Expected number of hits in the other leaves."""


@dataclass(frozen=True, eq=False)
class Leaves:
    """The rows of each leaf, and statistics that predict their scores."""

    starts_L: np.ndarray
    """First row of each leaf, int64."""
    sizes_L: np.ndarray
    """Number of rows of each leaf, int64, above 0."""
    middle_D: np.ndarray
    """Origin of the means, float32: zero, or the mean of all rows if that is far from zero."""
    means_LD: np.ndarray
    """Mean of the rows of each leaf, less `middle_D`, float32."""
    squares_L: np.ndarray
    """Squared length of each mean, float32."""
    radius_L: np.ndarray
    """Root of the mean squared distance of rows from the mean of their leaf, float32."""
    tails_BT: np.ndarray
    """Share of rows that score at least a number of spreads above their leaf's prediction (T: the number, in the steps
    of leaf_kernels.py), by class of the leaf's rank (B), float32."""

    @cached_property
    def _far(self) -> bool:
        return bool(self.middle_D.any())

    @staticmethod
    def expected_bytes(leaves: int, dimensions: int) -> int:
        """Return about the bytes of the arrays of some leaves."""
        return leaves * (4 * dimensions + 24) + 4 * TAIL_STEPS * (leaves.bit_length() + 1)

    def save(self, folder: Path) -> None:
        """Write the arrays as `.npy` files to a new folder."""
        folder.mkdir()
        for name in _PARTS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path) -> Leaves:
        """Return what `save` wrote, memory-mapped."""
        return cls(**{name: mapped(folder / f"{name}.npy") for name in _PARTS})

    def counts(self, mask_N: np.ndarray) -> np.ndarray:
        """Return the number of rows of each leaf that a mask allows, int64 (L,)."""
        from scannery.indexer.kernels import leaf_kernels  # compiles on import: only where it is needed

        counts_L = np.empty(len(self.sizes_L), np.int64)
        leaf_kernels.count_allowed(mask_N, self.starts_L, self.sizes_L, counts_L)
        return counts_L

    def counts_of(self, rows_R: np.ndarray) -> np.ndarray:
        """Return how many of some rows, which ascend, are in each leaf, int64 (L,)."""
        before_L = np.searchsorted(rows_R, self.starts_L)
        return np.diff(before_L, append=len(rows_R))

    def leaf_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of the leaf of each row; -1 for NO_ROW."""
        leaves: np.ndarray = np.searchsorted(self.starts_L, rows, side="right") - 1
        return leaves

    def predict(
        self, queries_QD: np.ndarray, distance: Distance
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each query the leaves, best prediction first, and predicted scores and spreads; each (Q, L)."""
        predicted_QL, spread_QL = self._predictions(queries_QD, distance)
        return np.argsort(-predicted_QL, axis=1), predicted_QL, spread_QL

    def _predictions(self, queries_QD: np.ndarray, distance: Distance) -> tuple[np.ndarray, np.ndarray]:
        if self._far:
            queries_QD = queries_QD - self.middle_D
        if len(queries_QD) < FEW_QUERIES:
            return self._predict_few(queries_QD, distance == "squared_l2")
        products_QL = queries_QD @ self.means_LD.T
        squares_Q1 = np.einsum("qd,qd->q", queries_QD, queries_QD)[:, None]
        if distance == "squared_l2":
            distances_QL = np.maximum(squares_Q1 - 2 * products_QL + self.squares_L, 0)
            predicted_QL = -distances_QL - self.radius_L**2
            spread_QL = 2 * np.sqrt(distances_QL) * self.radius_L
        else:
            predicted_QL = products_QL
            spread_QL = np.sqrt(squares_Q1) * self.radius_L
        return predicted_QL, spread_QL.astype(np.float32, copy=False)

    def _predict_few(self, queries_QD: np.ndarray, squared: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return predicted scores and spreads by a kernel, without the fixed cost of a matrix product."""
        from scannery.indexer.kernels import leaf_kernels  # compiles on import: only where it is needed

        predicted_QL, spread_QL = np.empty((2, len(queries_QD), len(self.sizes_L)), np.float32)
        for query_D, predicted_L, spread_L in zip(queries_QD, predicted_QL, spread_QL, strict=True):
            leaf_kernels.predict_scores(
                query_D, squared, self.means_LD, self.squares_L, self.radius_L, predicted_L, spread_L
            )
        return predicted_QL, spread_QL

    def needed(
        self,
        order_L: np.ndarray,
        predicted_L: np.ndarray,
        spread_L: np.ndarray,
        allowed_L: np.ndarray,
        scores_K: np.ndarray,
        most_missed: float,
        scanned: int,
    ) -> tuple[int, float]:
        """Return how many leaves a query needs, and the expected number of hits in the others.

        Args:
            order_L: the leaves, best prediction first.
            predicted_L: from `predict`, like `spread_L`.
            spread_L: of the scores of each leaf.
            allowed_L: number of allowed rows in each leaf, int64.
            scores_K: the best scores in the leaves scanned, descending, float32.
            most_missed: hits that may be expected in the others.
            scanned: the number of leaves scanned, the first of the order.

        """
        from scannery.indexer.kernels import leaf_kernels  # compiles on import: only where it is needed

        k = len(scores_K)
        needed, missed = leaf_kernels.enough(
            order_L,
            predicted_L,
            spread_L,
            self.sizes_L,
            allowed_L,
            self.tails_BT,
            scores_K[-1],
            k,
            0,
            most_missed,
            np.empty(len(order_L), np.float32),
            scanned,
        )
        return int(needed), float(missed)

    def scan(
        self,
        vectors: ScoredVectors,
        queries_QD: np.ndarray,
        k: int,
        distance: Distance,
        allowed: RowsOfLeaves,
        target_recall: float,
        ranks_N: np.ndarray,
    ) -> LeafScan:
        """Return the best k allowed rows of each query, from the leaves that the target recall needs.

        Fewer than k rows are found only if fewer are allowed.

        Args:
            vectors: of the segment, of length 1 for cosine.
            queries_QD: likewise, float32.
            k: hits per query.
            distance: of the index.
            allowed: the allowed rows.
            target_recall: 0 to 1.
            ranks_N: of `Ties`.

        """
        from scannery.indexer.kernels import leaf_kernels  # compiles on import: only where it is needed

        predicted_QL, spread_QL = self._predictions(queries_QD, distance)
        count = len(queries_QD)
        scan = LeafScan(
            np.empty((count, k), np.int64),
            np.empty((count, k), np.float32),
            np.empty(count, np.int64),
            np.empty(count, np.int64),
            np.empty(count),
        )
        for query in range(count):
            scan.leaves_Q[query], scan.scanned_Q[query], scan.missed_Q[query] = leaf_kernels.scan_leaves(
                vectors.vectors_ND,
                vectors.quantized_NB,
                queries_QD[query],
                distance == "squared_l2",
                self.starts_L,
                predicted_QL[query],
                spread_QL[query],
                self.sizes_L,
                *allowed.test,
                *allowed[1:],
                self.tails_BT,
                CAUTION * k * (1 - target_recall),
                ranks_N,
                scan.rows_QK[query],
                scan.scores_QK[query],
            )
        return scan


_PARTS = ("starts_L", "sizes_L", "middle_D", "means_LD", "squares_L", "radius_L", "tails_BT")


def measure_leaves(vectors_ND: np.ndarray, leaf_N: np.ndarray, distance: Distance, *, seed: int) -> Leaves:
    """Return the leaves of search-ready vectors in leaf order.

    Args:
        vectors_ND: float32, of length 1 for cosine.
        leaf_N: leaf of each row, ascending.
        distance: of the index.
        seed: of the sample of queries and rows.

    """
    _, starts_L, sizes_L = np.unique(leaf_N, return_index=True, return_counts=True)
    means_LD = np.empty((len(starts_L), vectors_ND.shape[1]), np.float32)
    radius_L = np.empty(len(starts_L), np.float32)
    middle_D = _middle(vectors_ND, distance)
    for leaf, (start, size) in enumerate(zip(starts_L.tolist(), sizes_L.tolist(), strict=True)):
        rows_RD = vectors_ND[start : start + size] - middle_D.astype(np.float64)
        mean_D = rows_RD.mean(axis=0)
        means_LD[leaf] = mean_D
        radius_L[leaf] = np.sqrt(np.square(rows_RD - mean_D).sum(axis=1).mean())
    classes = len(starts_L).bit_length() + 1
    squares_L = np.einsum("ld,ld->l", means_LD, means_LD)
    everything_BT = np.ones((classes, TAIL_STEPS), np.float32)
    unmeasured = Leaves(starts_L, sizes_L, middle_D, means_LD, squares_L, radius_L, everything_BT)
    return replace(unmeasured, tails_BT=_tails(unmeasured, vectors_ND, distance, seed))


def _middle(vectors_ND: np.ndarray, distance: Distance) -> np.ndarray:
    """Return the vector to subtract from rows and queries, (D,): zero for inner products, which it would change."""
    starts = range(0, len(vectors_ND), BLOCK_ROWS)
    middle_D = (
        far_middle(lambda: (vectors_ND[start : start + BLOCK_ROWS] for start in starts))
        if distance == "squared_l2"
        else None
    )
    return np.zeros(vectors_ND.shape[1], np.float32) if middle_D is None else middle_D


def _tails(leaves: Leaves, vectors_ND: np.ndarray, distance: Distance, seed: int) -> np.ndarray:
    """Return the maximum of the tails for two kinds of queries, which `HeldOut` explains."""
    generator = np.random.default_rng(seed)
    count = min(SAMPLED_QUERIES // 2, len(vectors_ND))
    own_Q = np.sort(generator.choice(len(vectors_ND), count, replace=False))
    alike_QD = np.array(vectors_ND[own_Q])
    apart_QD = 0.7 * alike_QD + 0.3 * vectors_ND[generator.permutation(own_Q)]
    if distance == "cosine":
        apart_QD = unit_length(apart_QD)
    rows_R = _sampled_rows(leaves, generator)
    none_Q = np.full(count, NO_ROW)
    alike_BT = _tails_of(leaves, vectors_ND, distance, alike_QD, own_Q, rows_R)
    apart_BT = _tails_of(leaves, vectors_ND, distance, apart_QD.astype(np.float32), none_Q, rows_R)
    heavier_BT: np.ndarray = np.maximum(alike_BT, apart_BT)
    return heavier_BT


def _sampled_rows(leaves: Leaves, generator: np.random.Generator) -> np.ndarray:
    """Return the rows of random leaves that have at least SAMPLED_ROWS together (or of all leaves), ascending."""
    sizes_L = leaves.sizes_L
    chosen = generator.permutation(len(sizes_L))
    chosen = np.sort(chosen[: np.searchsorted(np.cumsum(sizes_L[chosen]), SAMPLED_ROWS) + 1])
    return np.concatenate(
        [np.arange(leaves.starts_L[leaf], leaves.starts_L[leaf] + sizes_L[leaf]) for leaf in chosen]
    )


def _tails_of(
    leaves: Leaves,
    vectors_ND: np.ndarray,
    distance: Distance,
    queries_QD: np.ndarray,
    own_Q: np.ndarray,
    rows_R: np.ndarray,
) -> np.ndarray:
    from scannery.indexer.kernels import leaf_kernels
    from scannery.indexer.vectors.exact_search import all_scores

    order_QL, predicted_QL, spread_QL = leaves.predict(queries_QD, distance)
    counts_BT = np.zeros(leaves.tails_BT.shape, np.int64)
    rank_QL = np.argsort(order_QL, axis=1)
    for start in range(0, len(rows_R), 1 << 14):
        block_R = rows_R[start : start + (1 << 14)]
        leaf_R = leaves.leaf_of(block_R)
        scores_QR = all_scores(vectors_ND[block_R], queries_QD, distance)
        leaf_kernels.count_tails(
            scores_QR, leaf_R, block_R, own_Q, rank_QL, predicted_QL, spread_QL, counts_BT
        )
    # Half a row is added to each count: a score that no sampled row has is rare, but not impossible.
    above_BT = np.cumsum(counts_BT[:, ::-1], axis=1)[:, ::-1] + 0.5
    share_BT: np.ndarray = np.minimum(above_BT / (counts_BT.sum(axis=1, keepdims=True) + 1), 1)
    return share_BT.astype(np.float32)


_MEANS = "means_LD"
_STATISTICS = (_MEANS, "radius_L", "tails_BT", "middle_D")
_MOST_BYTES = 1 << 30


def pack_leaves(leaves: Leaves) -> dict[str, str]:
    """Return the statistics by name, as `.npy` files, compressed by zstd and base64-encoded.

    Means are rounded to bfloat16: an error of 0.4 % of a component changes no order of leaves that matters, and the
    metadata is half as large.
    """
    arrays = {name: getattr(leaves, name) for name in _STATISTICS}
    arrays[_MEANS] = (np.ascontiguousarray(leaves.means_LD, "<f4").view("<u4") + 0x8000 >> 16).astype("<u2")
    return {name: _packed(array) for name, array in arrays.items()}


def unpack_leaves(packed: Mapping[str, str], leaf_N: np.ndarray, dimensions: int) -> Leaves:
    """Return the leaves of rows.

    Args:
        packed: by `pack_leaves`.
        leaf_N: leaf of each row, ascending.
        dimensions: components of a vector.

    Raises:
        CorruptError: the statistics do not decompress, or are of other leaves.

    """
    _, starts_L, sizes_L = np.unique(leaf_N, return_index=True, return_counts=True)
    try:
        arrays = {name: _unpacked(packed[name], name) for name in _STATISTICS}
    except KeyError as error:
        raise CorruptError(f"the statistics of a segment's leaves lack {error}") from error
    means_LD = (arrays[_MEANS].astype(np.uint32) << 16).view(np.float32)
    tails_BT, shape = arrays["tails_BT"], (len(starts_L), dimensions)
    if (
        means_LD.shape != shape
        or arrays["radius_L"].shape != shape[:1]
        or arrays["middle_D"].shape != shape[1:]
        or len(tails_BT) < len(starts_L).bit_length() + 1
    ):
        raise CorruptError("the statistics of a segment's leaves are of other leaves")
    squares_L = np.einsum("ld,ld->l", means_LD, means_LD)
    return Leaves(
        starts_L, sizes_L, arrays["middle_D"], means_LD, squares_L, arrays["radius_L"], arrays["tails_BT"]
    )


def _packed(array: np.ndarray) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(zstandard.ZstdCompressor(level=9).compress(buffer.getvalue())).decode()


def _unpacked(text: str, name: str) -> np.ndarray:
    try:
        data = zstandard.ZstdDecompressor().decompress(base64.b64decode(text), max_output_size=_MOST_BYTES)
    except (ValueError, zstandard.ZstdError) as error:
        raise CorruptError(
            f"the statistics {name} of a segment's leaves do not decompress: {error}"
        ) from error
    return read_array(io.BytesIO(data), name)

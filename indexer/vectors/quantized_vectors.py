"""Vectors in 8 bits a number beside the full ones: they tell which rows a search has to score with the full ones.

Reading vectors is most of what a search costs once candidates are known, and all that a scan costs. The quantized
vectors have a quarter of the bytes. They bound the score of a row from above: a row that cannot be among the best rows
so far is not read in full. A few dozen rows of a search are, so hits and scores are those of a search without them, to
the last bit.

Rows are scaled one by one, as by locally-adaptive vector quantization (Aguerrebere et al. 2023, "Similarity search in
the blink of an eye with compressed indices"); a bound that always holds needs no rotation.

Shapes: N rows, B bytes of a row, D dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["FEWEST_DIMENSIONS", "NOT_QUANTIZED", "ScoredVectors", "quantized", "write_quantized"]

FEWEST_DIMENSIONS = 16
"""Least number of dimensions. With fewer, the factors of a row take as many bytes as its vector saves."""
BLOCK_ROWS = 1 << 12

NOT_QUANTIZED = np.zeros((0, 0), np.int8)
NOT_QUANTIZED.setflags(write=False)  # kernels for writable arrays would be compiled separately


class ScoredVectors(NamedTuple):
    """The vectors of a segment, as kernels score them."""

    vectors_ND: np.ndarray
    """float32, C-contiguous; (0, D): there are none, and the vectors are those that `quantized_NB` stands for."""
    quantized_NB: np.ndarray = NOT_QUANTIZED
    """The same rows by `quantized`, read-only; (0, 0): every row is scored in full."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return max(len(self.vectors_ND), len(self.quantized_NB))

    @property
    def dimensions(self) -> int:
        """Components of a vector."""
        return int(self.vectors_ND.shape[1])

    def take(self, rows_R: np.ndarray) -> np.ndarray:
        """Return the vectors of some rows, float32 (R, D), C-contiguous."""
        if len(self.vectors_ND):
            return np.asarray(self.vectors_ND[rows_R])
        from scannery.indexer.kernels import quantized_kernels

        vectors_RD = np.empty((len(rows_R), self.dimensions), np.float32)
        quantized_kernels.decode_rows(self.quantized_NB, rows_R, vectors_RD)
        return vectors_RD


def quantized(vectors_ND: np.ndarray) -> np.ndarray:
    """Return vectors in 8 bits a number with their factors, int8 (N, B), as kernels/quantized_kernels.py reads them.

    Args:
        vectors_ND: float32, C-contiguous, finite.

    """
    from scannery.indexer.kernels import quantized_kernels  # compiles on import: only where it is needed

    rows, dimensions = vectors_ND.shape
    steps_ND = np.empty((rows, dimensions), np.int8)
    factors_N3 = np.empty((rows, quantized_kernels.FACTORS), np.float32)
    quantized_kernels.quantize_rows(vectors_ND, steps_ND, factors_N3)
    return np.hstack([steps_ND, factors_N3.view(np.int8)])


def write_quantized(path: Path, vectors_ND: np.ndarray) -> None:
    """Write `quantized` vectors as a `.npy` file, block by block."""
    from scannery.indexer.kernels.quantized_kernels import FACTOR_BYTES

    rows, dimensions = vectors_ND.shape
    header = {"descr": "|i1", "fortran_order": False, "shape": (rows, dimensions + FACTOR_BYTES)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, rows, BLOCK_ROWS):
            file.write(quantized(vectors_ND[start : start + BLOCK_ROWS]).data)

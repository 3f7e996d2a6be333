"""Sparse vectors that users bring: at rest, and an inverted index of them in the local cache.

In the Parquet file a row has two lists, `_sparse_indices` (strictly ascending) and `_sparse_values` (as many), or
nulls. When a segment is unpacked, they are turned around once: for each dimension the rows that have it, with their
values. A row scores the inner product of its vector and the query's, over the dimensions that both have.

Shapes: N rows of the segment, T dimensions that occur, P entries (pairs of a dimension and a row), M rows that match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.vectors.arrays import mapped

__all__ = [
    "INDICES_COLUMN",
    "MAX_SPARSE_ENTRIES",
    "SPARSE_COLUMNS",
    "SparsePostings",
    "invert_sparse",
    "score_sparse",
    "sparse_value",
    "write_sparse",
]

INDICES_COLUMN = "_sparse_indices"
VALUES_COLUMN = "_sparse_values"
SPARSE_COLUMNS = {INDICES_COLUMN: pa.list_(pa.uint32()), VALUES_COLUMN: pa.list_(pa.float32())}
MAX_SPARSE_ENTRIES = 65_536

_PARTS = ("keys_T", "starts_T", "rows_P", "values_P")


class SparsePostings:
    """For each dimension the rows that have it."""

    def __init__(self, parts: Mapping[str, np.ndarray]) -> None:
        """Take what `invert_sparse` makes."""
        self.keys_T = parts["keys_T"]
        """The dimensions that occur, uint32, ascending."""
        self.starts_T = parts["starts_T"]
        """Where the entries of each begin, int64 (T + 1,)."""
        self.rows_P = parts["rows_P"]
        """int32, ascending within a dimension."""
        self.values_P = parts["values_P"]
        """float32."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays."""
        return int(sum(array.nbytes for array in vars(self).values()))

    @classmethod
    def map(cls, folder: Path) -> SparsePostings:
        """Return the postings that `write_sparse` wrote, memory-mapped."""
        return cls({name: mapped(folder / f"{name}.npy") for name in _PARTS})

    def numbers(self, indices_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which of some dimensions occur (bool), and the numbers of those that do (int64)."""
        positions = np.searchsorted(self.keys_T, indices_Q)
        inside = np.minimum(positions, max(len(self.keys_T) - 1, 0))
        is_present = self.keys_T[inside] == indices_Q if len(self.keys_T) else np.zeros(len(indices_Q), bool)
        return is_present, positions[is_present].astype(np.int64)


def write_sparse(table: pa.Table, folder: Path) -> None:
    """Write the inverted index of a segment's sparse vectors to a folder, for `SparsePostings.map`."""
    for name, array in invert_sparse(table).items():
        np.save(folder / f"{name}.npy", array)


def invert_sparse(table: pa.Table) -> dict[str, np.ndarray]:
    """Return the inverted index of a table's sparse vectors, for `SparsePostings`."""
    indices, values = (table.column(name).combine_chunks() for name in SPARSE_COLUMNS)
    sizes_N = pc.fill_null(pc.list_value_length(indices), 0).to_numpy(zero_copy_only=False)
    indices_P = pc.list_flatten(indices).to_numpy(zero_copy_only=False)
    values_P = pc.list_flatten(values).to_numpy(zero_copy_only=False)
    rows_P = np.repeat(np.arange(table.num_rows, dtype=np.int32), sizes_N)
    order_P = np.argsort(indices_P, kind="stable")
    keys_T, counts_T = np.unique(indices_P, return_counts=True)
    parts = {
        "keys_T": keys_T.astype(np.uint32),
        "starts_T": np.cumsum([0, *counts_T], dtype=np.int64),
        "rows_P": rows_P[order_P],
        "values_P": values_P[order_P].astype(np.float32),
    }
    for part in parts.values():
        part.setflags(write=False)  # as those that are mapped: for each kind of array, code is compiled apart
    return parts


def score_sparse(
    postings: SparsePostings,
    rows: int,
    indices_Q: np.ndarray,
    values_Q: np.ndarray,
    allowed_N: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that have any of the query's dimensions, and their inner products.

    Args:
        postings: of one segment.
        rows: rows of the segment.
        indices_Q: the query's dimensions, uint32.
        values_Q: its values, float32.
        allowed_N: bool; other rows are left out.

    Returns:
        rows_M int64, in no particular order, and scores_M float32, which may be negative.

    """
    from scannery.indexer.kernels import fused  # compiles on import: only where it is needed

    known_Q, numbers_T = postings.numbers(indices_Q)
    postings_count = int((postings.starts_T[numbers_T + 1] - postings.starts_T[numbers_T]).sum())
    # Zeros cost nothing until a page is written to, so few matches in a large segment stay cheap.
    scores_N, seen_N = np.zeros(rows, np.float64), np.zeros(rows, bool)
    rows_M = np.empty(min(rows, postings_count), np.int64)
    count = fused.add_products(
        postings.starts_T, postings.rows_P, postings.values_P, numbers_T, values_Q[known_Q].astype(np.float64),
        scores_N, seen_N, rows_M,
    )  # fmt: skip
    rows_M = rows_M[:count]
    if allowed_N is not None:
        rows_M = rows_M[allowed_N[rows_M]]
    return rows_M, scores_N[rows_M].astype(np.float32)


def sparse_value(value: object, *, field: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a sparse vector as indices (uint32, strictly ascending) and values (float32).

    Accepted are a mapping from index to weight (JSON has the indices as strings), and a mapping with the lists
    `indices` and `values`, in any order. Weights are finite and not 0; there are 1 to 65,536 of them.

    Raises:
        InvalidRecordError: it is something else; reason `sparse_vector`.

    """
    indices, values = _lists(value, field)
    try:
        numbers = np.array([int(index) for index in indices], np.int64)
        with np.errstate(over="ignore"):
            weights = np.array([float(value) for value in values], np.float64).astype(np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise _invalid(field, "must have whole numbers as indices and numbers as values") from error
    if len(numbers) != len(weights):
        raise _invalid(field, f"has {len(numbers)} indices and {len(values)} values")
    if not 1 <= len(numbers) <= MAX_SPARSE_ENTRIES:
        raise _invalid(field, f"must have 1 to {MAX_SPARSE_ENTRIES} entries, got {len(numbers)}")
    order = np.argsort(numbers, kind="stable")
    numbers, weights = numbers[order], weights[order]
    if numbers[0] < 0 or numbers[-1] >= 1 << 32:
        raise _invalid(field, "must have indices from 0 to 4294967295")
    if (np.diff(numbers) == 0).any():
        raise _invalid(field, "has an index twice")
    if not np.isfinite(weights).all() or not weights.all():
        raise _invalid(field, "must have values that are finite and not 0")
    return numbers.astype(np.uint32), weights


def _lists(value: object, field: str) -> tuple[Sequence[Any], Sequence[Any]]:
    if not isinstance(value, Mapping):
        raise _invalid(field, f"must be a mapping of indices to weights, got {type(value).__name__}")
    if value.keys() != {"indices", "values"}:
        return list(value.keys()), list(value.values())
    indices, values = value["indices"], value["values"]
    if not all(isinstance(part, (list, tuple, np.ndarray)) for part in (indices, values)):
        raise _invalid(field, "must have lists as `indices` and `values`")
    return indices, values


def _invalid(field: str, what: str) -> InvalidRecordError:
    return InvalidRecordError(f"{field}: {what}", reason="sparse_vector", field=field)

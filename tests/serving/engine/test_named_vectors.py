"""Searches by named vectors against brute force, over segments of ScaNN, exact ones and rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from scannery.client.request.calls import search
from scannery.indexer import MemorySegment, OpenIndex, Store, open_index, parse_spec
from scannery.runtime.deadline import Deadline
from scannery.serving.catalog.embedded_catalog import EmbeddedCatalog
from scannery.serving.encoding.query_encoder import EncoderPool
from scannery.serving.services.search import Service
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import search_pb2 as pb
from scannery.v1 import search_pb2_grpc
from tests.data import clustered, without_ids
from tests.named import named_table, publish_named
from tests.served import serving

ROWS = 1200
DIMENSIONS = {"": 8, "title": 6, "image": 6, "mood": 3}
DISTANCES = {"": "cosine", "title": "cosine", "image": "squared_l2", "mood": "dot"}
NAMES = list(DIMENSIONS)


@dataclass
class Rows:
    """What an index has: the vectors of each datapoint by name, None where it lacks one."""

    ids: list[str]
    vectors: dict[str, list[np.ndarray | None]]
    n: list[int]

    def scores(self, name: str, query_D: np.ndarray) -> dict[str, float]:
        found = {}
        for identifier, vector_D in zip(self.ids, self.vectors[name], strict=True):
            if vector_D is not None:
                found[identifier] = score_of(
                    DISTANCES[name], vector_D.astype(np.float64), query_D.astype(np.float64)
                )
        return found


def score_of(distance: str, vector_D: np.ndarray, query_D: np.ndarray) -> float:
    if distance == "squared_l2":
        return -float(np.square(vector_D - query_D).sum())
    if distance == "cosine":
        vector_D, query_D = (each / np.linalg.norm(each) for each in (vector_D, query_D))
    return float(vector_D @ query_D)


def made(seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    vectors: dict[str, list[np.ndarray | None]] = {}
    for number, (name, size) in enumerate(DIMENSIONS.items()):
        lacks = rng.random(ROWS) < 0.3
        all_ND = clustered(ROWS, size, seed=10 * seed + number)
        vectors[name] = [None if lack else vector for lack, vector in zip(lacks, all_ND, strict=True)]
    return Rows([f"d{row:04d}" for row in range(ROWS)], vectors, rng.integers(0, 100, ROWS).tolist())


SPEC = {
    "index": "multi",
    "source": {"id": "id", "vector": "v", "sparse_vector": "s"},
    "vectors": "optional",
    "attributes": {"n": "int"},
    "named_vectors": {
        name: {"dimensions": size, "distance": DISTANCES[name]} for name, size in DIMENSIONS.items() if name
    },
}
DEAD = [f"d{row:04d}" for row in range(0, ROWS, 9)]


def without(rows: Rows, ids: Sequence[str]) -> Rows:
    kept = [row for row, identifier in enumerate(rows.ids) if identifier not in set(ids)]
    vectors = {name: [values[row] for row in kept] for name, values in rows.vectors.items()}
    return Rows([rows.ids[row] for row in kept], vectors, [rows.n[row] for row in kept])


@dataclass
class Made:
    """An index, what it has, and how it is searched."""

    rows: Rows
    search: Callable[[pb.SearchRequest], pb.SearchResponse]
    exact: bool

    def hits(self, query: Any, vectors: Mapping[str, float] | None = None, **options: Any) -> list[pb.Hit]:
        return list(self.search(request(query, vectors, **options)).hits)


def request(
    query: Any, vectors: Mapping[str, float] | None = None, *, index: str = "multi", **options: Any
) -> pb.SearchRequest:
    made: pb.SearchRequest = search(index, query, **{"k": 10, **options}).request
    for name, weight in (vectors or {}).items():
        made.options.vectors.add(name=name, weight=weight)
    return made


def published(folder: Path, rows: Rows, *, exact: bool) -> Store:
    spec = parse_spec(
        SPEC | {"scann": {"exact_below_rows": 100_000 if exact else 1000}, "shards": 2 if exact else 1}
    )
    store = Store.open(folder / "store", create=True)
    sparse = {"sparse_indices": [[row % 50] for row in range(ROWS)], "sparse_values": [[1.0]] * ROWS}
    columns = {"n": rows.n, **sparse}
    known = named_table(spec, 8, rows.ids, rows.vectors).column_names
    table = named_table(spec, 8, rows.ids, rows.vectors, {k: v for k, v in columns.items() if k in known})
    named = {name: size for name, size in DIMENSIONS.items() if name}
    publish_named(store, spec, table, folder, dimensions=8, named=named, shards=2 if exact else 1)
    without_ids(store, "multi", DEAD)
    return store


@pytest.fixture(scope="module", params=["exact", "scann", "gRPC"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder, rows = tmp_path_factory.mktemp("multi"), made()
    published(folder, rows, exact=request.param == "exact")
    alive = without(rows, DEAD)
    if request.param == "gRPC":
        with serving(folder / "store") as server, grpc.insecure_channel(server.address) as channel:
            stub = search_pb2_grpc.SearchServiceStub(channel)
            yield Made(alive, lambda message: stub.Search(message, timeout=60), exact=False)
        return
    service = Service(EmbeddedCatalog.open(folder / "store"))
    yield Made(
        alive, lambda message: service.search(message, Deadline.after(60)), exact=request.param == "exact"
    )
    service.close()


def ranked(scores: Mapping[str, float]) -> list[str]:
    return sorted(scores, key=lambda name: (-scores[name], name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options", [{}, {"exact": True}, {"k": 2000}, {"k": 7, "offset": 5}, {"k": 5, "where": {"n": {"$lt": 4}}}]
)
def test_one_name_gives_the_nearest_datapoints_that_have_it(
    index: Made, name: str, options: dict[str, Any]
) -> None:
    query_D = clustered(1, DIMENSIONS[name], seed=77)[0]
    scores = index.rows.scores(name, query_D)
    if "where" in options:
        allowed = {identifier for identifier, n in zip(index.rows.ids, index.rows.n, strict=True) if n < 4}
        scores = {identifier: score for identifier, score in scores.items() if identifier in allowed}
    hits = index.hits(query_D, {name: 3.0}, **options)
    first = options.get("offset", 0)
    wanted = ranked(scores)[first : first + options.get("k", 10)]
    assert len(hits) == len(wanted)
    if index.exact or options.get("exact") or options.get("k") == 2000:
        assert [hit.datapoint.id for hit in hits] == wanted
    for hit in hits:
        assert hit.score == pytest.approx(scores[hit.datapoint.id], rel=1e-4, abs=1e-5)
        assert dict(hit.vector_scores) == ({name: hit.score} if name else {})

"""Searches by named vectors against brute force, over segments of ScaNN, exact ones and rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest

import scannery
from scannery.client.request.calls import search
from scannery.indexer import IndexSpec, MemorySegment, OpenIndex, Store, open_index, parse_spec
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.engine.search import PreparedQuery, answers_of
from scannery.serving.engine.segment_search import PreparedSearch
from scannery.serving.request.query import parse_query
from scannery.serving.services.search import Service
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import search_pb2 as pb
from scannery.v1 import search_pb2_grpc
from tests.data import clustered, without_ids
from tests.served import serving
from tests.serving.named_index import named_table, publish_named

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


def rows_table(rows: Rows, spec: IndexSpec) -> pa.Table:
    sparse: dict[str, Sequence[Any]] = {
        "_sparse_indices": [[row % 50] for row in range(ROWS)],
        "_sparse_values": [[1.0]] * ROWS,
    }
    return named_table(spec, 8, rows.ids, rows.vectors, {"n": rows.n, **sparse})


def published(folder: Path, rows: Rows, *, exact: bool) -> Store:
    spec = parse_spec(
        SPEC | {"scann": {"exact_below_rows": 100_000 if exact else 1000}, "shards": 2 if exact else 1}
    )
    store = Store.open(folder / "store", create=True)
    table = rows_table(rows, spec)
    named = {name: size for name, size in DIMENSIONS.items() if name}
    publish_named(store, spec, table, folder, dimensions=8, named=named, shards=2 if exact else 1)
    without_ids(store, "multi", DEAD)
    return store


def answered(snapshot: Snapshot, message: pb.SearchRequest) -> pb.SearchResponse:
    parsed = snapshot.parsed(message.options)
    query = parse_query(message.query, snapshot.manifest, parsed.options.vectors)
    prepared = snapshot.derived(parsed, parsed.options.of(query), PreparedSearch.of)
    asked = PreparedQuery(snapshot, prepared, query, QueryStats())
    return pb.SearchResponse.FromString(answers_of([asked], Deadline.after(60))[0])


def half_in_memory(folder: Path, rows: Rows) -> Snapshot:
    """Return a snapshot with every second datapoint in memory, in which rows have the unnamed vector, or lack it."""
    opened = open_index(published(folder, rows, exact=True), "multi")
    table, segments, alive = rows_table(rows, opened.spec), list(opened.segments), list(opened.alive)
    is_dead = np.isin(table.column("id").to_numpy(), DEAD)
    in_memory = np.arange(ROWS) % 2 == 0
    has_vector = table.column("embedding").is_valid().to_numpy()
    for place, segment in enumerate(segments):
        ids = segment.ids.to_numpy()
        mask_N = ~np.isin(ids, DEAD) & np.isin(ids, table.column("id").to_numpy()[~in_memory])
        mask_N.setflags(write=False)
        alive[place] = segment.allow(mask_N)
    for kind in (True, False):
        part = table.filter(pa.array(in_memory & ~is_dead & (has_vector == kind)))
        segments.append(MemorySegment.of(part, opened.spec))
        alive.append(None)
    return Snapshot(OpenIndex(opened.manifest, tuple(segments), tuple(alive)), EncoderPool())


@pytest.fixture(scope="module", params=["exact", "scann", "memory", "gRPC"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder, rows = tmp_path_factory.mktemp("multi"), made()
    published(folder, rows, exact=request.param == "exact")
    alive = without(rows, DEAD)
    if request.param == "gRPC":
        with serving(folder / "store") as server, grpc.insecure_channel(server.address) as channel:
            stub = search_pb2_grpc.SearchServiceStub(channel)
            yield Made(alive, lambda message: stub.Search(message, timeout=60), exact=False)
        return
    if request.param == "memory":
        snapshot = half_in_memory(tmp_path_factory.mktemp("memory"), rows)
        yield Made(alive, partial(answered, snapshot), exact=True)
        return
    service = Service(open_embedded_catalog(folder / "store"))
    yield Made(
        alive, lambda message: service.search(message, Deadline.after(60)), exact=request.param == "exact"
    )
    service.close()


def ranked(scores: Mapping[str, float]) -> list[str]:
    return sorted(scores, key=lambda name: (-scores[name], name))


@pytest.mark.system
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"exact": True},
        {"k": 2000},
        {"k": 7, "offset": 5},
        {"leaves": 3, "rescore": 20},
        {"target_recall": 0.6},
        {"k": 5, "where": {"n": {"$lt": 4}}},
    ],
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


def fused(
    rows: Rows,
    query: Mapping[str, np.ndarray],
    weights: Mapping[str, float],
    *,
    method: str = "weighted_score",
    below: int | None = None,
    others: Sequence[str] = (),
) -> dict[str, float]:
    """Return the fused scores of the best 200 rows of each name, as documented; of others as if they had no vector."""
    allowed = {i for i, n in zip(rows.ids, rows.n, strict=True) if below is None or n < below}
    everywhere = {name: rows.scores(name, query[name]) for name in weights}
    scores = {name: {i: s for i, s in own.items() if i in allowed} for name, own in everywhere.items()}
    candidates = {identifier for own in scores.values() for identifier in ranked(own)[:200]}
    total = dict.fromkeys(candidates, 0.0)
    for name, weight in weights.items():
        own = {i: scores[name][i] for i in candidates if i in scores[name]}
        order = ranked(own)
        if method == "reciprocal_rank":
            values = {i: 1 / (61 + rank) for rank, i in enumerate(order)}
        elif order:
            first, zero = own[order[0]], own[order[min(len(order), 200) - 1]]
            if below is not None and len(scores[name]) < 200:
                best = [everywhere[name][i] for i in ranked(everywhere[name])[:200]]
                zero = min(zero, first - (best[0] - best[-1]))
            values = {i: (score - zero) / (first - zero) for i, score in own.items()}
        else:
            values = {}
        least = min([0.0, *values.values()])
        for i in {*candidates, *others}:
            total[i] = total.get(i, 0.0) + weight / sum(weights.values()) * values.get(i, least)
    return total


@pytest.mark.system
def test_hybrid_search_adds_words_to_the_sum_of_the_vectors(index: Made) -> None:
    words = [i for i in index.rows.ids if int(i[1:]) % 50 == 3]
    query = scannery.Sparse({3: 1.0}, SIX_D)
    for alpha in (0.3, 0.8):
        hits = index.hits(query, TWO, k=400, mode="hybrid", alpha=alpha, exact=True)
        dense = fused(index.rows, dict.fromkeys(TWO, SIX_D), TWO)
        whole = fused(index.rows, dict.fromkeys(TWO, SIX_D), TWO, others=words)
        expected = {i: alpha * score + (1 - alpha) * (i in words) for i, score in whole.items()}
        assert len(hits) == 400
        for hit in hits[:200]:
            i = hit.datapoint.id
            assert hit.score == pytest.approx(expected[i], rel=1e-3, abs=1e-4)
            assert hit.HasField("dense_score") == (i in dense)
            assert hit.HasField("lexical_score") == (i in words)
            assert hit.dense_score == pytest.approx(dense.get(i, 0.0), rel=1e-3, abs=1e-4)
        assert [hit.datapoint.id for hit in hits[:50]] == ranked(expected)[:50]


SIX_D = clustered(1, 6, seed=78)[0]
TWO = {"title": 1.0, "image": 3.0}


@pytest.mark.system
@pytest.mark.parametrize("method", ["weighted_score", "reciprocal_rank"])
@pytest.mark.parametrize("below", [None, 50, 3])
def test_several_names_are_fused_by_the_exact_scores_of_all(
    index: Made, method: Any, below: int | None
) -> None:
    asked = request(SIX_D, TWO, k=20, mode="dense", where=None if below is None else {"n": {"$lt": below}})
    if method == "reciprocal_rank":
        asked.options.fusion.method = pb.FUSION_METHOD_RECIPROCAL_RANK
    hits = list(index.search(asked).hits)
    expected = fused(index.rows, dict.fromkeys(TWO, SIX_D), TWO, method=method, below=below)
    own = {name: index.rows.scores(name, SIX_D) for name in TWO}
    assert len(hits) == 20
    for hit in hits:
        known = {name: own[name][hit.datapoint.id] for name in TWO if hit.datapoint.id in own[name]}
        assert dict(hit.vector_scores) == pytest.approx(known, rel=1e-4, abs=1e-5)
        assert not hit.HasField("dense_score")
    wanted = ranked(expected)[:20]
    if index.exact or below == 3:
        assert [hit.datapoint.id for hit in hits] == wanted
        assert [hit.score for hit in hits] == pytest.approx([expected[i] for i in wanted], rel=1e-3, abs=1e-4)
    else:
        assert len({hit.datapoint.id for hit in hits} & set(wanted)) >= 16


def test_all_datapoints_with_any_of_the_vectors_are_found_and_pages_fit_together(index: Made) -> None:
    whole = [hit.datapoint.id for hit in index.hits(SIX_D, TWO, k=5000, exact=True)]
    having = set(index.rows.scores("title", SIX_D)) | set(index.rows.scores("image", SIX_D))
    assert len(whole) == len(set(whole))
    assert set(whole) == having
    for offset in (0, 150, 195, 790):
        page = index.hits(SIX_D, TWO, k=20, offset=offset, exact=True)
        assert [hit.datapoint.id for hit in page] == whole[offset : offset + 20]
    scores = [hit.score for hit in index.hits(SIX_D, TWO, k=1000, exact=True)]
    assert scores == sorted(scores, reverse=True)


def test_proportions_of_weights_count(index: Made) -> None:
    answers = [index.hits(SIX_D, weights) for weights in (TWO, {"title": 0.25, "image": 0.75})]
    assert answers[0] == answers[1]
    title = index.hits(SIX_D, {"title": 1e6, "image": 1e-6}, exact=True)
    alone = index.hits(SIX_D, {"title": 1.0}, exact=True)
    assert [hit.datapoint.id for hit in title] == [hit.datapoint.id for hit in alone]


@pytest.mark.system
def test_a_datapoint_stands_for_those_of_the_vectors_that_it_has(index: Made) -> None:
    rows = index.rows
    has = [[rows.vectors[name][row] is not None for name in TWO] for row in range(len(rows.ids))]
    both, title, neither = has.index([True, True]), has.index([True, False]), has.index([False, False])
    like = scannery.Like(rows.ids[both])
    vectors = {name: rows.vectors[name][both] for name in TWO}
    expected = fused(rows, vectors, TWO)  # type: ignore[arg-type]  # it has both
    del expected[rows.ids[both]]
    hits = index.hits(like, TWO, exact=True)
    assert [hit.datapoint.id for hit in hits] == ranked(expected)[:10]
    alone = index.hits(scannery.Like(rows.ids[title]), TWO, exact=True)
    vector_D = rows.vectors["title"][title]
    assert vector_D is not None
    scores = rows.scores("title", vector_D)
    del scores[rows.ids[title]]
    assert [hit.datapoint.id for hit in alone] == ranked(scores)[:10]
    with pytest.raises(Exception, match="none of the vectors 'title', 'image' can be searched"):
        index.hits(scannery.Like(rows.ids[neither]), TWO)
    with pytest.raises(Exception, match="has no vector 'title' to search by"):
        index.hits(scannery.Like(rows.ids[neither]), {"title": 1.0})

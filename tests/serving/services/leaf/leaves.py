"""Leaves of a cluster in this process, over one index, and a root that merges their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from scannery.indexer import CorpusCounts, CorpusStatistics, IndexSpec, ShardGroup, Store, parse_spec
from scannery.indexer.tuning.score_fusion import dense_scale, lexical_scale
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import leaf_catalog, server_catalog
from scannery.serving.contract import LEAF_SERVICE
from scannery.serving.engine.dense import ranges_of
from scannery.serving.engine.hybrid import DenseRankings, fuse, keys_in, keys_of
from scannery.serving.engine.lexical import Words, query_words
from scannery.serving.engine.query_vectors import AskedVectors, asked_vectors
from scannery.serving.engine.top_k import EMPTY, Ranking, by_score_and_id, concatenated
from scannery.serving.request.options import Options
from scannery.serving.request.query import WithSparse, parse_query
from scannery.serving.services.leaf.leaf_service import LeafService
from scannery.serving.services.search import Service
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import leaf_pb2 as pb
from scannery.v1 import search_pb2
from tests.data import clustered
from tests.serving.named_index import named_table, publish_named

SHARDS = 8
ROWS = 900
SIZES = {"": 12, "title": 8}
WORDS = ["volcano", "bread", "chess", "battery", "orchestra", "tax", "river", "copper", "lantern", "meadow"]
SPEC: IndexSpec = parse_spec(
    {
        "index": "notes",
        "source": {"id": "id", "vector": "vector", "text": "text", "sparse_vector": "sparse"},
        "vectors": "optional",
        "lexical": True,
        "shards": SHARDS,
        "attributes": {"year": "int", "topic": "string", "live": "bool", "rating": "float"},
        "dynamic": True,
        "named_vectors": {"title": {"dimensions": 8, "distance": "dot"}},
    }
)
DEADLINE_S = 60.0


def publish_notes(store: Store, folder: Path, *, rows: int = ROWS, seed: int = 0) -> None:
    """Publish an index of eight shards, with words, sparse vectors, attributes, and vectors that some rows lack."""
    rng = np.random.default_rng(seed)
    vectors: dict[str, list[np.ndarray | None]] = {}
    for number, (name, size) in enumerate(SIZES.items()):
        own_ND = clustered(rows, size, seed=10 * seed + number)
        own_ND[5::60] = own_ND[2]  # equal scores, in the order of their ids
        lacks = rng.random(rows) < 0.2
        vectors[name] = [None if lack else each for lack, each in zip(lacks, own_ND, strict=True)]
    columns: dict[str, Sequence[Any]] = {
        "text": [" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(rows)],
        "year": [int(year) if year > 2001 else None for year in rng.integers(2000, 2020, rows)],
        "topic": rng.choice(["ü", "b", "c"], rows).tolist(),
        "live": (rng.random(rows) < 0.5).tolist(),
        "rating": [float(each) / 2 for each in rng.integers(-3, 4, rows)],
        "_sparse_indices": [[row % 9, 100 + row % 7] for row in range(rows)],
        "_sparse_values": [[0.5 + row % 3, 1.0] for row in range(rows)],
    }
    table = named_table(SPEC, SIZES[""], [f"d{row:04d}" for row in range(rows)], vectors, columns)
    publish_named(
        store, SPEC, table, folder, dimensions=SIZES[""], named={"title": SIZES["title"]}, shards=SHARDS
    )


class Cluster:
    """A server of the whole index, and the leaves of G groups."""

    def __init__(self, store: Store, groups: int) -> None:
        self.whole = server_catalog(store)
        self.service = Service(self.whole)
        self.groups = [ShardGroup(number, groups) for number in range(groups)]
        self.catalogs = [leaf_catalog(store, group) for group in self.groups]
        self.leaves = [
            LeafService(catalog, group, load=lambda: (1, 16))
            for catalog, group in zip(self.catalogs, self.groups, strict=True)
        ]
        self.refresh()

    def refresh(self) -> None:
        for catalog in (self.whole, *self.catalogs):
            catalog.refresh()

    def close(self) -> None:
        for catalog in (self.whole, *self.catalogs):
            catalog.close()

    @property
    def snapshot(self) -> Snapshot:
        return self.whole.snapshot("notes")

    @property
    def at(self) -> pb.At:
        snapshot = self.snapshot
        manifest = snapshot.manifest
        return pb.At(
            index=manifest.index, index_id=manifest.index_id or "", version=manifest.version,
            sequence=snapshot.sequence,
        )  # fmt: skip

    def ask(self, method: str, request: Any) -> list[Any]:
        """Return the answer of each leaf, as it arrives on the wire."""
        deadline = Deadline.after(DEADLINE_S)
        return [leaf.call(f"/{LEAF_SERVICE}/{method}", request, deadline) for leaf in self.leaves]

    def statistics(self, terms: Sequence[str]) -> CorpusStatistics:
        """Return the statistics of all groups, made from their integers."""
        parts = self.ask("GetStatistics", pb.LeafStatisticsRequest(at=self.at, terms=terms))
        counts = [
            CorpusCounts(part.rows, part.length, dict(zip(terms, part.frequencies, strict=True)))
            for part in parts
        ]
        return CorpusStatistics.of(reduce(add, counts))


@contextmanager
def cluster_of(store: Store, groups: int) -> Iterator[Cluster]:
    """Open the leaves of a cluster; close them at the end."""
    cluster = Cluster(store, groups)
    try:
        yield cluster
    finally:
        cluster.close()


class Root:
    """One batch of queries over the leaves of a cluster, merged and fused here."""

    def __init__(
        self,
        cluster: Cluster,
        queries: Sequence[search_pb2.Query],
        options: search_pb2.SearchOptions,
        *,
        wanted: int,
        **extra: Any,
    ) -> None:
        self.cluster, self.snapshot = cluster, cluster.snapshot
        self.options: Options = self.snapshot.parsed(options).options
        manifest, mode = self.snapshot.manifest, self.options.mode
        parsed = [parse_query(query, manifest, self.options.vectors) for query in queries]
        paths = [f"queries[{number}]" for number in range(len(queries))]
        request = pb.LeafSearchRequest(
            at=cluster.at, options=options, queries=len(queries), wanted=wanted, **extra
        )
        self.asked: AskedVectors | None = None
        if mode != "lexical":
            self.asked = asked_vectors(
                self.snapshot, self.options.vectors, parsed, mode, Deadline.after(60), paths=paths
            )
            request.vectors.extend(_vectors(self.asked))
        if mode != "dense":
            found = query_words(
                self.snapshot, manifest, parsed, self.options, cluster.statistics, QueryStats(), paths=paths
            )
            request.words.extend(map(_words, found))
        self.request = request
        self.answers: list[pb.LeafSearchResponse] = cluster.ask("Search", request)

    def places(self, ids: Sequence[str]) -> np.ndarray:
        """Return (segment number, row) of datapoints in the snapshot of the whole index, int64 (H, 2)."""
        found = [self.snapshot.require(one, path="ids") for one in ids]
        return np.array(found, np.int64).reshape(-1, 2)

    def merged(self, rankings: Sequence[tuple[Sequence[str], pb.LeafRanking]], wanted: int) -> Ranking:
        """Return one ranking of those of all leaves, given with the ids that their places are of."""
        parts = []
        for ids, ranking in rankings:
            own = [ids[place] for place in np.frombuffer(ranking.places, "<u4").tolist()]
            numbers, rows = self.places(own).T
            parts.append(Ranking(numbers, rows, np.frombuffer(ranking.scores, "<f4")))
        whole = concatenated([EMPTY, *parts])
        return by_score_and_id(whole, self.snapshot.segments).within(0, wanted)

    def by_vector(self, query: int, place: int, wanted: int) -> Ranking:
        found = [answer.results[query] for answer in self.answers]
        return self.merged([(each.ids, each.by_vector[place]) for each in found], wanted)

    def by_words(self, query: int, wanted: int) -> Ranking:
        found = [answer.results[query] for answer in self.answers]
        return self.merged([(each.ids, each.by_words) for each in found], wanted)

    def fused(self, query: int, wanted: int) -> Ranking:
        """Return the fused ranking of a query, as a root makes it of the answers alone."""
        vectors = self.options.vectors
        rankings = [self.by_vector(query, place, wanted) for place in range(len(vectors))]
        keys_U = keys_in(rankings)
        dense = DenseRankings(
            rankings=rankings,
            weights=[choice.weight for choice in vectors],
            scales=[
                partial(dense_scale, least_range=self._range(query, place, len(rankings[place])))
                for place in range(len(vectors))
            ],
            keys_U=keys_U if len(vectors) > 1 else np.empty(0, np.int64),
            scores_US=self._scores(query, keys_U),
            columns=range(len(vectors)) if vectors.names else [],
            width=len(vectors.names),
        )
        if self.options.mode == "dense":
            return fuse(dense, None, self.options.fusion, self.snapshot.segments)
        bests = [answer.results[query].best_by_words for answer in self.answers]
        known = [
            best
            for best, answer in zip(bests, self.answers, strict=True)
            if answer.results[query].HasField("best_by_words")
        ]
        words = self.by_words(query, wanted)
        scale = partial(lexical_scale, least_one=max(known, default=-np.inf))
        return fuse(dense, words, self.options.fusion, self.snapshot.segments, words_scale=scale)

    def _scores(self, query: int, keys_U: np.ndarray) -> np.ndarray:
        width = len(self.options.vectors)
        if width == 1:
            return np.empty((0, 1), np.float32)
        scores_US = np.full((len(keys_U), width), np.nan, np.float32)
        for answer in self.answers:
            found = answer.results[query]
            numbers, rows = self.places(found.ids).T
            own = keys_of(Ranking(numbers, rows, np.zeros(len(rows), np.float32)))
            scores = np.frombuffer(found.scores, "<f4").reshape(-1, width)
            asked = np.isin(own, keys_U)
            scores_US[np.searchsorted(keys_U, own[asked])] = scores[asked]
        return scores_US

    def _range(self, query: int, place: int, rows: int) -> float:
        if not self.request.scales or rows >= 200:
            return 0.0
        parts = [np.frombuffer(answer.results[query].unfiltered[place], "<f4") for answer in self.answers]
        best_K = -np.sort(-np.concatenate(parts))[:200]
        return ranges_of(best_K[None])[0]


def _vectors(asked: AskedVectors) -> Iterator[pb.LeafVectors]:
    for place, vectors_QD in enumerate(asked.vectors):
        message = pb.LeafVectors()
        message.vectors.packed = vectors_QD.astype("<f4").tobytes()
        message.vectors.dimensions = vectors_QD.shape[1]
        if asked.numbers_QS is not None:
            message.queries.extend(np.flatnonzero(asked.numbers_QS[:, place] >= 0).tolist())
        yield message


def _words(words: Words) -> pb.LeafWords:
    if isinstance(words, WithSparse):
        message = pb.LeafWords()
        message.sparse_vector.indices.extend(words.indices_T.tolist())
        message.sparse_vector.values.extend(words.values_T.tolist())
        return message
    return pb.LeafWords(
        terms=words.weights, weights=words.weights.values(), average_length=words.average_length
    )

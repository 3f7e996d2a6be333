"""What leaves find, put together, is what a server of the whole index finds: ids and scores, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from scannery.runtime.retry import Deadline
from scannery.serving.engine.dense import Candidates
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.query import parse_query
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import OPERATOR_EQ, OPERATOR_GTE, Filter
from tests.serving.services.leaf.leaves import SIZES, WORDS, Cluster, Root

pytestmark = pytest.mark.system

RNG = np.random.default_rng(7)
MODES = {"dense": pb.MODE_DENSE, "lexical": pb.MODE_LEXICAL, "hybrid": pb.MODE_HYBRID}


def where(field: str, value: Any) -> Filter:
    made = Filter()
    made.condition.field = field
    made.condition.operator = OPERATOR_EQ if isinstance(value, str) else OPERATOR_GTE
    made.condition.values.add(**({"string_value": value} if isinstance(value, str) else {"int_value": value}))
    return made


FILTERS = {"none": None, "half": where("topic", "b"), "few": where("year", 2019)}


def options(
    mode: str, filter_name: str = "none", vectors: Sequence[str] = (), **more: Any
) -> pb.SearchOptions:
    made = pb.SearchOptions(mode=MODES[mode], k=20, exact=True, **more)
    if (node := FILTERS[filter_name]) is not None:
        made.where.CopyFrom(node)
    made.vectors.extend(pb.VectorChoice(name=name, weight=1 + len(name)) for name in vectors)
    return made


def query(*, size: int = SIZES[""], words: str = "", sparse: bool = False, vector: bool = True) -> pb.Query:
    made = pb.Query(words=words)
    if vector:
        made.vector.packed = RNG.normal(size=size).astype("<f4").tobytes()
    if sparse:
        made.sparse_vector.indices.extend([2, 5, 101, 104])
        made.sparse_vector.values.extend([0.3, 1.7, 0.9, 2.5])
    return made


def words() -> str:
    return " ".join(["Unknown", *RNG.choice(WORDS, RNG.integers(1, 6))])


def whole(cluster: Cluster, queries: Sequence[pb.Query], asked: pb.SearchOptions) -> Candidates:
    """Return the candidates of a server of the whole index."""
    snapshot = cluster.snapshot
    parsed = snapshot.parsed(asked)
    own = [parse_query(each, snapshot.manifest, parsed.options.vectors) for each in queries]
    paths = [f"queries[{number}]" for number in range(len(own))]
    batch = QueryBatch(snapshot, own, paths, Deadline.after(60), QueryStats())
    return Candidates(snapshot.derived(parsed, parsed.options, PreparedSearch.of), batch)


def same(found: Ranking, expected: Ranking) -> None:
    assert found.segments.tolist() == expected.segments.tolist()
    assert found.rows.tolist() == expected.rows.tolist()
    assert found.scores.tobytes() == expected.scores.tobytes()


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("wanted", [1, 37, 2000])
def test_rankings_by_the_vector(cluster: Cluster, name: str, wanted: int) -> None:
    queries = [query() for _ in range(7)]
    asked = options("dense", name, [""])
    root, single = Root(cluster, queries, asked, wanted=wanted), whole(cluster, queries, asked)
    assert sum(answer.allowed for answer in root.answers) == single.total
    for number, expected in enumerate(single.best(np.arange(7), wanted)):
        assert len(expected) == min(wanted, single.total)
        same(root.by_vector(number, 0, wanted), expected)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("wanted", [1, 37, 2000])
def test_rankings_by_words(cluster: Cluster, name: str, wanted: int) -> None:
    queries = [query(words=words(), vector=False) for _ in range(7)]
    queries.append(query(sparse=True, vector=False))
    asked = options("lexical", name)
    root, single = Root(cluster, queries, asked, wanted=wanted), whole(cluster, queries, asked)
    assert sum(answer.allowed for answer in root.answers) == single.total
    for number, expected in enumerate(single.best(np.arange(8), wanted)):
        assert len(expected)
        same(root.by_words(number, wanted), expected)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("vector", SIZES)
@pytest.mark.parametrize("sparse", [False, True])
def test_hybrid_search(cluster: Cluster, name: str, vector: str, sparse: bool) -> None:
    size = SIZES[vector]
    queries = [query(size=size, words="" if sparse else words(), sparse=sparse) for _ in range(5)]
    asked = options("hybrid", name, [vector])
    root = Root(cluster, queries, asked, wanted=200, scales=name != "none")
    for number, expected in enumerate(whole(cluster, queries, asked).best(np.arange(5), 20)):
        same(root.fused(number, 200), expected)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_several_vectors(cluster: Cluster, name: str, mode: str) -> None:
    # Queries by id have the vectors of their datapoint, and its words.
    snapshot = cluster.snapshot
    ids = [f"d{row:04d}" for row in range(1, 200, 3) if snapshot.find(f"d{row:04d}")]
    both = [each for each in ids if all(vector_of(cluster, each, vector) for vector in SIZES)][:5]
    queries = [pb.Query(id=each) for each in both]
    asked = options(mode, name, list(SIZES))
    root = Root(cluster, queries, asked, wanted=200, scales=name != "none")
    for number, expected in enumerate(whole(cluster, queries, asked).best(np.arange(5), 20)):
        found = root.fused(number, 200)
        same(found, expected)
        assert found.by_vector is not None and expected.by_vector is not None
        assert found.by_vector.tobytes() == expected.by_vector.tobytes()


def vector_of(cluster: Cluster, identifier: str, name: str) -> bool:
    snapshot = cluster.snapshot
    return snapshot.space(name).vector_of(*snapshot.require(identifier, path="id")) is not None

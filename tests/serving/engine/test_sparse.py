"""Sparse vectors of users, from the input to the hits, against brute force."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import Blend, FailedPreconditionError, InvalidArgumentError, Like, Sparse
from scannery.indexer import InvalidRecordError, Store, parse_spec, sparse_value
from scannery.live.maintenance.seal import seal
from scannery.serving.embedded import open_embedded
from scannery.v1 import search_pb2
from tests.data import clustered, datapoints
from tests.served import publish_version

ROWS = 300
RNG = random.Random(5)
VECTORS_ND = clustered(ROWS, 8, seed=2)


def some_weights(rng: random.Random, most: int = 12) -> dict[int, float]:
    # The largest dimension there can be, and negative weights, too.
    dimensions = [2**32 - 1, *range(40)]
    return {
        rng.choice(dimensions): float(np.float32(rng.uniform(-1, 3))) for _ in range(rng.randrange(1, most))
    }


STORED = [some_weights(RNG) if row % 9 else None for row in range(ROWS)]
COLUMNS: dict[str, list[Any]] = {
    "_sparse_indices": [None if weights is None else sorted(weights) for weights in STORED],
    "_sparse_values": [
        None if weights is None else [weights[index] for index in sorted(weights)] for weights in STORED
    ],
    "text": [f"word{row % 5}" for row in range(ROWS)],
    "even": [row % 2 == 0 for row in range(ROWS)],
}


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, scannery.Index]:
    folder = tmp_path_factory.mktemp("sparse")
    store = Store.open(folder / "store", create=True)
    for name, shards, sparse in (("one", 1, "weights"), ("eight", 8, "weights"), ("none", 1, None)):
        spec = parse_spec(
            {
                "index": name,
                "source": {"vector": "v", "text": "text", "sparse_vector": sparse},
                "attributes": {"even": "bool"},
                "lexical": True,
            }
        )
        publish_version(store, spec, datapoints(spec, VECTORS_ND, columns=COLUMNS), folder, shards=shards)
    client = scannery.connect(folder / "store")
    return {name: client.index(name) for name in ("one", "eight", "none")}


def expected(query: dict[int, float], *, even: bool = False) -> dict[str, float]:
    scores = {}
    for row, weights in enumerate(STORED):
        if weights and query.keys() & weights.keys() and (row % 2 == 0 or not even):
            scores[f"d{row}"] = sum(query[index] * weights[index] for index in query.keys() & weights.keys())
    return scores


@pytest.mark.system
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["one", "eight"])
def test_hits_are_the_best_inner_products(indexes: dict[str, scannery.Index], name: str, seed: int) -> None:
    query = some_weights(random.Random(seed))
    for where in (None, {"even": True}):
        right = expected(query, even=where is not None)
        everything = indexes[name].search(Sparse(query), k=ROWS, mode="lexical", where=where)
        assert {hit.id: hit.score for hit in everything} == pytest.approx(right, rel=1e-5, abs=1e-6)
        best = indexes[name].search(Sparse(query), k=10, mode="lexical", where=where)
        assert [hit.score for hit in best] == pytest.approx(
            sorted(right.values())[::-1][:10], rel=1e-5, abs=1e-6
        )
    assert not indexes[name].search(Sparse({4_000_000: 1.0}), mode="lexical")


@pytest.mark.system
def test_hybrid_fuses_them_with_the_vector(indexes: dict[str, scannery.Index]) -> None:
    query, vector = {3: 1.0, 5: 0.5}, VECTORS_ND[0]
    for asked in (vector, Like("d0"), Blend([vector, Like("d1")])):
        hits = indexes["eight"].search(Sparse(query, asked), k=50, mode="hybrid", alpha=0.3)
        lexical = expected(query)
        assert any(hit.lexical_score is not None for hit in hits)
        for hit in hits:
            if hit.lexical_score is not None:
                assert hit.lexical_score == pytest.approx(lexical[hit.id], rel=1e-5)
    only_lexical = indexes["one"].search(Sparse(query, vector), k=50, mode="lexical")
    assert only_lexical == indexes["one"].search(Sparse(query), k=50, mode="lexical")


def test_words_and_weights_stand_beside_each_other_in_a_batch(indexes: dict[str, scannery.Index]) -> None:
    index = indexes["eight"]
    sparse, words = index.search_many([Sparse({3: 1.0}), "word3"], k=20, mode="lexical")
    assert sparse == index.search(Sparse({3: 1.0}), k=20, mode="lexical")
    assert words == index.search("word3", k=20, mode="lexical")


@pytest.mark.system
@pytest.mark.parametrize(("query", "mode", "field", "message"), [
    (Sparse({}), "lexical", "query.sparse_vector", "must have 1 to 65536 entries, got 0"),
    (Sparse(dict.fromkeys(range(65537), 1.0)), "lexical", "query.sparse_vector", "1 to 65536 entries, got 65537"),
    (Sparse({-1: 1.0}), "lexical", "query.sparse_vector", "must have dimensions from 0 to 4294967295"),
    (Sparse({2**32: 1.0}), "lexical", "query.sparse_vector", "must have dimensions from 0 to 4294967295"),
    (Sparse({1: 0.0}), "lexical", "query.sparse_vector", "finite and not 0"),
    (Sparse({1: 1e300}), "lexical", "query.sparse_vector", "finite and not 0"),
    (Sparse({1: float("nan")}), "lexical", "query.sparse_vector", "must be finite"),
    (Sparse({1: 1.0}), "dense", "query.sparse_vector", "is for lexical and hybrid search"),
    (Sparse({1: 1.0}), "hybrid", "query", "needs a text, a vector or an id besides"),
    (Blend([Sparse({1: 1.0})]), "lexical", "query.group.queries[0].sparse_vector", "cannot be part of a group"),
])  # fmt: skip
def test_bad_sparse_queries_name_what_is_wrong(
    indexes: dict[str, scannery.Index], query: Any, mode: Any, field: str, message: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        indexes["one"].search(query, mode=mode)
    assert caught.value.field == field
    assert message in caught.value.message


@pytest.mark.system
def test_an_index_without_sparse_vectors_says_so(indexes: dict[str, scannery.Index]) -> None:
    with pytest.raises(FailedPreconditionError, match="index 'none' has no sparse vectors; build it with"):
        indexes["none"].search(Sparse({1: 1.0}), mode="lexical")


@pytest.mark.parametrize(
    ("value", "indices", "values"),
    [
        ({"7": 0.5, "3": 1}, [3, 7], [1, 0.5]),
        ({7: -0.5}, [7], [-0.5]),
        ({"indices": [9, 2], "values": [1, 2]}, [2, 9], [2, 1]),
        ({"indices": np.array([9]), "values": np.array([1.5])}, [9], [1.5]),
    ],
)
def test_values_of_records(value: Any, indices: list[int], values: list[float]) -> None:
    found = sparse_value(value, field="f")
    assert [part.tolist() for part in found] == [indices, values]
    assert [part.dtype for part in found] == [np.uint32, np.float32]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "must be a mapping of indices to weights, got list"),
        ({"indices": [1], "values": [1, 2]}, "has 1 indices and 2 values"),
        ({"indices": [1, 1], "values": [1, 2]}, "has an index twice"),
        ({"indices": "12", "values": [1, 2]}, "must have lists as `indices` and `values`"),
        ({"a": 1}, "must have whole numbers as indices"),
        ({"1": "x"}, "and numbers as values"),
        ({"1": None}, "and numbers as values"),
        ({}, "must have 1 to 65536 entries, got 0"),
        ({"-1": 1}, "must have indices from 0 to 4294967295"),
        ({"1": float("inf")}, "must have values that are finite and not 0"),
    ],
)
def test_wrong_values_of_records(value: Any, message: str) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        sparse_value(value, field="f")
    assert caught.value.reason == "sparse_vector"
    assert message in caught.value.message


@pytest.mark.system
def test_a_build_keeps_them_and_a_bad_one_costs_only_its_record(tmp_path: Path) -> None:
    from scannery.pipelines import build

    records = [
        {"id": "a", "v": [1, 0], "w": {"7": 0.5}},
        {"id": "b", "v": [0, 1], "w": None},
        {"id": "c", "v": [1, 1], "w": {"7": 0}},
        {"id": "d", "v": [1, 2], "w": {"indices": [9, 7], "values": [2, 1]}},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, records)))
    spec = parse_spec({"index": "built", "source": {"vector": "v", "sparse_vector": "w"}})
    report = build(spec, [str(tmp_path / "in.jsonl")], str(tmp_path / "store"), max_dead_letters=1)
    assert report.dead == 1
    index = scannery.connect(tmp_path / "store").index("built")
    hits = index.search(Sparse({7: 2.0, 9: 1.0}), mode="lexical")
    assert [(hit.id, hit.score) for hit in hits] == [("d", 4.0), ("a", 1.0)]


@pytest.mark.system
def test_live_rows_have_them_too(tmp_path: Path) -> None:
    spec = parse_spec({"index": "live", "source": {"vector": "v", "sparse_vector": "w"}, "shards": 2})
    store = Store.open(tmp_path / "store", create=True)
    columns = {name: COLUMNS[name] for name in ("_sparse_indices", "_sparse_values")}
    publish_version(store, spec, datapoints(spec, VECTORS_ND, columns=columns), tmp_path, shards=2)
    with scannery.connect(tmp_path / "store") as client:
        index = client.index("live")
        right = expected({3: 1.0, 5: -0.5})
        index.upsert(
            [
                {"id": "new", "vector": VECTORS_ND[1], "sparse_vector": {3: 2.0, 5: 1.0}},
                {"id": "d0", "vector": VECTORS_ND[0]},
                {"id": "d1", "vector": VECTORS_ND[1], "sparse_vector": {"3": 1.5}},  # type: ignore[dict-item]  # as JSON gives it
            ]
        )
        right = {**right, "new": 1.5, "d1": 1.5}
        right.pop("d0", None)

        def check() -> None:
            hits = index.search(Sparse({3: 1.0, 5: -0.5}), k=ROWS + 1, mode="lexical")
            assert {hit.id: hit.score for hit in hits} == pytest.approx(right, rel=1e-5, abs=1e-6)

        check()
        index.update([{"id": "new", "title": "kept"}])
        check()
        for change in ({"3": float("inf")}, {3: 0.0}, {}, [3]):
            with pytest.raises(InvalidArgumentError) as caught:
                index.upsert([{"id": "bad", "vector": VECTORS_ND[0], "sparse_vector": change}])  # type: ignore[typeddict-item]
            assert caught.value.field == "upserts[0].datapoint.sparse_vector"
    assert seal(store, "live") is not None
    with scannery.connect(tmp_path / "store") as client:
        index = client.index("live")
        assert index.stats().memory_rows == 0
        check()


@pytest.mark.system
def test_live_rows_of_an_index_without_them_may_not(indexes: dict[str, scannery.Index]) -> None:
    with pytest.raises(InvalidArgumentError, match="build it with `source.sparse_vector`") as caught:
        indexes["none"].upsert([{"id": "a", "vector": VECTORS_ND[0], "sparse_vector": {1: 1.0}}])
    assert caught.value.field == "upserts[0].datapoint.sparse_vector"


@pytest.mark.system
def test_they_come_back_with_the_vectors(tmp_path: Path) -> None:
    spec = parse_spec({"index": "back", "source": {"vector": "v", "sparse_vector": "w"}})
    store = Store.open(tmp_path / "store", create=True)
    columns = {name: COLUMNS[name] for name in ("_sparse_indices", "_sparse_values")}
    publish_version(store, spec, datapoints(spec, VECTORS_ND, columns=columns), tmp_path)
    ids = [f"d{row}" for row in (0, 1, 9, 200)]
    with closing(open_embedded(tmp_path / "store")) as engine:
        for wanted in (True, False):
            request = search_pb2.GetRequest(index="back", ids=ids, return_vector=wanted)
            answer = engine.call("/scannery.v1.SearchService/Get", request, 30.0)
            assert isinstance(answer, search_pb2.GetResponse)
            found = {
                point.id: dict(zip(point.sparse_vector.indices, point.sparse_vector.values, strict=True))
                for point in answer.datapoints
            }
            assert found == {name: (STORED[int(name[1:])] or {}) if wanted else {} for name in ids}

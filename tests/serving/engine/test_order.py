"""The order of hits is total: by score, then by id, whatever k, offset, batch or way a query takes.

Most rows have an equal: small integers, and vectors that stand many times. Ids are in no order of the rows.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import Blend, Like, Sparse
from scannery.indexer import Store, parse_spec
from tests.data import datapoints
from tests.served import publish_version, serving

pytestmark = pytest.mark.system

ROWS, DIMENSIONS = 2600, 6
NAMES = [f"n{number:04}" for number in range(ROWS)]
random.Random(1).shuffle(NAMES)


def rows_of(
    distance: str, *, lexical: bool = True, shards: int = 1, scann: int | None = None, index: str
) -> Any:
    spec = parse_spec(
        {
            "index": index,
            "source": {"vector": "v", "text": "text", "sparse_vector": "s"},
            "attributes": {"part": "int", "show": "string"},
            "distance": distance,
            "lexical": lexical,
            "shards": shards,
            **({"scann": {"exact_below_rows": scann}} if scann else {}),
        }
    )
    rng = np.random.default_rng(3)
    vectors_ND = rng.integers(0, 2, (ROWS, DIMENSIONS)).astype(np.float32)
    vectors_ND[:, 0] = 1
    if scann:  # which finds rows of equal scores by their equal vectors
        vectors_ND = rng.standard_normal((32, DIMENSIONS)).astype(np.float32)[rng.integers(0, 32, ROWS)]
    columns: dict[str, list[Any]] = {
        "text": [("word " * (1 + row % 2)) + ("other" if row % 3 else "") for row in range(ROWS)],
        "part": [row % 7 for row in range(ROWS)],
        "show": [f"show{row % 5}" for row in range(ROWS)],
        "_sparse_indices": [[1, 2] if row % 2 else [1] for row in range(ROWS)],
        "_sparse_values": [[1.0, float(row % 3)] if row % 2 else [1.0] for row in range(ROWS)],
    }
    return spec, datapoints(spec, vectors_ND, ids=NAMES, columns=columns)


def store_of(folder: Path) -> Path:
    store = Store.open(folder / "store", create=True)
    for index, distance, shards, scann in (
        ("flat", "cosine", 1, None),
        ("dots", "dot", 1, None),
        ("shards", "squared_l2", 3, None),
        ("tree", "dot", 1, 1000),
        ("forest", "cosine", 2, 1000),
    ):
        spec, table = rows_of(distance, shards=shards, scann=scann, index=index)
        publish_version(store, spec, table, folder, shards=shards)
    return folder / "store"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_of(tmp_path_factory.mktemp("order"))


@pytest.fixture(scope="module")
def client(store: Path) -> Any:
    with scannery.connect(store) as client:
        yield client


VECTOR = np.array([1, 1, 0, 1, 0, 0], np.float32)
ASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dense": (VECTOR, {}),
    "exact": (VECTOR, {"exact": True}),
    "id": (Like(NAMES[5]), {}),
    "blend": (Blend([VECTOR, Like(NAMES[9])], weights=[1, 0.5]), {}),
    "filter": (VECTOR, {"where": {"part": {"$lt": 4}}}),
    "most": (VECTOR, {"where": {"part": {"$lt": 6}}}),
    "rare": (VECTOR, {"where": {"part": 3, "show": "show1"}}),
    "crowded": (VECTOR, {"max_per_group": 15, "group_by": "show"}),
    "lexical": ("word", {"mode": "lexical"}),
    "sparse": (Sparse({1: 1.0, 2: 0.5}), {"mode": "lexical"}),
    "hybrid": (Sparse({1: 1.0, 2: 0.5}, query=VECTOR), {"mode": "hybrid"}),
    "weighted": (Sparse({1: 1.0, 2: 0.5}, query=VECTOR), {"mode": "hybrid", "fusion": "weighted_score"}),
}
INDEXES = ["flat", "dots", "shards", "tree", "forest"]
CASES = list(itertools.product(INDEXES, ASKS))
SURE = {"leaves": 1000, "rescore": 200}
"""Which vectors are proposed is a matter of recall; the order of those is what is looked at here."""


def ask_of(index: str, ask: str) -> tuple[Any, dict[str, Any]]:
    query, options = ASKS[ask]
    proposed = index in ("tree", "forest") and "mode" not in options and "exact" not in options
    return query, {**options, **SURE} if proposed else options


def found(hits: Any) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in hits]


def check_order(hits: list[tuple[str, float]]) -> None:
    assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))
    assert len({name for name, _ in hits}) == len(hits)


@pytest.mark.system
@pytest.mark.parametrize(("index", "ask"), CASES)
def test_pages_and_k_are_parts_of_one_list(client: Any, index: str, ask: str) -> None:
    query, options = ask_of(index, ask)
    searched = client.index(index)
    whole = found(searched.search(query, 60, **options))
    check_order(whole)
    assert len(whole) >= 20
    for k in (1, 2, 10, 33):
        assert found(searched.search(query, k, **options)) == whole[:k]
    pages = [found(searched.search(query, 10, offset=offset, **options)) for offset in range(0, 60, 10)]
    assert list(itertools.chain(*pages)) == whole


@pytest.mark.parametrize(("index", "ask"), CASES)
def test_a_batch_has_the_answers_of_single_queries(client: Any, index: str, ask: str) -> None:
    query, options = ask_of(index, ask)
    searched = client.index(index)
    whole = found(searched.search(query, 25, **options))
    for count in (2, 7, 8, 30):
        for hits in searched.search_many([query] * count, 25, **options):
            assert found(hits) == whole


@pytest.mark.system
def test_servers_answer_as_the_embedded_engine_does(client: Any, store: Path) -> None:
    with serving(store) as server, scannery.connect(server.address) as remote:
        for index, ask in CASES:
            query, options = ask_of(index, ask)
            expected = found(client.index(index).search(query, 25, **options))
            # The first goes over gRPC, and then, where it can, without.
            for _ in range(3):
                assert found(remote.index(index).search(query, 25, **options)) == expected


@pytest.mark.system
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("index", ["flat", "shards"])
def test_new_rows_take_their_places_among_the_old(
    store: Path, tmp_path: Path, index: str, exact: bool
) -> None:
    from tests.served import copied

    with scannery.connect(copied(store, tmp_path)) as client:
        searched = client.index(index)
        for number in range(0, 40, 2):
            name = f"n{number:04}x"
            searched.upsert([{"id": name, "vector": VECTOR, "text": "word"}])
        searched.delete([NAMES[7], "n0004x"])
        whole = found(searched.search(VECTOR, 60, exact=exact))
        check_order(whole)
        names = [name for name, score in whole if score == whole[0][1]]
        assert any(name.endswith("x") for name in names)
        assert "n0004x" not in names
        pages = [found(searched.search(VECTOR, 10, offset=offset)) for offset in range(0, 60, 10)]
        assert list(itertools.chain(*pages)) == whole


@pytest.mark.system
def test_of_any_number_of_equal_vectors_all_are_found_in_order(tmp_path: Path) -> None:
    """More than ScaNN proposes: it knows no ids, and of equal rows it takes any."""
    rows, equal = 4000, 1500
    spec = parse_spec(
        {"index": "twins", "source": {"vector": "v"}, "shards": 1, "attributes": {"part": "int"},
         "scann": {"exact_below_rows": 1000}}
    )  # fmt: skip
    vectors_ND = np.random.default_rng(0).standard_normal((rows, 16)).astype(np.float32)
    places = np.random.default_rng(1).permutation(rows)[:equal]
    vectors_ND[places] = vectors_ND[places[0]]
    names = [f"n{number:05}" for number in np.random.default_rng(2).permutation(rows)]
    table = datapoints(spec, vectors_ND, ids=names, columns={"part": [row % 10 for row in range(rows)]})
    publish_version(Store.open(tmp_path / "store", create=True), spec, table, tmp_path)
    with scannery.connect(tmp_path / "store") as client:
        index = client.index("twins")
        for where, parts in ((None, 10), ({"part": {"$lt": 9}}, 9), ({"part": {"$lt": 3}}, 3)):
            expected = sorted(names[place] for place in places if place % 10 < parts)
            for query in (vectors_ND[places[0]], vectors_ND[places[0]] + 0.01):
                for k, offset in ((1, 0), (10, 0), (60, 0), (10, 50), (10, 300)):
                    hits = index.search(query, k, offset=offset, where=where)
                    assert [hit.id for hit in hits] == expected[offset : offset + k]
                    [many, _] = index.search_many([query, query], k, offset=offset, where=where)
                    assert [hit.id for hit in many] == expected[offset : offset + k]

"""Several queries as one rank by the weighted sum of their scores, in every distance and mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import scannery
from scannery import Blend, Examples, InvalidArgumentError, Like, NotFoundError
from scannery.indexer import Store, parse_spec, unit_length
from tests.data import clustered, datapoints
from tests.served import publish_version

ROWS, DIMENSIONS = 300, 8
VECTORS_ND = clustered(ROWS, DIMENSIONS, seed=4)
WORDS = ["sea", "salt", "ship", "sail", "storm"]
TEXTS = [" ".join(np.random.default_rng(row).choice(WORDS, 4)) for row in range(ROWS)]
DISTANCES = ("cosine", "dot", "squared_l2")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> scannery.Client:
    folder = tmp_path_factory.mktemp("blends")
    store = Store.open(folder / "store", create=True)
    for distance in DISTANCES:
        spec = parse_spec(
            {
                "index": distance,
                "source": {"vector": "v", "text": "text"},
                "distance": distance,
                "lexical": {"language": "none"},
            }
        )
        publish_version(store, spec, datapoints(spec, VECTORS_ND, columns={"text": TEXTS}), folder, shards=2)
    return scannery.connect(folder / "store")


def scores(distance: str, query_D: np.ndarray) -> np.ndarray:
    if distance == "squared_l2":
        return -np.square(VECTORS_ND - query_D).sum(axis=1)
    vectors_ND = unit_length(VECTORS_ND) if distance == "cosine" else VECTORS_ND
    return vectors_ND @ (unit_length(query_D[None])[0] if distance == "cosine" else query_D)


@pytest.mark.system
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("weights", [None, [1, 0.5, 2], [1, -0.4, 0.2]])
def test_vectors_and_ids_rank_by_the_weighted_sum_of_scores(
    client: scannery.Client, distance: str, weights: list[float] | None
) -> None:
    one, other = clustered(2, DIMENSIONS, seed=8)
    hits = client.index(distance).search(Blend([one, other, Like("d7")], weights), k=20)
    parts = [scores(distance, query) for query in (one, other, VECTORS_ND[7])]
    total_N = sum(weight * part for weight, part in zip(weights or [1, 1, 1], parts, strict=True))
    order = [row for row in np.argsort(-total_N, kind="stable").tolist() if row != 7][:20]
    assert [hit.id for hit in hits] == [f"d{row}" for row in order]
    if distance == "dot":
        mean_N = total_N / np.abs(weights or [1, 1, 1]).sum()
        assert [hit.score for hit in hits] == pytest.approx(mean_N[order].tolist(), rel=1e-4)


@pytest.mark.system
def test_words_count_by_weight(client: scannery.Client) -> None:
    index = client.index("cosine")

    def found(query: Any) -> dict[str, float]:
        return {hit.id: hit.score for hit in index.search(query, k=ROWS, mode="lexical")}

    salt, ship = found("salt sea"), found("ship")
    blended = found(Blend(["salt sea", "ship"], [3, 1]))
    expected = {row: (3 * salt.get(row, 0) + ship.get(row, 0)) / 4 for row in {*salt, *ship}}
    assert blended == pytest.approx(expected, rel=1e-5)
    hybrid = index.search(Blend([Like("d1"), Like("d2")]), k=10, mode="hybrid")
    assert len(hybrid) == 10
    assert not {"d1", "d2"} & {hit.id for hit in hybrid}


@pytest.mark.system
def test_blends_stand_beside_other_queries_in_a_batch(client: scannery.Client) -> None:
    index, vector = client.index("dot"), VECTORS_ND[3]
    many = index.search_many([vector, Blend([vector]), Blend([Like("d3")]), Like("d3")], k=5)
    assert many[0] == many[1]
    assert many[2] == many[3]
    assert "d3" not in {hit.id for hit in many[3]}


@pytest.mark.system
@pytest.mark.parametrize(("distance", "blend", "field", "message"), [
    ("dot", Blend([]), "query.group.queries", "must have 1 to 64 items, got 0"),
    ("dot", Blend([VECTORS_ND[0]] * 65), "query.group.queries", "must have 1 to 64 items, got 65"),
    ("dot", Blend([VECTORS_ND[0]], [1, 2]), "query.group.weights", "one for each of 1 queries, got 2"),
    ("dot", Blend([VECTORS_ND[0]], [0]), "query.group.weights", "must not all be 0"),
    ("dot", Blend([VECTORS_ND[0]], [1e9]), r"query.group.weights[0]", "must be within ±1e+06, got 1e+09"),
    ("dot", Blend([VECTORS_ND[0]], [float("nan")]), r"query.group.weights[0]", "must be finite"),
    ("dot", Blend([[1.0, 2.0]]), r"query.group.queries[0]", "must have 8 dimensions, got 2"),
    ("dot", Blend([Blend([VECTORS_ND[0]])]), r"query.group.queries[0]", "must not be a group itself"),
    ("cosine", Blend([VECTORS_ND[0], VECTORS_ND[0] * 2], [1, -1]), "query.group", "cancel each other out"),
    ("squared_l2", Blend([VECTORS_ND[0]], [-1]), "query.group.weights", "must have a sum above 0"),
    ("squared_l2", Blend([np.full(DIMENSIONS, 1e15), np.full(DIMENSIONS, -1e15)], [1, -0.99999994]), "query.group",
     "its weights make a vector with components of 3.36e+22; must be finite and within ±1e+15"),
])  # fmt: skip
def test_bad_blends_name_what_is_wrong(
    client: scannery.Client, distance: str, blend: Blend, field: str, message: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        client.index(distance).search(blend)
    assert caught.value.field == field
    assert message in caught.value.message


def test_other_errors_name_the_member(client: scannery.Client) -> None:
    index = client.index("cosine")
    with pytest.raises(
        NotFoundError, match=r"query.group.queries\[1\]: index 'cosine' has no datapoint 'nobody'"
    ):
        index.search(Blend([Like("d1"), Like("nobody")]))
    with pytest.raises(InvalidArgumentError, match=r"must be above 0 for lexical search, got -1"):
        index.search(Blend(["sea", "salt"], [1, -1]), mode="lexical")
    with pytest.raises(InvalidArgumentError, match=r"query.group.queries\[1\]: lexical search needs a text"):
        index.search(Blend(["sea", VECTORS_ND[0]]), mode="lexical")


@pytest.mark.parametrize("distance", DISTANCES)
def test_blends_of_the_largest_vectors_have_finite_scores_alone_and_in_batches(
    client: scannery.Client, distance: str
) -> None:
    index = client.index(distance)
    largest = np.full(DIMENSIONS, 1e15)
    blend = Blend([largest, VECTORS_ND[3]], [1, 0.5])
    alone = index.search(blend, k=20)
    assert len(alone) == 20
    assert np.isfinite([hit.score for hit in alone]).all()
    for hits in index.search_many([blend] * 9, k=20):
        assert hits == alone


@pytest.mark.parametrize("distance", DISTANCES)
def test_examples_are_a_blend(client: scannery.Client, distance: str) -> None:
    index = client.index(distance)
    blend = Blend([Like("d1"), VECTORS_ND[2], Like("d3")], [0.5, 0.5, -0.5])
    hits = index.search(Examples(like=["d1", VECTORS_ND[2]], unlike=["d3"]), 20)
    assert hits == index.search(blend, 20)
    assert not {"d1", "d3"} & {hit.id for hit in hits}
    assert index.search_many([Examples(["d1"])], 5) == [index.search(Blend([Like("d1")]), 5)]
    with pytest.raises(InvalidArgumentError, match="^like: must have at least one"):
        index.search(Examples(like=[], unlike=["d3"]))
    with pytest.raises(InvalidArgumentError, match="weights"):
        index.search(Examples(like=["d1"], unlike=["d3"]), mode="lexical")

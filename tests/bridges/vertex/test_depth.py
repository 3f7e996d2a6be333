"""How much of a trained index a query searches (`fraction_leaf_nodes_to_search_override`), with the real ScaNN."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from scannery.indexer import Store, parse_spec
from scannery.vertex.v1 import private_pb2
from tests.bridges.vertex.facade_client import PARENT, Caller, facade, ids_of
from tests.data import datapoints
from tests.served import publish_version

ROWS, DIMENSIONS, K, QUERIES = 1500, 16, 10, 60
SPEC = parse_spec(
    {
        "index": "i",
        "source": {"id": "id", "vector": "v"},
        "scann": {"exact_below_rows": 1000, "leaves": 40, "dimensions_per_block": 2},
        "distance": "squared_l2",
    }
)
RNG = np.random.default_rng(5)
ROWS_ND = RNG.standard_normal((ROWS, DIMENSIONS)).astype(np.float32)
QUERIES_QD = RNG.standard_normal((QUERIES, DIMENSIONS)).astype(np.float32)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Caller, str]]:
    folder = tmp_path_factory.mktemp("depth")
    store = Store.open(folder / "store", create=True)
    manifest = publish_version(store, SPEC, datapoints(SPEC, ROWS_ND), folder)
    assert [segment.kind for segment in manifest.segments] == ["scann"]
    with facade(folder) as server, Caller(server.address) as caller:
        yield caller, caller.deploy(f"{PARENT}/indexes/i")


def found(served: tuple[Caller, str], **options: Any) -> list[list[str]]:
    caller, endpoint = served
    queries = [
        {"neighbor_count": K, "datapoint": {"feature_vector": query_D.tolist()}, **options}
        for query_D in QUERIES_QD
    ]
    return [ids_of(neighbors) for neighbors in caller.find(endpoint, *queries)]


@pytest.fixture(scope="module")
def truth(served: tuple[Caller, str]) -> list[list[str]]:
    """The ids of the true neighbours of each query, nearest first."""
    ids = datapoints(SPEC, ROWS_ND).column("id").to_pylist()
    distances_QN = ((QUERIES_QD[:, None] - ROWS_ND[None]) ** 2).sum(2)
    return [[ids[row] for row in np.argsort(row_N)[:K]] for row_N in distances_QN]


def recall(answers: list[list[str]], truth: list[list[str]]) -> float:
    return float(np.mean([len({*one} & {*true}) / K for one, true in zip(answers, truth, strict=True)]))


@pytest.mark.system
def test_recall_grows_with_the_share_of_leaves(served: tuple[Caller, str], truth: list[list[str]]):
    recalls = [
        recall(found(served, fraction_leaf_nodes_to_search_override=share), truth)
        for share in (0.025, 0.1, 0.3, 0.9)
    ]
    assert recalls[0] < 0.5
    for less, more in itertools.pairwise(recalls):
        assert more > less
    assert recalls[-1] > 0.9


def test_all_leaves_give_the_neighbors_of_brute_force(served: tuple[Caller, str], truth: list[list[str]]):
    assert found(served, fraction_leaf_nodes_to_search_override=1.0) == truth
    few = found(served, fraction_leaf_nodes_to_search_override=0.02)
    assert few != truth


def test_the_private_api_takes_a_percentage_too(served: tuple[Caller, str], truth: list[list[str]]):
    caller, _ = served
    for option in (
        {"leaf_nodes_to_search_percent_override": 100},
        {"fraction_leaf_nodes_to_search_override": 1.0},
    ):
        request = private_pb2.MatchRequest(
            deployed_index_id="deployed", float_val=QUERIES_QD[0].tolist(), num_neighbors=K, **option
        )
        assert [neighbor.id for neighbor in caller.match(request).neighbor] == truth[0]


def test_candidates_of_a_query_are_compared_exactly(served: tuple[Caller, str], truth: list[list[str]]):
    share = {"fraction_leaf_nodes_to_search_override": 1.0}
    few = recall(found(served, **share, approximate_neighbor_count=K), truth)
    many = recall(found(served, **share, approximate_neighbor_count=1000), truth)
    assert few < many
    assert many > 0.99

"""Leaves over segments that ScaNN searches."""

from __future__ import annotations

import numpy as np
import pytest

from scannery.indexer import Store, parse_spec
from scannery.v1 import search_pb2 as pb
from tests.data import clustered, datapoints
from tests.served import publish_version
from tests.serving.services.leaf.leaves import Root, cluster_of

ROWS, DIMENSIONS = 2400, 12
SPEC = parse_spec(
    {
        "index": "notes",
        "source": {"id": "id", "vector": "vector"},
        "shards": 2,
        "scann": {"exact_below_rows": 1000},
    }
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("scann")
    store = Store.open(folder / "store", create=True)
    publish_version(store, SPEC, datapoints(SPEC, clustered(ROWS, DIMENSIONS, seed=1)), folder, shards=2)
    return store


def random_queries(count: int) -> list[pb.Query]:
    rng = np.random.default_rng(3)
    queries = [pb.Query() for _ in range(count)]
    for query in queries:
        query.vector.packed = rng.normal(size=DIMENSIONS).astype("<f4").tobytes()
    return queries


def best_of(root: Root) -> list[set[tuple[int, int]]]:
    """Return the ten best rows of each query."""
    rankings = [root.by_vector(number, 0, 10) for number in range(root.request.queries)]
    return [set(zip(each.segments.tolist(), each.rows.tolist(), strict=True)) for each in rankings]


@pytest.mark.system
def test_recall_is_what_the_options_say(store: Store) -> None:
    queries, dense = random_queries(40), pb.MODE_DENSE
    with cluster_of(store, 2) as cluster:
        assert {segment.entry.kind for segment in cluster.snapshot.segments} == {"scann"}
        exact = best_of(Root(cluster, queries, pb.SearchOptions(mode=dense, exact=True), wanted=10))

        def recall(options: pb.SearchOptions) -> float:
            found = best_of(Root(cluster, queries, options, wanted=10))
            return float(np.mean([len(own & best) / 10 for own, best in zip(found, exact, strict=True)]))

        assert recall(pb.SearchOptions(mode=dense)) > 0.85
        high = recall(pb.SearchOptions(mode=dense, target_recall=0.99))
        assert high > 0.95
        knobs = pb.SearchKnobs(leaves=1, rescore=12)
        assert recall(pb.SearchOptions(mode=dense, knobs=knobs, k=10)) < high


def test_roots_may_leave_out_k(store: Store) -> None:
    # Knobs are for `k + offset` hits, of which a server wants at most as many as it rescores.
    with cluster_of(store, 2) as cluster:
        request = Root(cluster, random_queries(2), pb.SearchOptions(mode=pb.MODE_DENSE), wanted=1).request
        request.options.knobs.rescore = 2
        answers = cluster.ask("Search", request)
    assert [len(found.ids) for answer in answers for found in answer.results] == [1] * 4

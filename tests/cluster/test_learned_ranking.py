"""Hybrid hits of a cluster are in the learned order of one server: features are read where the rows are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import Store
from scannery.indexer.manifest import Ranker, RelevanceCurve
from scannery.indexer.versions.creation import promote_index
from scannery.serving.engine.remote.leaf_candidates import _features_of
from scannery.v1.leaf_pb2 import LeafFound
from scannery.v1.search_pb2 import Mode, SearchResponse
from tests.cluster.questions import INDEX, any_batch, any_relevant_search, any_search, make_store
from tests.cluster.servers import started_cluster
from tests.cluster.test_same_answers import Both, comparable
from tests.served import FUSION, commit_relevance

pytestmark = pytest.mark.system

QUESTIONS = 150


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    store: Path = make_store(tmp_path_factory.mktemp("cluster"))
    opened = Store.open(store)
    commit_relevance(opened, INDEX)
    assert FUSION.scales is not None
    ranker = Ranker(
        model="animals@1",
        alpha=0.5,
        scales=FUSION.scales,
        weights={
            "dense": 1.0,
            "lexical": 2.0,
            "lexical_rank": 3.0,
            "document_dense_second": 0.5,
            "document_coverage": 4.0,
            "title_share": 2.0,
            "passage_start": -1.0,
        },
        curve=RelevanceCurve(intercept=-1.0, slope=0.5, error=0.1, separation=0.9),
        queries=60,
    )
    promote_index(opened, INDEX, lambda parent: parent.model_copy(update={"ranker": ranker}))
    with started_cluster(store, 3) as (root, _):
        servers = Both(store, root.address)
        yield servers
        servers.channel.close()
        servers.alone.close()


def test_hits_are_in_the_same_order(both: Both) -> None:
    ordered = 0
    for number in range(QUESTIONS):
        request = any_search(number) if number % 3 else any_relevant_search(number)
        request.options.ClearField("ranking")
        if number % 2:
            request.options.mode = Mode.MODE_HYBRID
            request.options.ClearField("fusion")
            request.options.ClearField("vectors")
        request.options.explain = number % 4 == 1
        if number % 8 == 1:
            request.query.words = "zebra"  # which no datapoint has
        alone, cluster = both.answers(both.alone.search, "Search", request)
        if isinstance(alone, SearchResponse):
            features = [[hit.features for hit in answer.hits] for answer in (alone, cluster)]
            assert features[0] == features[1], f"question {number}"
            ordered += alone.explanation.ranker.model == "animals@1" and bool(alone.hits)
            assert alone.explanation.ranker == cluster.explanation.ranker
            for answer in (alone, cluster):
                answer.ClearField("explanation")  # which has plans of segments
        assert comparable(alone) == comparable(cluster), f"question {number}"
    assert ordered > 5


def test_batches_are_in_the_same_order(both: Both) -> None:
    for number in range(QUESTIONS // 5):
        request = any_batch(number)
        for field in ("fusion", "vectors", "ranking"):
            request.options.ClearField(field)
        alone, cluster = both.answers(both.alone.search_many, "SearchMany", request)
        assert comparable(alone) == comparable(cluster), f"batch {number}"


def test_titles_count_only_if_all_leaves_know_them() -> None:
    features = np.array([[0.5, 2.0, 0, 0.25, 10]], "<f8").tobytes()
    former = LeafFound(ids=["a"], features=features)
    new = LeafFound(ids=["b"], features=features, text_features=np.array([[0.5, 900]], "<f8").tobytes())
    for second, title_share, start in ((new, 0.5, 900), (former, 0, 0)):
        _, rows = _features_of([(0, np.array([7]), new), (1, np.array([3]), second)])
        assert rows.coverage_H.tolist() == [0.25] * 2
        assert rows.title_shares_H.tolist() == [title_share] * 2
        assert rows.starts_H.tolist() == [start] * 2

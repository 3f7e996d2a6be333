"""The relevance of hits of a cluster is that of one server, and so is what it drops and refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.embed.reranker import reranker_digest
from scannery.indexer import Store, read_manifest
from scannery.indexer.manifest import RERANK, ModelCurve, RelevanceCurve
from scannery.v1.search_pb2 import Mode, SearchResponse
from tests.cluster.questions import (
    INDEX,
    any_batch,
    any_dense,
    any_relevant_batch,
    any_relevant_search,
    any_search,
    make_store,
)
from tests.cluster.servers import started_cluster
from tests.cluster.talks import make_talks
from tests.cluster.test_all_methods import Pair
from tests.cluster.test_same_answers import Both, comparable
from tests.served import RELEVANCE, commit_relevance, serving

pytestmark = pytest.mark.system

QUESTIONS = 120


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    store: Path = make_store(tmp_path_factory.mktemp("cluster"))
    commit_relevance(Store.open(store), INDEX)
    with started_cluster(store, 3) as (root, _):
        servers = Both(store, root.address)
        yield servers
        servers.channel.close()
        servers.alone.close()


def test_hits_have_the_same_relevance(both: Both) -> None:
    with_relevance = 0
    for number in range(QUESTIONS // 2):
        alone, cluster = both.answers(both.alone.search, "Search", any_search(number))
        assert comparable(alone) == comparable(cluster), f"question {number}"
        if isinstance(alone, SearchResponse):
            with_relevance += any(hit.HasField("relevance") for hit in alone.hits)
    assert with_relevance > 10
    for number in range(QUESTIONS // 6):
        alone, cluster = both.answers(both.alone.search_many, "SearchMany", any_batch(number))
        assert comparable(alone) == comparable(cluster), f"batch {number}"


def test_hits_of_a_named_vector_have_the_same_relevance(both: Both) -> None:
    with_relevance = 0
    for number in range(QUESTIONS // 6):
        request, chosen = any_search(number), random.Random(number)
        request.options.mode = Mode.MODE_DENSE
        request.options.ClearField("fusion")
        request.options.ClearField("vectors")
        request.options.vectors.add(name="topic")
        request.options.min_relevance = chosen.choice([0, 0.4])
        request.query.CopyFrom(any_dense(chosen, request.options))
        alone, cluster = both.answers(both.alone.search, "Search", request)
        assert comparable(alone) == comparable(cluster), f"question {number}"
        if isinstance(alone, SearchResponse):
            with_relevance += any(hit.HasField("relevance") for hit in alone.hits)
    assert with_relevance > 3


def test_a_least_relevance_drops_and_refuses_the_same(both: Both) -> None:
    hits = nothing = refused = 0
    for number in range(QUESTIONS):
        alone, cluster = both.answers(both.alone.search, "Search", any_relevant_search(number))
        assert comparable(alone) == comparable(cluster), f"question {number}"
        if isinstance(alone, SearchResponse):
            hits, nothing = hits + bool(alone.hits), nothing + alone.nothing_relevant
        else:
            refused += 1
    assert min(hits, nothing, refused) > 5
    for number in range(QUESTIONS // 3):
        alone, cluster = both.answers(both.alone.search_many, "SearchMany", any_relevant_batch(number))
        assert comparable(alone) == comparable(cluster), f"batch {number}"


def test_reranked_hits_have_the_same_relevance(tmp_path: Path) -> None:
    store = make_talks(tmp_path)
    opened = Store.open(store)
    reranker = read_manifest(opened, "talks").spec.reranker
    assert reranker is not None
    curve = RelevanceCurve(intercept=-5.0, slope=10.0, error=0.1, separation=0.9)
    scores = ModelCurve(model=reranker_digest(reranker.model), curve=curve)
    commit_relevance(opened, "talks", RELEVANCE.model_copy(update={"models": {RERANK: scores}}))
    with serving(store, device="cpu") as alone, started_cluster(store, 3, device="cpu") as (root, _):
        pair = Pair(alone, root)

        def same(**options: Any) -> Any:
            query = {"text": "How does a volcano erupt?"}
            return pair.same("Search", {"index": "talks", "query": query, "options": {"k": 40, **options}})

        for mode in ("MODE_DENSE", "MODE_LEXICAL", "MODE_HYBRID"):
            hits = same(mode=mode, rerank={"candidates": 12}).hits
            scored = [hit for hit in hits if hit.HasField("rerank_score")]
            assert len(scored) == 12
            expected = curve.probabilities(np.array([hit.rerank_score for hit in scored], np.float32))
            assert [hit.relevance for hit in scored] == pytest.approx(expected.tolist(), abs=1e-6)
            least = scored[5].relevance
            relevant = same(mode=mode, rerank={"candidates": 12}, minRelevance=least).hits
            assert [hit.datapoint.id for hit in relevant] == [
                hit.datapoint.id for hit in hits if hit.relevance >= least
            ]
            assert same(mode=mode, rerank={"candidates": 40}, minRelevance=1).nothing_relevant
        pair.close()

"""The relevance of hits of a cluster is that of one server, and so is what it drops and refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scannery.indexer import Store
from scannery.v1.search_pb2 import SearchResponse
from tests.cluster.questions import (
    INDEX,
    any_batch,
    any_relevant_batch,
    any_relevant_search,
    any_search,
    make_store,
)
from tests.cluster.servers import started_cluster
from tests.cluster.test_same_answers import Both, comparable
from tests.served import commit_relevance

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

"""The retrievers: by embedding, by words and by both; in pipelines, with filters, written down and read again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from haystack import Pipeline
from haystack.dataclasses import Document
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import FilterPolicy

import scannery
from scannery.bridges.haystack import (
    ScanneryDocumentStore,
    ScanneryEmbeddingRetriever,
    ScanneryHybridRetriever,
    ScanneryTextRetriever,
)
from tests.bridges.targets import fresh_name

DOCUMENTS = [
    Document(id="bees", content="Bees make honey.", embedding=[1.0, 0.0, 0.0], meta={"year": 2020}),
    Document(id="wasps", content="Wasps make paper.", embedding=[0.9, 0.1, 0.0], meta={"year": 2021}),
    Document(id="trains", content="Trains run on rails.", embedding=[0.0, 1.0, 0.0], meta={"year": 2022}),
    Document(id="words", content="Honey without a vector.", meta={"year": 2023}),
    Document(id="vector", embedding=[0.0, 0.0, 1.0], meta={"year": 2024}),
]
RETRIEVERS = (ScanneryEmbeddingRetriever, ScanneryTextRetriever, ScanneryHybridRetriever)


@pytest.fixture(scope="module")
def store(target: str) -> Iterator[ScanneryDocumentStore]:
    made = ScanneryDocumentStore(target=target, index=fresh_name(), embedding_dim=3)
    made.write_documents(DOCUMENTS)
    yield made
    made.close()


def ids(answer: dict[str, list[Document]]) -> list[str]:
    return [document.id for document in answer["documents"]]


def test_by_embedding_as_haystacks_own_store_does(store: ScanneryDocumentStore):
    theirs = InMemoryDocumentStore(embedding_similarity_function="cosine")
    theirs.write_documents(DOCUMENTS)
    for query in ([1.0, 0.2, 0.1], [0.0, 0.3, 1.0]):
        ours = ScanneryEmbeddingRetriever(store).run(query)["documents"]
        expected = theirs.embedding_retrieval(query)
        assert [document.id for document in ours] == [document.id for document in expected]
        assert [document.score for document in ours] == pytest.approx([each.score for each in expected])
        assert [document.embedding for document in ours] == [None] * 4
    with_vectors = ScanneryEmbeddingRetriever(store, return_embedding=True, top_k=1).run([0.0, 1.0, 0.0])
    assert with_vectors["documents"][0].embedding == [0.0, 1.0, 0.0]


def test_by_words(store: ScanneryDocumentStore):
    assert set(ids(ScanneryTextRetriever(store).run("honey"))) == {"bees", "words"}
    assert ids(ScanneryTextRetriever(store).run("nothing like it")) == []


def test_by_both(store: ScanneryDocumentStore):
    retriever = ScanneryHybridRetriever(store, alpha=0.5, top_k=5)
    found = retriever.run("honey", [0.0, 1.0, 0.0])
    assert {"trains", "bees", "words"} <= set(ids(found))
    assert ids(ScanneryHybridRetriever(store, alpha=1.0).run("honey", [0.0, 1.0, 0.0]))[0] == "trains"
    assert set(ids(ScanneryHybridRetriever(store, alpha=0.0, top_k=2).run("honey", [0.0, 1.0, 0.0]))) == {
        "bees",
        "words",
    }
    with pytest.raises(scannery.FailedPreconditionError, match="encoder"):
        retriever.run("honey")


def test_coroutines_get_the_same(store: ScanneryDocumentStore):
    runs: list[tuple[Any, dict[str, Any]]] = [
        (ScanneryEmbeddingRetriever(store), {"query_embedding": [1.0, 0.2, 0.1]}),
        (ScanneryTextRetriever(store), {"query": "honey"}),
        (ScanneryHybridRetriever(store), {"query": "honey", "query_embedding": [1.0, 0.2, 0.1]}),
    ]
    for retriever, arguments in runs:
        assert asyncio.run(retriever.run_async(**arguments)) == retriever.run(**arguments)


def test_filters_of_a_run_replace_or_are_merged(store: ScanneryDocumentStore):
    late = {"field": "meta.year", "operator": ">=", "value": 2021}
    early = {"field": "meta.year", "operator": "<", "value": 2021}
    not_wasps = {"field": "id", "operator": "!=", "value": "wasps"}
    query = [1.0, 0.0, 0.0]
    replacing = ScanneryEmbeddingRetriever(store, filters=late)
    assert ids(replacing.run(query, top_k=1)) == ["wasps"]
    assert ids(replacing.run(query, filters=early)) == ["bees"]
    merging = ScanneryEmbeddingRetriever(store, filters=late, filter_policy="merge")
    assert ids(merging.run(query, filters=not_wasps)) == ["trains", "vector"]


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_wrong_arguments(store: ScanneryDocumentStore, kind: Any):
    with pytest.raises(ValueError, match="top_k: must be above 0, got 0"):
        kind(store, top_k=0)
    with pytest.raises(TypeError, match="must be a ScanneryDocumentStore, got InMemoryDocumentStore"):
        kind(InMemoryDocumentStore())
    with pytest.raises(scannery.InvalidArgumentError, match="query"):
        ScanneryEmbeddingRetriever(store).run([1.0])


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_written_down_and_read_again(kind: Any, store: ScanneryDocumentStore):
    options: dict[str, Any] = {
        "filters": {"field": "id", "operator": "!=", "value": "x"},
        "top_k": 3,
        "search_options": {"exact": True},
    }
    of_kind: dict[Any, dict[str, Any]] = {
        ScanneryTextRetriever: {"mode": "lexical"},
        ScanneryHybridRetriever: {"alpha": 0.25},
    }
    own = of_kind.get(kind, {})
    written = kind(store, **options, **own, filter_policy=FilterPolicy.MERGE).to_dict()
    again = kind.from_dict(written)
    assert again.to_dict() == written
    assert {**options, **own, "filter_policy": "merge"}.items() <= written["init_parameters"].items()


def test_a_pipeline_runs_is_written_and_runs_again(store: ScanneryDocumentStore):
    pipeline = Pipeline()
    pipeline.add_component("hybrid", ScanneryHybridRetriever(store, alpha=0.0, top_k=2))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["scannery.bridges.haystack"])
    for each in (pipeline, again):
        answer = each.run({"hybrid": {"query": "honey", "query_embedding": [0.0, 1.0, 0.0]}})
        assert set(ids(answer["hybrid"])) == {"bees", "words"}

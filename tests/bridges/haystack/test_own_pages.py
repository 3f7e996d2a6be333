"""What Haystack's own pages do with a document store: pipelines that index and ask, filters by content, settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from haystack import Pipeline, component
from haystack.components.joiners import DocumentJoiner
from haystack.components.preprocessors import DocumentCleaner, DocumentSplitter
from haystack.components.writers import DocumentWriter
from haystack.dataclasses import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError

from scannery.bridges.haystack import (
    ScanneryDocumentStore,
    ScanneryEmbeddingRetriever,
    ScanneryHybridRetriever,
    ScanneryTextRetriever,
)
from tests.bridges.targets import fresh_name

CONTENTS = {
    "bees": "Bees make honey.",
    "same": "Bees make honey.",
    "wasps": "Wasps",
    "empty": "",
    "none": None,
}
DOCUMENTS = [
    Document(id=name, content=content, meta={"length": len(content or ""), "content:digest": name})
    for name, content in CONTENTS.items()
]
RETRIEVERS = (ScanneryEmbeddingRetriever, ScanneryTextRetriever, ScanneryHybridRetriever)


@component
class LengthEmbedder:
    """Embeds a document as the length of its content, and a query likewise."""

    @component.output_types(documents=list[Document], embedding=list[float])
    def run(self, documents: list[Document] | None = None, text: str = "") -> dict[str, Any]:
        made = [
            Document(id=each.id, content=each.content, meta=each.meta, embedding=vector(each.content or ""))
            for each in documents or ()
        ]
        return {"documents": made, "embedding": vector(text)}


def vector(text: str) -> list[float]:
    return [1.0, float(len(text)), float(len(text) % 7)]


@pytest.fixture
def store(target: str) -> Iterator[ScanneryDocumentStore]:
    made = ScanneryDocumentStore(target=target, index=fresh_name(), embedding_dim=3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def filled(target: str) -> Iterator[ScanneryDocumentStore]:
    made = ScanneryDocumentStore(target=target, index=fresh_name(), embedding_dim=3)
    made.write_documents(DOCUMENTS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def own() -> InMemoryDocumentStore:
    made = InMemoryDocumentStore()
    made.write_documents(DOCUMENTS)
    return made


def ids(documents: list[Document]) -> list[str]:
    return sorted(each.id for each in documents)


BY_CONTENT: list[dict[str, Any]] = [
    *({"field": "content", "operator": operator, "value": value} for operator in ("==",
     "!=") for value in ("Bees make honey.", "bees make honey.", "", None, "nothing", 3)),
    *({"field": "content", "operator": operator, "value": value} for operator in ("in",
     "not in") for value in (["Wasps", "Bees make honey."], ["nothing"], [None, ""], [])),
    {"operator": "AND", "conditions": [{"field": "content", "operator": "==", "value": "Bees make honey."},
     {"field": "meta.content:digest", "operator": "==", "value": "same"}]},
    {"operator": "NOT", "conditions": [{"field": "content", "operator": "==", "value": "Wasps"},
     {"field": "meta.length", "operator": ">=", "value": 0}]},
]  # fmt: skip


@pytest.mark.parametrize("filters", BY_CONTENT, ids=str)
def test_contents_are_compared_as_in_haystacks_own_store(
    filled: ScanneryDocumentStore, own: InMemoryDocumentStore, filters: dict[str, Any]
):
    expected = ids(own.filter_documents(filters))
    found = filled.filter_documents(filters)
    assert ids(found) == expected
    assert all(each.meta == own.storage[each.id].meta for each in found)
    assert filled.count_documents_by_filter(filters) == len(expected)
    retriever = ScanneryTextRetriever(filled, filters=filters)
    assert set(ids(retriever.run("bees honey wasps")["documents"])) == {
        each for each in expected if CONTENTS[each]
    }


def test_documents_are_changed_and_deleted_by_content(store: ScanneryDocumentStore):
    store.write_documents(DOCUMENTS)
    bees = {"field": "content", "operator": "==", "value": "Bees make honey."}
    assert store.update_by_filter(bees, {"seen": True}) == 2
    store.write_documents([Document(id="same", content="Changed")], policy=DuplicatePolicy.OVERWRITE)
    assert ids(store.filter_documents(bees)) == ["bees"]
    assert store.delete_by_filter(bees) == 1
    assert ids(store.filter_documents()) == ["empty", "none", "same", "wasps"]
    assert set(store.get_metadata_fields_info()) == {"length", "content:digest"}


@pytest.mark.parametrize("operator", [">", ">=", "<", "<="])
def test_contents_have_no_order(filled: ScanneryDocumentStore, operator: str):
    with pytest.raises(FilterError, match="'content' has no order"):
        filled.filter_documents({"field": "content", "operator": operator, "value": "a"})


def test_settings_of_retrievers_are_public_and_can_be_changed(filled: ScanneryDocumentStore):
    retriever = ScanneryTextRetriever(filled, top_k=1)
    assert (retriever.top_k, retriever.filters, retriever.document_store) == (1, None, filled)
    assert len(retriever.run("bees")["documents"]) == 1
    retriever.top_k, retriever.filters = 5, {"field": "id", "operator": "!=", "value": "same"}
    assert ids(retriever.run("bees")["documents"]) == ["bees"]
    assert retriever.to_dict()["init_parameters"]["top_k"] == 5


POLICIES = (DuplicatePolicy.NONE, DuplicatePolicy.FAIL, DuplicatePolicy.SKIP, DuplicatePolicy.OVERWRITE)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pipeline_cleans_splits_embeds_and_writes_with_each_policy(
    store: ScanneryDocumentStore, policy: DuplicatePolicy
):
    pipeline = Pipeline()
    pipeline.add_component("cleaner", DocumentCleaner())
    pipeline.add_component("splitter", DocumentSplitter(split_by="period", split_length=1))
    pipeline.add_component("embedder", LengthEmbedder())
    pipeline.add_component("writer", DocumentWriter(store, policy=policy))
    pipeline.connect("cleaner", "splitter")
    pipeline.connect("splitter.documents", "embedder.documents")
    pipeline.connect("embedder.documents", "writer.documents")
    documents = {"cleaner": {"documents": [Document(content="One is short. Two is a little longer.")]}}
    assert pipeline.run(documents)["writer"]["documents_written"] == 2
    assert store.count_documents() == 2
    if policy in (DuplicatePolicy.NONE, DuplicatePolicy.FAIL):
        with pytest.raises(DuplicateDocumentError):
            store.write_documents(store.filter_documents(), policy=policy)
    else:
        again = pipeline.run(documents)["writer"]["documents_written"]
        assert again == (0 if policy is DuplicatePolicy.SKIP else 2)
    assert store.count_documents() == 2
    [first] = store.filter_documents({"field": "meta.split_id", "operator": "==", "value": 0})
    assert first.meta["source_id"] and first.embedding == vector(first.content or "")


async def test_a_pipeline_asks_by_embedding_and_words_and_joins(store: ScanneryDocumentStore):
    store.write_documents(LengthEmbedder().run(DOCUMENTS)["documents"])

    def asking() -> Any:
        pipeline = Pipeline()
        pipeline.add_component("embedder", LengthEmbedder())
        pipeline.add_component("dense", ScanneryEmbeddingRetriever(store, top_k=2))
        pipeline.add_component("words", ScanneryTextRetriever(store))
        pipeline.add_component("joiner", DocumentJoiner(join_mode="reciprocal_rank_fusion"))
        pipeline.connect("embedder.embedding", "dense.query_embedding")
        pipeline.connect("dense", "joiner")
        pipeline.connect("words", "joiner")
        return pipeline

    asked = {"embedder": {"text": "Wasps"}, "words": {"query": "bees"}}
    found = asking().run(asked)["joiner"]["documents"]
    assert {"wasps", "bees", "same"} <= set(ids(found))
    waited = await asking().run_async(asked)
    assert ids(waited["joiner"]["documents"]) == ids(found)
    await store.close_async()


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_a_pipeline_is_written_as_yaml_and_read_again(filled: ScanneryDocumentStore, kind: Any):
    pipeline = Pipeline()
    filters = {"field": "content", "operator": "==", "value": "Bees make honey."}
    pipeline.add_component("retriever", kind(filled, top_k=3, filters=filters))
    pipeline.add_component("writer", DocumentWriter(filled, policy=DuplicatePolicy.SKIP))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["scannery.bridges.haystack"])
    assert again.to_dict() == pipeline.to_dict()
    retriever = again.get_component("retriever")
    assert (retriever.top_k, retriever.filters) == (3, filters)
    assert retriever.document_store.count_documents() == len(DOCUMENTS)
    retriever.document_store.close()

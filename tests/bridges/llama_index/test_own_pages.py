"""What LlamaIndex's own pages do with a vector store: ingestion pipelines, indexes over it, deletions, filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.extractors import TitleExtractor
from llama_index.core.ingestion import DocstoreStrategy, IngestionCache, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import (
    ExactMatchFilter,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from scannery.bridges.llama_index import ScanneryVectorStore
from tests.bridges.llama_index.test_vector_store import WordEmbedding
from tests.bridges.targets import TARGETS, fresh_name, target_of

STRATEGIES = tuple(DocstoreStrategy)
TEXTS = {
    "bees": "Bees make honey. They dance in the hive.",
    "trains": "Trains run on rails. A strike stops them.",
    "cake": "Honey cake is sweet.",
}


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with target_of(request.param, tmp_path_factory.mktemp("targets") / "store") as target:
        yield target


@pytest.fixture
def store(target: str) -> Iterator[ScanneryVectorStore]:
    made = ScanneryVectorStore(target, fresh_name())
    yield made
    made.close()


def documents(**changed: str) -> list[Document]:
    texts = {**TEXTS, **changed}
    return [
        Document(id_=name, text=text, metadata={"name": name, "words": len(text.split())})
        for name, text in texts.items()
        if text
    ]


def contents(store: BasePydanticVectorStore) -> list[str]:
    index = VectorStoreIndex.from_vector_store(store, embed_model=WordEmbedding())
    found = index.as_retriever(similarity_top_k=20).retrieve("honey")
    return sorted(f"{each.node.ref_doc_id}: {each.node.get_content()}" for each in found)


def pipeline(store: BasePydanticVectorStore | None, strategy: DocstoreStrategy) -> IngestionPipeline:
    return IngestionPipeline(
        transformations=[SentenceSplitter(chunk_size=24, chunk_overlap=0), WordEmbedding()],
        docstore=SimpleDocumentStore(),
        vector_store=store,
        docstore_strategy=strategy,
        cache=IngestionCache(),
    )


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.value)
def test_documents_are_ingested_again(store: ScanneryVectorStore, strategy: DocstoreStrategy):
    rounds = [documents(), documents(), documents(trains="Trains are late."), documents(cake="", bees="")]
    ingestion = pipeline(store, strategy)
    for number, batch in enumerate(rounds):
        nodes = ingestion.run(documents=batch)
        # What is there already is left out; of the fourth round only `trains` has changed again.
        assert len({node.ref_doc_id for node in nodes}) == [3, 0, 1, 1][number]
    found = contents(store)
    assert any("trains: Trains run" in each for each in found)
    # The changed text is replaced, and with `upserts_and_delete` what is not there any more is removed.
    assert any("late" in each for each in found) == (strategy is DocstoreStrategy.DUPLICATES_ONLY)
    assert any("cake" in each for each in found) == (strategy is not DocstoreStrategy.UPSERTS_AND_DELETE)


async def test_coroutines_ingest_and_a_pipeline_goes_on_where_another_ended(
    store: ScanneryVectorStore, tmp_path: Path
):
    first = pipeline(store, DocstoreStrategy.UPSERTS)
    assert len({node.ref_doc_id for node in await first.arun(documents=documents())}) == 3
    first.persist(str(tmp_path / "kept"))
    second = pipeline(store, DocstoreStrategy.UPSERTS)
    second.load(str(tmp_path / "kept"))
    assert await second.arun(documents=documents()) == []
    changed = await second.arun(documents=documents(cake="Cake is eaten."))
    assert [node.ref_doc_id for node in changed] == ["cake"]
    assert [each for each in contents(store) if each.startswith("cake")] == ["cake: Cake is eaten."]


def test_an_index_is_inserted_to_updated_refreshed_and_deleted_from(store: ScanneryVectorStore):
    index = VectorStoreIndex.from_documents(
        documents(),
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=WordEmbedding(),
        transformations=[SentenceSplitter(chunk_size=24, chunk_overlap=0)],
    )
    index.insert(Document(id_="new", text="Something new."))
    index.update_ref_doc(Document(id_="new", text="Something newer."))
    assert [each for each in contents(store) if each.startswith("new")] == ["new: Something newer."]
    # Of the index over a store that has the texts, nothing is known but the store: each is written again.
    again = VectorStoreIndex.from_vector_store(store, embed_model=WordEmbedding())
    again.delete_ref_doc("new", delete_from_docstore=True)
    again.delete_ref_doc("trains")
    assert {each.split(":")[0] for each in contents(store)} == {"bees", "cake"}
    again.delete_nodes([node.node_id for node in store.get_nodes() if node.ref_doc_id == "cake"])
    assert {each.split(":")[0] for each in contents(store)} == {"bees"}


FILTERS: list[tuple[MetadataFilters, set[str]]] = [
    (MetadataFilters(filters=[ExactMatchFilter(key="name", value="bees")]), {"bees"}),
    (MetadataFilters.from_dicts([{"key": "words", "value": 4, "operator": ">"}]), {"bees", "trains"}),
    (MetadataFilters.from_dicts([{"key": "name", "value": "cake"}, {"key": "words", "value": 8, "operator": "=="}],
     condition=FilterCondition.OR), {"bees", "trains", "cake"}),
    (MetadataFilters(filters=[MetadataFilter(key="name", operator=FilterOperator.IN, value=["cake", "trains"])]),
     {"cake", "trains"}),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["default", "hybrid", "mmr", "text_search"])
def test_retrievers_with_filters(store: ScanneryVectorStore, mode: str):
    pipeline(store, DocstoreStrategy.UPSERTS).run(documents=documents())
    index = VectorStoreIndex.from_vector_store(store, embed_model=WordEmbedding())
    for filters, expected in FILTERS:
        retriever = index.as_retriever(similarity_top_k=10, filters=filters, vector_store_query_mode=mode)
        found = {each.node.ref_doc_id for each in retriever.retrieve("honey rails sweet strike bees trains")}
        assert found == expected
    filters = MetadataFilters(filters=[ExactMatchFilter(key="name", value="bees")])
    assert {node.ref_doc_id for node in store.get_nodes(filters=filters)} == {"bees"}
    store.delete_nodes(filters=filters)
    assert {each.split(":")[0] for each in contents(store)} == {"trains", "cake"}


async def test_query_engines_over_the_store(store: ScanneryVectorStore):
    await pipeline(store, DocstoreStrategy.UPSERTS).arun(documents=documents())
    index = VectorStoreIndex.from_vector_store(store, embed_model=WordEmbedding())
    engine = index.as_query_engine(
        llm=MockLLM(), node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.3)]
    )
    assert {node.node.ref_doc_id for node in engine.query("honey cake is sweet").source_nodes} == {"cake"}
    fused = QueryFusionRetriever(
        [index.as_retriever(vector_store_query_mode=mode) for mode in ("default", "text_search")],
        num_queries=1,
        llm=MockLLM(),
        similarity_top_k=1,
        mode="reciprocal_rerank",
    )
    engine = RetrieverQueryEngine.from_args(fused, llm=MockLLM())
    answer = await engine.aquery("sweet honey cake")
    assert [node.node.ref_doc_id for node in answer.source_nodes] == ["cake"]
    chat = index.as_chat_engine(llm=MockLLM(), chat_mode="context")
    assert {node.node.ref_doc_id for node in chat.chat("honey cake").source_nodes} & {"cake"}


@pytest.mark.parametrize("made", [TitleExtractor, MockEmbedding])
def test_what_pipelines_add_to_nodes_is_kept(target: str, made: Callable[..., Any]):
    store = ScanneryVectorStore(target, fresh_name())
    steps = [made(llm=MockLLM()), WordEmbedding()] if made is TitleExtractor else [made(embed_dim=5)]
    IngestionPipeline(transformations=[SentenceSplitter(), *steps], vector_store=store).run(
        documents=documents()
    )
    assert (
        all("document_title" in node.metadata or made is MockEmbedding for node in store.get_nodes())
        and len(store.get_nodes()) == 3
    )
    store.close()

"""What LangChain's own pages do with a vector store: its indexing API, retrievers, stores of documents, selectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.example_selectors import (
    MaxMarginalRelevanceExampleSelector,
    SemanticSimilarityExampleSelector,
)
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from scannery.bridges.langchain import ScanneryVectorStore
from scannery.client import InvalidArgumentError
from tests.bridges.targets import fresh_name

EMBEDDING = DeterministicFakeEmbedding(size=6)
Cleanup = Literal["incremental", "full", "scoped_full"] | None
CLEANUPS: tuple[Cleanup, ...] = (None, "incremental", "full", "scoped_full")
KEY_ENCODERS = ("sha1", "sha256", "blake2b", lambda document: f"key-{document.page_content}")
FIRST = [Document(f"page {number}", metadata={"source": f"file-{number % 2}"}) for number in range(5)]
SECOND = [FIRST[0], Document("page 2, changed", metadata={"source": "file-0"})]


@pytest.fixture
def store(target: str) -> Iterator[ScanneryVectorStore]:
    made = ScanneryVectorStore(EMBEDDING, target=target, index=fresh_name())
    yield made
    made.close()


@pytest.fixture
def records() -> InMemoryRecordManager:
    return new_records()


def new_records() -> InMemoryRecordManager:
    made = InMemoryRecordManager("scannery")
    made.create_schema()
    return made


def texts(documents: list[Document]) -> list[str]:
    return sorted(each.page_content for each in documents)


@pytest.mark.parametrize("cleanup", CLEANUPS)
@pytest.mark.parametrize("batch_size", [1, 100, 5_000])
def test_documents_are_indexed_again_as_in_langchains_own_store(
    store: ScanneryVectorStore, records: InMemoryRecordManager, cleanup: Cleanup, batch_size: int
):
    own, own_records = InMemoryVectorStore(EMBEDDING), new_records()
    options: dict[str, Any] = {
        "cleanup": cleanup,
        "source_id_key": "source",
        "batch_size": batch_size,
        "key_encoder": "sha256",
    }
    for documents in (FIRST, FIRST, SECOND):
        done = index(documents, records, store, **options)
        assert done == index(documents, own_records, own, **options)
        assert texts(store.similarity_search("page", k=100)) == texts(own.similarity_search("page", k=100))
    # Nothing is loaded: a full cleanup empties the store.
    index([], records, store, cleanup="full", source_id_key="source", key_encoder="sha256")
    assert store.similarity_search("page", k=100) == []


@pytest.mark.parametrize("cleanup", CLEANUPS)
async def test_coroutines_index_again(
    store: ScanneryVectorStore, records: InMemoryRecordManager, cleanup: Cleanup
):
    own, own_records = InMemoryVectorStore(EMBEDDING), new_records()
    options: dict[str, Any] = {"cleanup": cleanup, "source_id_key": "source", "key_encoder": "sha256"}
    for documents in (FIRST, SECOND):
        done = await aindex(documents, records, store, **options)
        assert done == await aindex(documents, own_records, own, **options)
        found = await store.asimilarity_search("page", k=100)
        assert texts(found) == texts(await own.asimilarity_search("page", k=100))
    await store.aclose()


@pytest.mark.parametrize("key_encoder", KEY_ENCODERS)
@pytest.mark.filterwarnings("ignore:Using SHA-1")
def test_each_key_encoder_names_the_documents(
    store: ScanneryVectorStore, records: InMemoryRecordManager, key_encoder: Any
):
    options: dict[str, Any] = {"key_encoder": key_encoder, "upsert_kwargs": {}}
    index(FIRST, records, store, **options)
    keys = records.list_keys()
    assert [each.page_content for each in store.get_by_ids(keys)] == [each.page_content for each in FIRST]
    assert index(FIRST, records, store, **options)["num_skipped"] == 5
    # Those that are there already are written again if all of them must be.
    assert index(FIRST, records, store, force_update=True, **options)["num_updated"] == 5


def test_a_batch_size_of_a_call_is_checked_and_other_arguments_are_not_ignored(store: ScanneryVectorStore):
    assert len(store.add_documents(FIRST, batch_size=2)) == 5
    with pytest.raises(InvalidArgumentError, match="batch_size: must be 1 to 1000, got 0"):
        store.add_documents(FIRST, batch_size=0)
    with pytest.raises(TypeError, match="unexpected argument 'namespace'"):
        store.add_documents(FIRST, namespace="n")


@pytest.mark.parametrize(("arguments", "count"), [
    ({}, 4),
    ({"search_kwargs": {"k": 1}}, 1),
    ({"search_kwargs": {"k": 3, "filter": {"source": "file-1"}}}, 2),
    ({"search_type": "mmr"}, 4),
    ({"search_type": "mmr", "search_kwargs": {"k": 2, "fetch_k": 5, "lambda_mult": 0.25}}, 2),
    ({"search_type": "mmr", "search_kwargs": {"k": 3, "filter": {"source": "file-0"}}}, 3),
    ({"search_type": "similarity_score_threshold", "search_kwargs": {"score_threshold": 0.999, "k": 3}}, 1),
])  # fmt: skip
async def test_retrievers_of_each_kind(store: ScanneryVectorStore, arguments: dict[str, Any], count: int):
    store.add_documents(FIRST)
    retriever = store.as_retriever(**arguments)
    found = retriever.invoke("page 1")
    assert len(found) == count
    assert [each.id for each in await retriever.ainvoke("page 1")] == [each.id for each in found]
    assert [len(each) for each in retriever.batch(["page 1", "page 1"])] == [count, count]
    await store.aclose()


def test_a_retriever_in_a_chain(store: ScanneryVectorStore):
    store.add_documents(FIRST)
    prompt = ChatPromptTemplate.from_template("{context} {question}")
    joined = RunnableLambda(lambda documents: " ".join(each.page_content for each in documents))
    retriever = store.as_retriever(search_kwargs={"k": 1})
    chain = (
        {"context": retriever | joined, "question": RunnablePassthrough()}
        | prompt
        | RunnableLambda(lambda value: value.to_string())
        | StrOutputParser()
    )
    assert chain.invoke("page 3") == "Human: page 3 page 3"


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"distance": "dot"}])
async def test_stores_are_made_of_texts_and_documents(target: str, options: dict[str, Any]):
    documents = [Document(each.page_content, id=str(number)) for number, each in enumerate(FIRST)]
    contents, metadatas = [each.page_content for each in FIRST], [each.metadata for each in FIRST]
    by_id = ScanneryVectorStore.from_documents(
        documents, EMBEDDING, target=target, index=fresh_name(), **options
    )
    assert [each.page_content for each in by_id.get_by_ids(["3"])] == ["page 3"]
    made = ScanneryVectorStore.from_texts(
        contents, EMBEDDING, metadatas, ids=list("abcde"), target=target, index=fresh_name(), **options
    )
    assert made.get_by_ids(["b"])[0].metadata == {"source": "file-1"}
    waited = await ScanneryVectorStore.afrom_documents(
        documents, EMBEDDING, target=target, index=fresh_name(), **options
    )
    other = await ScanneryVectorStore.afrom_texts(
        contents, EMBEDDING, metadatas, target=target, index=fresh_name(), **options
    )
    assert len(await waited.asimilarity_search("page", k=10)) == 5
    assert len(await other.asimilarity_search("page", k=10)) == 5
    for each in (by_id, made, waited, other):
        await each.aclose()


@pytest.mark.parametrize("kind", [SemanticSimilarityExampleSelector, MaxMarginalRelevanceExampleSelector])
def test_examples_are_selected_by_the_store(target: str, kind: Any):
    examples = [{"input": "happy", "output": "sad"}, {"input": "tall", "output": "short"}]
    selector = kind.from_examples(
        examples, EMBEDDING, ScanneryVectorStore, k=1, target=target, index=fresh_name(), input_keys=["input"]
    )
    selector.add_example({"input": "sunny", "output": "gloomy"})
    assert selector.select_examples({"input": "tall"}) == [examples[1]]
    selector.vectorstore.close()

"""LangChain's own tests of vector stores and retrievers, embedded and served; none of them is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests

from scannery.bridges.langchain import ScanneryRetriever, ScanneryVectorStore
from tests.bridges.targets import fresh_name


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, target: str) -> Iterator[ScanneryVectorStore]:
        store = ScanneryVectorStore(self.get_embeddings(), target=target, index=fresh_name())
        yield store
        store.close()


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _store(self, target: str) -> Iterator[None]:
        embedding = VectorStoreIntegrationTests.get_embeddings()
        self.store = ScanneryVectorStore(embedding, target=target, index=fresh_name())
        self.store.add_documents([Document(page_content=f"Bees make honey {number}.") for number in range(5)])
        yield
        self.store.close()

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return ScanneryRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": self.store}

    @property
    def retriever_query_example(self) -> str:
        return "honey"

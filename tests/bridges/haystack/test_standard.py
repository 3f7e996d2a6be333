"""Haystack's own tests of document stores, embedded and served.

Changed is what the tests ask each store to change: how documents are compared, since embeddings are float32 here and
documents have no order; and what the default policy for duplicates is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from haystack.dataclasses import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.testing import document_store as sync_tests
from haystack.testing import document_store_async as async_tests

from scannery.bridges.haystack import ScanneryDocumentStore
from tests.bridges.targets import fresh_name


class _SameDocuments:
    @pytest.fixture
    def document_store(self, target: str) -> Iterator[ScanneryDocumentStore]:
        store = ScanneryDocumentStore(target=target, index=fresh_name(), embedding_dim=768)
        yield store
        store.close()

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]):
        def comparable(document: Document) -> Document:
            if document.embedding is None:
                return document
            return replace(document, embedding=np.asarray(document.embedding, np.float32).tolist())

        def in_order(documents: list[Document]) -> list[Document]:
            return sorted(map(comparable, documents), key=lambda document: document.id)

        assert in_order(received) == in_order(expected)


class TestDocumentStore(
    _SameDocuments,
    sync_tests.DocumentStoreBaseExtendedTests,
    sync_tests.CountDocumentsByFilterTest,
    sync_tests.CountUniqueMetadataByFilterTest,
    sync_tests.GetMetadataFieldsInfoTest,
    sync_tests.GetMetadataFieldMinMaxTest,
    sync_tests.GetMetadataFieldUniqueValuesTest,
):
    def test_write_documents(self, document_store: ScanneryDocumentStore):
        documents = [Document(id="1", content="one"), Document(id="2", content="two")]
        assert document_store.write_documents(documents) == 2
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([Document(id="2", content="other")])
        self.assert_documents_are_equal(document_store.filter_documents(), documents)


class TestAsyncDocumentStore(
    _SameDocuments,
    async_tests.CountDocumentsAsyncTest,
    async_tests.CountDocumentsByFilterAsyncTest,
    async_tests.CountUniqueMetadataByFilterAsyncTest,
    async_tests.DeleteAllAsyncTest,
    async_tests.DeleteByFilterAsyncTest,
    async_tests.DeleteDocumentsAsyncTest,
    async_tests.FilterDocumentsAsyncTest,
    async_tests.GetMetadataFieldsInfoAsyncTest,
    async_tests.GetMetadataFieldMinMaxAsyncTest,
    async_tests.GetMetadataFieldUniqueValuesAsyncTest,
    async_tests.UpdateByFilterAsyncTest,
    async_tests.WriteDocumentsAsyncTest,
):
    async def test_write_documents_async(self, document_store: ScanneryDocumentStore):
        documents = [Document(id="1", content="one"), Document(id="2", content="two")]
        assert await document_store.write_documents_async(documents) == 2
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([Document(id="2", content="other")])
        self.assert_documents_are_equal(await document_store.filter_documents_async(), documents)

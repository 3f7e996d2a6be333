"""Retrievers of Haystack: by embedding, by text, and by both."""

from __future__ import annotations

from typing import Any

import numpy as np
from haystack import component, default_from_dict, default_to_dict
from haystack.dataclasses import Document
from haystack.document_stores.types import FilterPolicy, apply_filter_policy
from typing_extensions import Self

from scannery.bridges.haystack.document_store import ScanneryDocumentStore
from scannery.bridges.haystack.documents import document
from scannery.client import Fusion, Hits, Mode, Words

__all__ = ["ScanneryEmbeddingRetriever", "ScanneryHybridRetriever", "ScanneryTextRetriever"]


class _Retriever:
    """What the retrievers share: filters, number of documents, options of a search, serialisation."""

    def __init__(
        self,
        document_store: ScanneryDocumentStore,
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
        return_embedding: bool = False,
        search_options: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        if not isinstance(document_store, ScanneryDocumentStore):
            raise TypeError(
                f"document_store: must be a ScanneryDocumentStore, got {type(document_store).__name__}"
            )
        self.document_store = document_store
        self.filters = filters
        self.top_k = _positive(top_k)
        self.filter_policy = (
            FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy
        )
        self.return_embedding = return_embedding
        self.search_options = dict(search_options or {})
        self._own_arguments = arguments

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of the retriever, and those of its store."""
        state: dict[str, Any] = default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
            return_embedding=self.return_embedding,
            search_options=self.search_options,
            **self._own_arguments,
        )
        return state

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the retriever that `to_dict` described."""
        arguments = dict(data.get("init_parameters", {}))
        if isinstance(store := arguments.get("document_store"), dict):
            arguments["document_store"] = ScanneryDocumentStore.from_dict(store)
        made: Self = default_from_dict(cls, {**data, "init_parameters": arguments})
        return made

    def _search(
        self, query: Any, top_k: int | None, filters: dict[str, Any] | None, **options: Any
    ) -> dict[str, list[Document]]:
        arguments = self._arguments(top_k, filters, options)
        return self._documents(self.document_store.hits(query, **arguments))

    async def _search_async(
        self, query: Any, top_k: int | None, filters: dict[str, Any] | None, **options: Any
    ) -> dict[str, list[Document]]:
        arguments = self._arguments(top_k, filters, options)
        return self._documents(await self.document_store.hits_async(query, **arguments))

    def _arguments(
        self, top_k: int | None, filters: dict[str, Any] | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            **options,
            **self.search_options,
            "return_vectors": self.return_embedding,
            "top_k": _positive(self.top_k if top_k is None else top_k),
            "filters": apply_filter_policy(self.filter_policy, self.filters, filters),
        }

    def _documents(self, hits: Hits) -> dict[str, list[Document]]:
        return {"documents": [document(hit, with_embedding=self.return_embedding) for hit in hits]}


@component
class ScanneryEmbeddingRetriever(_Retriever):
    """Finds the documents whose embeddings are nearest to that of a query.

    Args:
        document_store: where to search.
        filters: which documents may be returned.
        top_k: documents wanted, 1 to 10,000.
        filter_policy: whether filters of a run replace those given here, or are merged with them.
        return_embedding: whether documents have their embeddings.
        search_options: further options of `Index.search`, such as `{"target_recall": 0.99, "max_per_group": 1}`.

    """

    def __init__(
        self,
        document_store: ScanneryDocumentStore,
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
        return_embedding: bool = False,
        search_options: dict[str, Any] | None = None,
    ) -> None:
        _Retriever.__init__(  # `component` makes another class, which `super` does not know
            self,
            document_store,
            filters=filters,
            top_k=top_k,
            filter_policy=filter_policy,
            return_embedding=return_embedding,
            search_options=search_options,
        )

    @component.output_types(documents=list[Document])
    def run(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return the documents with their scores, best first; a higher score is better.

        Args:
            query_embedding: of the query.
            filters: of this run.
            top_k: of this run.

        """
        return self._search(np.asarray(query_embedding, np.float32), top_k, filters, mode="dense")

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Do the same as `run`."""
        return await self._search_async(np.asarray(query_embedding, np.float32), top_k, filters, mode="dense")


@component
class ScanneryTextRetriever(_Retriever):
    """Finds documents by the words of a query (BM25), or by its meaning if the index has an encoder.

    Args:
        document_store: where to search.
        mode: `lexical`; or `dense` or `hybrid`, with the encoder of the index.
        rerank: how many of the best hits a cross-encoder of the index orders again.
        filters: which documents may be returned.
        top_k: documents wanted, 1 to 10,000.
        filter_policy: whether filters of a run replace those given here, or are merged with them.
        return_embedding: whether documents have their embeddings.
        search_options: further options of `Index.search`.

    """

    def __init__(
        self,
        document_store: ScanneryDocumentStore,
        *,
        mode: Mode = "lexical",
        rerank: int | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
        return_embedding: bool = False,
        search_options: dict[str, Any] | None = None,
    ) -> None:
        _Retriever.__init__(  # `component` makes another class, which `super` does not know
            self,
            document_store,
            filters=filters,
            top_k=top_k,
            filter_policy=filter_policy,
            return_embedding=return_embedding,
            search_options=search_options,
            mode=mode,
            rerank=rerank,
        )

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return the documents with their scores, best first.

        Args:
            query: a text.
            filters: of this run.
            top_k: of this run.

        """
        return self._search(query, top_k, filters, **self._own_arguments)

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Do the same as `run`."""
        return await self._search_async(query, top_k, filters, **self._own_arguments)


@component
class ScanneryHybridRetriever(_Retriever):
    """Finds documents by embedding and by words in one search, reranked if wanted.

    Args:
        document_store: where to search.
        alpha: weight of the search by embedding, 0 to 1; default: what the index has measured, or 0.5.
        fusion: how both rankings are combined; default: `weighted_score`.
        rerank: how many of the best hits a cross-encoder of the index orders again.
        filters: which documents may be returned.
        top_k: documents wanted, 1 to 10,000.
        filter_policy: whether filters of a run replace those given here, or are merged with them.
        return_embedding: whether documents have their embeddings.
        search_options: further options of `Index.search`.

    """

    def __init__(
        self,
        document_store: ScanneryDocumentStore,
        *,
        alpha: float | None = None,
        fusion: Fusion | None = None,
        rerank: int | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
        return_embedding: bool = False,
        search_options: dict[str, Any] | None = None,
    ) -> None:
        _Retriever.__init__(  # `component` makes another class, which `super` does not know
            self,
            document_store,
            filters=filters,
            top_k=top_k,
            filter_policy=filter_policy,
            return_embedding=return_embedding,
            search_options=search_options,
            alpha=alpha,
            fusion=fusion,
            rerank=rerank,
        )

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        query_embedding: list[float] | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Return the documents with their scores, best first.

        Args:
            query: a text, whose words are searched.
            query_embedding: its embedding; None: the encoder of the index makes it.
            filters: of this run.
            top_k: of this run.

        """
        return self._search(
            _both(query, query_embedding), top_k, filters, mode="hybrid", **self._own_arguments
        )

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query: str,
        query_embedding: list[float] | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Do the same as `run`."""
        both = _both(query, query_embedding)
        return await self._search_async(both, top_k, filters, mode="hybrid", **self._own_arguments)


def _both(query: str, query_embedding: list[float] | None) -> Any:
    return query if query_embedding is None else Words(query, np.asarray(query_embedding, np.float32))


def _positive(top_k: int) -> int:
    if top_k <= 0:
        raise ValueError(f"top_k: must be above 0, got {top_k}")
    return top_k

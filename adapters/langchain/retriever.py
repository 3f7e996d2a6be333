"""The retriever: hybrid search and reranking, with scores, titles and times in the metadata."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field

from scannery.adapters.langchain.documents import scored_document
from scannery.adapters.langchain.vector_store import ScanneryVectorStore

__all__ = ["ScanneryRetriever"]


class ScanneryRetriever(BaseRetriever):
    """Documents of a vector store by meaning and by words, reranked if wanted.

    The metadata of a document also have its `score`; in hybrid search `dense_score` and `lexical_score` where that side
    found it; after reranking `rerank_score`; and where the index has them `title`, `time_start_s` and `time_end_s` of
    the passage in a recording, and the `document_id` that it is of.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    vectorstore: ScanneryVectorStore
    """Where to search."""
    k: int = 4
    """Documents wanted, 1 to 10,000; also an argument of `invoke`."""
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    """By vector and by words, or by one of them."""
    alpha: float | None = None
    """Hybrid: weight of the search by vector, 0 to 1; default: what the index has measured, or 0.5."""
    rerank: int | None = None
    """How many of the best hits a cross-encoder of the index orders again."""
    filter: dict[str, Any] | None = None
    """By keys of the metadata."""
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further options of `Index.search`: `max_per_group`, `target_recall`, `rerank_budget_s`, `where` and so on."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return [scored_document(hit) for hit in self.vectorstore.hits(query, **self._options(kwargs))]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return [scored_document(hit) for hit in await self.vectorstore.ahits(query, **self._options(kwargs))]

    def _options(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        own = {
            "k": self.k,
            "mode": self.mode,
            "alpha": self.alpha,
            "rerank": self.rerank,
            "filter": self.filter,
        }
        return {**own, **self.search_kwargs, **kwargs}

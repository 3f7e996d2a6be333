"""The vector store: LangChain's interface over an index.

The retriever: hybrid search and reranking, with scores, titles and times in the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from pydantic import ConfigDict, Field
from typing_extensions import Self

from scannery.bridges.connection import Connection
from scannery.bridges.ids import MAX_ITEMS, pages
from scannery.bridges.langchain.documents import (
    checked_ids,
    deletions,
    document,
    points,
    query_of,
    relevance,
    scored_document,
    search_options,
)
from scannery.client import Client, Hits, InvalidArgumentError

__all__ = ["ScanneryRetriever", "ScanneryVectorStore"]


class ScanneryVectorStore(VectorStore):
    """Documents in an index, which is created when it is first used, if it is absent.

    Nothing is connected before the first use. Pickled or copied, the object is its arguments; the copy connects itself.
    Metadata are dynamic attributes: they need no declaration, keep their types, and all of them can be filtered by.

    Args:
        embedding: makes the vectors; None: the encoder of the index does.
        target: a server (`host:port`, `http://host:port`), or the path or URI of a store in this process.
        index: its name.
        encoder: model of an index that is created, where `embedding` is None. Default: the one that the server has.
        dimensions: of the vectors of an index that is created. Default: asked of `embedding` by one text.
        distance: of an index that is created.
        lexical: whether an index that is created has the words of texts, for hybrid search.
        new_index: further arguments of `Client.create_index`, such as `{"target_recall": 0.98}`.
        batch_size: documents written in one call, 1 to 1,000.
        options: of `scannery.connect`: `api_key`, `token`, `tls`, `ca`, `timeout_s`.

    """

    def __init__(
        self,
        embedding: Embeddings | None = None,
        *,
        target: str | Path,
        index: str = "langchain",
        encoder: str | None = None,
        dimensions: int | None = None,
        distance: Literal["cosine", "dot", "squared_l2"] = "cosine",
        lexical: bool | Mapping[str, Any] = True,
        new_index: Mapping[str, Any] | None = None,
        batch_size: int = 200,
        **options: Any,
    ) -> None:
        if embedding is not None and not isinstance(embedding, Embeddings):
            raise TypeError(
                f"embedding: must be LangChain's Embeddings or None, got {type(embedding).__name__}"
            )
        if embedding is not None and encoder is not None:
            raise InvalidArgumentError("encoder: is for an index without `embedding`", field="encoder")
        self.embedding = embedding
        self._encoder = encoder
        self._dimensions = dimensions
        self._new = {"distance": distance, "lexical": lexical, "dynamic": True, **(new_index or {})}
        self._batch_size = batch_size
        self._connection = Connection(target, index, self._new_index, options)

    @property
    def embeddings(self) -> Embeddings | None:
        """What makes the vectors; None: the encoder of the index."""
        return self.embedding

    # ---- writing ----

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Iterable[dict[str, Any]] | None = None,
        *,
        ids: Iterable[str | None] | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Insert or replace texts, and return their ids; a random one where none is given.

        They are written in batches of `batch_size`, that of the store unless one is given, and at most 1,000. Each is
        written completely or not at all.
        """
        _check_known(kwargs)
        batch_size = self._batch_of(batch_size)
        texts = list(texts)
        checked = checked_ids(ids, len(texts))
        if texts:
            vectors = None if self.embedding is None else self.embedding.embed_documents(texts)
            batch = points(texts, metadatas, checked, vectors)
            index = self._connection.index()
            self._check_encodes()
            index.upsert_many(batch, batch_size=batch_size)
        return checked

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: Iterable[dict[str, Any]] | None = None,
        *,
        ids: Iterable[str | None] | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Do the same as `add_texts`."""
        _check_known(kwargs)
        batch_size = self._batch_of(batch_size)
        texts = list(texts)
        checked = checked_ids(ids, len(texts))
        if texts:
            vectors = None if self.embedding is None else await self.embedding.aembed_documents(texts)
            batch = points(texts, metadatas, checked, vectors)
            index = await self._connection.aindex()
            self._check_encodes()
            await index.upsert_many(batch, batch_size=batch_size)
        return checked

    def delete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by id, or with `filter` those that it allows; without either, all of them.

        Ids that are not there are no error.
        """
        where = self._deleted_by(ids, kwargs)
        index = self._connection.index()
        for arguments in deletions(ids, where, self._connection.info):
            index.delete(**arguments)
        return True

    async def adelete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> bool:
        """Do the same as `delete`."""
        index = await self._connection.aindex()
        for arguments in deletions(ids, self._deleted_by(ids, kwargs), self._connection.info):
            await index.delete(**arguments)
        return True

    # ---- reading ----

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids, in their order, without those that are not there."""
        index = self._connection.index()
        points_of_ids = [point for page in pages(ids) for point in index.get(page)]
        return [document(point) for point in points_of_ids if point is not None]

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Do the same as `get_by_ids`."""
        index = await self._connection.aindex()
        points_of_ids = [point for page in pages(ids) for point in await index.get(page)]
        return [document(point) for point in points_of_ids if point is not None]

    def similarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the k best documents and their scores, best first; a higher score is better.

        Args:
            query: a text.
            k: documents wanted, 1 to 10,000.
            kwargs: `filter` by metadata (`{"year": {"$gte": 2020}}`), and options of `Index.search`: `mode`, `alpha`,
                `rerank`, `min_score`, `min_relevance`, `exact` and so on. The mode is `dense` unless one is given.

        """
        return [(document(hit), hit.score) for hit in self.hits(query, k, **kwargs)]

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Do the same as `similarity_search_with_score`."""
        return [(document(hit), hit.score) for hit in await self.ahits(query, k, **kwargs)]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Return the k best documents, best first; see `similarity_search_with_score`."""
        return [document(hit) for hit in self.hits(query, k, **kwargs)]

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Do the same as `similarity_search`."""
        return [document(hit) for hit in await self.ahits(query, k, **kwargs)]

    def similarity_search_with_score_by_vector(
        self, embedding: Sequence[float], k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the k documents nearest to a vector and their scores."""
        return [(document(hit), hit.score) for hit in self._nearest(embedding, k, kwargs)]

    async def asimilarity_search_with_score_by_vector(
        self, embedding: Sequence[float], k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Do the same as `similarity_search_with_score_by_vector`."""
        return [(document(hit), hit.score) for hit in await self._anearest(embedding, k, kwargs)]

    def similarity_search_by_vector(
        self, embedding: Sequence[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """Return the k documents nearest to a vector."""
        return [document(hit) for hit in self._nearest(embedding, k, kwargs)]

    async def asimilarity_search_by_vector(
        self, embedding: Sequence[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """Do the same as `similarity_search_by_vector`."""
        return [document(hit) for hit in await self._anearest(embedding, k, kwargs)]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Return k of the `fetch_k` nearest documents that are near the query and unlike each other."""
        if self.embedding is None:
            vector_D = self._connection.index().embed([query])[0]
        else:
            vector_D = self.embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector_D, k, fetch_k, lambda_mult, **kwargs)

    async def amax_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Do the same as `max_marginal_relevance_search`."""
        if self.embedding is None:
            vector_D = (await (await self._connection.aindex()).embed([query]))[0]
        else:
            vector_D = await self.embedding.aembed_query(query)
        return await self.amax_marginal_relevance_search_by_vector(
            vector_D, k, fetch_k, lambda_mult, **kwargs
        )

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Do the same as `max_marginal_relevance_search` for a vector."""
        hits = self._nearest(embedding, fetch_k, {**kwargs, "return_vectors": True})
        return _diverse(hits, embedding, k, lambda_mult)

    async def amax_marginal_relevance_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Do the same as `max_marginal_relevance_search_by_vector`."""
        hits = await self._anearest(embedding, fetch_k, {**kwargs, "return_vectors": True})
        return _diverse(hits, embedding, k, lambda_mult)

    def hits(self, query: str, k: int = 4, **kwargs: Any) -> Hits:
        """Return the hits of the SDK for a text: scores of each side, times, payloads, the version that answered."""
        index, options = self._connection.index(), search_options(kwargs, self._connection.info)
        needs_vector = self.embedding is not None and options["mode"] != "lexical"
        vector_D = self.embedding.embed_query(query) if self.embedding and needs_vector else None
        return index.search(query_of(query, vector_D, options), k, **options)

    async def ahits(self, query: str, k: int = 4, **kwargs: Any) -> Hits:
        """Do the same as `hits`."""
        index, options = await self._connection.aindex(), search_options(kwargs, self._connection.info)
        needs_vector = self.embedding is not None and options["mode"] != "lexical"
        vector_D = await self.embedding.aembed_query(query) if self.embedding and needs_vector else None
        return await index.search(query_of(query, vector_D, options), k, **options)

    def _nearest(self, vector_D: Sequence[float], k: int, kwargs: Mapping[str, Any]) -> Hits:
        index = self._connection.index()
        return index.search(
            np.asarray(vector_D, np.float32), k, **search_options(kwargs, self._connection.info)
        )

    async def _anearest(self, vector_D: Sequence[float], k: int, kwargs: Mapping[str, Any]) -> Hits:
        index = await self._connection.aindex()
        options = search_options(kwargs, self._connection.info)
        return await index.search(np.asarray(vector_D, np.float32), k, **options)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return relevance(self._connection.info.distance)

    # ---- making and closing ----

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        embedding: Embeddings | None = None,
        metadatas: Iterable[dict[str, Any]] | None = None,
        *,
        ids: Iterable[str | None] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Return a store with these texts added to what the index has; `kwargs` are those of the class."""
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: Iterable[str],
        embedding: Embeddings | None = None,
        metadatas: Iterable[dict[str, Any]] | None = None,
        *,
        ids: Iterable[str | None] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Do the same as `from_texts`."""
        store = cls(embedding, **kwargs)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    def close(self) -> None:
        """Close the connections that threads use; a later call connects again."""
        self._connection.close()

    async def aclose(self) -> None:
        """Close the connections, those of the running event loop too."""
        await self._connection.aclose()

    def _new_index(self, client: Client) -> dict[str, Any]:
        if self.embedding is None:
            return {**self._new, "encoder": self._encoder or _only_encoder(client)}
        dimensions = self._dimensions or len(self.embedding.embed_query("dimensions"))
        return {**self._new, "dimensions": dimensions}

    def _batch_of(self, size: int | None) -> int:
        """Return how many documents are written in one call; LangChain's indexing may ask for any number."""
        return self._batch_size if size is None else min(size, MAX_ITEMS)

    def _check_encodes(self) -> None:
        """Raise InvalidArgumentError for texts that nothing makes vectors of: no search by meaning would find them."""
        info = self._connection.info
        encodes = info.encoder is not None or any(each.encoder for each in info.named_vectors.values())
        if self.embedding is None and info.dimensions and not encodes:
            raise InvalidArgumentError(
                f"embedding: index {info.name!r} has no encoder: give the embedding that its vectors were made with",
                field="embedding",
            )

    def _deleted_by(self, ids: Sequence[str] | None, kwargs: dict[str, Any]) -> Any:
        where = kwargs.pop("filter", None)
        _check_known(kwargs)
        if ids is not None and where is not None:
            raise InvalidArgumentError("filter: cannot be given together with ids", field="filter")
        return where


def _diverse(hits: Hits, vector_D: Sequence[float], k: int, lambda_mult: float) -> list[Document]:
    vectors = [hit.vector for hit in hits]
    chosen = maximal_marginal_relevance(np.asarray(vector_D, np.float32), vectors, lambda_mult, k)
    return [document(hits[number]) for number in chosen]


def _only_encoder(client: Client) -> str:
    models = sorted({encoder.model for encoder in client.encoders()})
    if len(models) != 1:
        raise InvalidArgumentError(
            f"encoder: name the model of the new index, or give an embedding; "
            f"the target has {', '.join(models) or 'no encoder'}",
            field="encoder",
        )
    return models[0]


def _check_known(kwargs: Mapping[str, Any]) -> None:
    for name in kwargs:
        raise TypeError(f"unexpected argument {name!r}")


class ScanneryRetriever(BaseRetriever):
    """Documents of a vector store by meaning and by words, reranked if wanted.

    The metadata of a document also have its `score`, and its `relevance` where the index has measured what scores mean;
    in hybrid search `dense_score` and `lexical_score` where that side found it; after reranking `rerank_score`; and
    where the index has them `title`, `time_start_s` and `time_end_s` of the passage in a recording, and the
    `document_id` that it is of.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    vectorstore: ScanneryVectorStore
    """Where to search."""
    k: int = 4
    """Documents wanted, 1 to 10,000; also an argument of `invoke`."""
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    """Way of search: by vector and by words, or by one of them."""
    alpha: float | None = None
    """Hybrid: weight of the search by vector, 0 to 1; default: what the index has measured, or 0.5."""
    rerank: int | None = None
    """How many of the best hits a cross-encoder of the index orders again."""
    filter: dict[str, Any] | None = None
    """Conditions by keys of the metadata."""
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
        defaults = {
            "k": self.k,
            "mode": self.mode,
            "alpha": self.alpha,
            "rerank": self.rerank,
            "filter": self.filter,
        }
        return {**defaults, **self.search_kwargs, **kwargs}

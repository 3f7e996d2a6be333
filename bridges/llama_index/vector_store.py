"""The vector store: nodes are datapoints of one index, and every method is one or a few calls of the SDK."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)

from scannery.bridges.connection import Connection
from scannery.bridges.ids import pages
from scannery.bridges.llama_index.queries import (
    REF_DOC_ID,
    SparseEncoder,
    all_of,
    among,
    diverse,
    node_of,
    point_of,
    result_of,
    search_of,
    sparse_weights,
    where_of,
)
from scannery.client import Client, Index, NewDatapoint, Where

__all__ = ["ScanneryVectorStore"]

_ALL: Where = {"id": {"$exists": True}}


class _NoDimensionsError(Exception):
    """The index is absent, and nothing says how many dimensions it is to have."""


@dataclass(slots=True)
class _NewIndex:
    """The arguments of `create_index`; apart from the store, which Connection would pickle with itself."""

    dimensions: int | None
    encoder: str | None
    options: Mapping[str, Any]

    def __call__(self, client: Client) -> Mapping[str, Any]:
        if self.encoder is not None:
            return {**self.options, "encoder": self.encoder}
        if self.dimensions is None:
            raise _NoDimensionsError
        return {**self.options, "dimensions": self.dimensions}


class ScanneryVectorStore(BasePydanticVectorStore):
    """Nodes in an index of a server or a store. The first call connects, and creates the index if it is absent.

    Safe to use from several threads and event loops. What one method has written, the next one sees.
    """

    stores_text: bool = True
    flat_metadata: bool = False
    is_embedding_query: bool = True
    """False with `encoder`: then the index makes the vectors of nodes and queries."""
    target: str
    """`host:port`, `http://host:port`, or the path or URI of a store."""
    index: str
    """Its name."""
    embedding_dim: int | None = None
    """Dimensions of a new index; None: those of the first embedding that is added."""
    distance: Literal["cosine", "dot", "squared_l2"] = "cosine"
    """Distance of a new index."""
    lexical: bool | dict[str, Any] = True
    """Whether words are indexed in a new index, or how, as in SPEC.yaml: for text_search, sparse and hybrid."""
    encoder: str | None = None
    """The model of a new index that encodes texts in the server; embeddings of nodes and queries are then not used."""
    connect_options: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    """Options of `scannery.connect`, such as `token`; not part of the serialised store."""
    sparse_doc_fn: SparseEncoder | None = Field(default=None, exclude=True, repr=False)
    """Makes sparse vectors of texts: the modes sparse and hybrid then compare these instead of words."""
    sparse_query_fn: SparseEncoder | None = Field(default=None, exclude=True, repr=False)
    """The same for queries; default: `sparse_doc_fn`."""
    _connection: Connection = PrivateAttr()
    _new_index: _NewIndex = PrivateAttr()

    def __init__(self, target: str | Path, index: str, **options: Any) -> None:
        # Pydantic would ignore them, a key for the server too.
        for name in options.keys() - type(self).model_fields.keys() - {"class_name"}:
            raise TypeError(
                f"ScanneryVectorStore has no argument {name!r}; options of scannery.connect, such as api_key, are in "
                "connect_options={…}"
            )
        super().__init__(
            target=str(target),
            index=index,
            **{"is_embedding_query": options.get("encoder") is None, **options},
        )
        made = {
            "distance": self.distance,
            "lexical": self.lexical or None,
            "sparse": self.sparse_doc_fn is not None or None,
            "dynamic": True,
        }
        self._new_index = _NewIndex(self.embedding_dim, self.encoder, made)
        self._connection = Connection(self.target, self.index, self._new_index, self.connect_options)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class in serialised stores."""
        return "ScanneryVectorStore"

    @property
    def client(self) -> Index:
        """The handle on the index, for what LlamaIndex has no word for."""
        return self._connection.index()

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Insert or replace nodes, and return their ids; when this returns, they are durable and found.

        Raises:
            InvalidArgumentError: an embedding has other dimensions than the index, or a value cannot be kept.
            ValueError: the index is absent, and neither `embedding_dim` nor an embedding says its dimensions.

        """
        points = self._points(nodes)
        if points:
            with _translated_errors():
                index = self.client
            index.upsert_many(points)
        return [node.node_id for node in nodes]

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """As `add`."""
        points = self._points(nodes)
        if points:
            with _translated_errors():
                index = await self._connection.aindex()
            await index.upsert_many(points)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document."""
        self._delete([{REF_DOC_ID: ref_doc_id}])

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """As `delete`."""
        await self._adelete([{REF_DOC_ID: ref_doc_id}])

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete the nodes with some of these ids that the filters allow; those that are not there are no error.

        Raises:
            ValueError: neither ids nor a filter are given; `clear` deletes all nodes.

        """
        self._delete(list(_chosen(node_ids, filters)))

    async def adelete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """As `delete_nodes`."""
        await self._adelete(list(_chosen(node_ids, filters)))

    def clear(self) -> None:
        """Delete all nodes; the index stays."""
        self._delete([_ALL])

    async def aclear(self) -> None:
        """As `clear`."""
        await self._adelete([_ALL])

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return the nodes with some of these ids that the filters allow, without embeddings; by default, all nodes."""
        try:
            by_id = {
                point.id: point
                for where in _chosen(node_ids, filters, default=_ALL)
                for point in self.client.scan(where=where)
            }
        except _NoDimensionsError:
            return []
        return [node_of(by_id[name]) for name in (by_id if node_ids is None else node_ids) if name in by_id]

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """As `get_nodes`."""
        try:
            index = await self._connection.aindex()
        except _NoDimensionsError:
            return []
        by_id = {
            point.id: point
            for where in _chosen(node_ids, filters, default=_ALL)
            async for point in index.scan(where=where)
        }
        return [node_of(by_id[name]) for name in (by_id if node_ids is None else node_ids) if name in by_id]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Return the best nodes for a query, best first, in one of these modes.

        - `default`: by vector.
        - `text_search`: by words (BM25).
        - `sparse`: by sparse vectors with `sparse_doc_fn`, else by words.
        - `hybrid`: by vector, and by words or sparse vectors; `alpha` is the weight of the vectors, 0 to 1.
        - `mmr`: by vector, and different from each other: chosen from the best 4 × k, at least 100.

        Args:
            query: its filters, `node_ids` and `doc_ids` must all allow a node.
            kwargs: options of `scannery.Index.search`, such as `exact`, `rerank` or `target_recall`; `mmr_threshold`.

        Raises:
            ValueError: the query has not what its mode needs, or the mode is another one.

        """
        threshold = kwargs.pop("mmr_threshold", query.mmr_threshold)
        search = search_of(query, kwargs, self._sparse_query, encodes=self._encodes)
        try:
            hits = self.client.search(search.query, search.k, **search.options)
            if query.mode != VectorStoreQueryMode.MMR:
                return result_of(hits)
            vector_D = self.client.embed([search.query])[0] if isinstance(search.query, str) else search.query
        except _NoDimensionsError:
            return result_of(())
        return diverse(vector_D, hits, query.similarity_top_k, threshold)  # type: ignore[arg-type]  # a vector

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """As `query`."""
        threshold = kwargs.pop("mmr_threshold", query.mmr_threshold)
        search = search_of(query, kwargs, self._sparse_query, encodes=self._encodes)
        try:
            index = await self._connection.aindex()
        except _NoDimensionsError:
            return result_of(())
        hits = await index.search(search.query, search.k, **search.options)
        if query.mode != VectorStoreQueryMode.MMR:
            return result_of(hits)
        vector_D = (await index.embed([search.query]))[0] if isinstance(search.query, str) else search.query
        return diverse(vector_D, hits, query.similarity_top_k, threshold)  # type: ignore[arg-type]  # a vector

    def close(self) -> None:
        """Close the connections; the next call connects again."""
        self._connection.close()

    @property
    def _encodes(self) -> bool:
        return self.encoder is not None

    @property
    def _sparse_query(self) -> SparseEncoder | None:
        return self.sparse_query_fn or self.sparse_doc_fn

    def _points(self, nodes: Sequence[BaseNode]) -> list[NewDatapoint]:
        points = [point_of(node, embedded=not self._encodes) for node in nodes]
        if self._new_index.dimensions is None:
            sizes = (len(point["vector"]) for point in points if "vector" in point)
            self._new_index.dimensions = next(sizes, None)
        if self.sparse_doc_fn is not None:
            texts = [point for point in points if "text" in point]
            weights = sparse_weights(self.sparse_doc_fn, [point["text"] for point in texts])
            for point, row in zip(texts, weights, strict=True):
                if row:
                    point["sparse_vector"] = row
        return points

    def _delete(self, filters: Iterable[Where]) -> None:
        try:
            for where in filters:
                self.client.delete(where=where)
        except _NoDimensionsError:  # there is no index, and so no node
            return

    async def _adelete(self, filters: Iterable[Where]) -> None:
        try:
            index = await self._connection.aindex()
        except _NoDimensionsError:
            return
        for where in filters:
            await index.delete(where=where)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Say to those who add nodes what a new index needs."""
    try:
        yield
    except _NoDimensionsError as error:
        raise ValueError(
            "nodes: none has an embedding; a new index needs one, embedding_dim or encoder"
        ) from error


def _chosen(
    node_ids: list[str] | None, filters: MetadataFilters | None, *, default: Where | None = None
) -> Iterator[Where]:
    """Yield filters that together allow the nodes that are chosen: each names a limited number of ids."""
    allowed = where_of(filters)
    if node_ids is None:
        if not allowed and default is None:
            raise ValueError("delete_nodes: needs node_ids or filters; clear() deletes all nodes")
        yield allowed or default or {}
        return
    for page in pages(node_ids):
        yield all_of([among("id", page), allowed])

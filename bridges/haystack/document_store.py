"""The document store: Haystack's interface over an index."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from haystack import default_from_dict, default_to_dict
from haystack.dataclasses import Document
from haystack.document_stores.types import DuplicatePolicy
from haystack.utils import Secret
from typing_extensions import Self

from scannery.bridges.attributes import to_attributes
from scannery.bridges.connection import Connection
from scannery.bridges.haystack.documents import (
    absent_points,
    checked_documents,
    document,
    point,
    raise_duplicate,
    skipping,
)
from scannery.bridges.haystack.filters import required_where, to_where
from scannery.bridges.haystack.metadata import MetadataQueries
from scannery.bridges.ids import pages
from scannery.client import Client, Hits, ScanneryError

__all__ = ["ScanneryDocumentStore"]

_EVERYTHING = {"id": {"$exists": True}}


class ScanneryDocumentStore(MetadataQueries):
    """Documents in an index, which is created when it is first used, if it is absent.

    Nothing is connected before the first use; documents with and without embeddings are in one index. Metadata are
    dynamic attributes: they need no declaration, keep their types, and all of them can be filtered by.

    Args:
        target: a server (`host:port`, `http://host:port`), or the path or URI of a store in this process.
        index: its name.
        embedding_dim: components of the embeddings of an index that is created; None with `encoder`.
        distance: of an index that is created.
        lexical: whether an index that is created has the words of contents, for search by text and hybrid search.
        encoder: model of an index that is created, which encodes documents without embedding, and queries.
        new_index: further arguments of `Client.create_index`, such as `{"attributes": {"date": "timestamp"}}`.
        return_embedding: whether `filter_documents` returns embeddings.
        batch_size: documents written in one call, 1 to 1,000.
        api_key: shown to a server.
        tls: encrypt; None: if there is a key to send beyond this machine, or `ca` is given.
        ca: file with the authorities that may sign the server's certificate.
        timeout_s: of a call.

    """

    def __init__(
        self,
        *,
        target: str | Path,
        index: str = "haystack",
        embedding_dim: int | None = 768,
        distance: Literal["cosine", "dot", "squared_l2"] = "cosine",
        lexical: bool | dict[str, Any] = True,
        encoder: str | None = None,
        new_index: dict[str, Any] | None = None,
        return_embedding: bool = True,
        batch_size: int = 200,
        api_key: Secret | None = Secret.from_env_var("SCANNERY_API_KEY", strict=False),  # noqa: B008
        tls: bool | None = None,
        ca: str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        if api_key is not None and not isinstance(api_key, Secret):
            raise TypeError(
                "api_key: must be Haystack's Secret, such as Secret.from_env_var('KEY') or Secret.from_token(key)"
            )
        self._arguments: dict[str, Any] = {
            "target": str(target),
            "index": index,
            "embedding_dim": embedding_dim,
            "distance": distance,
            "lexical": lexical,
            "encoder": encoder,
            "new_index": new_index,
            "return_embedding": return_embedding,
            "batch_size": batch_size,
            "api_key": api_key,
            "tls": tls,
            "ca": ca,
            "timeout_s": timeout_s,
        }
        self._api_key = api_key
        self._batch_size = batch_size
        self._return_embedding = return_embedding
        options = {"tls": tls, "ca": ca, "timeout_s": timeout_s}
        self._connection = Connection(target, index, self._new_index, options, self._secrets)

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of the store; of the key only the name of the environment variable that has it.

        Raises:
            ValueError: the key is a token, which is not written.

        """
        key = None if self._api_key is None else self._api_key.to_dict()
        state: dict[str, Any] = default_to_dict(self, **{**self._arguments, "api_key": key})
        return state

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the store that `to_dict` described."""
        made: Self = default_from_dict(cls, data)
        return made

    # ---- documents ----

    def count_documents(self) -> int:
        """Return the number of documents."""
        return self._connection.index().count()

    async def count_documents_async(self) -> int:
        """Do the same as `count_documents`."""
        return await (await self._connection.aindex()).count()

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that the filters allow, in no order.

        Raises:
            FilterError: the filters are malformed.

        """
        index, where = self._connection.index(), self._where(filters)
        with_embedding = self._return_embedding
        scan = index.scan(where=where, vectors=with_embedding)
        return [document(each, with_embedding=with_embedding) for each in scan]

    async def filter_documents_async(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Do the same as `filter_documents`."""
        index, with_embedding = await self._connection.aindex(), self._return_embedding
        scan = index.scan(where=self._where(filters), vectors=with_embedding)
        return [document(each, with_embedding=with_embedding) async for each in scan]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents, and return how many were written. They are durable then.

        They are written in batches of `batch_size`, each of which is written completely or not at all.

        Args:
            documents: to write.
            policy: for documents whose id is there already. `NONE` is `FAIL`.

        Raises:
            DuplicateDocumentError: with `FAIL`; the batches before this document stay.
            ValueError: this is no list of documents.

        """
        checked, index = checked_documents(documents), self._connection.index()
        if policy is DuplicatePolicy.SKIP:
            stored = [
                each
                for ids in pages(document.id for document in checked)
                for each in index.get(ids, fields=[])
            ]
            absent = absent_points(self._points(checked, if_absent=True), stored)
            return skipping(index.upsert_many(absent, batch_size=self._batch_size, errors="return"))
        points = self._points(checked, if_absent=policy is not DuplicatePolicy.OVERWRITE)
        try:
            index.upsert_many(points, batch_size=self._batch_size)
        except ScanneryError as error:
            raise_duplicate(error)
            raise
        return len(checked)

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Do the same as `write_documents`."""
        checked, index = checked_documents(documents), await self._connection.aindex()
        if policy is DuplicatePolicy.SKIP:
            stored = [
                each
                for ids in pages(document.id for document in checked)
                for each in await index.get(ids, fields=[])
            ]
            absent = absent_points(self._points(checked, if_absent=True), stored)
            return skipping(await index.upsert_many(absent, batch_size=self._batch_size, errors="return"))
        points = self._points(checked, if_absent=policy is not DuplicatePolicy.OVERWRITE)
        try:
            await index.upsert_many(points, batch_size=self._batch_size)
        except ScanneryError as error:
            raise_duplicate(error)
            raise
        return len(checked)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by id; those that are not there are no error."""
        index = self._connection.index()
        for ids in pages(document_ids):
            index.delete(**self._deletion(ids))

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        """Do the same as `delete_documents`."""
        index = await self._connection.aindex()
        for ids in pages(document_ids):
            await index.delete(**self._deletion(ids))

    def delete_all_documents(self, recreate_index: bool = False) -> None:
        """Delete all documents, or with `recreate_index` the index, which is created again.

        The new one has the arguments of this store. To create it, a server needs the scope `admin`.
        """
        if recreate_index:
            self._connection.recreate()
        else:
            self._connection.index().delete(where=_EVERYTHING)

    async def delete_all_documents_async(self, recreate_index: bool = False) -> None:
        """Do the same as `delete_all_documents`."""
        if recreate_index:
            await asyncio.to_thread(self._connection.recreate)
        else:
            await (await self._connection.aindex()).delete(where=_EVERYTHING)

    # ---- by filter ----

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that the filters allow, and return how many there were.

        Raises:
            FilterError: the filters are malformed, or have no condition.

        """
        index = self._connection.index()
        return index.delete(where=required_where(filters, dynamic=self._dynamic)).deleted

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Do the same as `delete_by_filter`."""
        index = await self._connection.aindex()
        return (await index.delete(where=required_where(filters, dynamic=self._dynamic))).deleted

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Give the documents that the filters allow new values of some metadata; return how many there were.

        Other metadata stay. None removes a key.

        Raises:
            FilterError: the filters are malformed, or have no condition.

        """
        index = self._connection.index()
        where = required_where(filters, dynamic=self._dynamic)
        return index.update(where=where, attributes=to_attributes(meta)).written

    async def update_by_filter_async(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Do the same as `update_by_filter`."""
        index = await self._connection.aindex()
        where = required_where(filters, dynamic=self._dynamic)
        return (await index.update(where=where, attributes=to_attributes(meta))).written

    # ---- searching ----

    def hits(self, query: Any, top_k: int, filters: dict[str, Any] | None, **options: Any) -> Hits:
        """Return the hits of the SDK for a query; `options` are those of `Index.search`."""
        index = self._connection.index()
        return index.search(query, top_k, where=self._where(filters), **options)

    async def hits_async(
        self, query: Any, top_k: int, filters: dict[str, Any] | None, **options: Any
    ) -> Hits:
        """Do the same as `hits`."""
        index = await self._connection.aindex()
        return await index.search(query, top_k, where=self._where(filters), **options)

    # ---- connecting ----

    def close(self) -> None:
        """Close the connections that threads use; a later call connects again."""
        self._connection.close()

    async def close_async(self) -> None:
        """Close the connections, those of the running event loop too."""
        await self._connection.aclose()

    def _where(self, filters: dict[str, Any] | None) -> dict[str, Any] | None:
        return to_where(filters, dynamic=self._dynamic)

    def _points(self, documents: Iterable[Document], *, if_absent: bool) -> Iterator[Any]:
        sparse = bool(self._connection.info.spec.get("source", {}).get("sparse_vector"))
        dynamic = self._dynamic
        return (point(each, sparse=sparse, dynamic=dynamic, if_absent=if_absent) for each in documents)

    def _deletion(self, ids: list[str]) -> dict[str, Any]:
        # Where texts are cut into passages, what was written under an id is a document.
        is_cut = bool(self._connection.info.spec.get("source", {}).get("chunk"))
        return {"ids": ids, "document_ids": ids} if is_cut else {"ids": ids}

    def _secrets(self) -> dict[str, Any]:
        # A store in this process takes no key, also where the environment has one.
        if self._api_key is None or self._connection.is_store:
            return {}
        return {"api_key": self._api_key.resolve_value()}

    def _new_index(self, _: Client) -> dict[str, Any]:
        arguments = {name: self._arguments[name] for name in ("distance", "lexical", "encoder")}
        dimensions = None if self._arguments["encoder"] else self._arguments["embedding_dim"]
        return {
            **arguments,
            "dimensions": dimensions,
            "dynamic": True,
            **(self._arguments["new_index"] or {}),
        }

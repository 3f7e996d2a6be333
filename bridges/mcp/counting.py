"""Tools that say what there is: the indexes, the number of passages, and the values of an attribute."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from scannery.bridges.mcp.answers import Counted, FacetCount, FacetList, IndexList, IndexSummary
from scannery.bridges.mcp.texts import bounded
from scannery.bridges.mcp.tools import IndexName, Tool, Where
from scannery.client import IndexInfo
from scannery.client.aio import AsyncClient

__all__ = ["Count", "Facets", "ListIndexes"]

MAX_INDEXES = 100
MAX_ATTRIBUTES = 100


class ListIndexes(Tool):
    """List the indexes with their numbers of passages, attributes with kinds, and modes of search. Call it first."""

    name: ClassVar[str] = "list_indexes"
    answer: ClassVar[type[IndexList]] = IndexList

    async def call(self, client: AsyncClient) -> IndexList:
        """Return the first `MAX_INDEXES` indexes."""
        infos = await client.indexes()
        # A store in this process has not read the live updates of an index before its first use. One that has nothing
        # else would look empty, and be left alone.
        indexes = [
            _summary(info if info.rows else await client.index(info.name).stats())
            for info in infos[:MAX_INDEXES]
        ]
        return IndexList(indexes=indexes, total=len(infos))


class Count(Tool):
    """Count the passages of an index, or those that a filter allows. It counts exactly, and reads no texts."""

    name: ClassVar[str] = "count"
    answer: ClassVar[type[Counted]] = Counted

    index: IndexName
    where: Where = None

    async def call(self, client: AsyncClient) -> Counted:
        """Return the number."""
        return Counted(index=self.index, count=await client.index(self.index).count(self.where))


class Facets(Tool):
    """List the values of an attribute, the most frequent first, with their numbers of passages.

    Use it to learn which values a filter can name, such as the names of shows, before a search.
    """

    name: ClassVar[str] = "facets"
    answer: ClassVar[type[FacetList]] = FacetList

    index: IndexName
    attribute: Annotated[str, Field(min_length=1, description="Name of an attribute, or `document_id`.")]
    where: Where = None
    limit: int = Field(20, ge=1, le=100)
    """Number of values to list."""

    async def call(self, client: AsyncClient) -> FacetList:
        """Return the values."""
        index = client.index(self.index)
        facets = await index.facets(self.attribute, self.where, limit=self.limit)
        stats = await index.attribute_stats(self.attribute, self.where)
        return FacetList(
            index=self.index,
            attribute=self.attribute,
            facets=[FacetCount(value=bounded(facet.value), count=facet.count) for facet in facets],
            distinct=facets.distinct,
            missing=facets.missing,
            least=bounded(stats.min),
            greatest=bounded(stats.max),
        )


def _summary(info: IndexInfo) -> IndexSummary:
    encodes: list[Any] = [info.encoder, *(vectors.encoder for vectors in info.named_vectors.values())]
    has_encoder = any(encoder is not None for encoder in encodes)
    modes = {"dense": has_encoder, "lexical": info.lexical, "hybrid": has_encoder and info.lexical}
    return IndexSummary(
        name=info.name,
        aliases=list(info.aliases),
        rows=info.rows,
        attributes=dict(list(info.attributes.items())[:MAX_ATTRIBUTES]),
        dynamic=info.dynamic,
        modes=[mode for mode, is_there in modes.items() if is_there],
    )

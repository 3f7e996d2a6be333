"""Questions about the metadata of documents: numbers, values, types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scannery.bridges.attributes import attribute_name, to_metadata
from scannery.bridges.connection import Connection
from scannery.bridges.haystack.filters import to_where
from scannery.client import AttributeStats, Datapoint, Facets

__all__ = ["MetadataQueries"]

MAX_FACETS = 10_000
"""Facets of a call."""
_OWN_FIELDS = ("title", "text", "payload", "offsets")
"""Fields of a datapoint: an attribute of such a name comes only with all fields."""
_TYPES = ((bool, "boolean"), (int, "int"), (float, "float"))


class MetadataQueries:
    """The part of the document store that describes metadata.

    Names of fields may begin with `meta.`. Of a list, each element is a value; objects are none.
    """

    _connection: Connection

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Return the number of documents that the filters allow."""
        index = self._connection.index()
        return index.count(to_where(filters, dynamic=self._dynamic))

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Do the same as `count_documents_by_filter`."""
        index = await self._connection.aindex()
        return await index.count(to_where(filters, dynamic=self._dynamic))

    def count_unique_metadata_by_filter(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """Return the number of distinct values of each field, in the documents that the filters allow."""
        index, where = self._connection.index(), to_where(filters, dynamic=self._dynamic)
        return {
            _key(name): index.facets(self._attribute(name), where, limit=1).distinct
            for name in metadata_fields
        }

    async def count_unique_metadata_by_filter_async(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """Do the same as `count_unique_metadata_by_filter`."""
        index, where = await self._connection.aindex(), to_where(filters, dynamic=self._dynamic)
        return {
            _key(name): (await index.facets(self._attribute(name), where, limit=1)).distinct
            for name in metadata_fields
        }

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the type of each field: `keyword`, `int`, `float` or `boolean`. This reads all documents."""
        return _types(self._connection.index().scan())

    async def get_metadata_fields_info_async(self) -> dict[str, dict[str, str]]:
        """Do the same as `get_metadata_fields_info`."""
        index = await self._connection.aindex()
        return _types([each async for each in index.scan()])

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field as `min` and `max`; None if it has several types."""
        return _min_max(self._connection.index().attribute_stats(self._attribute(metadata_field)))

    async def get_metadata_field_min_max_async(self, metadata_field: str) -> dict[str, Any]:
        """Do the same as `get_metadata_field_min_max`."""
        index = await self._connection.aindex()
        return _min_max(await index.attribute_stats(self._attribute(metadata_field)))

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return distinct values of a field in the order of their texts, and how many there are in all.

        `1`, `1.0`, `"1"` and `True` are four values.

        Args:
            metadata_field: its name.
            search_term: only values whose text has this part, without regard to case.
            from_: how many values to leave out.
            size: most values to return.
            filters: in which documents; default: in all.

        """
        index, where = self._connection.index(), to_where(filters, dynamic=self._dynamic)
        name = self._attribute(metadata_field)
        facets = index.facets(name, where, limit=MAX_FACETS)
        values = _listed(facets)
        if facets.distinct > len(facets):
            values = _distinct(index.scan(where=where, fields=_read(name)), name)
        return _page(values, search_term, from_, size)

    async def get_metadata_field_unique_values_async(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Do the same as `get_metadata_field_unique_values`."""
        index, where = await self._connection.aindex(), to_where(filters, dynamic=self._dynamic)
        name = self._attribute(metadata_field)
        facets = await index.facets(name, where, limit=MAX_FACETS)
        values = _listed(facets)
        if facets.distinct > len(facets):
            values = _distinct([each async for each in index.scan(where=where, fields=_read(name))], name)
        return _page(values, search_term, from_, size)

    @property
    def _dynamic(self) -> bool:
        """Whether metadata are dynamic attributes; else they have the names of the index."""
        return self._connection.info.dynamic

    def _attribute(self, field: str) -> str:
        return attribute_name(_key(field)) if self._dynamic else _key(field)


def _key(field: str) -> str:
    return field.removeprefix("meta.")


def _listed(facets: Facets) -> list[Any]:
    return [facet.value for facet in facets]


def _distinct(points: Iterable[Datapoint], name: str) -> list[Any]:
    """Return the distinct scalars of an attribute, those in lists included."""
    distinct: dict[tuple[type, Any], Any] = {}
    for point in points:
        value = _value(point.attributes, name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, (str, int, float)):
                distinct[type(each), each] = each
    return list(distinct.values())


def _read(name: str) -> list[str] | None:
    """Return the fields to read for the values of a name: its own, and that which it is a path into; None: all."""
    first = name.split(".", 1)[0]
    return None if first in _OWN_FIELDS else list(dict.fromkeys([name, first]))


def _value(attributes: Mapping[str, Any], name: str) -> Any:
    """Return the value of an attribute, or else of a path into objects, as filters and facets see it."""
    if name in attributes:
        return attributes[name]
    value: Any = attributes
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _page(values: list[Any], search_term: str | None, from_: int, size: int) -> tuple[list[Any], int]:
    if search_term:
        term = search_term.casefold()
        values = [value for value in values if term in str(value).casefold()]
    ordered = sorted(values, key=lambda value: (str(value), type(value).__name__))
    return ordered[from_ : from_ + size], len(ordered)


def _min_max(stats: AttributeStats) -> dict[str, Any]:
    return {"min": stats.min, "max": stats.max}


def _types(points: Iterable[Datapoint]) -> dict[str, dict[str, str]]:
    types: dict[str, dict[str, str]] = {}
    for point in points:
        for key, value in to_metadata(point.attributes).items():
            if value is not None:
                types[key] = {
                    "type": next((name for kind, name in _TYPES if isinstance(value, kind)), "keyword")
                }
    return types

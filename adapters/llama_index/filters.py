"""Filters of LlamaIndex as `where` dictionaries: all operators, AND, OR, NOT, and filters within filters.

A list that a node has matches as everywhere in Scannery: `==`, `in` and `any` if one of its elements does, `!=` and
`nin` if none does. A filter cannot hold booleans, and in Python 1 equals True: so 1 and 0 also match True and False.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from scannery.adapters.attributes import attribute_name
from scannery.client import Where

__all__ = ["NOTHING", "REF_DOC_ID", "all_of", "among", "where_of"]

REF_DOC_ID = "ref_doc_id"
"""The attribute with the id of the document that a node is a part of."""
_REF_DOC_IDS = (REF_DOC_ID, "doc_id", "document_id")
"""Names by which stores of LlamaIndex know it."""
NOTHING: Where = {"$not": {}}


def where_of(filters: MetadataFilters | None) -> Where:
    """Return filters as a `where` dictionary; an empty one allows all nodes.

    Raises:
        ValueError: an operator does not take the value.

    """
    parts = [
        where_of(each) if isinstance(each, MetadataFilters) else _condition(each)
        for each in (filters.filters if filters else ())
    ]
    if not parts or filters is None:
        return {}
    if filters.condition == FilterCondition.OR:
        return {"$or": parts}
    if filters.condition == FilterCondition.NOT:
        return {"$not": {"$or": parts}}
    return all_of(parts)


def all_of(parts: Sequence[Where]) -> Where:
    """Return a filter that allows what all of its parts allow."""
    wanted = [part for part in parts if part]
    if not wanted:
        return {}
    return wanted[0] if len(wanted) == 1 else {"$and": wanted}


def among(name: str, values: Sequence[Any]) -> Where:
    """Return a filter that allows values of a list, which may be empty."""
    return {name: {"$in": list(values)}} if values else NOTHING


def _condition(one: MetadataFilter) -> Where:
    name = REF_DOC_ID if one.key in _REF_DOC_IDS else attribute_name(one.key)
    operator, value = one.operator, one.value
    if operator == FilterOperator.IS_EMPTY:
        return {"$or": [{name: {"$empty": True}}, {name: ""}]}
    if operator in _LISTS:
        if not isinstance(value, list):
            raise ValueError(f"filters: {one.key} {operator.value!r} needs a list, got {value!r:.80}")
        return _LISTS[operator](name, value)
    if isinstance(value, list):
        raise ValueError(
            f"filters: {one.key} {operator.value!r} needs one value, got a list; use 'in' or 'all'"
        )
    if operator in (FilterOperator.EQ, FilterOperator.NE):
        equal: Where = among(name, _equal([value]))
        return equal if operator == FilterOperator.EQ else {"$not": equal}
    if operator == FilterOperator.CONTAINS:
        return {"$or": [{name: {"$contains": each}} for each in _equal([value])]}
    return {name: {_OPERATORS[operator]: value}}


def _equal(values: Sequence[Any]) -> list[Any]:
    """Return values, and the booleans that equal some of them."""
    return [*values, *(bool(value) for value in values if not isinstance(value, str) and value in (0, 1))]


def _all(name: str, values: list[Any]) -> Where:
    return {name: {"$all": values}} if values else {name: {"$exists": True}}


_OPERATORS = {
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
    FilterOperator.TEXT_MATCH: "$substring",
    FilterOperator.TEXT_MATCH_INSENSITIVE: "$isubstring",
}
_LISTS: dict[FilterOperator, Callable[[str, list[Any]], Where]] = {
    FilterOperator.IN: lambda name, values: among(name, _equal(values)),
    FilterOperator.NIN: lambda name, values: {"$not": among(name, _equal(values))},
    FilterOperator.ANY: lambda name, values: among(name, _equal(values)),
    FilterOperator.ALL: _all,
}

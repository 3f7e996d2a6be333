"""Filters of Haystack as those of the SDK.

Values of metadata keep their types: `"1"`, `1` and `True` are three values, and `1` equals `1.0`. A list matches if one
of its elements does. Dates are texts in ISO 8601, and compared as instants.

The content of a document is compared by its digest, which documents have as an attribute: whether it is a text, or one
of several.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from typing import Any

from haystack.errors import FilterError

from scannery.bridges.attributes import CONTENT, attribute_name, content_digest
from scannery.client import InvalidArgumentError
from scannery.client.request.filters import build_filter

__all__ = ["required_where", "to_where"]

_EVERYTHING: dict[str, Any] = {"id": {"$exists": True}}
_NOTHING: dict[str, Any] = {"id": {"$exists": False}}
_DATE = re.compile(r"\d{4}-\d\d-\d\d([Tt ]|$)")
_FIELDS = ("blob", "score", "embedding", "sparse_embedding")
"""Fields of a document that no filter sees."""
_CONTENT_OPERATORS = ("==", "!=", "in", "not in")


def to_where(filters: Any, *, dynamic: bool = True) -> dict[str, Any] | None:
    """Return the filter of the SDK; None where there are no filters.

    Args:
        filters: comparisons and logic, as `DocumentStore.filter_documents` describes them.
        dynamic: whether metadata are dynamic attributes; else they have the names of the index.

    Raises:
        FilterError: the filters are malformed, or compare what has no order.

    """
    if filters is None or filters == {}:
        return None
    where = _translated(filters, dynamic)
    try:
        build_filter(where)
    except InvalidArgumentError as error:
        raise FilterError(error.message) from error
    return where


def required_where(filters: Any, *, dynamic: bool = True) -> dict[str, Any]:
    """Return the filter of a change or deletion, which must have a condition; raises as `to_where`."""
    where = to_where(filters, dynamic=dynamic)
    if where is None:
        raise FilterError("the filters must have a condition")
    return where


def _translated(filters: Any, dynamic: bool) -> dict[str, Any]:
    if not isinstance(filters, Mapping):
        raise FilterError(f"filters must be a dictionary, got {filters!r:.80}")
    if "field" in filters:
        return _comparison(filters, dynamic)
    operator, conditions = _required(filters, "operator"), _required(filters, "conditions")
    if operator not in ("AND", "OR", "NOT"):
        raise FilterError(f"unknown logical operator {operator!r:.80}; it must be one of AND, OR, NOT")
    if not isinstance(conditions, list):
        raise FilterError(f"'conditions' must be a list, got {conditions!r:.80}")
    parts = [_translated(condition, dynamic) for condition in conditions]
    if operator == "OR":
        return {"$or": parts} if parts else _NOTHING
    both = {"$and": parts} if parts else _EVERYTHING
    return both if operator == "AND" else {"$not": both}


def _comparison(filters: Mapping[str, Any], dynamic: bool) -> dict[str, Any]:
    operator, value = _required(filters, "operator"), _required(filters, "value")
    translate = _OPERATORS.get(operator) if isinstance(operator, str) else None
    if translate is None:
        raise FilterError(f"unknown operator {operator!r:.80}; it must be one of {', '.join(_OPERATORS)}")
    if filters["field"] == "content":
        return translate(CONTENT, _digests(operator, value, dynamic))
    return translate(_name(filters["field"], dynamic), value)


def _digests(operator: str, value: Any, dynamic: bool) -> Any:
    """Return what the digests of contents are compared with."""
    if not dynamic:
        raise FilterError("documents of an index without dynamic attributes cannot be filtered by 'content'")
    if operator not in _CONTENT_OPERATORS:
        raise FilterError(
            f"'content' has no order; its operator must be one of {', '.join(_CONTENT_OPERATORS)}, got {operator!r}"
        )
    if isinstance(value, list):
        return [content_digest(each) if isinstance(each, str) else each for each in value]
    return content_digest(value) if isinstance(value, str) else value


def _name(field: Any, dynamic: bool) -> str:
    if not isinstance(field, str) or not field:
        raise FilterError(f"'field' must be a name, got {field!r:.80}")
    if field == "id":
        return field
    if field in _FIELDS:
        raise FilterError(f"documents cannot be filtered by {field!r}, only by 'id', 'content' and 'meta.…'")
    key = field.removeprefix("meta.")
    return attribute_name(key) if dynamic else key


def _required(filters: Mapping[str, Any], key: str) -> Any:
    if key not in filters:
        raise FilterError(f"{key!r} is missing in {dict(filters)!r:.200}")
    return filters[key]


def _equal(name: str, value: Any) -> dict[str, Any]:
    return {name: {"$eq": value}}


def _not_equal(name: str, value: Any) -> dict[str, Any]:
    return {name: {"$ne": value}}


def _ordered(operator: str) -> Callable[[str, Any], dict[str, Any]]:
    def translate(name: str, value: Any) -> dict[str, Any]:
        if value is None:
            return _NOTHING
        if isinstance(value, str) and not _is_date(value):
            raise FilterError(f"texts have no order, except dates in ISO 8601; got {value!r:.80}")
        if isinstance(value, (list, bool)):
            raise FilterError(f"a {type(value).__name__} has no order, got {value!r:.80}")
        return {name: {operator: value}}

    return translate


def _in(name: str, value: Any) -> dict[str, Any]:
    return {name: {"$in": _listed(value)}} if _listed(value) else _NOTHING


def _not_in(name: str, value: Any) -> dict[str, Any]:
    return {name: {"$nin": _listed(value)}} if _listed(value) else _EVERYTHING


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FilterError(f"'in' and 'not in' need a list, got {value!r:.80}")
    return value


def _is_date(text: str) -> bool:
    if not _DATE.match(text):
        return False
    try:
        dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return True


_OPERATORS: dict[str, Callable[[str, Any], dict[str, Any]]] = {
    "==": _equal,
    "!=": _not_equal,
    ">": _ordered("$gt"),
    ">=": _ordered("$gte"),
    "<": _ordered("$lt"),
    "<=": _ordered("$lte"),
    "in": _in,
    "not in": _not_in,
}
